"""A norm that rounds on the way is told from one that has another eps, and from noise."""

import numpy as np
import pytest
import torch
from blame import blurred, cause, drift, numbers

from firstdrift.causes.norm.norm_precision import rounds_inside

X, GAIN, BIAS = 3 * numbers(6, 20, 48) + 0.5, 1 + 0.1 * numbers(48, seed=1), 0.1 * numbers(48, seed=2)
NOISE = 1e-6


def norm(x, dtype=None, at=(), centred=True, real=torch.float64):
    """A norm in a dtype, with some stages in a shorter one."""
    x = torch.tensor(x, dtype=real)

    def short(values, stage):
        return values.to(dtype).to(real) if stage in at else values

    c = short(x - x.mean(-1, keepdim=True) if centred else x, "centred")
    squares = short(c * c, "squares")
    total = squares.sum(-1, keepdim=True)
    if "running" in at:
        total = torch.zeros_like(total)
        for n in range(x.shape[-1]):
            total = (total + squares[..., n : n + 1]).to(dtype).to(real)
    y = short(c / torch.sqrt(short(total, "sum") / x.shape[-1] + 1e-5), "normalised")
    y = y * torch.tensor(GAIN, dtype=real)
    return (y + torch.tensor(BIAS, dtype=real) if centred else y).double().numpy()


def said_of(found, centred=True):
    weights = {"weight": GAIN, "bias": BIAS} if centred else {"weight": GAIN}
    given = {"inputs": {"in.0": X}, "parameters": weights, "op": "LayerNorm" if centred else "RMSNorm"}
    expected = norm(X, centred=centred)
    return cause(expected, lambda _: found, NOISE, attrs={"eps": 1e-5}, replayed=True, **given)


@pytest.mark.parametrize("real", [torch.float64, torch.float32])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("stages", "label"),
    [
        (("centred",), "dtype-rounding"),
        (("squares", "sum"), "dtype-rounding"),
        (("centred", "squares", "sum"), "dtype-rounding"),
        (("normalised",), "dtype-rounding"),
        (("running",), "accumulator-precision"),
    ],
)
def test_what_a_norm_rounds_on_the_way_is_told(stages, label, dtype, centred, real):
    said = said_of(norm(X, dtype, stages, centred, real), centred)
    assert said.label == label, said
    assert said.parameters["dtype"] == {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]


@pytest.mark.parametrize(
    "found",
    [
        blurred(norm(X), 3e-4),
        norm(X) * (1 + 3e-4),
        norm(X) + 3e-4,
        norm(X + 1e-3 * numbers(6, 20, 48, seed=7)),
        norm(X) * (1 + 3e-4 * numbers(6, 20, 1, seed=7)),
    ],
)
def test_errors_of_that_size_with_other_causes_are_not_called_rounding(found):
    given = {"inputs": {"in.0": X}, "parameters": {"weight": GAIN, "bias": BIAS}, "op": "LayerNorm"}
    assert list(rounds_inside(drift(norm(X), lambda _: found, NOISE, attrs={"eps": 1e-5}, **given))) == []


@pytest.mark.parametrize("name", ["softmax", "gelu", "silu", "tanh"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_of_a_rounded_input_are_told(name, dtype):
    x = torch.tensor(numbers(4, 12, 40))
    function = {"softmax": lambda v: v.softmax(-1), "gelu": torch.nn.functional.gelu,
                "silu": torch.nn.functional.silu, "tanh": torch.tanh}[name]  # fmt: skip
    found = function(x.to(dtype).double()).numpy()
    said = cause(function(x).numpy(), lambda _: found, NOISE, inputs={"in.0": x.numpy()}, op=name.title())
    assert said.label == "dtype-rounding", said
    assert name in said.sentence


def test_a_batch_of_norms_that_is_right_says_nothing():
    y = norm(X)
    assert np.allclose(y.mean(), norm(X, torch.float16, ()).mean())
    assert list(rounds_inside(drift(y, y, NOISE, inputs={"in.0": X}, parameters={"weight": GAIN, "bias": BIAS}))) == []


def all_short(x, dtype, root, squared, centred):
    """A norm whose every step is in a short dtype, but for its gain and bias."""
    h = torch.tensor(x).to(dtype)
    c = h - h.mean(-1, keepdim=True) if centred else h
    variance = (c * c).mean(-1, keepdim=True) if squared else c.double().square().mean(-1, keepdim=True).to(dtype)
    deviation = torch.sqrt(variance + 1e-5)
    if root == "rsqrt":  # rounded once, as some devices have it; torch's own on a CPU rounds the root as well
        y = c * torch.rsqrt((variance + 1e-5).double()).to(dtype)
    else:
        y = c * (1 / deviation) if root == "1/sqrt" else c / deviation
    y = y.double() * torch.tensor(GAIN)
    return (y + torch.tensor(BIAS) if centred else y).numpy()


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("root", ["sqrt", "rsqrt", "1/sqrt"])
@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_a_norm_that_is_short_throughout_is_told(dtype, name, root, squared, centred):
    said = said_of(all_short(X, dtype, root, squared, centred), centred)
    assert (said.label, said.parameters["dtype"]) == ("dtype-rounding", name), said


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("root", ["rsqrt", "sqrt"])
@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_a_norm_whose_statistics_alone_are_short_is_told(dtype, name, root, centred):
    x, h = torch.tensor(X), torch.tensor(X).to(dtype)
    mean = h.mean(-1, keepdim=True) if centred else torch.zeros((), dtype=dtype)
    variance = (h - mean).pow(2).mean(-1, keepdim=True) + 1e-5
    y = (x - mean.double()) * (variance.rsqrt().double() if root == "rsqrt" else 1 / variance.sqrt().double())
    y = y * torch.tensor(GAIN) + (torch.tensor(BIAS) if centred else 0)
    said = said_of(y.numpy(), centred)
    assert (said.label, said.parameters["dtype"]) == ("dtype-rounding", name), said
