"""Norms computed otherwise are named, and nothing else is called so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from drifts import array, drift, module_drift, random, settled
from torch import nn
from torch.nn import functional

from firstdrift.causes.hypotheses import explain
from firstdrift.causes.norm.norm_forms import snapped
from firstdrift.causes.norm.norms import norm
from firstdrift.causes.table import TABLE


class PlusOne(nn.Module):
    """A norm in the manner of Gemma."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), None, self.eps) * (1 + self.weight)


class HeadNorm(nn.Module):
    """Every head normalised, with one weight for all heads."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.unflatten(-1, (self.heads, -1))
        return functional.rms_norm(y, (y.shape[-1],), self.weight, 1e-6).flatten(-2)


def varied(seed: int, *shape: int, least: float = 1e-2) -> torch.Tensor:
    """Rows of very different size, with a mean."""
    x = random(seed, *shape) + 0.5
    sizes = torch.logspace(np.log10(least), 0.5, int(np.prod(shape[:-1])), dtype=torch.float64)
    return x * sizes.reshape(*shape[:-1], 1)


ROWS, IMAGE = varied(0, 3, 8, 32), random(1, 4, 12, 5, 6) * 2 + 0.7
LAYER, RMS, GEMMA = settled(nn.LayerNorm(32)), settled(nn.RMSNorm(32, eps=1e-5)), settled(PlusOne(32))
BATCH, GROUP, HEADS = settled(nn.BatchNorm2d(12)), settled(nn.GroupNorm(3, 12)), settled(HeadNorm(4, 8))
w, b = LAYER.weight, LAYER.bias


def batch(x: torch.Tensor, eps: float = 1e-5, training: bool = False) -> torch.Tensor:
    mean, var = BATCH.running_mean.clone(), BATCH.running_var.clone()
    return functional.batch_norm(x, mean, var, BATCH.weight, BATCH.bias, training, 0.1, eps)


def layer(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float = 1e-5) -> torch.Tensor:
    return functional.layer_norm(x, (32,), weight, bias, eps)


def rms(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-5) -> torch.Tensor:
    return functional.rms_norm(x, (32,), weight, eps)


def grouped(x: torch.Tensor, groups: int = 3, eps: float = 1e-5) -> torch.Tensor:
    return functional.group_norm(x, groups, GROUP.weight, GROUP.bias, eps)


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


Row = tuple[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor], str, dict[str, float]]
DRIFTS: dict[str, Row] = {
    "layer eps": (LAYER, ROWS, lambda x: layer(x, w, b, 1e-6), "norm-eps", {"eps": 1e-6}),
    "layer eps too large": (LAYER, ROWS, lambda x: layer(x, w, b, 2e-3), "norm-eps", {"eps": 2e-3}),
    "rms eps": (RMS, ROWS, lambda x: rms(x, RMS.weight, 1e-6), "norm-eps", {"eps": 1e-6}),
    "rms without eps": (RMS, ROWS, lambda x: rms(x, RMS.weight, 0.0), "norm-eps", {"eps": 0.0}),
    "gemma eps": (GEMMA, ROWS, lambda x: rms(x, 1 + GEMMA.weight, 1e-5), "norm-eps", {"eps": 1e-5}),
    "batch eps": (BATCH, IMAGE, lambda x: batch(x, 1e-3), "norm-eps", {"eps": 1e-3}),
    "group eps": (
        GROUP, IMAGE * 0.01, lambda x: grouped(x, 3, 1e-6), "norm-eps", {"eps": 1e-6},
    ),
    "eps outside": (
        LAYER, ROWS, lambda x: centred(x) / (x.std(-1, correction=0, keepdim=True) + 1e-5) * w + b,
        "norm-eps-placement", {},
    ),
    "one added": (RMS, ROWS, lambda x: rms(x, 1 + RMS.weight, 1e-5), "norm-plus-one", {}),
    "one not added": (GEMMA, ROWS, lambda x: rms(x, GEMMA.weight, 1e-6), "norm-plus-one", {}),
    "one added twice": (GEMMA, ROWS, lambda x: rms(x, 2 + GEMMA.weight, 1e-6), "norm-plus-one", {}),
    "mean kept": (LAYER, ROWS, lambda x: rms(x, w, 1e-5) + b, "rms-vs-layernorm", {}),
    "mean kept, no bias": (LAYER, ROWS, lambda x: rms(x, w, 1e-5), "rms-vs-layernorm", {}),
    "mean removed": (
        RMS, ROWS, lambda x: layer(x, RMS.weight, None, 1e-5), "rms-vs-layernorm", {},
    ),
    "weight missing": (LAYER, ROWS, lambda x: layer(x, None, b), "channel-scale", {}),
    "sample variance": (
        LAYER, ROWS, lambda x: centred(x) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * w + b, "scale", {},
    ),
    "norm missing": (LAYER, ROWS, lambda x: x, "norm-missing", {}),
    "norm missing but its weights": (LAYER, ROWS, lambda x: x * w + b, "norm-missing", {}),
    "batch norm missing": (BATCH, IMAGE, lambda x: x, "norm-missing", {}),
    "over two axes": (RMS, ROWS, lambda x: functional.rms_norm(x, (8, 32), None, 1e-5) * RMS.weight, "norm-axis", {}),
    "over tokens": (
        RMS, ROWS, lambda x: x / ((x**2).mean(1, keepdim=True) + 1e-5).sqrt() * RMS.weight, "norm-axis", {},
    ),
    "over all heads": (
        HEADS, ROWS, lambda x: rms(x, HEADS.weight.repeat(4), 1e-6), "norm-axis", {},
    ),
    "per head": (
        RMS, ROWS, lambda x: functional.rms_norm(x.unflatten(-1, (4, 8)), (8,), None, 1e-5).flatten(-2) * RMS.weight,
        "norm-axis", {"groups": 4},
    ),
    "groups": (GROUP, IMAGE, lambda x: grouped(x, 4), "norm-axis", {"groups": 4}),
    "interleaved groups": (
        GROUP, IMAGE, lambda x: functional.group_norm(x.unflatten(1, (4, 3)).transpose(1, 2).flatten(1, 2), 3)
        .unflatten(1, (3, 4)).transpose(1, 2).flatten(1, 2) * GROUP.weight[:, None, None] + GROUP.bias[:, None, None],
        "norm-axis", {"groups": 3},
    ),
    "batch statistics": (BATCH, IMAGE, lambda x: batch(x, training=True), "batchnorm-mode", {}),
    "instance statistics": (
        BATCH, IMAGE, lambda x: functional.instance_norm(x, weight=BATCH.weight, bias=BATCH.bias), "norm-axis", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
@pytest.mark.parametrize("row", DRIFTS.values(), ids=DRIFTS)
def test_what_the_norm_does_otherwise_is_named(row: Row, told: bool) -> None:
    module, x, wrong, label, parameters = row
    cause = explain(module_drift(module, x, wrong(x), told=told), TABLE)
    assert cause.label == label, cause
    assert {name: cause.parameters[name] for name in parameters} == parameters
    assert cause.confidence > 0.9


COARSE = ["one added", "one not added", "mean kept", "norm missing", "over tokens", "per head", "batch statistics"]


@pytest.mark.parametrize("name", COARSE)
def test_a_large_effect_is_named_in_coarse_noise(name: str) -> None:
    module, x, wrong, label, _ = DRIFTS[name]
    assert explain(module_drift(module, x, wrong(x), noise=3e-3), TABLE).label == label


def test_batch_statistics_expected_and_running_ones_found() -> None:
    evidence = drift(
        batch(IMAGE, training=True), batch(IMAGE), {"in.0": IMAGE}, {**BATCH.state_dict()}, attrs={"eps": 1e-5}
    )
    assert explain(evidence, TABLE).label == "batchnorm-mode"


@pytest.mark.parametrize("inputs", [("layers.0",), ("layers.0", "layers.0.attn")])
def test_a_norm_between_modules_is_recognised(inputs: tuple[str, ...]) -> None:
    parts = {name: varied(number, 3, 8, 32, least=1e-3) for number, name in enumerate(inputs)}
    x = torch.stack(list(parts.values())).sum(0)
    expected, found = (functional.rms_norm(x, (32,), None, eps) for eps in (1e-6, 1e-5))
    cause = explain(drift(expected, found, parts, port="in.0"), TABLE)
    assert (cause.label, cause.parameters) == ("norm-eps", {"eps": 1e-5, "reference_eps": 1e-6})


def test_an_eps_that_coarse_noise_hides_is_not_guessed() -> None:
    x = random(0, 16, 32)
    found = functional.rms_norm(x, (32,), RMS.weight, 1e-6)
    assert explain(module_drift(RMS, x, found, noise=3e-3), TABLE).label != "norm-eps"


CLAIMED = {row[3] for row in DRIFTS.values()} - {"scale", "channel-scale"}

OTHERS: dict[str, tuple[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a factor": (LAYER, random(0, 8, 32), lambda x: LAYER(x) * 0.97),
    "a factor above one": (LAYER, ROWS, lambda x: LAYER(x) * 1.5),
    "a factor of rows": (RMS, ROWS, lambda x: RMS(x) * (1 + 0.1 * random(7, 3, 8, 1))),
    "rounding": (RMS, ROWS, lambda x: RMS(x).bfloat16().double()),
    "another weight": (RMS, ROWS, lambda x: functional.rms_norm(x, (32,), RMS.weight.flip(0), 1e-5)),
    "another tensor": (LAYER, ROWS, lambda x: random(9, 3, 8, 32)),
    "a batch norm's channels moved": (BATCH, IMAGE, lambda x: BATCH(x).flip(1)),
    "zeros": (LAYER, ROWS, lambda x: torch.zeros_like(x)),
    "NaN": (LAYER, ROWS, lambda x: LAYER(x).index_fill(0, torch.tensor([1]), float("nan"))),
}


@pytest.mark.parametrize("row", OTHERS.values(), ids=OTHERS)
def test_another_cause_is_not_called_a_norm(row: tuple[nn.Module, torch.Tensor, Callable]) -> None:
    module, x, wrong = row
    assert explain(module_drift(module, x, wrong(x)), TABLE).label not in CLAIMED


@pytest.mark.parametrize(("factor", "noise"), [(0.98, 1e-7), (0.98509, 1e-3)])
def test_a_factor_that_might_be_an_eps_is_not_called_one(factor: float, noise: float) -> None:
    x = random(0, 16, 32)
    x = x / x.square().mean(-1, keepdim=True).sqrt()  # rows of one size do not tell them apart
    assert "norm-eps" not in {one.label for one in norm(module_drift(RMS, x, RMS(x) * factor, noise))}


def test_what_changes_nothing_explains_nothing() -> None:
    x = random(0, 16, 32)  # so large that where the eps stands makes no difference
    found = LAYER(x) * (1 + 3e-3 * random(5, 16, 32))
    assert not list(norm(module_drift(LAYER, x, found, noise=1e-3)))


@pytest.mark.parametrize(
    ("eps", "uncertainty", "said"),
    [(1.04e-5, 3e-7, 1e-5), (9.7e-6, 2e-7, 1e-5), (1.3e-5, 1e-9, 1.3e-5), (1e-12, 1e-9, 0.0), (2.001e-3, 0.0, 2e-3)],
)
def test_an_eps_is_what_somebody_would_have_written(eps: float, uncertainty: float, said: float) -> None:
    assert snapped(eps, uncertainty) == said


def test_an_operation_that_is_no_norm_says_nothing() -> None:
    module = settled(nn.Linear(32, 32))
    assert explain(module_drift(module, ROWS, functional.layer_norm(ROWS, (32,))), TABLE).label not in CLAIMED


@pytest.mark.parametrize("x", [torch.zeros(2, 4), torch.ones(1, 1), torch.zeros(0, 4), torch.tensor(3.0)])
def test_degenerate_tensors_are_survived(x: torch.Tensor) -> None:
    evidence = drift(x, x + 1, {"in.0": x}, {"weight": torch.ones(4), "bias": torch.zeros(4)})
    assert explain(evidence, TABLE).label not in CLAIMED


def update(momentum: float, unbiased: bool = True) -> dict[str, np.ndarray]:
    mean, var = BATCH.running_mean, BATCH.running_var
    seen = IMAGE.transpose(0, 1).flatten(1)
    new = {"running_mean": seen.mean(1), "running_var": seen.var(1, correction=int(unbiased))}
    return {name: array(momentum * (new[name] - old)) for name, old in (("running_mean", mean), ("running_var", var))}


@pytest.mark.parametrize(
    ("port", "found", "label", "momentum"),
    [
        ("running_mean", update(0.9), "batchnorm-momentum", 0.9),
        ("running_var", update(0.9), "batchnorm-momentum", 0.9),
        ("running_mean", update(0.01), "batchnorm-momentum", 0.01),
        ("running_var", update(0.1, unbiased=False), "batchnorm-unbiased", None),
        ("running_mean", {"running_mean": update(0.1)["running_mean"][::-1].copy()}, "permutation", None),
    ],
)
def test_how_running_statistics_were_updated(port: str, found: dict, label: str, momentum: float | None) -> None:
    inputs = {"in.0": IMAGE, "weight": BATCH.state_dict()[port]}
    cause = explain(drift(update(0.1)[port], found[port], inputs, phase="weight_after", port=port), TABLE)
    assert cause.label == label
    assert momentum is None or cause.parameters["momentum"] == pytest.approx(momentum, rel=1e-4)


@pytest.mark.parametrize("expected", [0.7312, 0.99, 0.999])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 3)])
def test_a_few_equal_numbers_are_no_norm(shape: tuple[int, ...], expected: float) -> None:
    found = torch.full(shape, 0.7488)
    assert not list(norm(drift(torch.full(shape, expected), found, {"in.0": found})))
