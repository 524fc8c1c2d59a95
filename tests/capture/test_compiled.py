"""Compiled models: run as without a trace, are compiled as often, and the trace says what it cannot see."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.capture import networks
from tests.run_bits import Bits, assert_same_bits
from torch import nn

import firstdrift as fd

# torch's own compiler reads .grad of tensors that are no leaves and uses what torch deprecates, and is warned of both.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]  # inductor takes seconds a graph


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.dropout, self.norm = nn.Linear(8, 8), nn.Dropout(0.3), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.dropout(F.gelu(self.inner(x))))


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.part, self.head = nn.Linear(6, 8), Part(), nn.Linear(8, 3)

    def forward(self, x, *, scale=1.0):
        return self.head(self.part(self.stem(x)) * scale)


def compile_whole(model, backend):
    return torch.compile(model, backend=backend)


def compile_in_place(model, backend):
    model.compile(backend=backend)
    return model


def compile_part(model, backend):
    model.part = torch.compile(model.part, backend=backend)
    return model


def compile_part_in_place(model, backend):
    model.part.compile(backend=backend)
    return model


WAYS = {
    "torch.compile(model)": (compile_whole, {""}, "the model"),
    "model.compile()": (compile_in_place, {""}, "the model"),
    "model.part = torch.compile(model.part)": (compile_part, {"", "stem", "part", "head"}, "part"),
    "model.part.compile()": (compile_part_in_place, {"", "stem", "part", "head"}, "part"),
}


def train(model, optimizer, bits, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        output = model(torch.randn(5, 6, generator=generator), scale=0.5)
        loss = output.square().mean()
        loss.backward()
        bits.add(f"output {step}", output)
        bits.add(f"gradient {step}", {name: one.grad for name, one in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()


def compiled_run(way, backend, *, path=None, inside=False, count=12, **options):
    """Train a compiled model before, in and after the block, and return all its bits and how often it was compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    networks.seed()
    model = Whole()
    compiled = WAYS[way][0]
    if not inside:
        model = compiled(model, backend)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    bits = Bits()
    if not inside:
        train(model, optimizer, bits, range(2))
    with fd.trace(model, path, optimizer=optimizer, **options) if path else nullcontext():
        if inside:
            model = compiled(model, backend)
        train(model, optimizer, bits, range(2, count))
    train(model, optimizer, bits, range(count, count + 2))
    bits.add_run(model, optimizer)
    counters = {name: dict(torch._dynamo.utils.counters[name]) for name in ("stats", "frames", "graph_break")}
    return bits, counters


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_runs_bit_for_bit_as_untraced_and_is_compiled_as_often(tmp_path, way, backend):
    plain, compiled = compiled_run(way, backend)
    assert compiled["stats"]["unique_graphs"] > 0
    for number, options in enumerate(({}, {"keep": "stats"}, {"granularity": "op"}, {"verify": True})):
        traced, recompiled = compiled_run(way, backend, path=tmp_path / f"{number}", **options)
        assert_same_bits(traced, plain)
        assert recompiled == compiled


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_model_first_compiled_inside_the_block_is_not_compiled_for_being_watched(tmp_path, way, backend):
    plain, compiled = compiled_run(way, backend, inside=True)
    traced, recompiled = compiled_run(way, backend, inside=True, path=tmp_path / "t")
    assert_same_bits(traced, plain)
    assert recompiled == compiled
    seen = {record.site.name for record in fd.open_trace(tmp_path / "t") if record.site.phase == "fwd"}
    wrapped = way == "torch.compile(model)"  # the wrapper is another model than the one that is traced
    assert seen == (set() if wrapped else WAYS[way][1])


@pytest.mark.parametrize("granularity", ["module", "op"])
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("way", WAYS)
def test_what_runs_under_a_trace_is_the_compiled_code(tmp_path, way, mode, granularity):
    """Not the eager one, to which torch falls back under modes that watch operations."""

    def run(path):
        torch._dynamo.reset()
        networks.seed()
        ran = []

        def backend(graph, inputs):
            return lambda *args: ran.append(1) or graph(*args)

        model = WAYS[way][0](Whole(), backend).eval()
        with getattr(torch, mode)():
            before = model(torch.ones(4, 6))
            with fd.trace(model, path, granularity=granularity) if path else nullcontext():
                inside = [model(torch.ones(4, 6)) for _ in range(3)]
        return len(ran), [bool(torch.equal(before, one)) for one in inside]

    assert run(tmp_path / "t") == run(None) == (4, [True] * 3)
    hidden = WAYS[way][2].replace("the model", "")
    operations = [record.site.name for record in fd.open_trace(tmp_path / "t") if "/" in record.site.name]
    assert not [name for name in operations if not hidden or name.startswith((f"{hidden}/", f"{hidden}."))]
    assert bool(operations) == (granularity == "op" and hidden != "")


class Branching(nn.Module):
    """Operators of higher order, which take functions."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x = self.linear(x)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


class CallingCompiled(nn.Module):
    """A function that is compiled inside a model that is not."""

    def __init__(self):
        super().__init__()
        self.linear, self.ran = nn.Linear(6, 6), []
        self.function = torch.compile(lambda x: x.sin() + 1, backend=self.backend)

    def backend(self, graph, inputs):
        return lambda *args: self.ran.append(1) or graph(*args)

    def forward(self, x):
        return self.function(self.linear(x))


@pytest.mark.parametrize("granularity", ["module", "op"])
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("kind", [Branching, CallingCompiled])
def test_functions_that_torch_compiles_or_branches_on_run_as_without_a_trace(tmp_path, kind, mode, granularity):
    torch._dynamo.reset()
    model = kind()
    with getattr(torch, mode)():
        expected = model(torch.ones(4, 6))
        with fd.trace(model, tmp_path / "t", granularity=granularity):
            assert torch.equal(model(torch.ones(4, 6)), expected)
    assert fd.open_trace(tmp_path / "t").complete
    assert getattr(model, "ran", [1, 1]) == [1, 1]


@pytest.mark.parametrize(
    ("way", "inside"), [(way, False) for way in WAYS] + [(way, True) for way in WAYS if way != "torch.compile(model)"]
)
def test_a_trace_of_a_compiled_model_has_plain_names_and_says_what_is_hidden(tmp_path, way, inside):
    compiled_run(way, "eager", path=tmp_path / "t", inside=inside)
    _, names, hidden = WAYS[way]
    trace = fd.open_trace(tmp_path / "t")
    assert {record.site.name for record in trace if record.site.phase in ("fwd", "agrad")} == names
    weights = {record.site.name for record in trace if record.site.phase == "weight"}
    assert weights == {"stem", "part.inner", "part.norm", "head"}
    assert "_orig_mod" not in (tmp_path / "t" / "index.jsonl").read_text()
    assert trace.header["notes"] == [f"{hidden}: compiled; only what goes in and comes out is recorded"]
    assert {record.op for record in trace if record.site.name == "" and record.site.port == "out"} >= {"Whole"}
    assert {record.op for record in trace if record.site.name == "part" and record.site.port == "out"} <= {"Part", None}


def test_an_eager_model_says_nothing_of_hidden_parts(tmp_path):
    model = Whole()
    with fd.trace(model, tmp_path / "t"):
        model(torch.ones(2, 6))
    assert "notes" not in fd.open_trace(tmp_path / "t").header


def test_a_compiled_model_and_an_eager_one_record_the_same_inputs_outputs_and_gradients(tmp_path):
    networks.seed()
    model = Whole().eval()
    x = torch.ones(2, 6)
    for path, one in (
        (tmp_path / "eager", model),
        (tmp_path / "compiled", compile_part(copy.deepcopy(model), "eager")),
    ):
        with fd.trace(one, path):
            one(x).sum().backward()
    eager, compiled = (fd.open_trace(tmp_path / name) for name in ("eager", "compiled"))
    expected = {record.site: record for record in eager}
    assert {record.site for record in compiled} < expected.keys()
    assert {record.site.phase for record in compiled} >= {"input", "weight", "fwd", "loss", "lossgrad", "agrad", "grad"}
    for record in compiled:
        assert record.absent == expected[record.site].absent
        assert record.absent or np.array_equal(compiled.array(record), eager.array(expected[record.site])), record.site


@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_is_as_before_after_the_block(tmp_path, way):
    torch._dynamo.reset()
    model = WAYS[way][0](Whole(), "eager")
    before = [{name: id(item) for name, item in vars(one).items()} for one in model.modules()]
    x = torch.ones(2, 6)
    with fd.trace(model, tmp_path / "t"):
        model(x)
        inside = [{name: id(item) for name, item in vars(one).items()} for one in model.modules()]
        twin = copy.deepcopy(model)
        twin(x)
    assert [{name: id(item) for name, item in vars(one).items()} for one in model.modules()] == before == inside
    assert {record.site.call for record in fd.open_trace(tmp_path / "t")} == {0}


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_in_compiled_code_is_said_at_the_module_that_was_compiled(tmp_path, way):
    torch._dynamo.reset()
    model = WAYS[way][0](Whole(), "eager")
    whole = WAYS[way][1] == {""}
    x = torch.ones(2, 5 if whole else 6)
    match = "fake tensor"  # the compiler's words for shapes that do not fit
    with pytest.raises(RuntimeError, match=match), fd.trace(model, tmp_path / "t"):
        if not whole:
            model.stem = nn.Linear(6, 7)
        model(x)
    last = list(fd.open_trace(tmp_path / "t"))[-1]
    assert last.site.name == ("" if whole else "part")
    assert last.absent.startswith("raised ")
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


def test_a_function_that_was_compiled_before_is_not_compiled_again_inside_the_block(tmp_path):
    def run(path):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        networks.seed()
        model, bits = Whole(), Bits()
        call = torch.compile(lambda x: model(x), backend="eager")
        bits.add("before", call(torch.ones(4, 6)))
        with fd.trace(model, path) if path else nullcontext():
            bits.add("compiled", call(torch.ones(4, 6)))
            bits.add("eager", model(torch.ones(4, 6)))
        bits.add("after", call(torch.ones(4, 6)))
        return bits, dict(torch._dynamo.utils.counters["stats"])

    plain, traced = run(None), run(tmp_path / "t")
    assert_same_bits(traced[0], plain[0])
    assert traced[1] == plain[1]


def test_a_model_called_only_by_compiled_code_is_an_error_that_says_so(tmp_path):
    torch._dynamo.reset()
    model = Whole()
    call = torch.compile(model, backend="eager")
    match = "only from inside code that torch.compile made"
    with pytest.raises(fd.CaptureError, match=match), fd.trace(model, tmp_path / "t"):
        call(torch.ones(4, 6))


def test_a_compiled_part_is_not_accused_of_losing_gradients(tmp_path):
    for run in ("eager", "compiled"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2))
        if run == "compiled":
            model[1] = torch.compile(model[1], backend="eager")
        with fd.trace(model, tmp_path / run):
            model(torch.ones(2, 3)).sum().backward()
    result = fd.diff(tmp_path / "eager", tmp_path / "compiled")
    assert (result.exit_code, result.first_drift, result.reference_only) == (0, None, ()), result.sentence
    absorbed = {item.site for item in result.absorbed}
    assert {site.name for site in absorbed} == {"1.0", "1.1"}  # said, and not counted as compared
    assert not absorbed & {pair.site for pair in result.pairs}
