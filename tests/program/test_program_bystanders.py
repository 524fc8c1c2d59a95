"""Recording a program disturbs nobody: not the model, not its memory, not the compiler, not another trace."""

import gc
import inspect
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from tests.program.replaying import (
    WIDTH,
    Body,
    Recorded,
    assert_replays,
    batch,
    bits_of,
    mlp,
    record,
    record_training,
    train,
)
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import firstdrift as fd
from firstdrift.capture.torch.calls.memory import Memory
from firstdrift.program.written.read_program import read_program

# torch's own compiler reads .grad of tensors that are no leaves and uses what torch deprecates, and is warned of both.
quiet_compiler = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]

# Places.


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def two_lines(self, h):
    scaled = h * 3.0
    return functional.softplus(
        scaled,
    )


def test_every_function_has_its_module_and_the_line_of_the_users_code(tmp_path):
    found = record_training(tmp_path / "t", Body(two_lines))
    (product,) = found.functions("torch.Tensor.mul")
    assert product.module == ""
    assert product.place.function == "two_lines"
    assert product.place.line == line_of(two_lines, "h * 3.0")
    assert product.place.file.endswith("test_program_bystanders.py")
    (soft,) = found.functions("torch.nn.functional.softplus")
    assert soft.place.line == line_of(two_lines, "functional.softplus")
    lifted, headed = found.functions("torch.nn.functional.linear")
    assert (lifted.module, headed.module) == ("lift", "head")
    assert lifted.place.file.endswith("replaying.py")  # torch's own lines are not the user's
    assert lifted.place.line == line_of(Body.forward, "self.lift(x)")
    (loss,) = found.functions("torch.nn.functional.cross_entropy")
    assert (loss.module, loss.place.line) == (None, line_of(train, "cross_entropy"))


def test_a_function_holds_the_calls_that_are_nested_in_it(tmp_path):
    found = record_training(tmp_path / "t", Body(two_lines))
    (linear, _) = found.functions("torch.nn.functional.linear")
    nested = [found.step.nodes[number].op for number in range(linear.first, linear.last + 1)]
    assert nested == ["aten.t.default", "aten.addmm.default"]
    assert found.step.function_of[linear.last] is linear
    assert linear.results == (found.step.sites[fd.Site(0, "fwd", "lift", "out")],)


def test_source_text_is_stored_only_if_asked_for(tmp_path):
    plain = record_training(tmp_path / "plain", Body(two_lines))
    asked = record_training(tmp_path / "asked", Body(two_lines), source=True)
    assert {one.place.text for one in plain.functions("torch.Tensor.mul")} == {None}
    assert "h * 3.0" not in plain.text
    (product,) = asked.functions("torch.Tensor.mul")
    assert product.place.text == "scaled = h * 3.0"


@pytest.mark.parametrize("source", [False, True])
def test_no_absolute_path_is_in_the_file(tmp_path, source):
    space = {"__name__": "elsewhere"}
    outside = tmp_path / "deep" / "outside.py"  # neither in a package nor in the working directory
    exec(compile("def body(self, h):\n    return h.exp()\n", str(outside), "exec"), space)
    found = record_training(tmp_path / "t", Body(space["body"]), source=source)
    (call,) = found.functions("torch.Tensor.exp")
    assert call.place.file == "outside.py"
    files = {line["line"][1] for line in found.lines if "line" in line and isinstance(line["line"], list)}
    assert files
    for path in (str(tmp_path), str(Path.cwd()), str(Path.home()), str(Path(torch.__file__).parent)):
        assert path not in found.text
    assert not any(Path(file).is_absolute() or file.startswith("..") for file in files)


# Our own hooks.


def test_calls_do_not_depend_on_what_is_kept_or_on_phases(tmp_path):
    def calls(name, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        found = record_training(tmp_path / name, model, optimizer, steps=2, **options)
        return [
            (number, call.op, call.part, call.module, call.place, call.results)
            for number in (0, 1)
            for call in found.calls("", number)
        ]

    full = calls("full")
    assert full == calls("stats", keep="stats")
    assert full == calls("forward", phases="fwd")
    assert full == calls("some", phases=["loss", "grad"])
    assert full == calls("only", only="0")
    assert full == calls("mixed", keep={"*": "stats", "3": "full"})
    assert full == calls("checksum", checksum=True)
    assert full == calls("verified", verify=True)
    plain = [(number, op, part, results) for number, op, part, _, _, results in full]
    assert plain == [(one[0], one[1], one[2], one[5]) for one in calls("operations", granularity="op")]


def test_a_tap_is_a_site_and_no_call(tmp_path):
    def tapped(self, h):
        fd.tap("here", h)
        return h * 2.0

    found = record_training(tmp_path / "t", Body(tapped))
    assert_replays(found)
    sites = {(site.phase, site.name): ref for site, ref in found.step.sites.items()}
    assert sites["fwd", "here"] == sites["fwd", "lift"]


def test_a_trace_without_a_program_has_no_file(tmp_path):
    with fd.trace(model := mlp(), tmp_path / "t", program=False):
        model(batch()[0])
    assert not (tmp_path / "t" / "program.jsonl").exists()
    assert read_program(fd.open_trace(tmp_path / "t")) is None


def test_a_trace_written_over_another_one_loses_its_program(tmp_path):
    with fd.trace(model := mlp(), tmp_path / "t"):
        model(batch()[0])
    with fd.trace(model, tmp_path / "t", program=False, overwrite=True):
        model(batch()[0])
    assert read_program(fd.open_trace(tmp_path / "t")) is None


# Memory.


def activations_alive(model, path=None):
    """Which of some activations live on at three moments of a step."""
    held = {}

    def body(self, h):
        a = h.detach() * 2.0  # needed by nobody
        b = torch.tanh(h)  # needed by its backward
        held.update(a=weakref.ref(a), b=weakref.ref(b), view=weakref.ref(a[1:]))
        return b + a.sum()

    model.body = body
    alive = []

    def look():
        gc.collect()
        alive.append({name: ref() is not None for name, ref in held.items()})

    def run():
        loss = model(batch()[0]).sum()
        look()
        loss.backward()
        del loss
        look()

    if path is None:
        run()
    else:
        with fd.trace(model, path):
            run()
    look()
    return alive


def test_tensors_are_not_kept_alive(tmp_path):
    model = Body(None)
    plain = activations_alive(model)
    assert not plain[0]["a"]
    assert activations_alive(model, tmp_path / "t") == plain


def test_the_memory_of_an_activation_is_given_back_at_once(tmp_path):
    """Not the Python object alone: a storage that is only known by a weak reference holds no numbers."""
    sizes = []

    def body(self, h):
        a = torch.ones(50_000) * 2.0
        storage = a.untyped_storage()
        weak = storage._weak_ref()
        total = a.sum()
        del a, storage
        sizes.append(torch.UntypedStorage._expired(weak))
        torch.UntypedStorage._free_weak_ref(weak)
        return h + total.detach()

    record(tmp_path / "t", model := Body(body), lambda: model(batch()[0]))
    assert sizes == [True]


def test_memory_that_is_used_again_is_not_mistaken_for_what_was_there(tmp_path):
    def body(self, h):
        for number in range(20):
            flat = torch.full((5 * WIDTH,), float(number))
            total = flat.sum()
            del flat  # and its memory goes to the next one, of another shape
            square = torch.full((5, WIDTH), 0.5)
            square[:, 1] += number
            h = h + square + total
            del square, total
        return h

    assert_replays(record_training(tmp_path / "t", Body(body), steps=2))


# Modes and the compiler.


class CountsFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class CountsOperations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [CountsFunctions, CountsOperations])
def test_the_users_own_modes_see_what_they_see_without_us(tmp_path, kind):
    seen = []
    for traced in (False, True):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        x, y = batch()
        with fd.trace(model, tmp_path / "t", optimizer=optimizer) if traced else nullcontext():
            with kind() as mode:
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        seen.append(mode.names)
    assert seen[0]
    detach = "aten.detach.default"  # which autograd calls for what it saves wherever one mode lies on another
    assert [name for name in seen[1] if name != detach] == [name for name in seen[0] if name != detach]
    assert_replays(Recorded(tmp_path / "t"))


def test_nothing_is_left_behind(tmp_path):
    before = (torch.Tensor.backward, torch.autograd.backward, nn.Module.__call__)
    record_training(tmp_path / "t", mlp(), steps=2)
    assert (torch.Tensor.backward, torch.autograd.backward, nn.Module.__call__) == before
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0


def test_nothing_is_left_behind_after_an_exception(tmp_path):
    before = torch.Tensor.backward
    model = mlp()
    with pytest.raises(RuntimeError, match="shapes cannot"), fd.trace(model, tmp_path / "t"):
        model(torch.randn(2, 7))
    assert torch.Tensor.backward is before
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0


class Compilations:
    """Compiles to the graph itself, and counts."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        return graph.forward


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, h):
        return torch.tanh(self.linear(h))


class TestCompiled:
    pytestmark = quiet_compiler

    def test_a_compiled_submodule_stays_compiled_and_is_noted(self, tmp_path):
        torch._dynamo.reset()
        backend = Compilations()
        plain = Body(lambda self, h: self.inner(h), inner=Inner())
        model = Body(lambda self, h: self.inner(h), inner=Inner())
        model.load_state_dict(plain.state_dict())
        model.inner.compile(backend=backend)
        model(batch()[0])
        assert backend.count == 1
        found = record(tmp_path / "t", model, lambda: [model(batch(number)[0]) for number in range(2)])
        model(batch()[0])
        assert backend.count == 1
        for number in (0, 1):
            assert any("inner: compiled; its calls" in note for note in found.program.steps[number].notes)
            assert not found.calls("aten.tanh", number)
            assert len(found.functions("torch.nn.functional.linear", number)) == 2
        assert bits_of(model(batch()[0])) == bits_of(plain(batch()[0]))
        assert_replays(found)

    def test_a_compiled_function_stays_compiled_and_is_noted(self, tmp_path):
        torch._dynamo.reset()
        backend = Compilations()
        fused = torch.compile(lambda x: torch.tanh(x) * 2.0, backend=backend)
        model = Body(lambda self, h: fused(h) + 1.0)
        model(batch()[0])
        assert backend.count == 1
        found = record(tmp_path / "t", model, lambda: [model(batch(number)[0]) for number in range(2)])
        assert backend.count == 1
        assert any("compiled" in note for note in found.step.notes)
        assert not found.calls("aten.tanh")
        assert found.functions("torch.Tensor.add")
        assert_replays(found)


def test_a_torchscript_submodule_runs_and_is_noted(tmp_path):
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        inner = torch.jit.trace(Inner(), torch.zeros(5, WIDTH))
    model = Body(lambda self, h: self.inner(h), inner=inner)
    found = record(tmp_path / "t", model, lambda: model(batch()[0]))
    assert any("inner: TorchScript" in note for note in found.step.notes)
    assert_replays(found)


def test_a_model_called_from_another_thread_runs_as_ever(tmp_path):
    model = mlp()
    plain = model(batch()[0])
    outputs = []

    def run():
        thread = threading.Thread(target=lambda: outputs.append(model(batch()[0])))
        thread.start()
        thread.join()

    found = record(tmp_path / "t", model, run)
    assert bits_of(outputs[0]) == bits_of(plain)
    assert found.trace.complete


def test_a_model_called_from_several_threads_at_once_runs_as_ever(tmp_path):
    model = Body(lambda self, h: torch.tanh(h))
    plain = [model(batch(number)[0]) for number in range(4)]
    outputs, ready = {}, threading.Barrier(4)

    def call(number):
        ready.wait()
        try:
            outputs[number] = model(batch(number)[0])
        except Exception as error:
            outputs[number] = error

    with fd.trace(model, tmp_path / "t"):
        model(batch(9)[0])
        threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not [one for one in outputs.values() if isinstance(one, Exception)]
    assert [bits_of(outputs[number]) for number in range(4)] == [bits_of(one) for one in plain]
    found = Recorded(tmp_path / "t")
    assert found.calls("aten.tanh", 0)


# Other traces.


def test_another_trace_in_the_same_process_has_a_program_of_its_own(tmp_path):
    first, second = mlp(), Body(lambda self, h: torch.sigmoid(h))
    torch.manual_seed(0)
    with fd.trace(first, tmp_path / "first"), fd.trace(second, tmp_path / "second"):
        first(batch()[0])
        second(batch()[0])
    one, other = Recorded(tmp_path / "first"), Recorded(tmp_path / "second")
    assert_replays(one)
    assert_replays(other)
    assert [call.module for call in other.functions("torch.sigmoid")] == [""]
    again = record(tmp_path / "again", second, lambda: second(batch()[0]))
    assert_replays(again)
    assert [call.op for call in again.calls()] == [call.op for call in other.calls()]


def test_one_model_traced_after_another_starts_anew(tmp_path):
    texts = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        model = mlp()
        texts.append(record_training(tmp_path / name, model, steps=2).text)
        record_training(tmp_path / f"{name} between", Body(lambda self, h: h.exp()))
    assert texts[0] == texts[1]


# Faults.


@pytest.mark.parametrize("after", [0, 1, 7, 30])
@pytest.mark.parametrize("kind", [RuntimeError, KeyError, ZeroDivisionError])
def test_a_fault_of_the_recorder_never_reaches_the_model(tmp_path, monkeypatch, after, kind):
    left, ref = iter(range(after)), Memory.ref

    def failing(self, tensor):
        if next(left, None) is None:
            raise kind("our own mistake")
        return ref(self, tensor)

    weights = []
    for traced in (False, True):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if traced:
            monkeypatch.setattr(Memory, "ref", failing)
            record_training(tmp_path / "t", model, optimizer, steps=3)
        else:
            train(model, optimizer, 3)
        weights.append([bits_of(one) for one in model.parameters()])
    assert weights[0] == weights[1]
    found = Recorded(tmp_path / "t")
    assert found.trace.complete
    if kind is not RuntimeError:  # which is what tensors without memory raise: such a tensor is lost, and no more
        notes = [note for step in found.program.steps.values() for note in step.notes]
        assert [note for note in notes if f"the program ends here: {kind.__name__}" in note]


@pytest.mark.parametrize("part", ["made", "wrote", "peek"])
def test_a_fault_anywhere_in_the_memory_never_reaches_the_model(tmp_path, monkeypatch, part):
    monkeypatch.setattr(Memory, part, lambda *said: 1 // 0)
    model = Body(lambda self, h: (h * 1.0).relu_())
    found = record_training(tmp_path / "t", model, steps=2)
    assert found.trace.complete
    notes = [note for step in found.program.steps.values() for note in step.notes]
    assert any("the program ends here: ZeroDivisionError" in note for note in notes)
    assert {one.site.step for one in found.trace} == {0, 1}


def test_a_tensor_without_memory_of_its_own_is_what_the_recorder_calls_it():
    memory = Memory(None, None, lambda tensor: f"strange {tensor.layout}")
    assert memory.ref(torch.eye(2).to_sparse()) == "strange torch.sparse_coo"
