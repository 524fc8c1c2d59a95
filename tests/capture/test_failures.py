"""What goes wrong in and around a block: exceptions, full disks, killed processes, models that change, odd tensors."""

import copy
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.capture import networks
from tests.capture.networks import NETWORKS, batch, fill_disk, forward
from tests.run_bits import Bits, assert_same_bits
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import firstdrift as fd

X = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 12 - 0.4


class Call(nn.Module):
    """A module of one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class StopError(Exception):
    pass


def throw(error):
    raise error


def small(*more):
    networks.seed()
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), *more)


def lines(path):
    """The sites of a trace as text, in the order they were written."""
    return [str(record.site) for record in fd.open_trace(path).records]


def steps(path):
    return {record.site.step for record in fd.open_trace(path)}


def output(path, name="", **where):
    """The output recorded for a module: an array, or why there is none."""
    trace = fd.open_trace(path)
    found = [
        one
        for one in trace
        if (one.site.phase, one.site.name, one.site.port) == ("fwd", name, "out")
        and all(getattr(one.site, key) == value for key, value in where.items())
    ]
    assert len(found) == 1, [str(one.site) for one in trace]
    return found[0].absent if found[0].absent is not None else trace.array(found[0])


# Exceptions.


@pytest.mark.parametrize("error", [StopError("no way"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("granularity", ["module", "op"])
def test_a_forward_that_raises_ends_the_trace_at_the_module_that_raised(tmp_path, error, grad, granularity):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Call(lambda x: throw(error))), nn.Linear(4, 4))
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(type(error)) as raised,
        fd.trace(model, tmp_path / "t", granularity=granularity),
    ):
        model(X)
    assert raised.value is error
    trace = fd.open_trace(tmp_path / "t")
    assert not trace.complete
    assert any("no end line" in problem for problem in trace.problems)
    last = trace.records[-1]
    assert (last.site.phase, last.site.name, last.site.port) == ("fwd", "1.1", "out")
    assert last.absent == f"raised {type(error).__name__}: {error}"
    assert [one.site.name for one in trace if one.absent and one.absent.startswith("raised")] == ["1.1"]
    assert '"end"' not in (tmp_path / "t" / "index.jsonl").read_text()


def test_a_backward_that_raises_leaves_what_was_recorded_before_it(tmp_path):
    model = small()
    model[0].weight.register_hook(lambda gradient: throw(StopError("backward")))
    with pytest.raises(StopError, match="backward"), fd.trace(model, tmp_path / "t"):
        model(X).sum().backward()
    trace = fd.open_trace(tmp_path / "t")
    assert not trace.complete
    phases = {record.site.phase for record in trace}
    assert {"fwd", "lossgrad", "agrad"} <= phases
    assert "grad" not in phases  # half of them are there, which is no gradient of the step
    assert not [record.site for record in trace if record.absent]


def test_what_an_exception_kept_from_happening_is_not_said_to_be_absent(tmp_path):
    model = small(Call(lambda x: x.detach() + x[:1]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(StopError), fd.trace(model, tmp_path / "t", optimizer=optimizer):
        model(X)
        model(X).sum().backward()
        raise StopError("before the optimizer has stepped")
    trace = fd.open_trace(tmp_path / "t")
    assert "grad" in {record.site.phase for record in trace}
    assert not [record.absent for record in trace if record.absent]


@pytest.mark.parametrize("error", [StopError("once"), KeyboardInterrupt()])
@pytest.mark.parametrize("with_optimizer", [True, False])
def test_training_goes_on_after_an_exception_that_the_user_caught(tmp_path, error, with_optimizer):
    """As when a batch was too large, and the next one is not."""
    failing = []

    def run(path):
        model = small(Call(lambda x: throw(error) if failing else x.sin()))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        bits = Bits()
        options = {"optimizer": optimizer} if with_optimizer else {}
        with fd.trace(model, path, **options) if path else torch.enable_grad():
            for number in range(4):
                failing[:] = [1] * (number == 1)
                try:
                    model(X + number).sum().backward()
                except type(error):
                    continue
                optimizer.step()
                optimizer.zero_grad()
        bits.add_run(model, optimizer)
        return bits

    assert_same_bits(run(tmp_path / "t"), run(None))
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    raised = [record for record in trace if record.absent and record.absent.startswith("raised")]
    assert [record.site.name for record in raised] == ["3"]
    last = max(steps(tmp_path / "t"))
    assert "grad" in {record.site.phase for record in trace if record.site.step == last}


def test_an_exception_that_the_model_catches_itself_is_said_and_the_model_goes_on(tmp_path):
    inner = Call(lambda x: throw(StopError("inner")))

    class Trying(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Sequential(inner), nn.Linear(4, 4)

        def forward(self, x):
            try:
                return self.first(x)
            except StopError:
                return self.second(x)

    model = Trying()
    with fd.trace(model, tmp_path / "t"):
        expected = model(X)
    assert fd.open_trace(tmp_path / "t").complete
    assert output(tmp_path / "t", "first.0") == "raised StopError: inner"
    assert np.array_equal(output(tmp_path / "t"), expected.detach().numpy())


def test_a_caught_exception_keeps_no_tensor_alive(tmp_path):
    alive = []

    def fail(x):
        lost = x * 2
        alive.append(weakref.ref(lost))
        raise StopError

    model = small(Call(fail))
    with fd.trace(model, tmp_path / "t"):
        with suppress(StopError):
            model(X)
        gc.collect()
        assert alive[0]() is None


def test_activations_and_graphs_live_no_longer_than_without_a_trace(tmp_path):
    model, alive = small(), []
    model[1].register_forward_hook(lambda module, args, output: alive.append(weakref.ref(output)))
    with fd.trace(model, tmp_path / "t"):
        loss = model(X).sum()
        assert alive[0]() is not None
        loss.backward()
        del loss
        gc.collect()
        assert alive[0]() is None


def test_an_exception_of_the_user_is_not_replaced_by_a_full_disk(tmp_path, monkeypatch):
    def fail(x):
        fill_disk(monkeypatch, 0)
        raise StopError("mine")

    model = small(Call(fail))
    with pytest.raises(StopError, match="mine"), fd.trace(model, tmp_path / "t"):
        model(X)
    assert not fd.open_trace(tmp_path / "t").complete


def test_a_step_of_the_optimizer_that_raises_is_no_step(tmp_path):
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    failing = [True]

    def closure():
        optimizer.zero_grad()
        loss = model(X).sum()
        loss.backward()
        return throw(StopError("closure")) if failing else loss

    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        with pytest.raises(StopError):
            optimizer.step(closure)
        failing.clear()
        for _ in range(2):
            optimizer.step(closure)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    after = {record.site.step for record in trace if record.site.phase == "weight_after"}
    assert after == steps(tmp_path / "t") == {0, 1}


# Full disks and other trouble with files.


def train(model, optimizer, count=6):
    for number in range(count):
        loss = forward("mlp", model, *batch("mlp", number))[1]
        assert len(_get_current_dispatch_mode_stack()) <= 1  # that of the program, until the step ends
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


WRITES = [0, 1, 7, 20, 29, 33, 40, 55, 76, 100, 200]  # the first step has 75, of all phases


@pytest.mark.parametrize("granularity", ["module", "op"])
@pytest.mark.parametrize("keep", ["full", "stats"])
@pytest.mark.parametrize("after", WRITES)
def test_training_goes_on_bit_for_bit_when_the_disk_is_full(tmp_path, monkeypatch, after, keep, granularity):
    def run(path):
        networks.seed()
        model = NETWORKS["mlp"]()
        optimizer = torch.optim.AdamW(model.parameters())
        options = {"optimizer": optimizer, "on_full": "continue", "keep": keep, "granularity": granularity}
        with (
            warnings.catch_warnings(record=True) as warned,
            fd.trace(model, path, **options) if path else torch.enable_grad(),
        ):
            warnings.simplefilter("always")
            train(model, optimizer)
            assert not _get_current_dispatch_mode_stack()
        bits = Bits()
        bits.add_run(model, optimizer)
        return bits, warned

    plain, _ = run(None)
    fill_disk(monkeypatch, after)
    traced, warned = run(tmp_path / "t")
    assert_same_bits(traced, plain)
    assert [one.category for one in warned] == [fd.CaptureWarning]
    text = str(warned[0].message)
    assert str(tmp_path / "t") in text
    assert "No space left on device" in text
    assert text.endswith("; tracing has stopped, the run goes on")
    trace = fd.open_trace(tmp_path / "t")
    assert not trace.complete
    for record in trace:
        if record.at is not None:
            trace.array(record)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("after", WRITES)
def test_a_full_disk_stops_the_run_with_one_clear_error(tmp_path, monkeypatch, after, grad):
    model = NETWORKS["mlp"]()
    optimizer = torch.optim.AdamW(model.parameters())
    fill_disk(monkeypatch, after)
    with (
        pytest.raises(fd.StorageError, match=r"cannot write .* \(No space left on device\); free some space"),
        torch.set_grad_enabled(grad),
        fd.trace(model, tmp_path / "t", optimizer=optimizer if grad else None),
    ):
        train(model, optimizer) if grad else [model(torch.ones(2, 6)) for _ in range(20)]
    trace = fd.open_trace(tmp_path / "t")
    assert not trace.complete
    assert all(trace.array(record) is not None for record in trace if record.at is not None)


def test_a_trace_that_was_stopped_is_let_go_of_at_once(tmp_path, monkeypatch):
    model = small()
    with fd.trace(model, tmp_path / "t", on_full="continue"):
        fill_disk(monkeypatch, 3)
        with pytest.warns(fd.CaptureWarning):
            model(X)
        monkeypatch.undo()
        fd.Writer(tmp_path / "t", overwrite=True).close()  # by another run, which has found the disk free again
        model(X)
    assert fd.open_trace(tmp_path / "t").complete


@pytest.mark.parametrize("on_full", ["raise", "continue"])
@pytest.mark.parametrize("after", range(5, 40))
def test_no_mode_stays_when_the_disk_is_full_amid_a_forward_pass(tmp_path, monkeypatch, after, on_full):
    model, stopped = nn.Sequential(small(), small()), False
    with torch.no_grad(), fd.trace(model, tmp_path / "t", on_full=on_full):
        fill_disk(monkeypatch, after)
        for _ in range(3):
            try:
                with pytest.warns(fd.CaptureWarning) if on_full == "continue" and not stopped else nullcontext():
                    model(X)
            except fd.StorageError:
                assert on_full == "raise"
            stopped = True
            assert not _get_current_dispatch_mode_stack()
    assert not fd.open_trace(tmp_path / "t").complete


def test_a_disk_that_is_full_at_the_last_line_is_reported_too(tmp_path, monkeypatch):
    model = small()

    def run(tracing):
        with tracing:
            model(X)
            fill_disk(monkeypatch, 0)

    with pytest.raises(fd.StorageError, match="No space left"):
        run(fd.trace(model, tmp_path / "t"))
    assert not fd.open_trace(tmp_path / "t").complete
    monkeypatch.undo()
    with pytest.warns(fd.CaptureWarning, match="No space left"):
        run(fd.trace(model, tmp_path / "u", on_full="continue"))
    assert not fd.open_trace(tmp_path / "u").complete


@pytest.mark.parametrize("full", [True, False], ids=["disk full at the end", "well"])
def test_no_hook_stays_on_tensors_that_outlive_the_block(tmp_path, monkeypatch, full):
    """A parameter or an input that a module returns is a leaf, and its hooks would fire for ever."""
    weight, x = nn.Parameter(torch.ones(3, 4)), X.clone().requires_grad_()
    model = nn.Sequential(Call(lambda x: x), Call(lambda x: (x, weight)), Call(lambda pair: pair[0] * pair[1]))
    model.register_parameter("weight", weight)
    with pytest.raises(fd.StorageError) if full else nullcontext(), fd.trace(model, tmp_path / "t"):
        result = model(x)
        assert weight._backward_hooks
        assert x._backward_hooks
        result.sum().backward(retain_graph=True)
        if full:
            fill_disk(monkeypatch, 0)
    assert not weight._backward_hooks
    assert not x._backward_hooks
    assert not result._backward_hooks
    result.sum().backward()


def test_a_header_that_cannot_be_written_counts_as_a_full_disk(tmp_path, monkeypatch):
    model = small()

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with fd.trace(model, tmp_path / "t", on_full="continue"):
        monkeypatch.setattr(os, "replace", full)
        with pytest.warns(fd.CaptureWarning, match="cannot write its header"):
            model(X)
        monkeypatch.undo()
    assert not fd.open_trace(tmp_path / "t").complete


@pytest.mark.parametrize("on_full", ["stop", "", None, True])
def test_what_to_do_with_a_full_disk_is_one_of_two_words(tmp_path, on_full):
    model = small()
    with (
        pytest.raises(fd.SelectionError, match="is not 'raise' or 'continue'"),
        fd.trace(model, tmp_path / "t", on_full=on_full),
    ):
        model(X)


def test_a_path_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    ran = []
    for path in (tmp_path / "file", tmp_path / "file" / "t", "/proc/firstdrift"):
        with pytest.raises(fd.StorageError, match="cannot write a trace here"), fd.trace(small(), path):
            ran.append(path)
    assert not ran
    assert (tmp_path / "file").read_text() == "not a directory"


def test_an_existing_trace_is_kept_unless_overwriting_was_asked_for(tmp_path):
    model = small()
    with fd.trace(model, tmp_path / "t"):
        model(X)
    before = lines(tmp_path / "t")
    with pytest.raises(fd.TraceExistsError, match="holds a trace already"), fd.trace(model, tmp_path / "t"):
        model(X)
    assert lines(tmp_path / "t") == before
    with fd.trace(model, tmp_path / "t", overwrite=True):
        model(X).sum().backward()
    assert lines(tmp_path / "t") != before


def test_a_trace_that_is_being_written_is_not_overwritten(tmp_path):
    model, other = small(), small()
    with fd.trace(model, tmp_path / "t"):
        model(X)
        with pytest.raises(fd.TraceInUseError), fd.trace(other, tmp_path / "t", overwrite=True):
            raise AssertionError("not entered")
        model(X)
    assert steps(tmp_path / "t") == {0, 1}


KILLED = """
import os, signal, sys
import torch, firstdrift as fd
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())
with fd.trace(model, sys.argv[1], optimizer=optimizer):
    for step in range(1_000_000):
        x = torch.full((3, 4), float(step))
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        os.write(1, b".")
"""


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_killed_run_leaves_a_trace_of_everything_up_to_the_tensor_in_flight(tmp_path, count):
    child = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "t"], stdout=subprocess.PIPE)
    done = len(child.stdout.read(count))
    child.send_signal(signal.SIGKILL)
    done += len(child.communicate()[0])
    assert child.returncode == -signal.SIGKILL
    trace = fd.open_trace(tmp_path / "t")
    assert not trace.complete
    for record in trace:
        array = trace.array(record) if record.at is not None else None
        if record.site.phase == "input":
            assert np.all(array == record.site.step)
    whole = {record.site.step for record in trace if record.site.phase == "weight_after" and record.site.port == "bias"}
    assert whole >= set(range(done))


MEMORY = """
import re, sys, tempfile
import torch, firstdrift as fd
from torch import nn

def anonymous():
    return sum(int(n) for n in re.findall(r"RssAnon:\\s+(\\d+) kB", open("/proc/self/status").read())) * 1024

torch.set_num_threads(1)
torch.manual_seed(0)
peak = 0
def look(*_):
    global peak
    peak = max(peak, anonymous())

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1024))
    def forward(self, x):
        return x * self.weight

model = nn.Sequential(*(Scale() for _ in range(12)))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
for module in model:
    module.register_forward_hook(look)
    module.weight.register_post_accumulate_grad_hook(look)
x = torch.randn(4096, 1024)  # 16 MiB, the largest tensor, as is every activation

def run():
    for _ in range(2):
        model(x).square().mean().backward()
        look()
        optimizer.step()
        optimizer.zero_grad()
        look()

run()
run()
plain, peak = peak, 0
with fd.trace(model, sys.argv[1], optimizer=optimizer, keep=sys.argv[2]):
    run()
print(peak - plain)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("keep", ["full", "stats"])
def test_a_trace_takes_no_more_memory_than_four_of_the_largest_tensor_and_a_constant(tmp_path, keep):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "t", keep],
        capture_output=True, text=True, check=False, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    largest = 16 << 20
    bar = 4 * largest + (64 << 20)
    assert int(done.stdout) <= bar
    written = sum(path.stat().st_size for path in (tmp_path / "t").iterdir())
    assert (written > 2 * bar) == (keep == "full")  # so that holding on to it would show


# Several models, several traces.


def test_another_model_inside_the_block_is_not_recorded(tmp_path):
    model, other = small(), small()
    with fd.trace(model, tmp_path / "t"):
        other(X).sum().backward()
        model(other(X)).sum().backward()
        copy.deepcopy(model)(X)
        other(X)
    trace = fd.open_trace(tmp_path / "t")
    assert steps(tmp_path / "t") == {0}
    assert {(record.site.name, record.site.call) for record in trace if record.site.phase == "fwd"} == {
        ("", 0), ("0", 0), ("1", 0), ("2", 0),
    }  # fmt: skip


def test_a_teacher_that_runs_inside_the_forward_of_a_student_is_not_recorded(tmp_path):
    teacher = small()
    student = small(Call(lambda x: x + teacher(x).detach()))
    with fd.trace(student, tmp_path / "t"):
        student(X).sum().backward()
    names = [record.site.name for record in fd.open_trace(tmp_path / "t") if record.site.port == "out"]
    assert sorted(set(names) - {"loss"}) == ["", "0", "1", "2", "3"]
    assert len(fd.open_trace(tmp_path / "t").records) == len(set(lines(tmp_path / "t")))


def test_two_traces_of_different_models_each_hold_their_own(tmp_path):
    generator, critic = small(), small()
    alone = {}
    for name, model in (("generator", generator), ("critic", critic)):
        with fd.trace(model, tmp_path / f"{name} alone"):
            model(X).sum().backward()
        alone[name] = lines(tmp_path / f"{name} alone")
        model.zero_grad()
    with fd.trace(generator, tmp_path / "generator"), fd.trace(critic, tmp_path / "critic"):
        generator(X).sum().backward()
        critic(X).sum().backward()
    for name, expected in alone.items():
        assert lines(tmp_path / name) == expected
    with fd.trace(generator, tmp_path / "g"), fd.trace(critic, tmp_path / "c"):
        critic(generator(X)).sum().backward()  # a gradient through both
    for path in ("g", "c"):
        assert {"fwd", "agrad", "grad"} <= {record.site.phase for record in fd.open_trace(tmp_path / path)}


def test_two_traces_may_be_closed_in_any_order(tmp_path):
    models = small(), small()
    first, second = (fd.trace(model, tmp_path / str(number)) for number, model in enumerate(models))
    first.__enter__()
    second.__enter__()
    models[0](X)
    first.__exit__(None, None, None)
    models[1](X)
    second.__exit__(None, None, None)
    assert steps(tmp_path / "0") == steps(tmp_path / "1") == {0}
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


@pytest.mark.parametrize("part", ["the model", "a submodule", "a model around it"])
def test_tracing_inside_a_trace_is_refused_and_the_first_trace_goes_on(tmp_path, part):
    model = small()
    other = {"the model": model, "a submodule": model[0], "a model around it": nn.Sequential(model)}[part]
    with fd.trace(model, tmp_path / "t"):
        model(X)
        with pytest.raises(fd.CaptureError, match="is being traced already"), fd.trace(other, tmp_path / "u"):
            raise AssertionError("not entered")
        model(X)
    assert steps(tmp_path / "t") == {0, 1}
    assert fd.open_trace(tmp_path / "t").complete
    assert not (tmp_path / "u").exists()


def test_a_trace_is_taken_once(tmp_path):
    model = small()
    tracing = fd.trace(model, tmp_path / "t")
    with tracing:
        model(X)
        with pytest.raises(fd.CaptureError), tracing:
            raise AssertionError("not entered")
        model(X)
    with pytest.raises(fd.CaptureError, match="taken already"), tracing:
        raise AssertionError("not entered")
    assert steps(tmp_path / "t") == {0, 1}
    with fd.trace(model, tmp_path / "u"):
        model(X)


def test_a_trace_that_was_refused_can_be_tried_again(tmp_path):
    model = small()
    (tmp_path / "t").write_text("in the way")
    tracing = fd.trace(model, tmp_path / "t")
    with pytest.raises(fd.StorageError), tracing:
        raise AssertionError("not entered")
    (tmp_path / "t").unlink()
    with tracing:
        model(X)
    assert fd.open_trace(tmp_path / "t").complete


def test_a_block_in_which_the_model_does_not_run_is_an_error(tmp_path):
    with (
        pytest.raises(fd.CaptureError, match="the model was not called inside the block"),
        fd.trace(small(), tmp_path / "t"),
    ):
        small()(X)
    model = small()
    with (
        pytest.raises(fd.CaptureError, match="none of the steps asked for came: 2 ran"),
        fd.trace(model, tmp_path / "u", steps=[5]),
    ):
        model(X)
        model(X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_forked_child_runs_the_model_unrecorded(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        model(X).sum().backward()
        child = os.fork()
        if child == 0:
            try:
                optimizer.step()
                model(X).sum().backward()
                optimizer.step()
                os._exit(0)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        optimizer.step()
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    assert steps(tmp_path / "t") == {0}


def test_another_model_may_run_in_another_thread(tmp_path):
    model, other, results = small(), small(), []
    expected = other(X)
    with fd.trace(model, tmp_path / "t"):
        thread = threading.Thread(target=lambda: results.extend(other(X) for _ in range(20)))
        thread.start()
        for _ in range(20):
            model(X)
        thread.join()
    assert len(results) == 20
    assert all(torch.equal(result, expected) for result in results)
    assert steps(tmp_path / "t") == set(range(20))


# Models that change.


def test_a_child_added_in_forward_is_recorded_from_its_first_call(tmp_path):
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x):
            if not hasattr(self, "second"):
                self.second = nn.Sequential(nn.Linear(4, 4))
            return self.second(self.first(x))

    model = Growing()
    with fd.trace(model, tmp_path / "t"):
        expected = model(X)
        expected.sum().backward()
    assert np.array_equal(output(tmp_path / "t", "second.0"), expected.detach().numpy())
    grads = {record.site.name for record in fd.open_trace(tmp_path / "t") if record.site.phase == "grad"}
    assert grads == {"first", "second.0"}


@pytest.mark.parametrize("verify", [False, True])
def test_lazy_modules_are_recorded_once_they_are_made(tmp_path, verify):
    def run(path):
        networks.seed()
        model = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 2))
        with fd.trace(model, path, verify=verify) if path else torch.enable_grad():
            for _ in range(3):
                model(X).sum().backward()
                model.zero_grad()
        bits = Bits()
        bits.add_run(model)
        return bits

    assert_same_bits(run(tmp_path / "t"), run(None))
    trace = fd.open_trace(tmp_path / "t")
    found = {str(record.site): record for record in trace if record.site.name == "0"}
    assert found["weight 0:weight step 0"].absent == "not comparable: not initialized yet"
    assert found["weight 0:weight step 1"].shape == found["grad 0:weight step 0"].shape == (5, 4)
    assert found["fwd 0:out step 0"].op == "Linear"


def test_a_child_replaced_between_steps_is_recorded_under_its_name(tmp_path):
    model = small()
    with fd.trace(model, tmp_path / "t"):
        model(X)
        old = model[0]
        model[0] = nn.Linear(4, 4)
        expected = model[0](X)
        model(X)
        last = model[2]
        del model[2]
        model(X)
        last(old(X))  # are no part of the model any longer
    assert np.array_equal(output(tmp_path / "t", "0", step=1, call=0), expected.detach().numpy())
    names = {record.site.name for record in fd.open_trace(tmp_path / "t") if record.site.step == 2}
    assert names == {"input", "", "0", "1"}


def test_a_model_that_calls_itself_is_one_step_of_several_calls(tmp_path):
    class Recursive(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, depth=2):
            return self.linear(self(x, depth - 1)) if depth else x

    model = Recursive()
    for grad, only in ((True, None), (False, None), (True, [1])):
        path = tmp_path / f"{grad} {only}"
        with torch.set_grad_enabled(grad), fd.trace(model, path, steps=only):
            model(X)
            model(X)
        assert steps(path) == ({0, 1} if only is None else {1})
        trace = fd.open_trace(path)
        calls = [one.site.call for one in trace if (one.site.name, one.site.port, one.site.step) == ("", "out", 1)]
        assert sorted(calls) == [0, 1, 2]
        assert [one.site.call for one in trace if (one.site.phase, one.site.step) == ("input", 1)] == [0]


def test_modes_of_the_user_are_nested_as_they_were(tmp_path):
    seen = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def counted(x):
        with Counting():
            return model.get_submodule("2")(x)

    networks.seed()
    model = nn.Sequential(nn.Linear(4, 4), Call(lambda x: counted(x)), nn.Linear(4, 4))
    counts = []
    for path in (None, tmp_path / "t"):
        seen.clear()
        with torch.no_grad(), fd.trace(model, path) if path else torch.no_grad():
            model(X)
        assert not _get_current_dispatch_mode_stack()
        counts.append([one for one in seen if "addmm" in one])
    assert counts[0] == counts[1]
    assert len(counts[0]) == 1


# verify=True


HONEST = NETWORKS | {
    "dropout": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 5)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)),
    "an input written over": lambda: nn.Sequential(Call(lambda x: x.mul_(2)), nn.Linear(6, 5)),
    "equal layers of constants": lambda: nn.Sequential(
        nn.Linear(6, 5), Call(torch.zeros_like), nn.LayerNorm(5), nn.LayerNorm(5)
    ),
}


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", HONEST)
def test_verification_passes_an_honest_model(tmp_path, name, train):
    networks.seed()
    model = HONEST[name]().train(train)
    kind = name if name in NETWORKS else "mlp"
    with fd.trace(model, tmp_path / "t", verify=True):
        for number in range(2):
            forward(kind, model, *batch(kind, number))[1].backward()
            model.zero_grad()
    assert fd.open_trace(tmp_path / "t").complete


def test_verification_passes_a_module_with_weights_that_returns_what_its_child_did(tmp_path):
    class Owner(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)

    for number, model in enumerate((Owner(), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))):
        with fd.trace(model, tmp_path / f"{number}", verify=True):
            model(X)


def test_verification_finds_state_that_a_model_hides(tmp_path):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.linear = 0, nn.Linear(4, 4)

        def forward(self, x):
            self.calls += 1
            return {"plain": self.linear(x), "counted": self.linear(x) * self.calls}

    model = Counter()
    with (
        pytest.raises(fd.CaptureError, match="differ at out.counted; the model keeps state outside its buffers"),
        fd.trace(model, tmp_path / "t", verify=True),
    ):
        model(X)
    assert fd.open_trace(tmp_path / "t").complete  # what was recorded is what ran
    with fd.trace(model, tmp_path / "u"):
        model(X)


CHANGES = {
    "a type": lambda x: (x, x.view(torch.int32), x),
    "a shape": lambda x: (x, x.reshape(4, 3), x),
    "an output fewer": lambda x: (x, x),
    "an output more": lambda x: (x, x, x, x),
    "no output": lambda x: None,
    "names": lambda x: {"a": x, "b": x, "c": x},
}


@pytest.mark.parametrize("change", CHANGES)
def test_verification_finds_outputs_that_change_in_kind(tmp_path, change):
    calls = []

    def function(x):
        calls.append(1)
        return (x, x, x) if len(calls) == 1 else CHANGES[change](x)

    model = nn.Sequential(Call(lambda x: x * 1.0), Call(function))
    with pytest.raises(fd.CaptureError, match="differ at out"), fd.trace(model, tmp_path / "t", verify=True):
        model(X)


def test_verification_finds_a_stale_buffer(tmp_path):
    buffer = torch.empty(3, 4)

    class Into(nn.Linear):
        """Writes into a shared buffer, as engines do; the second one forgets to."""

        stale = False

        def forward(self, x):
            if not self.stale:
                buffer.copy_(super().forward(x).detach())
            return buffer

    model = nn.Sequential(Into(4, 4), Into(4, 4))
    with fd.trace(model, tmp_path / "honest", verify=True):
        model(X)
    model[1].stale = True
    with (
        pytest.raises(fd.CaptureError, match=r"fwd 1:out step 0 repeats fwd 0:out step 0 bit for bit"),
        fd.trace(model, tmp_path / "stale", verify=True),
    ):
        model(X)


# Odd tensors.


def bits_of(tensor):
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


ODD = {
    "complex": lambda x: torch.complex(x, -x),
    "a complex conjugate, which is a flag": lambda x: torch.complex(x, -x).conj(),
    "a negative view, which is a flag": lambda x: torch.complex(x, x).conj().imag,
    "bool": lambda x: x > 0,
    "uint16": lambda x: x.detach().abs().to(torch.uint16),
    "int64": lambda x: (x * 1000).long(),
    "zero-size": lambda x: x[:0],
    "zero-size by columns": lambda x: x[:, :0],
    "0-d": lambda x: x.sum(),
    "expanded": lambda x: x[:1].expand(5, 4),
    "expanded from one": lambda x: x[0, 0].expand(2, 3, 4),
    "transposed": lambda x: x.t(),
    "strided": lambda x: x[:, ::2],
    "channels last": lambda x: x.reshape(1, 3, 2, 2).to(memory_format=torch.channels_last),
    "bfloat16, transposed": lambda x: x.bfloat16().t(),
    "float16": lambda x: x.half(),
    "float8_e4m3fn": lambda x: x.to(torch.float8_e4m3fn),
    "float8_e5m2, transposed": lambda x: x.to(torch.float8_e5m2).t(),
    "not finite": lambda x: x / torch.tensor([0.0, 1.0, float("nan"), float("inf")]),
    "negative zeros": lambda x: x * -0.0,
    "its own input": lambda x: x,
    "a view of its input": lambda x: x[1:],
    "detached": lambda x: x.detach(),
    "a parameter": lambda x: PARAMETER,
}
PARAMETER = nn.Parameter(torch.ones(3, 4))
UNCOMPARABLE = {
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.detach().to_sparse_csr(),
    "nested": lambda x: torch.nested.as_nested_tensor([x[0], x[1, :2]]),
    "jagged": lambda x: torch.nested.as_nested_tensor([x[:1], x[1:]], layout=torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.quint8),
    "complex32": lambda x: torch.complex(x, x).to(torch.complex32),
    "float8 without a mantissa": lambda x: x.detach().abs().to(torch.float8_e8m0fnu),
}
TORCH_WARNS = [
    pytest.mark.filterwarnings("ignore:.*nested tensors"),
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:ComplexHalf"),
    pytest.mark.filterwarnings("ignore:.*quantize"),
]
MODES = ["grad", "no_grad", "inference_mode"]


def run_odd(path, function, mode, **options):
    """Let a module return an odd tensor, the model take it back to a plain one; returns the odd one and the result."""
    networks.seed()
    made = []
    odd = Call(lambda x: made.append(function(x)) or made[-1])
    model = nn.Sequential(nn.Linear(4, 4), odd, Call(lambda x: x))
    with (
        torch.inference_mode(mode == "inference_mode"),
        torch.set_grad_enabled(mode == "grad"),
        fd.trace(model, path, **options) if path else torch.enable_grad() if mode == "grad" else torch.no_grad(),
    ):
        result = model(X.clone())
        has_values = result.layout == torch.strided and not result.is_nested and not result.is_meta
        if mode == "grad" and has_values and result.requires_grad and result.dtype in (torch.float32, torch.bfloat16):
            result.sum().backward()
    return made[0], result, {name: one.grad for name, one in model.named_parameters()}


@pytest.mark.parametrize("granularity", ["module", "op"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ODD)
def test_an_odd_tensor_is_recorded_bit_for_bit(tmp_path, kind, mode, granularity):
    made, _, gradients = run_odd(tmp_path / "t", ODD[kind], mode, granularity=granularity)
    expected, _, plain = run_odd(None, ODD[kind], mode)
    assert bits_of(made) == bits_of(expected)
    assert all(str(gradients[name]) == str(plain[name]) for name in plain)
    for name in ("1", "2", ""):
        found = output(tmp_path / "t", name)
        assert found.shape == tuple(made.shape)
        assert found.dtype.name == str(made.dtype).removeprefix("torch.")
        assert found.tobytes() == bits_of(made)


@pytest.mark.parametrize("keep", ["full", "stats"])
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        pytest.param(kind, mode, marks=TORCH_WARNS)
        for kind in UNCOMPARABLE
        for mode in MODES
        if (kind, mode) != ("jagged", "inference_mode")  # which torch itself cannot
    ],
)
def test_a_tensor_without_comparable_values_is_said_to_be_absent(tmp_path, kind, mode, keep):
    run_odd(tmp_path / "t", UNCOMPARABLE[kind], mode, keep=keep)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    for name in ("1", "2", ""):
        assert output(tmp_path / "t", name).startswith("not comparable: ")
    reasons = {record.absent for record in trace if record.site.phase == "fwd" and record.site.port.startswith("in.")}
    assert any(reason and reason.startswith("not comparable: ") for reason in reasons)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=TORCH_WARNS) for kind in ("sparse", "nested", "meta")])
def test_an_input_without_comparable_values_is_said_to_be_absent(tmp_path, kind):
    model = Call(lambda x: x)
    with fd.trace(model, tmp_path / "t"):
        model(UNCOMPARABLE[kind](X))
    (record,) = [one for one in fd.open_trace(tmp_path / "t") if one.site.phase == "input"]
    assert record.absent.startswith("not comparable: ")


def test_a_model_on_the_meta_device_runs_under_a_trace(tmp_path):
    model = nn.Linear(4, 4, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        for number in range(3):
            for _ in range(2):
                model(X.to("meta")).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=number == 0)
    trace = fd.open_trace(tmp_path / "t")
    assert steps(tmp_path / "t") >= {0, 1}
    assert all(record.absent.startswith("not comparable: on the meta device") for record in trace if record.absent)
    assert not [record for record in trace if record.at is not None]


def test_fake_tensors_are_not_recorded_as_numbers(tmp_path):
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = small()
    with fd.trace(model, tmp_path / "t"), FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.ones(3, 4))
    assert output(tmp_path / "t").startswith("not comparable: ")


def test_sparse_gradients_are_said_not_to_be_comparable(tmp_path):
    def run(path):
        networks.seed()
        model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4))
        optimizers = torch.optim.SparseAdam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), 0.1)
        with fd.trace(model, path, optimizer=optimizers) if path else torch.enable_grad():
            for number in range(4):
                for part in range(2):
                    model(torch.tensor([number, part])).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=number % 2 == 0)
        bits = Bits()
        bits.add("parameter", dict(model.named_parameters()))
        bits.add("state", [one.state_dict()["state"] for one in optimizers])
        return bits

    assert_same_bits(run(tmp_path / "t"), run(None))
    trace = fd.open_trace(tmp_path / "t")
    assert steps(tmp_path / "t") == {0, 1, 2, 3}
    for phase in ("grad", "grad_scaled"):
        found = {record.site.name: record for record in trace if record.site.phase == phase and record.site.step == 0}
        assert found["0"].absent.startswith("not comparable: a sparse tensor")
        assert found["1"].absent is None


def test_the_value_at_capture_time_is_what_is_stored(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), Call(lambda x: x.mul_(3)), Call(lambda x: x.zero_()))
    first = nn.functional.linear(X, model[0].weight, model[0].bias).detach()
    with fd.trace(model, tmp_path / "t"):
        model(X)
    expected = [first, first.relu(), first.relu() * 3, first * 0.0]
    for number, tensor in enumerate(expected):
        assert np.array_equal(output(tmp_path / "t", f"{number}"), tensor.numpy()), number


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_written_to_again_and_again_is_stored_each_time(tmp_path, mode):
    """Also where torch does not count versions, so that the same tensor must not be taken for the same value."""
    buffers = []

    def count(x):
        buffers.append(buffers[0].add_(1) if buffers else torch.ones(3, 4))
        return buffers[0]

    model = nn.Sequential(Call(count), Call(count), Call(count))
    with (
        torch.inference_mode(mode == "inference_mode"),
        torch.set_grad_enabled(mode == "grad"),
        fd.trace(model, tmp_path / "t"),
    ):
        model(X)
    assert buffers[0].is_inference() == (mode == "inference_mode")
    for number in range(3):
        assert np.all(output(tmp_path / "t", f"{number}") == number + 1)


@pytest.mark.xfail(reason="the same tensor in the same version is taken for the same value", raises=AssertionError)
@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_written_to_behind_the_back_of_torch_is_stored_each_time(tmp_path, mode):
    """As engines do that are called with a pointer to a buffer of their own."""
    memory = np.zeros((3, 4), np.float32)
    shared = torch.from_numpy(memory)

    def count(x):
        memory[:] += 1
        return shared

    model = nn.Sequential(Call(count), Call(count), Call(count))
    with (
        torch.inference_mode(mode == "inference_mode"),
        torch.set_grad_enabled(mode == "grad"),
        fd.trace(model, tmp_path / "t"),
    ):
        model(X)
    for number in range(3):
        assert np.all(output(tmp_path / "t", f"{number}") == number + 1)


KEYS = {"1": 0, 1: 1, "": 2, None: 3, ("a", 2): 4, "a.b": 5, "\ud800": 6, "k" * 5000: 7, "x/../y": 8, "#1": 9, "\n": 10}


def test_outputs_with_any_keys_are_recorded_each_at_its_own_site(tmp_path):
    model = Call(lambda x: {key: x + number for key, number in KEYS.items()})
    with fd.trace(model, tmp_path / "t"):
        model(X)
    trace = fd.open_trace(tmp_path / "t")
    assert trace.complete
    found = [trace.array(record) for record in trace if record.site.port.startswith("out.")]
    assert sorted(round(float((array - X.numpy()).mean())) for array in found) == sorted(KEYS.values())


def test_whatever_attributes_a_module_carries_it_can_be_recorded(tmp_path):
    model = nn.Linear(4, 4)
    model.odd = float("nan")
    model.broken, model.large, model.long, model.pair = "\ud800", 10**5000, "text" * 10_000, (1, float("inf"))
    model.own, model.kind, model.array = model.forward, nn.Linear, np.ones(3)
    with fd.trace(model, tmp_path / "t"):
        model(X)
    (record,) = [one for one in fd.open_trace(tmp_path / "t") if one.site.phase == "fwd" and one.site.port == "out"]
    assert record.attrs["in_features"] == 4
    assert len((tmp_path / "t" / "index.jsonl").read_text()) < 10_000
