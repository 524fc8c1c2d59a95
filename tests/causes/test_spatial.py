"""Convolutions, pools and resizings computed otherwise are named, and nothing else is called so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from drifts import drift, module_drift, random, settled
from torch import nn
from torch.nn.functional import avg_pool2d, conv1d, conv2d, interpolate, max_pool2d, pad

from firstdrift.causes.hypotheses import explain
from firstdrift.causes.table import TABLE

X = random(0, 2, 8, 9, 10)
SAME = settled(nn.Conv2d(8, 8, 3, padding=1))
HALVING = settled(nn.Conv2d(8, 6, 3, stride=2, padding=1))
GROUPED = settled(nn.Conv2d(8, 12, 3, padding=1, groups=4))
LINE, SIGNAL = settled(nn.Conv1d(4, 6, 5, padding=2)), random(1, 3, 4, 20)
MEAN, PADDED, LARGEST = nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1)
OVERHANGING = nn.AvgPool2d(2, 2, ceil_mode=True)
TWICE, CORNERS = nn.Upsample((18, 25), mode="bilinear"), nn.Upsample((18, 25), mode="bilinear", align_corners=True)
NEAREST, CUBIC = nn.Upsample((18, 25), mode="nearest"), nn.Upsample((18, 25), mode="bicubic")
w, b = SAME.weight, SAME.bias


def same(x: torch.Tensor, weight: torch.Tensor = w) -> torch.Tensor:
    return conv2d(x, weight, b, padding=1)


def larger(x: torch.Tensor, **settings: object) -> torch.Tensor:
    return interpolate(x, (18, 25), **settings)


def interleaved(x: torch.Tensor) -> torch.Tensor:
    return GROUPED(x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2))


def smaller(x: torch.Tensor, **settings: object) -> torch.Tensor:
    return interpolate(x, (6, 7), **settings)


class Smaller(nn.Module):
    """A resize that says nothing of its settings."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return smaller(x, **self.settings)


SMALLER, ROUGH = Smaller(mode="bilinear", antialias=True), Smaller(mode="bilinear")
SMALLER_CUBIC = Smaller(mode="bicubic", antialias=True)

Wrong = Callable[[torch.Tensor], torch.Tensor]
Row = tuple[nn.Module, torch.Tensor, Wrong, str]
DRIFTS: dict[str, Row] = {
    "flipped": (SAME, X, lambda x: same(x, w.flip(2, 3)), "conv-flip"),
    "flipped along one axis": (SAME, X, lambda x: same(x, w.flip(3)), "conv-flip"),
    "transposed in space": (SAME, X, lambda x: same(x, w.transpose(2, 3)), "conv-flip"),
    "flipped in time": (LINE, SIGNAL, lambda x: conv1d(x, LINE.weight.flip(2), LINE.bias, padding=2), "conv-flip"),
    "channels exchanged": (SAME, X, lambda x: same(x, w.transpose(0, 1)), "conv-layout"),
    "kernel as OHWI": (SAME, X, lambda x: same(x, w.permute(0, 2, 3, 1).reshape(w.shape)), "conv-layout"),
    "kernel as HWIO": (SAME, X, lambda x: same(x, w.permute(2, 3, 1, 0).reshape(w.shape)), "conv-layout"),
    "image as NHWC": (SAME, X, lambda x: same(x.permute(0, 2, 3, 1).reshape(x.shape)), "conv-layout"),
    "interleaved groups": (GROUPED, X, interleaved, "conv-layout"),
    "TensorFlow's padding": (
        HALVING, random(2, 2, 8, 10, 10),
        lambda x: conv2d(pad(x, (0, 1, 0, 1)), HALVING.weight, HALVING.bias, stride=2), "padding",
    ),
    "padding on one side of one axis": (SAME, X, lambda x: conv2d(pad(x, (2, 0, 1, 1)), w, b), "padding"),
    "reflected": (SAME, X, lambda x: conv2d(pad(x, (1, 1, 1, 1), mode="reflect"), w, b), "padding"),
    "replicated": (SAME, X, lambda x: conv2d(pad(x, (1, 1, 1, 1), mode="replicate"), w, b), "padding"),
    "wrapped": (SAME, X, lambda x: conv2d(pad(x, (1, 1, 1, 1), mode="circular"), w, b), "padding"),
    "causal": (LINE, SIGNAL, lambda x: conv1d(pad(x, (4, 0)), LINE.weight, LINE.bias), "padding"),
    "bf16 weight": (SAME, X, lambda x: same(x, w.bfloat16().double()), "dtype-rounding"),
    "f16 input": (SAME, X, lambda x: same(x.half().double()), "dtype-rounding"),
    "int8 weight": (
        SAME, X, lambda x: same(x, (w / (s := w.abs().amax((1, 2, 3), True) / 127)).round() * s), "quantisation",
    ),
    "padding not counted": (PADDED, X, lambda x: avg_pool2d(x, 3, 2, 1, count_include_pad=False), "pool-count-pad"),
    "overhang counted": (OVERHANGING, X, lambda x: avg_pool2d(pad(x, (0, 0, 0, 1)), 2), "pool-count-pad"),
    "maximum for mean": (MEAN, X, lambda x: max_pool2d(x, 2), "pool-mode"),
    "mean for maximum": (LARGEST, X, lambda x: avg_pool2d(x, 3, 2, 1), "pool-mode"),
    "zeros in a maximum": (LARGEST, X - 1, lambda x: max_pool2d(pad(x, (1, 1, 1, 1)), 3, 2), "padding"),
    "pool begins elsewhere": (LARGEST, random(3, 2, 8, 10, 10),
                              lambda x: max_pool2d(pad(x, (0, 1, 0, 1), value=-1e9), 3, 2), "padding"),
    "flattened from NHWC": (nn.Flatten(), X, lambda x: x.permute(0, 2, 3, 1).flatten(1), "axis-order"),
    "corners aligned": (TWICE, X, lambda x: larger(x, mode="bilinear", align_corners=True), "interpolation"),
    "corners not aligned": (CORNERS, X, lambda x: larger(x, mode="bilinear"), "interpolation"),
    "nearest for linear": (TWICE, X, lambda x: larger(x, mode="nearest"), "interpolation"),
    "centres of pixels": (NEAREST, X, lambda x: larger(x, mode="nearest-exact"), "interpolation"),
    "no antialiasing": (SMALLER, X, lambda x: smaller(x, mode="bilinear"), "interpolation"),
    "antialiasing": (ROUGH, X, lambda x: smaller(x, mode="bilinear", antialias=True), "interpolation"),
    "no antialiasing, cubic": (SMALLER_CUBIC, X, lambda x: smaller(x, mode="bicubic"), "interpolation"),
    "linear and antialiased for cubic": (
        SMALLER_CUBIC, X, lambda x: smaller(x, mode="bilinear", antialias=True), "interpolation",
    ),
    "corners aligned and antialiased": (
        SMALLER, X, lambda x: smaller(x, mode="bilinear", antialias=True, align_corners=True), "interpolation",
    ),
    "linear for cubic": (CUBIC, X, lambda x: larger(x, mode="bilinear"), "interpolation"),
}  # fmt: skip


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
@pytest.mark.parametrize("row", DRIFTS.values(), ids=DRIFTS)
def test_what_is_done_otherwise_is_named(row: Row, told: bool) -> None:
    module, x, wrong, label = row
    cause = explain(module_drift(module, x, wrong(x), told=told), TABLE)
    assert cause.label == label, cause


@pytest.mark.parametrize("name", ["flipped", "reflected", "kernel as OHWI", "padding not counted", "corners aligned"])
def test_a_large_effect_is_named_in_coarse_noise(name: str) -> None:
    module, x, wrong, label = DRIFTS[name]
    assert explain(module_drift(module, x, wrong(x), noise=3e-3), TABLE).label == label


def test_how_much_padding_stands_before_is_said() -> None:
    module, x, wrong, _ = DRIFTS["TensorFlow's padding"]
    assert explain(module_drift(module, x, wrong(x)), TABLE).parameters == {"before": 0, "reference_before": 1}


CLAIMED = {row[3] for row in DRIFTS.values()}

OTHERS: dict[str, tuple[nn.Module, torch.Tensor, Wrong]] = {
    "a factor": (SAME, X, lambda x: SAME(x) * 0.9),
    "another weight": (SAME, X, lambda x: same(x, w.roll(1, 0))),
    "an output shifted": (SAME, X, lambda x: SAME(x).roll(1, 3)),
    "borders cut": (SAME, X, lambda x: pad(SAME(x)[..., 1:-1, 1:-1], (1, 1, 1, 1))),
    "a rounded output": (SAME, X, lambda x: SAME(x).bfloat16().double()),
    "a pool scaled": (MEAN, X, lambda x: MEAN(x) * 4),
    "a flattened row turned round": (nn.Flatten(), X, lambda x: x.flatten(1).flip(1)),
    "a smaller image shifted": (SMALLER, X, lambda x: SMALLER(x.roll(1, 3))),
    "an image flipped": (TWICE, X, lambda x: TWICE(x).flip(3)),
    "NaN": (SAME, X, lambda x: SAME(x).index_fill(0, torch.tensor([1]), float("nan"))),
    "zeros": (MEAN, X, lambda x: MEAN(x) * 0),
}


@pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS)
def test_another_cause_is_not_called_so(row: tuple[nn.Module, torch.Tensor, Wrong]) -> None:
    module, x, wrong = row
    assert explain(module_drift(module, x, wrong(x)), TABLE).label not in CLAIMED


def test_a_pool_between_modules_is_recognised() -> None:
    evidence = drift(X.mean((2, 3), keepdim=True), X.amax((2, 3), keepdim=True), {"body": X}, port="in.0")
    assert explain(evidence, TABLE).label == "pool-mode"


@pytest.mark.parametrize("x", [torch.zeros(1, 1, 1, 1), torch.zeros(0, 1, 3, 3), torch.ones(1, 1, 3, 3)])
def test_degenerate_tensors_are_survived(x: torch.Tensor) -> None:
    module = nn.Conv2d(1, 1, 1).double()
    evidence = module_drift(module, x.double(), module(x.double()) + 1)
    assert explain(evidence, TABLE).label not in CLAIMED
