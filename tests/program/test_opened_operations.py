"""Kernels that a CPU or float64 does not have are opened to operations that say the same."""

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import firstdrift as fd
from firstdrift.program.calls import Ref
from firstdrift.program.cuts import Cuts
from firstdrift.program.interpreter import Interpreter, NotReplayableError
from firstdrift.program.running.opened import opened
from firstdrift.program.running.shaking import Shake
from firstdrift.program.written.read_program import read_program

aten = torch.ops.aten
NONE = torch.zeros(0)


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Watch(TorchDispatchMode):
    """What a piece of code calls, with arguments and results."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, returned))
        return returned


def close(found, expected, limit=1e-10):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= limit * max(1.0, float(expected.abs().max())), (found, expected)


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_attention_of_a_device_is_attention(heads, is_causal):
    q, k, v = drawn(2, 4, 5, 8), drawn(2, heads, 5, 8, seed=1), drawn(2, heads, 5, 8, seed=2)
    own = [one.clone().requires_grad_() for one in (q, k, v)]
    out = functional.scaled_dot_product_attention(*own, is_causal=is_causal, scale=0.3, enable_gqa=True)
    grad = drawn(*out.shape, seed=3)
    expected = torch.autograd.grad(out, own, grad)
    func = aten._scaled_dot_product_flash_attention.default
    close(opened(func, [q, k, v, 0.0, is_causal], {"scale": 0.3}, is_missing=True)[0], out.detach())
    back = aten._scaled_dot_product_flash_attention_backward.default
    args = [grad, q, k, v, out, NONE, NONE, NONE, 5, 5, 0.0, is_causal, NONE, NONE]
    for found, one in zip(opened(back, args, {"scale": 0.3}, is_missing=True), expected, strict=False):
        close(found, one)


def test_efficient_attention_with_a_bias_is_attention_and_its_derivative():
    q, k, v, bias = drawn(2, 4, 5, 8), drawn(2, 4, 5, 8, seed=1), drawn(2, 4, 5, 8, seed=2), drawn(2, 4, 5, 5, seed=4)
    own = [one.clone().requires_grad_() for one in (q, k, v, bias)]
    out = functional.scaled_dot_product_attention(*own[:3], attn_mask=own[3])
    grad = drawn(*out.shape, seed=3)
    expected = torch.autograd.grad(out, own, grad)
    func = aten._scaled_dot_product_efficient_attention.default
    close(opened(func, [q, k, v, bias, True], {}, is_missing=True)[0], out.detach())
    back = aten._scaled_dot_product_efficient_attention_backward.default
    args = [grad, q, k, v, bias, out, NONE, NONE, NONE, 0.0, [True] * 4]
    for found, one in zip(opened(back, args, {}, is_missing=True), expected, strict=True):
        close(found, one)


def test_dropout_inside_attention_is_refused_not_drawn_again():
    q = drawn(2, 4, 5, 8)
    with pytest.raises(NotReplayableError, match="what it drew was not stored"):
        opened(aten._scaled_dot_product_flash_attention.default, [q, q, q, 0.5], {}, is_missing=True)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False, "batch_first": True}]
)
def test_a_recurrent_kernel_is_the_recurrent_layer_and_its_derivative(cell, options):
    layer, x = cell(3, 4, **options).double(), drawn(5, 2, 3).requires_grad_()
    states = [torch.zeros(len(layer.all_weights), 5 if layer.batch_first else 2, 4, dtype=torch.float64) for _ in "hc"]
    states = [one.requires_grad_() for one in states]
    is_lstm = cell is nn.LSTM
    out, last = layer(x, tuple(states) if is_lstm else states[0])
    last = list(last) if is_lstm else [last]
    grads = [drawn(*one.shape, seed=at) for at, one in enumerate([out, *last])]
    weights = [one for part in layer.all_weights for one in part]
    wanted = [x, *states[: 1 + is_lstm], *weights]
    expected = torch.autograd.grad([out, *last], wanted, grads)
    cx = states[1].detach() if is_lstm else None
    mode = {nn.LSTM: 2, nn.GRU: 3, nn.RNN: 1}[cell]
    rest = [mode, 4, 0, layer.num_layers, layer.batch_first, 0.0, True, layer.bidirectional, [], None]
    given, stride = [one.detach() for one in weights], len(layer.all_weights[0])
    args = [x.detach(), given, stride, None, states[0].detach(), cx, *rest]
    for found, one in zip(opened(aten._cudnn_rnn.default, args, {}, is_missing=True), [out, *last], strict=False):
        close(found, one.detach())
    gradients = [*grads, None][:3]
    args = [x.detach(), given, stride, NONE, states[0].detach(), cx, out.detach(), *gradients, *rest, NONE, [True] * 4]
    found = [one for one in opened(aten._cudnn_rnn_backward.default, args, {}, is_missing=True) if one is not None]
    for one, other in zip(found, expected, strict=True):
        close(one, other)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_lstm_of_mkldnn_has_a_float64_twin(bidirectional):
    layer, x = nn.LSTM(3, 4, num_layers=2, bidirectional=bidirectional), drawn(5, 2, 3, dtype=torch.float32)
    with Watch() as watch:
        out, _ = layer(x.requires_grad_())
        (out * drawn(*out.shape, seed=1, dtype=torch.float32)).sum().backward()
    compared = 0
    for func, args, kwargs, returned in watch.calls:
        if "mkldnn_rnn" not in str(func):
            continue
        long = [one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in args]
        with torch.no_grad(), pytest.raises(RuntimeError):
            func(*long, **kwargs)
        for found, one in zip(opened(func, long, kwargs, is_missing=True), returned, strict=True):
            if found is not None:
                close(found, one.detach(), 1e-5)
                compared += 1
    assert compared == 2 * (3 + 7) * (1 + bidirectional)


def test_an_lstm_cell_of_a_device_is_the_cell_and_its_derivative():
    cell = nn.LSTMCell(3, 4).double()
    x, h, c = (drawn(2, size, seed=size).requires_grad_() for size in (3, 4, 5))
    c = c[:, :4].detach().requires_grad_()
    hy, cy = cell(x, (h, c))
    grads = [drawn(2, 4, seed=7), drawn(2, 4, seed=8)]
    expected_c, expected_bias = torch.autograd.grad([hy, cy], [c, cell.bias_ih], grads)
    gates = [(x @ cell.weight_ih.T).detach(), (h @ cell.weight_hh.T).detach()]
    args = [*gates, c.detach(), cell.bias_ih.detach(), cell.bias_hh.detach()]
    found = opened(aten._thnn_fused_lstm_cell.default, args, {}, is_missing=True)
    close(found[0], hy.detach())
    close(found[1], cy.detach())
    args = [*grads, c.detach(), found[1], found[2], True]
    back = opened(aten._thnn_fused_lstm_cell_backward_impl.default, args, {}, is_missing=True)
    close(back[1], expected_c)
    close(back[2], expected_bias)


def test_grouped_products_are_the_products_of_their_groups():
    ends, rows, sides = torch.tensor([2, 5, 6], dtype=torch.int32), drawn(6, 4), drawn(3, 4, 8, seed=1)
    func = aten._grouped_mm.default
    (found,) = opened(func, [rows, sides, ends], {}, is_missing=True)
    expected = torch.cat([rows[:2] @ sides[0], rows[2:5] @ sides[1], rows[5:] @ sides[2]])
    close(found, expected)
    (found,) = opened(func, [rows.T, expected, ends], {}, is_missing=True)
    close(found, torch.stack([rows[:2].T @ expected[:2], rows[2:5].T @ expected[2:5], rows[5:].T @ expected[5:]]))
    (found,) = opened(func, [sides.transpose(1, 2), rows.T, ends], {}, is_missing=True)
    close(found, expected.T)
    (found,) = opened(func, [sides.transpose(1, 2), sides], {}, is_missing=True)
    close(found, sides.transpose(1, 2) @ sides)


def test_what_torch_can_decompose_is_opened_by_torch():
    x, weight, bias = drawn(3, 4), drawn(4, seed=1), drawn(4, seed=2)
    found = opened(aten.native_layer_norm.default, [x, [4], weight, bias, 1e-5], {}, is_missing=True)
    close(found[0], functional.layer_norm(x, [4], weight, bias))
    assert opened(aten.native_layer_norm.default, [x, [4], weight, bias, 1e-5], {}, is_missing=False) is None


# A program of a GPU, as its recorder would write it.


class Gpu:
    """A trace and a program of a device that this machine does not have, written line by line."""

    def __init__(self, path):
        self.path, self.types, self.lines, self.definitions, self.nodes = path, {}, [], [], 0
        self.writer = fd.Writer(path)

    def type(self, dtype, shape, strides=None):
        key = (dtype, tuple(shape), strides)
        if key not in self.types:
            self.types[key] = len(self.types)
            said = [self.types[key], dtype, list(shape), None if strides is None else list(strides), "cuda:0"]
            self.definitions.append({"type": said})
        return self.types[key]

    def leaf(self, phase, name, port, array, dtype="f32"):
        self.writer.put(name, phase, array, port=port)
        self.add({"type": self.type(dtype, array.shape), "site": [phase, name, port]})
        return {"%": self.nodes - 1}

    def call(self, op, args, out, **more):
        self.add({"op": f"aten.{op}", "args": args, "out": [self.type(*one) for one in out], **more})
        return [{"%": [self.nodes - 1, at]} if at else {"%": self.nodes - 1} for at in range(len(out))]

    def add(self, line):
        self.lines.append({"n": self.nodes, **line})
        self.nodes += 1

    def site(self, ref, phase, name, array, port="out"):
        self.writer.put(name, phase, array, port=port)
        self.lines.append({"is": ref, "site": [phase, name, port]})

    def read(self):
        self.writer.close()
        functions = [{"function": [0, "torch.nn.functional.scaled_dot_product_attention"]},
                     {"function": [1, "torch.grid_sampler"]}]  # fmt: skip
        head = [{"program": 1}, *self.definitions, *functions, {"step": 0, "lines": len(self.lines)}]
        lines = [*head, *self.lines]
        text = "".join(f"{json.dumps(one)}\n" for one in [*lines, {"end": len(lines)}])
        (self.path / "program.jsonl").write_text(text)
        trace = fd.open_trace(self.path)
        return trace, read_program(trace).steps[0]


def assert_all_sites(trace, step, limit, **options):
    """Every site that was computed comes out of those before it."""
    cuts, compared = Cuts(step, lambda site: True), 0
    for site in step.sites:
        cut = cuts.at(site)
        if cut.nodes:
            found = Interpreter(step, trace, **options).array_of(cut)
            expected = np.asarray(trace.array(site), np.float64)
            assert np.abs(found - expected).max() <= limit * np.abs(expected).max(), site
            compared += 1
    return compared


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"exact": True, "shaken": Shake(1)}], ids=str)
def test_attention_recorded_on_a_gpu_replays_on_a_cpu(tmp_path, options):
    """Its output lies as the kernel wrote it, head behind token, and is viewed without a copy."""
    gpu = Gpu(tmp_path / "t")
    arrays = [drawn(2, 4, 5, 8, seed=seed, dtype=torch.float32) for seed in range(3)]
    own = [one.clone().requires_grad_() for one in arrays]
    out = functional.scaled_dot_product_attention(*own, is_causal=True)
    grad = drawn(2, 5, 32, seed=5, dtype=torch.float32)
    joined = out.transpose(1, 2).reshape(2, 5, 32)
    grads = torch.autograd.grad(joined, own, grad)
    refs = [gpu.leaf("fwd", "attention", f"in.{at}", one.numpy()) for at, one in enumerate(arrays)]
    shape, strides = (2, 4, 5, 8), (160, 8, 32, 1)
    kernel = gpu.call("_scaled_dot_product_flash_attention.default", [*refs, 0.0, True],
                      [("f32", shape, strides), ("f32", (2, 4, 5)), ("i32", ()), ("i32", ()), ("u64", (2,)),
                       ("u64", ()), ("f32", (0,))], kwargs={"scale": 8**-0.5})  # fmt: skip
    (turned,) = gpu.call("transpose.int", [kernel[0], 1, 2], [("f32", (2, 5, 4, 8))])
    (viewed,) = gpu.call("view.default", [turned, [2, 5, 32]], [("f32", (2, 5, 32))])
    gpu.site(viewed, "fwd", "attention", joined.detach().numpy())
    given = gpu.leaf("agrad", "attention", "out", grad.numpy())
    (split,) = gpu.call("view.default", [given, [2, 5, 4, 8]], [("f32", (2, 5, 4, 8))])
    (back,) = gpu.call("transpose.int", [split, 1, 2], [("f32", shape, strides)])
    args = [back, *refs, kernel[0], kernel[1], kernel[2], kernel[3], 5, 5, 0.0, True, kernel[4], kernel[5]]
    found = gpu.call("_scaled_dot_product_flash_attention_backward.default", args, [("f32", shape, strides)] * 3)
    for at, one in enumerate(found):
        gpu.site(one, "agrad", f"in{at}", grads[at].numpy())
    assert assert_all_sites(*gpu.read(), 1e-5, **options) == 4


@pytest.mark.parametrize("options", [{}, {"exact": True}], ids=str)
def test_norms_recorded_on_a_gpu_replay_on_a_cpu(tmp_path, options):
    gpu = Gpu(tmp_path / "t")
    norm = nn.BatchNorm2d(3)
    nn.init.uniform_(norm.weight)
    before = [one.detach().clone().numpy() for one in (norm.weight, norm.bias, norm.running_mean, norm.running_var)]
    x = drawn(4, 3, 2, 2, dtype=torch.float32).requires_grad_()
    out = norm(x)
    grad = drawn(4, 3, 2, 2, seed=1, dtype=torch.float32)
    grads = torch.autograd.grad(out, [x, norm.weight, norm.bias], grad)
    data = gpu.leaf("input", "input", "x", x.detach().numpy())
    names = ("weight", "bias", "running_mean", "running_var")
    held = [gpu.leaf("weight", "norm", port, one) for port, one in zip(names, before, strict=True)]
    four, three = ("f32", (4, 3, 2, 2)), ("f32", (3,))
    kernel = gpu.call("cudnn_batch_norm.default", [data, *held, True, 0.1, 1e-5],
                      [four, three, three, ("u8", (4096,)), three, three])  # fmt: skip
    gpu.site(kernel[0], "fwd", "norm", out.detach().numpy())
    gpu.site(kernel[4], "weight_after", "norm", norm.running_mean.numpy(), "running_mean")
    gpu.site(kernel[5], "weight_after", "norm", norm.running_var.numpy(), "running_var")
    given = gpu.leaf("agrad", "norm", "out", grad.numpy())
    args = [data, given, held[0], held[2], held[3], kernel[1], kernel[2], 1e-5, kernel[3]]
    found = gpu.call("cudnn_batch_norm_backward.default", args, [four, three, three])
    gpu.site(found[1], "grad", "norm", grads[1].numpy(), "weight")
    gpu.site(found[2], "grad", "norm", grads[2].numpy(), "bias")
    gpu.site(found[0], "agrad", "input", grads[0].numpy())
    assert assert_all_sites(*gpu.read(), 1e-5, **options) == 6


def test_what_a_kernel_keeps_for_itself_is_no_number(tmp_path):
    """Its workspace cannot be had; whoever computes with it must not get a wrong number."""
    gpu = Gpu(tmp_path / "t")
    x = gpu.leaf("input", "input", "x", drawn(2, 4, 5, 8, dtype=torch.float32).numpy())
    kernel = gpu.call("_scaled_dot_product_efficient_attention.default", [x, x, x, None, True],
                      [("f32", (2, 4, 5, 8)), ("f32", (2, 4, 32)), ("i64", ()), ("i64", ())])  # fmt: skip
    gpu.call("relu.default", [kernel[1]], [("f32", (2, 4, 32))])
    trace, step = gpu.read()
    values = dict(Interpreter(step, trace).run())
    assert values[1][0].isfinite().all()
    assert values[2][0].isnan().all()


def test_a_half_precision_norm_keeps_the_statistics_that_the_gpu_kept(tmp_path):
    gpu = Gpu(tmp_path / "t")
    x = drawn(4, 8, dtype=torch.float32).to(torch.bfloat16)
    bits = x.view(torch.int16).numpy()
    data = gpu.leaf("input", "input", "x", bits.view(ml_dtypes.bfloat16), "bf16")
    kernel = gpu.call("native_layer_norm.default", [data, [8], None, None, 1e-5],
                      [("bf16", (4, 8)), ("f32", (4, 1)), ("f32", (4, 1))])  # fmt: skip
    del kernel
    trace, step = gpu.read()
    values = dict(Interpreter(step, trace).run())
    assert [one.dtype for one in values[1]] == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"exact": True, "shaken": Shake(1)}], ids=str)
def test_a_kernel_that_nobody_knows_runs_as_the_function_that_was_called(tmp_path, options):
    """cuDNN's sampler is not opened by its own arguments; what the model called says all of it."""
    gpu = Gpu(tmp_path / "t")
    picture, places = (
        drawn(1, 2, 4, 4, dtype=torch.float32),
        drawn(1, 3, 3, 2, seed=1, dtype=torch.float32).clamp(-1, 1),
    )
    out = torch.grid_sampler(picture, places, 0, 0, True)
    x = gpu.leaf("input", "input", "x", picture.numpy())
    half = gpu.leaf("input", "input", "grid", (places / 2).numpy())
    (grid,) = gpu.call("mul.Scalar", [half, 2.0], [("f32", (1, 3, 3, 2))])
    (copied,) = gpu.call("clone.default", [grid], [("f32", (1, 3, 3, 2))])
    (kernel,) = gpu.call("cudnn_grid_sampler.default", [x, copied], [("f32", (1, 2, 3, 3))])
    gpu.lines.append({"function": 1, "args": [x, grid, 0, 0, True], "calls": [3, 4], "out": [kernel]})
    gpu.site(kernel, "fwd", "sampler", out.numpy())
    trace, step = gpu.read()
    assert assert_all_sites(trace, step, 1e-5, **options) == 1
    assert dict(Interpreter(step, trace).run())[4][0].shape == (1, 2, 3, 3)
    assert Ref(2) in {Ref(number) for number in Cuts(step, lambda site: True).at(list(step.sites)[-1]).nodes}


def test_a_kernel_that_nobody_knows_and_no_function_called_says_so(tmp_path):
    gpu = Gpu(tmp_path / "t")
    x = gpu.leaf("input", "input", "x", drawn(1, 2, 4, 4, dtype=torch.float32).numpy())
    grid = gpu.leaf("input", "input", "grid", drawn(1, 3, 3, 2, dtype=torch.float32).numpy())
    gpu.call("cudnn_grid_sampler.default", [x, grid], [("f32", (1, 2, 3, 3))])
    trace, step = gpu.read()
    found = dict(Interpreter(step, trace).run())[2]
    assert isinstance(found, NotReplayableError)
    assert "cudnn_grid_sampler" in str(found)
