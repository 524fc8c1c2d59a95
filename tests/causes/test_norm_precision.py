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


IMAGE = 2 * numbers(3, 12, 5, 6) + 0.3
CHANNEL_GAIN, CHANNEL_BIAS = 1 + 0.2 * numbers(12, seed=3), 0.2 * numbers(12, seed=4)
MEAN, VARIANCE = 0.3 * numbers(12, seed=5), 1 + 0.5 * numbers(12, seed=6) ** 2


def of_an_image(kind, dtype=None, statistics=False, x=IMAGE):
    """A group or batch norm of which all steps, or the statistics alone, are short; its gain and bias are not."""
    x = torch.tensor(x)
    shaped, over = (x.view(3, 4, -1), -1) if kind == "group" else (x, (0, 2, 3))
    h = shaped if dtype is None else shaped.to(dtype)
    if kind == "running":
        mean, variance = (torch.tensor(one).to(h.dtype)[:, None, None] for one in (MEAN, VARIANCE))
    else:
        mean = h.mean(over, keepdim=True)
        variance = (h - mean).square().mean(over, keepdim=True)
    root = (variance + 1e-5).sqrt()
    y = (shaped - mean.double()) / root.double() if statistics else ((h - mean) / root).double()
    y = y.view(x.shape) * torch.tensor(CHANNEL_GAIN)[:, None, None] + torch.tensor(CHANNEL_BIAS)[:, None, None]
    return y.numpy()


def said_of_an_image(kind, found):
    weights = {"weight": CHANNEL_GAIN, "bias": CHANNEL_BIAS}
    if kind == "running":
        weights |= {"running_mean": MEAN, "running_var": VARIANCE}
    known = {"op": "GroupNorm" if kind == "group" else "BatchNorm2d", "attrs": {"eps": 1e-5}, "parameters": weights}
    return cause(of_an_image(kind), lambda _: found, NOISE, inputs={"in.0": IMAGE}, replayed=True, **known)


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("kind", ["group", "batch", "running"])
@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "f16"), (torch.bfloat16, "bf16")])
def test_group_and_batch_norms_that_are_short_are_told(dtype, name, kind, statistics):
    said = said_of_an_image(kind, of_an_image(kind, dtype, statistics))
    assert (said.label, said.parameters["dtype"]) == ("dtype-rounding", name), said


@pytest.mark.parametrize("kind", ["group", "batch", "running"])
@pytest.mark.parametrize(
    "found",
    [
        lambda y: blurred(y, 3e-4),
        lambda y: y * (1 + 3e-4 * numbers(3, 12, 1, 1, seed=7)),
        lambda y: y + 3e-4 * numbers(1, 12, 1, 1, seed=7),
    ],
)
def test_group_and_batch_norms_that_are_off_otherwise_are_not_called_rounded(kind, found):
    assert said_of_an_image(kind, found(of_an_image(kind))).label != "dtype-rounding"


def test_the_groups_of_a_large_image_are_told_from_a_few():
    big = 2 * numbers(2, 12, 80, 90)
    weights = {"weight": CHANNEL_GAIN, "bias": CHANNEL_BIAS}
    group, short = torch.nn.functional.group_norm, torch.tensor(big).half()
    gain, bias = (torch.tensor(one)[:, None, None] for one in (CHANNEL_GAIN, CHANNEL_BIAS))
    parts = short.view(2, 4, -1)
    mean = parts.mean(-1, keepdim=True)
    y = ((parts - mean) / ((parts - mean).square().mean(-1, keepdim=True) + 1e-5).sqrt()).view(big.shape)
    expected = group(torch.tensor(big), 4, gain.flatten(), bias.flatten()).numpy()
    known = {"inputs": {"in.0": big}, "parameters": weights, "op": "GroupNorm", "attrs": {"eps": 1e-5}}
    said = cause(expected, lambda _: (y.double() * gain + bias).numpy(), NOISE, **known)
    assert (said.label, said.parameters["dtype"]) == ("dtype-rounding", "f16"), said
