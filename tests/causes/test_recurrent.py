"""Recurrent layers computed otherwise are named, and nothing else is called so."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from blame import Run, numbers
from drifts import drift, random, settled
from torch import nn

from firstdrift.causes.evidence import Evidence
from firstdrift.causes.formulas import Cell, recur
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.recurrence.cells import STEPS
from firstdrift.causes.table import TABLE
from firstdrift.sites import Site

X = random(0, 7, 3, 5)
LSTM, GRU, RNN = settled(nn.LSTM(5, 4)), settled(nn.GRU(5, 4)), settled(nn.RNN(5, 4))
DEEP = settled(nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True))
H0, C0 = random(1, 1, 3, 4), random(2, 1, 3, 4)


def ordered(module: nn.Module, order: Sequence[int]) -> nn.Module:
    """The module whose gates are taken in another order."""
    other = copy.deepcopy(module)
    for one in other.parameters():
        one.data = torch.cat([one.data.chunk(len(order))[gate] for gate in order])
    return other


def without(module: nn.Module, name: str) -> nn.Module:
    other = copy.deepcopy(module)
    getattr(other, name).data.zero_()
    return other


def otherwise(module: nn.Module, formula: str, x: torch.Tensor) -> np.ndarray:
    cell = Cell(*(one.detach().numpy() for one in module.parameters()))
    zero = np.zeros((x.shape[1], cell.hidden))
    return recur(STEPS[len(cell.w_hh) // cell.hidden][formula], x.numpy(), cell, (zero, zero))[0]


def reset_before(x: torch.Tensor) -> torch.Tensor:
    """A GRU in the manner of ONNX's linear_before_reset = 0, written out."""
    w_ih, w_hh, b_ih, b_hh = (one.chunk(3) for one in GRU.parameters())
    h, out = torch.zeros(3, 4, dtype=torch.float64), []
    for one in x:
        r, z = (torch.sigmoid(one @ w_ih[n].T + b_ih[n] + h @ w_hh[n].T + b_hh[n]) for n in (0, 1))
        new = torch.tanh(one @ w_ih[2].T + b_ih[2] + (r * h) @ w_hh[2].T + b_hh[2])
        h = (1 - z) * new + z * h
        out.append(h)
    return torch.stack(out)


Row = tuple[nn.Module, Callable[[torch.Tensor], object], str, str]
DRIFTS: dict[str, Row] = {
    "i, f, o, g": (LSTM, lambda x: ordered(LSTM, (0, 1, 3, 2))(x)[0], "gate-order", "input, forget, output, cell"),
    "i, o, f, g": (LSTM, lambda x: ordered(LSTM, (0, 2, 1, 3))(x)[0], "gate-order", "input, cell, forget, output"),
    "z, r, n": (GRU, lambda x: ordered(GRU, (1, 0, 2))(x)[0], "gate-order", "update, reset, new"),
    "deep gates": (DEEP, lambda x: ordered(DEEP, (0, 1, 3, 2))(x)[0], "gate-order", "input, forget, output, cell"),
    "reset before": (GRU, reset_before, "gate-formula", "before the linear map"),
    "update exchanged": (
        GRU, lambda x: otherwise(GRU, "with the update gate the other way round", x), "gate-formula", "update gate",
    ),
    "forget bias": (
        LSTM, lambda x: otherwise(LSTM, "with 1 added to the forget gate", x), "gate-formula", "forget",
    ),
    "hard sigmoid": (LSTM, lambda x: otherwise(LSTM, "with Keras's hard sigmoids", x), "gate-formula", "Keras"),
    "ReLU": (RNN, lambda x: otherwise(RNN, "with ReLU", x), "gate-formula", "ReLU"),
    "one bias": (LSTM, lambda x: without(LSTM, "bias_hh_l0")(x)[0], "missing-bias", "b_hh"),
    "backwards": (GRU, lambda x: GRU(x.flip(0))[0], "permutation", "backwards"),
}  # fmt: skip


def evidence_of(module: nn.Module, x: torch.Tensor, found: object, noise: float = 1e-7, **inputs: torch.Tensor):
    given = tuple(inputs.values())
    state = given if len(given) == 2 else given[0] if given else None
    return drift(
        module(x, state)[0], found, {"in.0": x, **inputs}, dict(module.named_parameters()), noise, type(module).__name__
    )


@pytest.mark.parametrize("noise", [1e-7, 1e-4])
@pytest.mark.parametrize("row", DRIFTS.values(), ids=DRIFTS)
def test_what_the_layer_does_otherwise_is_named(row: Row, noise: float) -> None:
    module, wrong, label, sentence = row
    cause = explain(evidence_of(module, X, wrong(X), noise), TABLE)
    assert cause.label == label, cause
    assert sentence in cause.sentence


def test_directions_concatenated_the_other_way_round() -> None:
    module, x = settled(nn.GRU(5, 4, bidirectional=True)), X
    found = module(x)[0].unflatten(-1, (2, 4)).flip(-2).flatten(-2)
    assert explain(evidence_of(module, x, found), TABLE).label == "concat-order"


def test_a_first_state_that_is_not_used() -> None:
    cause = explain(evidence_of(LSTM, X, LSTM(X)[0], **{"in.1.0": H0, "in.1.1": C0}), TABLE)
    assert cause.label == "missing-term"


def test_first_states_that_are_exchanged() -> None:
    cause = explain(evidence_of(LSTM, X, LSTM(X, (C0, H0))[0], **{"in.1.0": H0, "in.1.1": C0}), TABLE)
    assert cause.label == "swapped-operands"


def test_the_last_state_tells_as_well() -> None:
    wrong = ordered(LSTM, (0, 1, 3, 2))
    for number in (0, 1):
        evidence = drift(LSTM(X)[1][number], wrong(X)[1][number], {"in.0": X}, dict(LSTM.named_parameters()))
        assert explain(evidence, TABLE).label == "gate-order"


def test_one_step_of_a_cell() -> None:
    cell = settled(nn.GRUCell(5, 4))
    x, h = X[0], H0[0]
    evidence = drift(cell(x, h), ordered(cell, (1, 0, 2))(x, h), {"in.0": x, "in.1": h}, dict(cell.named_parameters()))
    assert explain(evidence, TABLE).label == "gate-order"


CLAIMED = {row[2] for row in DRIFTS.values()} - {"permutation"}

OTHERS: dict[str, Callable[[torch.Tensor], object]] = {
    "a factor": lambda x: LSTM(x)[0] * 0.9,
    "other weights": lambda x: settled(nn.LSTM(5, 4), 7)(x)[0],
    "NaN": lambda x: LSTM(x)[0] * float("nan"),
    "zeros": lambda x: LSTM(x)[0] * 0,
    "shifted in time": lambda x: LSTM(x)[0].roll(1, 0),
}


@pytest.mark.parametrize("wrong", OTHERS.values(), ids=OTHERS)
def test_another_cause_is_not_called_so(wrong: Callable[[torch.Tensor], object]) -> None:
    assert explain(evidence_of(LSTM, X, wrong(X)), TABLE).label not in CLAIMED


class ByHand:
    """Cells as people write them: stacked weights of any names, in the module or in its parts, in any order."""

    HERE = "encoder.rnn"

    def __init__(self, gates: int, order: Sequence[int], joined: bool = False, turned: bool = False) -> None:
        rows = 4 * gates
        self.w, self.u = (random(seed, rows, width) * 0.5 for seed, width in ((31, 5), (32, 4)))
        self.b, self.c = (random(seed, rows) for seed in (33, 34))
        self.order, self.joined, self.turned = order, joined, turned

    def weights(self) -> dict[str, torch.Tensor]:
        """By their paths, as they lie in the module."""
        if self.joined:
            return {"gates.weight": torch.cat([self.w, self.u], 1), "gates.bias": self.b}
        u = self.u.T if self.turned else self.u
        return {"x2h.weight": self.w, "x2h.bias": self.b, "h2h.weight": u, "h2h.bias": self.c}

    def __call__(self, x: torch.Tensor, formula: str = "as usual") -> torch.Tensor:
        blocks = [slice(4 * one, 4 * one + 4) for one in self.order]
        w, u, b, c = (torch.cat([part[one] for one in blocks]).numpy() for part in (self.w, self.u, self.b, self.c))
        cell = Cell(w, u, b, None if self.joined else c)
        zero = np.zeros((x.shape[1], 4))
        return torch.from_numpy(recur(STEPS[len(self.order)][formula], x.numpy(), cell, (zero, zero))[0])

    def evidence(self, x: torch.Tensor, found: torch.Tensor, driven: bool = False, last: bool = False):
        expected = self(x)
        expected, found = (one[-1] if last else one for one in (expected, found))
        place = {Site(0, "weight", f"{self.HERE}.{path.rpartition('.')[0]}", path.rpartition(".")[2]): one.numpy()
                 for path, one in self.weights().items()}  # fmt: skip
        fed = {Site(0, "fwd", self.HERE, "in.0"): x.numpy()}
        inputs = {f"{self.HERE}.x2h": (x @ self.w.T + self.b).numpy()} if driven else {f"{self.HERE}.pre": x.numpy()}
        around = Run(place if driven else {**place, **fed})
        return Evidence(
            Site(0, "fwd", self.HERE, "out"), expected.numpy(), found.numpy(), 1e-7, op="Cell", inputs=inputs,
            candidate_inputs=inputs, around=around,
        )  # fmt: skip


BEFORE = "with the reset gate before the linear map of the state"
CELLS = {
    "GRU": ByHand(3, (0, 1, 2)), "GRU of z, r, n": ByHand(3, (1, 0, 2)), "turned": ByHand(3, (0, 1, 2), turned=True),
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_a_cell_written_by_hand_is_found_by_its_weights(cell: ByHand, driven: bool, last: bool) -> None:
    cause = explain(cell.evidence(X, cell(X, BEFORE), driven, last), TABLE)
    assert cause.label == "gate-formula", cause
    assert "reset gate before" in cause.sentence


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (1, 0, 3, 2)])
@pytest.mark.parametrize("joined", [False, True])
def test_an_lstm_written_by_hand_is_found_in_any_order_of_its_gates(order: Sequence[int], joined: bool) -> None:
    cell = ByHand(4, order, joined)
    cause = explain(cell.evidence(X, cell(X, "with 1 added to the forget gate")), TABLE)
    assert cause.label == "gate-formula", cause
    assert "forget gate" in cause.sentence


def test_gates_taken_in_another_order_are_named_of_a_cell_written_by_hand() -> None:
    cell = ByHand(3, (0, 1, 2))
    other = copy.copy(cell)
    other.order = (1, 0, 2)
    assert explain(cell.evidence(X, other(X)), TABLE).label == "gate-order"


@pytest.mark.parametrize("change", [lambda x: x.flip(-1), lambda x: x + 0.1 * random(9, *x.shape)])
def test_what_no_cell_gives_is_not_its_formula(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    cell = ByHand(3, (0, 1, 2))
    assert explain(cell.evidence(X, change(cell(X))), TABLE).label not in ("gate-formula", "gate-order")


def test_a_block_of_such_weights_that_is_no_recurrence_is_not_called_one() -> None:
    cell = ByHand(3, (0, 1, 2))
    given = cell.evidence(X, cell(X, BEFORE))
    assert explain(replace(given, expected=numbers(*given.expected.shape)), TABLE).label != "gate-formula"
