"""TorchScript: scripted, traced, frozen, loaded modules run as without a trace, and the trace says what is hidden."""

import copy
import io
import itertools
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.capture import networks
from tests.run_bits import Bits, assert_same_bits
from torch import nn

import firstdrift as fd

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.dropout, self.norm = nn.Linear(8, 8), nn.Dropout(0.3), nn.BatchNorm1d(8)
        self.out = nn.LayerNorm(8)

    def forward(self, x):
        return self.out(torch.tanh(self.norm(self.dropout(F.gelu(self.inner(x))))))


class Whole(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.stem, self.part, self.head = nn.Linear(6, 8), part, nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.relu(self.part(self.stem(x))) * 0.5)


class Counting(nn.Module):
    """Writes to one buffer, replaces another, and takes and returns more than tensors."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor, scale: float = 2.0):
        self.calls += 1
        self.mean = x.detach().mean()
        y = self.inner(x) * scale + self.mean
        return y, {"twice": y * 2}


class Unpacking(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.part, self.head = nn.Linear(6, 8), torch.jit.script(Counting()), nn.Linear(8, 3)

    def forward(self, x):
        y, more = self.part(self.stem(x), scale=0.5)
        return self.head(y + more["twice"])


class CallsFunction(nn.Module):
    """A scripted function, which is no module."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

        def gate(x: torch.Tensor, y: torch.Tensor):
            return torch.sigmoid(x) * y + torch.tanh(x)

        self.gate = torch.jit.script(gate)  # a new one each time: torch keeps what it has compiled of a function

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.gate(x, x * 2))


class Ignoring(nn.Module):
    """Goes back to Python from inside TorchScript, and taps there."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.in_python(x) + self.inner(x)

    @torch.jit.ignore
    def in_python(self, x: torch.Tensor) -> torch.Tensor:
        return fd.tap("seen", x * 2)


class Forking(nn.Module):
    """Runs parts of itself in threads of TorchScript's own; Python called there makes torch itself abort at times."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def half(self, x):
        return self.inner(torch.sigmoid(x))

    def forward(self, x):
        first = torch.jit.fork(self.half, x)
        second = torch.jit.fork(self.half, x + 1)
        return torch.jit.wait(first) + torch.jit.wait(second) + self.inner(x)


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def traced_part(part, width=8):
    return torch.jit.trace(part, torch.ones(4, width), check_trace=False)


WAYS = {
    "a scripted part": lambda: Whole(torch.jit.script(Part())),
    "a part traced by jit": lambda: Whole(traced_part(Part())),
    "a loaded part": lambda: Whole(saved_and_loaded(torch.jit.script(Part()))),
    "a frozen part": lambda: Whole(torch.jit.freeze(torch.jit.script(Part().eval()))),
    "a part optimized for inference": lambda: Whole(torch.jit.optimize_for_inference(torch.jit.script(Part().eval()))),
    "a sequence": lambda: nn.Sequential(nn.Linear(6, 8), torch.jit.script(Part()), nn.Linear(8, 3)),
    "a scripted sequence": lambda: torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))),
    "a scripted model": lambda: torch.jit.script(Whole(Part())),
    "a model traced by jit": lambda: traced_part(Whole(Part()), 6),
    "a loaded model": lambda: saved_and_loaded(torch.jit.script(Whole(Part()))),
    "buffers and structures": Unpacking,
    "a scripted function": CallsFunction,
    "Python inside": lambda: Whole(torch.jit.script(Ignoring())),
    "threads of TorchScript": lambda: Whole(torch.jit.script(Forking())),
    "scripted twice": lambda: Whole(torch.jit.script(nn.Sequential(torch.jit.script(Part()), nn.Linear(8, 8)))),
}


TRAINED = [way for way in WAYS if way != "threads of TorchScript"]  # which add up gradients in no fixed order


def set_mode(model, mode):
    """Frozen modules have no mode, and cannot be asked to change it."""
    for module in model.modules():
        if "training" in vars(module) or hasattr(module, "training"):
            module.training = mode


def train(model, optimizer, bits, steps):
    for step in steps:
        output = model(torch.randn(4, 6, generator=torch.Generator().manual_seed(step)))
        output.square().mean().backward()
        bits.add(f"output {step}", output)
        bits.add(f"gradient {step}", {name: one.grad for name, one in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(autouse=True)
def nothing_compiled_yet():
    forget_compiled_classes()


def forget_compiled_classes():
    """Modules of one class share their compiled code, which torch changes when it has run a few times."""
    torch._C._jit_clear_class_registry()
    torch.jit._recursive.concrete_type_store = torch.jit._recursive.ConcreteTypeStore()
    torch.jit._state._clear_class_state()


def scripted_run(way, path=None, *, training=True, count=8, before=2, **options):
    """Train before, in and after the block."""
    forget_compiled_classes()
    networks.seed()
    model = WAYS[way]()
    set_mode(model, training)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    bits = Bits()
    given = {"optimizer": optimizer, **options}
    train(model, optimizer, bits, range(before))
    with fd.trace(model, path, **given) if path else nullcontext():
        train(model, optimizer, bits, range(before, count))
    train(model, optimizer, bits, range(count, count + 2))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        bits.add(name, tensor)
    bits.add("optimizer", optimizer.state_dict())
    bits.add_randomness()
    return bits


OPTIONS = {
    "modules": {},
    "statistics": {"keep": "stats"},
    "operations": {"granularity": "op"},
    "verification": {"verify": True},
}


def sampled(ways, *further):
    """Every way with plain options, and every option with four ways; the rest of the matrix is slow."""
    usual = ("a scripted part", "a model traced by jit", "buffers and structures", "a scripted function")
    return [
        pytest.param(way, options, one, marks=() if options == "modules" or way in usual else pytest.mark.slow)
        for way, options, one in itertools.product(ways, OPTIONS, further)
    ]


@pytest.mark.parametrize(("way", "options", "how"), sampled(TRAINED, (True, 0), (True, 2), (False, 0)))
def test_scripted_modules_train_bit_for_bit_as_untraced(tmp_path, way, options, how):
    """From their first run on, and after torch has seen enough runs to compute their gradients in another way."""
    training, before = how
    plain = scripted_run(way, training=training, before=before)
    traced = scripted_run(way, tmp_path / "t", training=training, before=before, **OPTIONS[options])
    assert_same_bits(traced, plain)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    assert {record.site.step for record in trace} == set(range(8 - before))


@pytest.mark.parametrize(("way", "options", "mode"), sampled(WAYS, "no_grad", "inference_mode"))
def test_scripted_modules_without_gradients_return_the_same_bits(tmp_path, way, options, mode):
    found = []
    for path in (None, tmp_path / "t"):
        forget_compiled_classes()
        networks.seed()
        model, bits = WAYS[way](), Bits()
        set_mode(model, False)
        with getattr(torch, mode)(), fd.trace(model, path, **OPTIONS[options]) if path else nullcontext():
            for number in range(4):
                bits.add(f"output {number}", model(torch.full((4, 6), float(number))))
        found.append(bits)
    assert_same_bits(*found)
    assert fd.open_trace(tmp_path / "t").complete


HIDDEN = {
    "a scripted part": ("part", {"", "stem", "part", "head"}, "Part"),
    "a part traced by jit": ("part", {"", "stem", "part", "head"}, "Part"),
    "a loaded part": ("part", {"", "stem", "part", "head"}, "Part"),
    "a frozen part": ("part", {"", "stem", "part", "head"}, "Part"),
    "a sequence": ("1", {"", "0", "1", "2"}, "Part"),
    "a scripted model": ("the model", {""}, "Whole"),
    "a model traced by jit": ("the model", {""}, "Whole"),
    "a loaded model": ("the model", {""}, "Whole"),
}


@pytest.mark.parametrize("granularity", ["module", "op"])
@pytest.mark.parametrize("way", HIDDEN)
def test_a_trace_says_which_parts_are_scripted_and_records_what_goes_in_and_out(tmp_path, way, granularity):
    hidden, names, kind = HIDDEN[way]
    scripted_run(way, tmp_path / "t", granularity=granularity)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.header["notes"] == [f"{hidden}: TorchScript; only what goes in and comes out is recorded"]
    seen = {record.site.name for record in trace if record.site.phase in ("fwd", "agrad")}
    assert {name for name in seen if "/" not in name} == names
    inside = "" if hidden == "the model" else hidden
    assert not [name for name in seen if name.startswith(f"{inside}/")]
    ports = {record.site.port for record in trace if record.site.name == inside and record.site.phase == "fwd"}
    assert ports == {"in.0", "out"}
    assert {one.op for one in trace if (one.site.name, one.site.port) == (inside, "out") and one.op} == {kind}
    assert trace.header["model"] == ("Sequential" if way == "a sequence" else "Whole")
    inputs = {record.site.port for record in trace if record.site.phase == "input"}
    assert inputs == ({"input"} if way == "a sequence" else {"x"})


def test_a_scripted_model_and_an_eager_one_record_the_same_values(tmp_path):
    networks.seed()
    eager = Whole(Part()).eval()
    scripted = copy.deepcopy(eager)
    scripted.part = torch.jit.script(scripted.part)
    for path, model in ((tmp_path / "eager", eager), (tmp_path / "scripted", scripted)):
        with fd.trace(model, path):
            model(torch.ones(4, 6)).sum().backward()
    ours, theirs = fd.open_trace(tmp_path / "scripted"), fd.open_trace(tmp_path / "eager")
    expected = {record.site: record for record in theirs}
    assert {record.site for record in ours} < expected.keys()
    phases = {record.site.phase for record in ours}
    assert phases >= {"input", "weight", "fwd", "loss", "lossgrad", "agrad", "grad"}
    for record in ours:
        assert record.absent == expected[record.site].absent, record.site
        assert record.absent or np.array_equal(ours.array(record), theirs.array(expected[record.site])), record.site
    head = next(one for one in ours if (one.site.phase, one.site.name, one.site.port) == ("fwd", "head", "in.0"))
    assert {(site.name, site.port) for site in head.producers} == {("part", "out")}
    result = fd.diff(tmp_path / "eager", tmp_path / "scripted")
    assert (result.exit_code, result.first_drift, result.reference_only) == (0, None, ()), result.sentence
    inside = expected.keys() - {record.site for record in ours}
    assert inside == {item.site for item in result.absorbed}  # said, and not counted as compared
    assert not inside & {pair.site for pair in result.pairs}


def test_settings_of_a_scripted_layer_are_those_of_the_eager_one(tmp_path):
    for path, layer in ((tmp_path / "eager", nn.BatchNorm1d(6, eps=0.01)), (tmp_path / "s", nn.BatchNorm1d(6, 0.01))):
        model = nn.Sequential(torch.jit.script(layer) if path.name == "s" else layer)
        with fd.trace(model, path, classes="BatchNorm1d"):
            model(torch.ones(4, 6))
    eager, scripted = (
        next(one for one in fd.open_trace(tmp_path / name) if (one.site.name, one.site.port) == ("0", "out"))
        for name in ("eager", "s")
    )
    assert (scripted.op, scripted.attrs) == (eager.op, eager.attrs) == ("BatchNorm1d", eager.attrs)
    assert scripted.attrs["eps"] == 0.01


class Raising(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            raise ValueError("too large")
        return x


def test_an_exception_inside_a_scripted_module_is_the_users_own_and_said_there(tmp_path):
    model = nn.Sequential(nn.Identity(), torch.jit.script(Raising()))
    with pytest.raises(torch.jit.Error) as plain:
        model(torch.ones(2))
    with pytest.raises(torch.jit.Error) as traced, fd.trace(model, tmp_path / "t"):
        model(-torch.ones(2))
        model(torch.ones(2))
    assert str(traced.value) == str(plain.value)
    last = list(fd.open_trace(tmp_path / "t"))[-1]
    assert (last.site.name, last.site.step) == ("1", 1)
    assert last.absent.startswith("raised Error")
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
    assert torch.equal(model(-torch.ones(2)), -torch.ones(2))


@pytest.mark.parametrize("make", [torch.jit.script, traced_part], ids=["script", "trace"])
def test_a_module_can_become_torchscript_inside_the_block(tmp_path, make):
    def run(path):
        networks.seed()
        model, bits = Whole(Part()).eval(), Bits()
        with fd.trace(model, path) if path else nullcontext():
            bits.add("before", model(torch.ones(4, 6)))
            model.part = make(model.part)
            bits.add("graph", str(model.part.graph.str().count("aten::")))
            for number in range(3):
                bits.add(f"after {number}", model(torch.ones(4, 6)))
        return bits

    assert_same_bits(run(tmp_path / "t"), run(None))
    trace = fd.open_trace(tmp_path / "t")
    assert {record.site.step for record in trace} == {0, 1, 2, 3}  # tracing by jit is no call of the model
    assert trace.header["notes"] == ["part: TorchScript; only what goes in and comes out is recorded"]


def test_a_model_traced_by_jit_inside_the_block_has_the_same_graph(tmp_path):
    model = Whole(Part()).eval()
    plain = traced_part(model, 6).graph
    with fd.trace(model, tmp_path / "t"):
        model(torch.ones(4, 6))
        traced = traced_part(model, 6).graph
    assert str(traced).count("\n") == str(plain).count("\n")
    assert {record.site.step for record in fd.open_trace(tmp_path / "t")} == {0}


def test_compiled_and_scripted_parts_are_both_named(tmp_path):
    torch._dynamo.reset()
    model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 4))
    model[1].compile(backend="eager")
    with fd.trace(model, tmp_path / "t"):
        model(torch.ones(2, 4))
    assert fd.open_trace(tmp_path / "t").header["notes"] == [
        "1: compiled; only what goes in and comes out is recorded",
        "0: TorchScript; only what goes in and comes out is recorded",
    ]


def test_python_called_from_torchscript_is_seen(tmp_path):
    model = Whole(torch.jit.script(Ignoring()))
    with fd.trace(model, tmp_path / "t"):
        model(torch.ones(4, 6)).sum().backward()
    names = {record.site.name for record in fd.open_trace(tmp_path / "t") if record.site.phase == "fwd"}
    assert names == {"", "stem", "part", "part.seen", "head"}


def test_what_a_scripted_function_returns_was_computed_from_what_it_was_given(tmp_path):
    model = CallsFunction()
    with torch.no_grad(), fd.trace(model, tmp_path / "t"):
        model(torch.ones(4, 6))
    trace = fd.open_trace(tmp_path / "t")
    head = next(one for one in trace if (one.site.name, one.site.port) == ("head", "in.0"))
    assert {site.name for site in head.producers} == {"stem"}


class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_user_stays_where_it_is(tmp_path):
    model = WAYS["buffers and structures"]()
    with torch.no_grad(), Watching() as mode, fd.trace(model, tmp_path / "t"):
        expected = model(torch.ones(4, 6))
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is mode
        with Watching() as inner:
            assert torch.equal(model(torch.ones(4, 6)), expected)
            assert torch.utils._python_dispatch._get_current_dispatch_mode() is inner
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_the_size_of_a_trace_of_a_scripted_model_can_be_estimated(tmp_path):
    model = WAYS["a scripted part"]()
    expected = fd.estimate(model, torch.ones(4, 6), train=False)
    with fd.trace(model, tmp_path / "t"), torch.no_grad():
        model(torch.ones(4, 6))
    assert expected.tensors == len(list(fd.open_trace(tmp_path / "t")))
