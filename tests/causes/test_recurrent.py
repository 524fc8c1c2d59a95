"""Recurrent layers computed otherwise are named, and nothing else is called so."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from drifts import drift, random, settled
from torch import nn

from firstdrift.causes.formulas import Cell, recur
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.recurrence.cells import STEPS
from firstdrift.causes.table import TABLE

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
