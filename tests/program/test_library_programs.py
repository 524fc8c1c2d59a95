"""Whole traces without a program: the C port, npy steps, stage files, names of ONNX; and traces that lie."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.core.sites import Site
from firstdrift.demo.port import Port
from firstdrift.demo.spotter_files import PROBES
from firstdrift.program.building.op_fit import fit
from firstdrift.program.cuts import Cuts
from firstdrift.program.interpreter import Interpreter
from firstdrift.program.library import library_program
from firstdrift.program.written.read_program import read_program

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler")


def without_call(trace, *phases):
    """The sites of some phases that have no call that holds, and why."""
    program = library_program(trace)
    sites = [record.site for record in trace if record.site.phase in phases and record.at is not None]
    return {str(site): why for site in sites if (why := program.why_not(site)) is not None}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The C port's traces of a batch of two: in our format, and as npy steps."""
    from firstdrift.demo.twin import export

    here = tmp_path_factory.mktemp("kws")
    export(here / "weights.bin")
    built = Port.build(here)
    how = {"start": 0, "batch": 2, "samples": 2, "steps": 1, "seed": 0, "bug": "none"}
    built.record(here / "weights.bin", here / "trace", **how)
    trace = fd.open_trace(here / "trace")
    from firstdrift.compare.open_trace import load_format

    load_format("npy").write(trace, here / "npy", overwrite=False, advance=lambda done: None)
    return here


@needs_compiler
def test_every_tensor_of_the_c_port_but_the_loss_has_a_call_that_holds(port):
    trace = fd.open_trace(port / "trace")
    assert read_program(trace) is None
    assert without_call(trace, "fwd", "agrad", "grad", "grad_scaled", "weight_after") == {}
    assert len(without_call(trace, "loss", "lossgrad")) == 3  # their target is not on record
    assert (
        "LayerNorm: not recorded, so that its defaults were taken: eps 1e-05" in library_program(trace).steps[0].notes
    )


@needs_compiler
def test_operations_of_npy_steps_are_inferred(port):
    trace = fd.open_trace(port / "npy")
    assert library_program(trace) is None  # they name no operation
    sites = [record.site for record in trace if record.site.phase == "fwd" and record.site.sample == 0]
    found = {site.name: fit(trace, site) for site in sites}
    assert all(found.values())
    assert len(found) == len(PROBES.read_text().split())
    assert str(found["ln1"]) == "LayerNorm(eps=1e-05)"
    inferred = {site: found[site.name] for site in sites}
    program = library_program(trace, inferred)
    assert program.inferred == inferred
    assert all(program.why_not(site) is None for site in sites)


def test_names_and_settings_of_onnx_are_understood(tmp_path):
    torch.manual_seed(0)
    conv, norm, gemm = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4, 1e-3).eval(), nn.Linear(4, 5)
    norm.running_mean.normal_()
    x = torch.randn(2, 3, 9, 9)
    with torch.no_grad(), fd.Writer(tmp_path / "t") as writer:
        for name, module in ("conv", conv), ("bn", norm), ("gemm", gemm):
            for port, tensor in (*module.named_parameters(), *module.named_buffers()):
                writer.put(name, "weight", tensor, port=port)
        writer.put("input", "input", x, port="x")
        said = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1}
        fed = Site(0, "input", "input", "x")
        writer.put("conv", "fwd", x := conv(x), op="Conv", attrs=said, producers=[fed])
        writer.put("bn", "fwd", x := norm(x), op="BatchNormalization", attrs={"epsilon": 1e-3}, producers=["conv"])
        writer.put("relu", "fwd", x := x.relu(), op="Relu", producers=["bn"])
        writer.put("pool", "fwd", x := x.mean((2, 3), keepdim=True), op="GlobalAveragePool", producers=["relu"])
        writer.put("flat", "fwd", x := x.flatten(1), op="Flatten", attrs={"axis": 1}, producers=["pool"])
        writer.put("gemm", "fwd", x := gemm(x), op="Gemm", attrs={"transB": 1}, producers=["flat"])
        writer.put("prob", "fwd", x := x.softmax(-1), op="Softmax", attrs={"axis": -1}, producers=["gemm"])
        writer.put("sum", "fwd", x + 1, op="Mystery", producers=["prob"])
    trace = fd.open_trace(tmp_path / "t")
    assert without_call(trace, "fwd") == {"fwd sum:out step 0": "the library has no Mystery"}
    assert Site(0, "fwd", "sum", "out") not in library_program(trace).steps[0].sites


def chain(path, count=4, wrong=None):
    """Linear layers in a row; one of them may compute something else than it says."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((3, 5)).astype(np.float32)
    with fd.Writer(path) as writer:
        writer.put("input", "input", x, port="x")
        for number in range(count):
            weight = generator.standard_normal((5, 5)).astype(np.float32)
            writer.put(str(number), "weight", weight)
            x = x @ weight.T + (1e-3 if number == wrong else 0)
            writer.put(str(number), "fwd", x, op="Linear")
    return fd.open_trace(path)


def test_opening_a_trace_reads_none_of_its_numbers(tmp_path, monkeypatch):
    trace = chain(tmp_path / "t")
    monkeypatch.setattr(type(trace), "array", lambda *_: pytest.fail("numbers were read"))
    program = library_program(trace)
    assert len(program.steps[0].sites) == 9


def test_a_way_through_a_site_that_does_not_hold_is_refused(tmp_path):
    trace = chain(tmp_path / "t", wrong=1)
    program = library_program(trace)
    step, last = program.steps[0], Site(0, "fwd", "3", "out")
    assert program.find(Site(0, "fwd", "1", "out")) is None
    assert program.find(last) == (step, step.sites[last])
    near = Cuts(step, lambda site: True).at(last)
    far = Cuts(step, lambda site: site.phase in ("input", "weight")).at(last)
    assert program.why_not_cut(step, near) is None
    assert program.why_not_cut(step, far).startswith("fwd 1:out step 0: its calls give other numbers")


def test_the_candidates_tensors_run_through_the_references_program(tmp_path):
    trace = chain(tmp_path / "t")
    step = library_program(trace).steps[0]
    last, before = Site(0, "fwd", "3", "out"), Site(0, "fwd", "2", "out")
    cut = Cuts(step, lambda site: True).at(last)
    fed = {before: 2 * trace.array(before)}
    made = Interpreter(step, trace, tensors=fed.get, exact=True).array_of(cut)
    assert np.allclose(made, 2 * trace.array(last), rtol=1e-5)


def test_producers_in_circles_are_no_crash(tmp_path):
    x = np.ones((2, 3), np.float32)
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("a", "fwd", x, op="Identity", producers=["b"])
        writer.put("b", "fwd", x, op="Identity", producers=["a"])
        writer.put("c", "fwd", x, op="Identity", producers=["c"])
        writer.put("d", "fwd", x, op="Identity", producers=["nobody"])
        for name in "abcd":
            writer.put(name, "agrad", x)
    trace = fd.open_trace(tmp_path / "t")
    program = library_program(trace)
    said = {record.site: program.why_not(record.site) for record in trace}
    assert said[Site(0, "fwd", "d", "out")] == "fwd nobody:out step 0, which it was computed from, is not in the trace"
    assert all(fit(trace, site) is None for site in said)  # constants say nothing


def test_shapes_that_lie_are_a_sentence(tmp_path):
    chain(tmp_path / "t")
    index = tmp_path / "t" / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    for line in lines:
        if line.get("phase") == "weight" and line["name"] == "1":
            line["shape"] = [25, 1]
        if line.get("phase") == "fwd" and line["name"] == "3":
            line["shape"] = [15, 1, 1]
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    without = without_call(fd.open_trace(tmp_path / "t"), "fwd")
    assert list(without) == ["fwd 1:out step 0"]
    assert "\n" not in without["fwd 1:out step 0"]


def test_values_that_were_not_kept_are_named(tmp_path):
    with fd.Writer(tmp_path / "t") as writer:
        writer.put_absent("x", "fwd", "lost")
        writer.put("y", "fwd", np.ones(3, np.float32), op="ReLU", producers=["x"])
    why = library_program(fd.open_trace(tmp_path / "t")).why_not(Site(0, "fwd", "y", "out"))
    assert why == "fwd x:out step 0, which it was computed from, was recorded without its values"


FITTED = {
    "residual": (lambda x, w: x + 2 * x, None),
    "relu": (lambda x, w: x.relu(), "ReLU"),
    "softmax": (lambda x, w: x.softmax(1), "Softmax(dim=1)"),
    "linear": (lambda x, w: x @ w.T, "Linear"),
    "rms": (lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(), "RMSNorm(eps=1e-06, offset=0.0)"),
    "transposed": (lambda x, w: x.transpose(1, 2), "Transpose(perm=[0, 2, 1])"),
    "nothing known": (lambda x, w: x.cumsum(1), None),
}


@pytest.mark.parametrize("name", FITTED)
def test_an_operation_is_inferred_if_it_reproduces_everything(name, tmp_path):
    function, expected = FITTED[name]
    x, w = torch.randn(2, 6, 8), torch.randn(8, 8)
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", x, producers=[])
        if name == "linear":
            writer.put("y", "weight", w)
        writer.put("y", "fwd", function(x, w), producers=["x"])
    found = fit(fd.open_trace(tmp_path / "t"), Site(0, "fwd", "y", "out"))
    assert expected == (None if found is None else str(found))


NAMED = {
    "another operation": ("Tanh", {}, lambda x, w: x.relu(), None),
    "without its weight": ("Linear", {}, lambda x, w: x.relu(), None),
    "a setting that was not said": ("GELU", {}, lambda x, w: nn.functional.gelu(x, approximate="tanh"), "tanh"),
    "a setting that was said": (
        "RMSNorm", {"eps": 0.01}, lambda x, w: 2 * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(), None,
    ),
    "a name that nobody knows": ("Frobnicate", {}, lambda x, w: x.relu(), "ReLU"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_what_a_trace_names_is_no_other_operation(name, tmp_path):
    op, attrs, function, expected = NAMED[name]
    x = torch.randn(2, 6, 8)
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", x, producers=[])
        writer.put("y", "fwd", function(x, None), producers=["x"], op=op, attrs=attrs)
    found = fit(fd.open_trace(tmp_path / "t"), Site(0, "fwd", "y", "out"))
    assert (found is None) == (expected is None)
    assert found is None or expected in str(found)


def test_one_wrong_element_is_enough_to_infer_nothing(tmp_path):
    x = torch.randn(40, 50)
    y = x.relu()
    y[17, 31] += 1e-3
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", x, producers=[])
        writer.put("y", "fwd", y, producers=["x"])
    assert fit(fd.open_trace(tmp_path / "t"), Site(0, "fwd", "y", "out")) is None


def test_a_sum_in_a_chain_is_found_with_the_tensor_before(tmp_path):
    x = torch.randn(4, 8)
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", x)
        writer.put("a", "fwd", x.tanh())
        writer.put("b", "fwd", x + x.tanh())
    found = fit(fd.open_trace(tmp_path / "t"), Site(0, "fwd", "b", "out"))
    assert str(found) == "Add"
    assert {site.name for site in found.reads} == {"a", "x"}


def attended(q, k, v, heads, causal):
    """Attention over heads of size 8 that lie beside each other."""
    q, k, v = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in (q, k, v))
    k, v = (one.repeat_interleave(heads // one.shape[1], 1) for one in (k, v))
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("heads", "shared", "causal"), [(2, 2, True), (4, 4, False), (4, 2, True)])
@pytest.mark.parametrize("how", ["chain", "turned", "graph"])
def test_attention_is_found_whose_heads_lie_beside_each_other(tmp_path, heads, shared, causal, how):
    torch.manual_seed(0)
    tensors = {"q": torch.randn(2, 6, 8 * heads), **{name: torch.randn(2, 6, 8 * shared) for name in "kv"}}
    order = "vqk" if how == "turned" else "qkv"
    with fd.Writer(tmp_path / "t") as writer:
        for name in order:
            writer.put(name, "fwd", tensors[name], **({"producers": []} if how == "graph" else {}))
        graph = {"producers": list("qkv")} if how == "graph" else {}
        writer.put("y", "fwd", attended(*tensors.values(), heads, causal), **graph)
    found = fit(fd.open_trace(tmp_path / "t"), Site(0, "fwd", "y", "out"))
    assert str(found) == f"ScaledDotProductAttention(is_causal={causal}, heads={heads})"
    assert "".join(site.name for site in found.reads) == "qkv"
