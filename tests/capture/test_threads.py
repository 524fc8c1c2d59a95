"""Models called from several threads run as without a trace; one call at a time is recorded, notes name the rest."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from tests.capture import networks
from tests.capture.taking import values
from tests.run_bits import Bits, assert_same_bits
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import firstdrift as fd

AGAIN = range(5)  # what threads do once they need not do twice
NOTE = "called in other threads too, where nothing is recorded: "


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return fd.tap("sum", x + torch.tanh(self.norm(self.inner(x))))


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.part, self.head = nn.Linear(6, 8), Part(), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.part(self.stem(x)))


class Checkpointed(Whole):
    def forward(self, x):
        return self.head(checkpoint(self.part, self.stem(x), use_reentrant=False))


class Waiting(nn.Module):
    """Says that it is inside, and stays there until it is told to go on."""

    def __init__(self):
        super().__init__()
        self.inner, self.inside, self.go_on = nn.Linear(6, 6), threading.Event(), threading.Event()

    def forward(self, x):
        x = self.inner(x)
        self.inside.set()
        assert self.go_on.wait(20)
        return self.inner(x)


class Pipeline(nn.Module):
    """Runs a part of itself in another thread."""

    def __init__(self):
        super().__init__()
        self.stem, self.part, self.head = nn.Linear(6, 8), Part(), nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(in_thread(self.part, x))


def model_of(kind=Whole):
    networks.seed()
    return kind()


def input_of(number):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(number))


def in_thread(work, *args):
    """Do something in a thread of its own, and wait for it."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work, *args).result(20)


def as_before():
    plain = nn.Module.__call__ is nn.Module._wrapped_call_impl
    return plain and torch.autograd.backward.__name__ == "backward" and not _get_current_dispatch_mode_stack()


def notes(path):
    return fd.open_trace(path).header.get("notes", [])


OPTIONS = {
    "modules": {},
    "statistics": {"keep": "stats"},
    "operations": {"granularity": "op"},
    "verify": {"verify": True},
}


@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_pool_of_threads_gets_the_same_bits(tmp_path, options, mode):
    model = model_of()

    def call(number):
        with getattr(torch, mode)():
            return model(input_of(number))

    expected = [call(number) for number in range(40)]
    for again in AGAIN:
        with fd.trace(model, tmp_path / f"{again}", **OPTIONS[options]), ThreadPoolExecutor(4) as executor:
            found = list(executor.map(call, range(40)))
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        assert as_before()
        trace = fd.open_trace(tmp_path / f"{again}")
        assert trace.complete, trace.problems
        steps = sorted({record.site.step for record in trace})
        assert steps == list(range(len(steps)))
        for step in steps:  # every recorded call is whole
            said = {
                (one.site.name, one.site.port) for one in trace if one.site.step == step and one.site.phase == "fwd"
            }
            assert said >= {("", "out"), ("stem", "out"), ("part.inner", "out"), ("part.norm", "out"), ("head", "out")}
            assert {one.site.call for one in trace if one.site.step == step and one.site.name == ""} == {0}


def test_a_pool_of_threads_that_trains_gets_the_same_gradients(tmp_path):
    """Each thread's own gradients, which no order of threads changes."""
    model = model_of()

    def gradients(number):
        loss = model(input_of(number)).square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    expected = [gradients(number) for number in range(40)]
    for again in AGAIN:
        with fd.trace(model, tmp_path / f"{again}"), ThreadPoolExecutor(4) as executor:
            found = list(executor.map(gradients, range(40)))
        for ours, theirs in zip(found, expected, strict=True):
            assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
        assert fd.open_trace(tmp_path / f"{again}").complete


def test_threads_may_add_up_their_gradients(tmp_path):
    for again in AGAIN:
        model = model_of(Checkpointed)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)

        def work(number, model=model):
            model(input_of(number)).square().sum().backward()

        with fd.trace(model, tmp_path / f"{again}", optimizer=optimizer), ThreadPoolExecutor(4) as executor:
            for first in range(0, 24, 8):
                list(executor.map(work, range(first, first + 8)))
                optimizer.step()
                optimizer.zero_grad()
        trace = fd.open_trace(tmp_path / f"{again}")
        assert trace.complete
        assert {one.site.step for one in trace if one.site.phase == "weight_after"} == {0, 1, 2}
        assert as_before()


def test_a_step_that_raised_does_not_keep_others_from_being_recorded(tmp_path):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def stop():
        raise ValueError("stop")

    def fail():
        with pytest.raises(ValueError, match="stop"):
            optimizer.step(stop)

    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        for number in range(3):
            in_thread(model, input_of(number)).sum().backward()
            in_thread(fail)
            in_thread(optimizer.step)
            optimizer.zero_grad()
    assert {one.site.step for one in fd.open_trace(tmp_path / "t")} == {0, 1, 2}


def train(model, optimizer, steps):
    bits = Bits()
    for step in steps:
        output = model(input_of(step))
        output.square().mean().backward()
        optimizer.step()
        bits.add(f"output {step}", output)
        bits.add(f"gradients {step}", {name: one.grad for name, one in model.named_parameters()})
        optimizer.zero_grad()
    bits.add("weights", model.state_dict())
    return bits


def traced_in_one_thread(path, kind=Whole, optimizer=torch.optim.AdamW, **options):
    model = model_of(kind)
    optimizer = optimizer(model.parameters(), 1e-2)
    with fd.trace(model, path, optimizer=optimizer, **options):
        return train(model, optimizer, range(3))


def assert_same_trace(path, expected):
    ours, theirs = values(path), values(expected)
    assert ours.keys() == theirs.keys()
    for name, item in theirs.items():
        assert item == ours[name] if isinstance(item, str) else (item == ours[name]).all(), name
    assert [one.site for one in fd.open_trace(path)] == [one.site for one in fd.open_trace(expected)]


@pytest.mark.parametrize("kind", [Whole, Checkpointed])
@pytest.mark.parametrize("options", [{}, {"granularity": "op"}, {"verify": True}], ids=["modules", "op", "verify"])
def test_a_loop_that_runs_in_a_thread_of_its_own_is_recorded_in_full(tmp_path, kind, options):
    plain = traced_in_one_thread(tmp_path / "one", kind, **options)
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with fd.trace(model, tmp_path / "other", optimizer=optimizer, **options):
        assert_same_bits(in_thread(train, model, optimizer, range(3)), plain)
    assert_same_trace(tmp_path / "other", tmp_path / "one")
    assert notes(tmp_path / "other") == []


def test_a_model_that_each_step_calls_in_a_new_thread_is_recorded_in_full(tmp_path):
    """As `torch.nn.parallel.parallel_apply` does: forward in a thread, the rest where the block was opened."""
    plain = traced_in_one_thread(tmp_path / "one")
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with fd.trace(model, tmp_path / "other", optimizer=optimizer):
        assert_same_bits(train(Threaded(model), optimizer, range(3)), plain)
    assert_same_trace(tmp_path / "other", tmp_path / "one")
    assert notes(tmp_path / "other") == []


class Threaded:
    """Calls a model in a new thread, and is otherwise that model."""

    def __init__(self, model):
        self._model = model

    def __call__(self, x):
        return in_thread(self._model, x)

    def __getattr__(self, name):
        return getattr(self._model, name)


def test_every_part_of_a_step_may_run_in_a_thread_of_its_own(tmp_path):
    traced_in_one_thread(tmp_path / "one")
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with fd.trace(model, tmp_path / "other", optimizer=optimizer):
        for step in range(3):
            output = in_thread(model, input_of(step))
            in_thread(output.square().mean().backward)
            in_thread(optimizer.step)
            optimizer.zero_grad()
    assert_same_trace(tmp_path / "other", tmp_path / "one")


def test_calls_that_are_awaited_one_after_the_other_are_all_recorded(tmp_path):
    model = model_of()

    async def calls():
        return [await asyncio.to_thread(model, input_of(number)) for number in range(10)]

    with fd.trace(model, tmp_path / "t"):
        asyncio.run(calls())
    assert {record.site.step for record in fd.open_trace(tmp_path / "t")} == set(range(10))
    assert notes(tmp_path / "t") == []


def test_calls_of_the_thread_that_opened_the_block_are_all_recorded_whatever_others_do(tmp_path):
    model = model_of()
    expected = [model(input_of(number)) for number in range(50)]
    with fd.trace(model, tmp_path / "one"):
        for number in range(20):
            model(input_of(number))
    for again in AGAIN:
        path, stop = tmp_path / f"{again}", threading.Event()

        def others(stop=stop):
            while not stop.is_set():
                for number in range(20, 50):
                    assert torch.equal(model(input_of(number)), expected[number])
                    fd.tap("not here", expected[number])

        with fd.trace(model, path), ThreadPoolExecutor(2) as executor:
            for number in range(20):
                assert torch.equal(model(input_of(number)), expected[number])
                if number == 0:
                    running = [executor.submit(others) for _ in range(2)]
            stop.set()
            for one in running:
                one.result(20)
        recorded, alone = values(path, "fwd", "input"), values(tmp_path / "one", "fwd", "input")
        assert recorded.keys() == alone.keys()
        assert all((recorded[name] == item).all() for name, item in alone.items())
        assert notes(path) == [NOTE + "the model"]


def test_a_call_that_begins_while_another_one_is_recorded_is_not(tmp_path):
    model = nn.Sequential(nn.Linear(6, 6), Waiting())
    with fd.trace(model, tmp_path / "t"), ThreadPoolExecutor(2) as executor:
        first = executor.submit(model, input_of(0))
        assert model[1].inside.wait(20)
        second = executor.submit(model[0], input_of(1))
        second.result(20)
        model[1].go_on.set()
        first.result(20)
        executor.submit(model, input_of(2)).result(20)
    found = values(tmp_path / "t", "input")
    assert sorted(found) == ["input input:input", "input input:input#1"]
    assert (found["input input:input#1"] == input_of(2).numpy()).all()
    assert notes(tmp_path / "t") == [NOTE + "0"]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad"])
def test_a_part_that_runs_in_another_thread_is_named(tmp_path, mode, options):
    model = model_of(Pipeline)
    with getattr(torch, mode)():
        expected = model(input_of(0))
        with fd.trace(model, tmp_path / "t", **OPTIONS[options]):
            assert torch.equal(model(input_of(0)), expected)
    seen = {one.site.name for one in fd.open_trace(tmp_path / "t") if one.site.phase == "fwd"}
    assert {name for name in seen if "/" not in name} == {"", "stem", "head"}
    assert notes(tmp_path / "t") == [NOTE + "part"]


def test_gradients_flow_through_a_part_that_ran_in_another_thread(tmp_path):
    found = []
    for path in (None, tmp_path / "t"):
        model = model_of(Pipeline)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        with fd.trace(model, path, optimizer=optimizer) if path else nullcontext():
            found.append(train(model, optimizer, range(3)))
    assert_same_bits(found[1], found[0])
    gradients = values(tmp_path / "t", "grad", "agrad")
    assert {"grad part.inner:weight", "grad stem:weight#2", "agrad stem:out"} <= gradients.keys()
    assert not [name for name, item in gradients.items() if isinstance(item, str)]


def test_many_names_are_not_all_said(tmp_path):
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(40)))
    with fd.trace(model, tmp_path / "t"):
        model(input_of(0))
        in_thread(lambda: [layer(input_of(0)) for layer in model])
    (said,) = notes(tmp_path / "t")
    assert said.startswith(NOTE + "0, 1, ")
    assert said.endswith(" and 32 more")


def test_evaluation_in_another_thread_is_nothing_to_speak_of(tmp_path):
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def evaluate():
        with torch.no_grad():
            model(input_of(9))

    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        in_thread(evaluate)
        train(model, optimizer, range(1))
        in_thread(evaluate)
        train(model, optimizer, range(1, 3))
    traced_in_one_thread(tmp_path / "one")
    assert_same_trace(tmp_path / "t", tmp_path / "one")
    assert notes(tmp_path / "t") == []


def plain_model():
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))


def compiled_model():
    model = plain_model()
    model.compile(backend="eager")
    return model


def growing_model():
    return Growing()


class Growing(nn.Module):
    """Makes modules of its own as it runs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, x):
        self.layers.append(nn.Identity())
        return self.layers[-1](x)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("make", [plain_model, compiled_model, growing_model])
def test_another_model_in_another_thread_changes_nothing(tmp_path, make):
    """As in a thread that loads data. Adam itself computes otherwise while any thread compiles."""
    plain = traced_in_one_thread(tmp_path / "one", optimizer=torch.optim.SGD)
    for again in AGAIN:
        torch._dynamo.reset()
        other, stop = make(), threading.Event()

        def load(other=other, stop=stop):
            while not stop.is_set():
                other(input_of(0)).sum()

        with ThreadPoolExecutor(1) as executor:
            running = executor.submit(load)
            found = traced_in_one_thread(tmp_path / f"{again}", optimizer=torch.optim.SGD)
            stop.set()
            running.result(60)
        assert_same_bits(found, plain)
        assert_same_trace(tmp_path / f"{again}", tmp_path / "one")
        assert notes(tmp_path / f"{again}") == []


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("second", ["as it is", "verified", "compiled", "operations"])
def test_two_models_are_traced_at_once_in_two_threads(tmp_path, second):
    options = {"verified": {"verify": True}, "operations": {"granularity": "op"}}.get(second, {})

    def models():
        """Made beforehand: random numbers are those of all threads."""
        made = model_of(Whole), model_of(Other)
        if second == "compiled":
            made[1].part.compile(backend="eager")
        return made

    def work(path, model, options):
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)  # Adam computes otherwise while any thread compiles
        with fd.trace(model, path, optimizer=optimizer, **options):
            return train(model, optimizer, range(8))

    torch._dynamo.reset()
    one, other = models()
    alone = [work(tmp_path / "first", one, {}), work(tmp_path / "second", other, options)]
    for again in AGAIN:
        torch._dynamo.reset()
        paths = tmp_path / f"first {again}", tmp_path / f"second {again}"
        one, other = models()
        with ThreadPoolExecutor(2) as executor:
            running = [executor.submit(work, paths[0], one, {}), executor.submit(work, paths[1], other, options)]
            for started, expected in zip(running, alone, strict=True):
                assert_same_bits(started.result(60), expected)
        assert as_before()
        assert_same_trace(paths[0], tmp_path / "first")
        assert_same_trace(paths[1], tmp_path / "second")


class Other(Whole):
    def forward(self, x):
        return super().forward(x) * 2


def test_a_model_that_is_traced_in_one_thread_cannot_be_traced_in_another(tmp_path):
    model = model_of()

    def second():
        with pytest.raises(fd.CaptureError, match="traced already"), fd.trace(model, tmp_path / "u"):
            pass

    with fd.trace(model, tmp_path / "t"):
        in_thread(second)
        model(input_of(0))
    assert fd.open_trace(tmp_path / "t").complete


def test_an_exception_in_another_thread_is_its_own(tmp_path):
    model = model_of()
    with fd.trace(model, tmp_path / "t"):
        model(input_of(0))
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            in_thread(model, torch.ones(4, 5))
        model(input_of(1))
    assert not [one.site for one in fd.open_trace(tmp_path / "t") if one.absent]
    assert {one.site.step for one in fd.open_trace(tmp_path / "t")} == {0, 1}


def test_an_exception_in_the_thread_that_is_recorded_is_said_and_others_go_on(tmp_path):
    model = model_of()
    with fd.trace(model, tmp_path / "t"):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            in_thread(model, torch.ones(4, 5))
        in_thread(model, input_of(0))
    found = list(fd.open_trace(tmp_path / "t"))
    assert [one.site.name for one in found if one.absent] == ["stem"]
    assert {one.site.step for one in found} == {0, 1}


@pytest.mark.parametrize("options", [{}, {"granularity": "op"}], ids=["modules", "op"])
@pytest.mark.parametrize("mode", ["enable_grad", "no_grad"])
def test_a_block_may_end_while_a_thread_is_inside_the_model(tmp_path, mode, options):
    model = nn.Sequential(nn.Linear(6, 6), Waiting())

    def work():
        with getattr(torch, mode)():
            output = model(input_of(0))
        return output, _get_current_dispatch_mode_stack()

    with ThreadPoolExecutor(1) as executor:
        with fd.trace(model, tmp_path / "t", **options):
            running = executor.submit(work)
            assert model[1].inside.wait(20)
        assert as_before()
        model[1].go_on.set()
        output, modes = running.result(20)
    assert modes == []
    assert torch.equal(output, model(input_of(0)))
    assert fd.open_trace(tmp_path / "t").complete
    with fd.trace(model, tmp_path / "again"):
        model(input_of(0))
    assert fd.open_trace(tmp_path / "again").complete


def test_a_block_may_end_while_a_thread_is_inside_a_backward_pass(tmp_path):
    model, inside, go_on = model_of(), threading.Event(), threading.Event()

    def work():
        output = model(input_of(0))
        output.register_hook(lambda gradient: inside.set() or (go_on.wait(20) and None))
        output.sum().backward()
        return [one.grad for one in model.parameters()]

    with ThreadPoolExecutor(1) as executor:
        with fd.trace(model, tmp_path / "t"):
            running = executor.submit(work)
            assert inside.wait(20)
        go_on.set()
        assert all(gradient is not None for gradient in running.result(20))
    assert as_before()
    assert fd.open_trace(tmp_path / "t").complete


def test_a_backward_pass_in_another_thread_is_named_when_the_first_one_has_called_the_model(tmp_path):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        loss = model(input_of(0)).sum()
        in_thread(loss.backward)
        in_thread(optimizer.step)
    assert fd.open_trace(tmp_path / "t").complete
    assert notes(tmp_path / "t") == [NOTE + "backward passes, optimizer steps"]
    assert not values(tmp_path / "t", "grad", "loss", "weight_after")


def test_taps_of_other_threads_are_left_alone(tmp_path):
    model = model_of()

    class Tapping(nn.Module):
        def forward(self, x):
            assert in_thread(fd.tap, "elsewhere", x) is x
            return fd.tap("here", x * 1)

    model.part = Tapping()
    with fd.trace(model, tmp_path / "t"):
        model(input_of(0))
    names = {one.site.name for one in fd.open_trace(tmp_path / "t") if one.site.phase == "fwd"}
    assert names == {"", "stem", "part", "part.here", "head"}


def test_a_full_disk_stops_the_thread_that_is_recorded_and_no_other(tmp_path, monkeypatch):
    model = model_of()
    networks.fill_disk(monkeypatch, 20)
    with pytest.raises(fd.StorageError), fd.trace(model, tmp_path / "t"):
        for number in range(20):
            in_thread(model, input_of(number))
    assert as_before()
    monkeypatch.undo()
    with fd.trace(model, tmp_path / "u"):
        in_thread(model, input_of(0))
    assert fd.open_trace(tmp_path / "u").complete
