"""Linear maps computed otherwise are named, and nothing else is called so."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from drifts import array, module_drift, random, settled
from torch import nn
from torch.nn import functional
from torch.nn.functional import linear

from firstdrift.causes.hypotheses import explain
from firstdrift.causes.linear import accumulated
from firstdrift.causes.precision.operands import on_grid, shortened
from firstdrift.causes.table import TABLE

SQUARE, WIDE = settled(nn.Linear(64, 64)), settled(nn.Linear(128, 48))
X, LONG = random(0, 3, 20, 64), random(1, 40, 128)
w, b = WIDE.weight, WIDE.bias
CONV, IMAGE = settled(nn.Conv1d(4, 6, 3)), random(2, 2, 4, 9)


class Untransposed(nn.Module):
    """A linear map that keeps its weight as (in, out)."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(wide, out))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


GPT = settled(Untransposed(64, 64))


def int8(weight: torch.Tensor, size: int | None = None, bits: int = 8, symmetric: bool = True) -> torch.Tensor:
    rows = array(weight).reshape(-1, size or weight.shape[1])
    return torch.from_numpy(on_grid(rows, bits, symmetric).reshape(weight.shape))


def summed(x: torch.Tensor, chunk: int, dtype: str) -> torch.Tensor:
    return torch.from_numpy(accumulated(array(x), array(w), chunk, dtype)) + b


Wrong = Callable[[torch.Tensor], torch.Tensor]
Row = tuple[nn.Module, torch.Tensor, Wrong, str, str]
DRIFTS: dict[str, Row] = {
    "bias missing": (WIDE, LONG, lambda x: linear(x, w), "missing-bias", "bias is not added"),
    "bias twice": (WIDE, LONG, lambda x: WIDE(x) + b, "double-bias", "2 times"),
    "bias on four ranks": (WIDE, LONG, lambda x: WIDE(x) + 3 * b, "double-bias", "4 times"),
    "bias of a convolution": (CONV, IMAGE, lambda x: functional.conv1d(x, CONV.weight), "missing-bias", "not added"),
    "transposed": (SQUARE, X, lambda x: x @ SQUARE.weight + SQUARE.bias, "transpose", "transposed"),
    "transposed, kept as (in, out)": (GPT, X, lambda x: x @ GPT.weight.T + GPT.bias, "transpose", "transposed"),
    "reshaped, not transposed": (WIDE, LONG, lambda x: x @ w.reshape(128, 48) + b, "transpose", "memory"),
    "bf16 weight": (WIDE, LONG, lambda x: linear(x, w.bfloat16().double(), b), "dtype-rounding", "weight .* bf16"),
    "f16 input": (WIDE, LONG, lambda x: WIDE(x.half().double()), "dtype-rounding", "input .* f16"),
    "bf16 operands": (
        WIDE, LONG, lambda x: linear(x.bfloat16().double(), w.bfloat16().double(), b), "dtype-rounding", "and",
    ),
    "tf32 operands": (
        WIDE, LONG, lambda x: torch.from_numpy(shortened(array(x), "tf32") @ shortened(array(w), "tf32").T) + b,
        "dtype-rounding", "tf32",
    ),
    "int8 per channel": (WIDE, LONG, lambda x: linear(x, int8(w), b), "quantisation", "int8 per output"),
    "int8 with zero point": (
        WIDE, LONG, lambda x: linear(x, int8(w, symmetric=False), b), "quantisation", "zero point",
    ),
    "int8 for all": (WIDE, LONG, lambda x: linear(x, int8(w, w.numel()), b), "quantisation", "one step"),
    "int4 in groups": (WIDE, LONG, lambda x: linear(x, int8(w, 32, 4), b), "quantisation", "int4 in groups of 32"),
    "f16 sums": (
        WIDE, LONG, lambda x: summed(x, 16, "f16"), "accumulator-precision", "after every 16",
    ),
    "bf16 sums": (
        WIDE, LONG, lambda x: summed(x, 1, "bf16"), "accumulator-precision", "after every 1 ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
@pytest.mark.parametrize("row", DRIFTS.values(), ids=DRIFTS)
def test_what_the_map_does_otherwise_is_named(row: Row, told: bool) -> None:
    module, x, wrong, label, sentence = row
    cause = explain(module_drift(module, x, wrong(x), told=told), TABLE)
    assert cause.label == label, cause
    assert re.search(sentence, cause.sentence)


@pytest.mark.parametrize("name", ["bias missing", "bias twice", "transposed", "int4 in groups"])
def test_a_large_effect_is_named_in_coarse_noise(name: str) -> None:
    module, x, wrong, label, _ = DRIFTS[name]
    assert explain(module_drift(module, x, wrong(x), noise=3e-3), TABLE).label == label


def test_the_operands_tell_which_of_them_was_rounded() -> None:
    found = linear(LONG, w.half().double(), b)
    assert "weight is rounded to f16" in explain(module_drift(WIDE, LONG, found), TABLE).sentence


CLAIMED = {row[3] for row in DRIFTS.values()}

OTHERS: dict[str, tuple[nn.Module, torch.Tensor, Wrong]] = {
    "a factor": (WIDE, LONG, lambda x: WIDE(x) * 0.9),
    "an offset that is not the bias": (WIDE, LONG, lambda x: WIDE(x) + b.flip(0)),
    "half the bias": (WIDE, LONG, lambda x: WIDE(x) - b / 2),
    "noise": (WIDE, LONG, lambda x: WIDE(x) * (1 + 3e-4 * random(5, 40, 48))),
    "another weight": (SQUARE, X, lambda x: linear(x, SQUARE.weight.flip(0), SQUARE.bias)),
    "a rounded output": (WIDE, LONG, lambda x: WIDE(x).bfloat16().double()),
    "zeros": (WIDE, LONG, lambda x: torch.zeros(40, 48, dtype=torch.float64)),
    "NaN": (WIDE, LONG, lambda x: WIDE(x).index_fill(0, torch.tensor([1]), float("nan"))),
}


@pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS)
def test_another_cause_is_not_called_so(row: tuple[nn.Module, torch.Tensor, Wrong]) -> None:
    module, x, wrong = row
    assert explain(module_drift(module, x, wrong(x)), TABLE).label not in CLAIMED


def test_a_symmetric_weight_is_never_called_transposed() -> None:
    module = settled(nn.Linear(8, 8))
    module.weight.data = module.weight.data + module.weight.data.T
    cause = explain(module_drift(module, random(0, 5, 8), module(random(0, 5, 8)) * 1.1), TABLE)
    assert cause.label not in CLAIMED


@pytest.mark.parametrize("shape", [(1, 1), (0, 4), (2, 4)])
def test_degenerate_tensors_are_survived(shape: tuple[int, int]) -> None:
    module = nn.Linear(shape[1], shape[1]).double()
    for one in module.parameters():
        one.data.zero_()
    x = torch.zeros(shape, dtype=torch.float64)
    assert explain(module_drift(module, x, module(x) + 1), TABLE).label not in CLAIMED


def test_large_maps_are_judged_on_a_part() -> None:
    module, x = settled(nn.Linear(2048, 2048)), random(3, 2, 1024, 2048)
    found = x @ module.weight + module.bias
    assert explain(module_drift(module, x, found), TABLE).label == "transpose"


def test_int8_grid_keeps_rows_apart() -> None:
    rows = np.array([[1.0, 0.004], [100.0, 0.3]])
    np.testing.assert_allclose(on_grid(rows, 8), [[1.0, 1 / 127], [100.0, 0.0]])


def test_values_are_rounded_as_hardware_rounds_them() -> None:
    x = random(0, 1000)
    np.testing.assert_array_equal(shortened(array(x), "bf16"), array(x.float().bfloat16().double()))
    np.testing.assert_array_equal(shortened(array(x), "f16"), array(x.float().half().double()))
    step = 2.0**-10  # of tf32 above 1
    np.testing.assert_array_equal(shortened(np.array([1 + 0.75 * step, 1 + 0.25 * step]), "tf32"), [1 + step, 1.0])
