"""Every formula computes what torch computes, on random settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from firstdrift.causes import formulas

seeds = st.integers(0, 2**16)
small = st.integers(1, 3)
TORCH_ACTIVATIONS = {
    "relu": functional.relu, "relu6": functional.relu6, "leaky_relu": functional.leaky_relu, "elu": functional.elu,
    "selu": functional.selu, "gelu": functional.gelu, "silu": functional.silu, "mish": functional.mish,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "hard_sigmoid": functional.hardsigmoid, "hard_swish": functional.hardswish, "hard_tanh": functional.hardtanh,
    "softplus": functional.softplus, "softsign": functional.softsign, "identity": lambda x: x,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x), "relu_squared": lambda x: functional.relu(x) ** 2,
    "hard_sigmoid_keras": lambda x: (0.2 * x + 0.5).clip(0, 1),
}  # fmt: skip


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_alike(ours: np.ndarray, theirs: torch.Tensor) -> None:
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-9, atol=1e-11)


def test_erf_is_right_to_the_last_digits() -> None:
    x = np.concatenate([np.linspace(-8, 8, 4001), [0.0, 1e-300, -1e-9, np.inf, -np.inf, np.nan]])
    truth = np.array([math.erf(one) for one in x])
    np.testing.assert_allclose(formulas.erf(x), truth, rtol=0, atol=4e-16)


@pytest.mark.parametrize("name", formulas.ACTIVATIONS)
def test_activation(name: str) -> None:
    x = torch.cat([random(0, 200) * 4, torch.tensor([0.0, 60.0, -60.0], dtype=torch.float64)])
    theirs = TORCH_ACTIVATIONS[name](x)
    np.testing.assert_allclose(formulas.activation(name, x.numpy()), theirs.numpy(), rtol=1e-9, atol=1e-8)


@given(seeds, st.lists(small, min_size=1, max_size=3), small, small, st.booleans())
def test_linear(seed: int, lead: list[int], wide: int, out: int, biased: bool) -> None:
    x, weight = random(seed, *lead, wide), random(seed + 1, out, wide)
    bias = random(seed + 2, out) if biased else None
    ours = formulas.linear(x.numpy(), weight.numpy(), None if bias is None else bias.numpy())
    assert_alike(ours, functional.linear(x, weight, bias))


@given(seeds, st.integers(1, 2), small, small, small, st.integers(0, 2), small, st.integers(3, 8))
def test_conv(seed: int, space: int, groups: int, kernel: int, stride: int, pad: int, dilation: int, size: int) -> None:
    assume(size + 2 * pad > dilation * (kernel - 1))
    x, bias = random(seed, 2, groups * 2, *[size] * space), random(seed + 2, groups * 3)
    weight = random(seed + 1, groups * 3, 2, *[kernel] * space)
    ours = formulas.conv(x.numpy(), weight.numpy(), bias.numpy(), stride, pad, dilation, groups)
    theirs = (functional.conv1d, functional.conv2d)[space - 1](x, weight, bias, stride, pad, dilation, groups)
    assert_alike(ours, theirs)


@given(seeds, st.sampled_from(formulas.PAD_MODES), st.integers(1, 3), st.integers(0, 2), st.integers(4, 7))
def test_conv_pads_as_torch_does(seed: int, mode: str, kernel: int, pad: int, size: int) -> None:
    module = nn.Conv2d(2, 3, kernel, padding=pad, padding_mode=mode, dtype=torch.float64)
    x = random(seed, 2, 2, size, size + 1)
    assert_alike(
        formulas.conv(
            x.numpy(), module.weight.detach().numpy(), module.bias.detach().numpy(), 1, pad, 1, 1, mode
        ),
        module(x),
    )  # fmt: skip


@given(seeds, small, small, small, st.integers(0, 1), small, st.integers(0, 1))
def test_conv_transpose(seed: int, groups: int, kernel: int, stride: int, pad: int, dilation: int, extra: int) -> None:
    assume(extra < max(stride, dilation) and 4 * stride + dilation * (kernel - 1) + 1 + extra > 2 * pad)
    x, weight = random(seed, 2, groups * 2, 5, 6), random(seed + 1, groups * 2, 3, kernel, kernel)
    ours = formulas.conv_transpose(x.numpy(), weight.numpy(), None, stride, pad, extra, dilation, groups)
    assert_alike(ours, functional.conv_transpose2d(x, weight, None, stride, pad, extra, groups, dilation))


@given(seeds, st.integers(1, 2), st.sampled_from([1e-3, 1e-5, 1e-12]))
def test_layer_and_rms_norm(seed: int, axes: int, eps: float) -> None:
    x, shape = random(seed, 3, 4, 5), (4, 5)[-axes:]
    weight, bias = random(seed + 1, *shape), random(seed + 2, *shape)
    ours = formulas.layer_norm(x.numpy(), shape, weight.numpy(), bias.numpy(), eps)
    assert_alike(ours, functional.layer_norm(x, shape, weight, bias, eps))
    assert_alike(formulas.rms_norm(x.numpy(), weight.numpy(), eps), functional.rms_norm(x, shape, weight, eps))


@given(seeds, st.integers(2, 5), st.booleans())
def test_batch_norm(seed: int, ndim: int, training: bool) -> None:
    x = random(seed, 3, 4, *[3] * (ndim - 2))
    mean, var, weight, bias = random(1, 4), random(2, 4) ** 2, random(3, 4), random(4, 4)
    running = (None, None) if training else (mean.numpy(), var.numpy())
    ours = formulas.batch_norm(x.numpy(), *running, weight.numpy(), bias.numpy(), 1e-4)
    assert_alike(ours, functional.batch_norm(x, mean.clone(), var.clone(), weight, bias, training, 0.1, 1e-4))


@given(seeds, st.sampled_from([1, 2, 3, 6]))
def test_group_and_instance_norm(seed: int, groups: int) -> None:
    x, weight, bias = random(seed, 2, 6, 3, 4), random(seed + 1, 6), random(seed + 2, 6)
    affine = weight.numpy(), bias.numpy()
    assert_alike(formulas.group_norm(x.numpy(), groups, *affine), functional.group_norm(x, groups, weight, bias))
    theirs = functional.instance_norm(x, weight=weight, bias=bias)
    assert_alike(formulas.instance_norm(x.numpy(), *affine), theirs)


@given(seeds, st.integers(1, 4), small, st.integers(0, 2), st.integers(4, 9), st.booleans(), st.booleans())
def test_pools(seed: int, kernel: int, stride: int, pad: int, size: int, ceil: bool, count: bool) -> None:
    assume(pad <= kernel // 2)
    x = random(seed, 2, 3, size, size + 1)
    ours = formulas.avg_pool(x.numpy(), kernel, stride, pad, count, ceil=ceil)
    assert_alike(ours, functional.avg_pool2d(x, kernel, stride, pad, ceil, count))
    ours = formulas.max_pool(x.numpy(), kernel, stride, pad, ceil=ceil)
    assert_alike(ours, functional.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil))


@given(seeds, st.integers(1, 5), st.integers(1, 5))
def test_adaptive_pool(seed: int, high: int, wide: int) -> None:
    x = random(seed, 2, 3, 7, 5)
    assert_alike(formulas.adaptive_avg_pool(x.numpy(), (high, wide)), functional.adaptive_avg_pool2d(x, (high, wide)))


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "cubic", "area"])
@given(seed=seeds, high=st.integers(1, 12), wide=st.integers(1, 12))
def test_interpolate(mode: str, corners: bool, seed: int, high: int, wide: int) -> None:
    x = random(seed, 2, 3, 5, 7)
    smooth = mode in ("linear", "cubic")
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    theirs = functional.interpolate(x, (high, wide), mode=name, **({"align_corners": corners} if smooth else {}))
    assert_alike(formulas.interpolate(x.numpy(), (high, wide), mode, corners and smooth), theirs)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("mode", "name"), [("linear", "bilinear"), ("cubic", "bicubic")])
@pytest.mark.parametrize("out", [(16, 11), (30, 40), (7, 25), (1, 2)])
def test_interpolate_with_antialiasing(out: tuple[int, int], mode: str, name: str, corners: bool) -> None:
    x = torch.randn(2, 3, 24, 19, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theirs = functional.interpolate(x, out, mode=name, align_corners=corners, antialias=True)
    assert_alike(formulas.interpolate(x.numpy(), out, mode, corners, cubic=-0.5, antialias=True), theirs)


def test_interpolate_by_a_factor() -> None:
    x = random(0, 1, 2, 5, 7)
    theirs = functional.interpolate(x, scale_factor=1.7, mode="bilinear", align_corners=False)
    assert_alike(formulas.interpolate(x.numpy(), theirs.shape[2:], "linear", scale=(1.7, 1.7)), theirs)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@given(seed=seeds, biased=st.booleans())
def test_recurrence(kind: type[nn.RNNBase], seed: int, biased: bool) -> None:
    torch.manual_seed(seed)
    module = kind(3, 4, bias=biased, dtype=torch.float64)
    cell = formulas.Cell(*(one.detach().numpy() for one in module.parameters()))
    x, h0, c0 = random(seed, 5, 2, 3), random(seed + 1, 1, 2, 4), random(seed + 2, 1, 2, 4)
    if kind is nn.LSTM:
        theirs, (last, memory) = module(x, (h0, c0))
        ours, state = formulas.lstm(x.numpy(), cell, h0[0].numpy(), c0[0].numpy())
        assert_alike(state[1], memory[0])
    else:
        theirs, last = module(x, h0)
        ours, state = (formulas.gru if kind is nn.GRU else formulas.rnn)(x.numpy(), cell, h0[0].numpy())
    assert_alike(ours, theirs)
    assert_alike(state[0], last[0])


def gradients_of(operation, *leaves: torch.Tensor) -> tuple[np.ndarray, list[torch.Tensor]]:
    """A random gradient of what an operation makes, and the gradients that torch makes of it."""
    made = operation(*(leaf.requires_grad_() for leaf in leaves))
    gradient = random(99, *made.shape)
    return gradient.numpy(), list(torch.autograd.grad(made, leaves, gradient))


def plain(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


@pytest.mark.parametrize("name", [name for name in formulas.SLOPES if name in TORCH_ACTIVATIONS])
def test_the_slope_of_an_activation(name: str) -> None:
    x = random(1, 200) * 4
    gradient, (theirs,) = gradients_of(TORCH_ACTIVATIONS[name], x)
    ours = gradient * formulas.SLOPES[name](plain(x))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-7, atol=1e-9)  # torch has some constants in float32


@given(seeds, st.integers(0, 2), st.booleans())
def test_the_backward_of_a_softmax(seed: int, axis: int, log: bool) -> None:
    x, function = random(seed, 3, 4, 5), functional.log_softmax if log else functional.softmax
    gradient, (theirs,) = gradients_of(lambda one: function(one, axis), x)
    assert_alike(formulas.softmax_backward(formulas.softmax(plain(x), axis), gradient, axis, log), theirs)


@given(seeds, st.integers(1, 2), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.sampled_from([1, 2]))
def test_the_gradients_of_a_convolution(
    seed: int, space: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    x, weight = random(seed, 2, 4, *[7] * space), random(seed + 1, 6, 4 // groups, *[3] * space)
    conv = functional.conv1d if space == 1 else functional.conv2d

    def run(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return conv(x, weight, None, stride, padding, dilation, groups)

    gradient, (of_x, of_weight) = gradients_of(run, x, weight)
    said = [stride] * space, [padding] * space, [dilation] * space, groups
    assert_alike(formulas.conv_input_gradient(gradient, plain(weight), x.shape, *said), of_x)
    assert_alike(formulas.conv_weight_gradient(plain(x), gradient, weight.shape, *said), of_weight)


@given(seeds, st.integers(1, 2), st.integers(2, 3), st.integers(1, 3), st.integers(0, 1), st.booleans())
def test_the_gradients_of_pools(seed: int, space: int, kernel: int, stride: int, padding: int, counted: bool) -> None:
    x = random(seed, 2, 3, *[8] * space)
    largest = functional.max_pool1d if space == 1 else functional.max_pool2d
    mean = functional.avg_pool1d if space == 1 else functional.avg_pool2d
    said = [kernel] * space, [stride] * space, [padding] * space
    gradient, (theirs,) = gradients_of(lambda one: largest(one, kernel, stride, padding), x)
    assert_alike(formulas.max_pool_gradient(plain(x), gradient, *said), theirs)
    gradient, (theirs,) = gradients_of(lambda one: mean(one, kernel, stride, padding, count_include_pad=counted), x)
    assert_alike(formulas.avg_pool_gradient(x.shape, gradient, *said, counted), theirs)


@pytest.mark.parametrize("largest", [True, False])
def test_the_gradient_of_an_adaptive_pool(largest: bool) -> None:
    x = random(5, 2, 3, 7, 5)
    pool = functional.adaptive_max_pool2d if largest else functional.adaptive_avg_pool2d
    gradient, (theirs,) = gradients_of(lambda one: pool(one, (3, 2)), x)
    assert_alike(formulas.bins_gradient(plain(x), gradient, (3, 2), largest), theirs)


def test_of_tied_elements_the_first_the_last_or_all_get_the_gradient() -> None:
    x, gradient = np.zeros((1, 1, 4)), np.ones((1, 1, 1))
    found = {
        ties: formulas.max_pool_gradient(x, gradient, (4,), (4,), (0,), ties=ties).ravel().tolist()
        for ties in ("first", "last", "all")
    }
    assert found == {"first": [1, 0, 0, 0], "last": [0, 0, 0, 1], "all": [1, 1, 1, 1]}
