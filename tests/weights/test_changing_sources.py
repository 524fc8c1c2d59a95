"""A source that changes while it is loaded: the model gets what was checked, or nothing."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.weights.networks import bits, other, plain
from torch import nn

import firstdrift as fd
from firstdrift.weights.checkpoint import AVAILABLE, leased, undisturbed
from firstdrift.weights.loading import arriving
from firstdrift.weights.open_checkpoint import open_checkpoint

leasing = pytest.mark.skipif(not AVAILABLE, reason="only Linux has leases")


@pytest.fixture
def saved(tmp_path):
    """A model, the state that it is to get, and the file that holds it."""
    model = plain()
    source = other(model)
    save_file(source, tmp_path / "m.safetensors")
    wanted = plain()
    wanted.load_state_dict(source)
    return model, bits(wanted), tmp_path / "m.safetensors"


def before_each(monkeypatch, name, act):
    """Act before every call of a step of the load."""
    real = getattr(arriving, name)

    def acting(*arguments):
        act()
        return real(*arguments)

    monkeypatch.setattr(arriving, name, acting)


def once(act):
    """The same, at the first call alone."""
    calls = iter([act])
    return lambda: next(calls, lambda: None)()


def overwrite(path, quietly=False):
    """Other numbers of the same size in the same file; quietly, without a trace in its times."""
    stamp = path.stat()
    data = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(len(data) // 2)
        file.write(bytes(len(data) - len(data) // 2))
    if quietly:
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def may_write(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except BlockingIOError:
        return False
    return True


@leasing
def test_who_wants_to_write_while_the_file_is_read_stops_the_load_and_nothing_changes(saved, monkeypatch):
    model, _, path = saved
    before = bits(model)
    tried = []
    before_each(monkeypatch, "expect", once(lambda: tried.append(may_write(path))))
    with pytest.raises(fd.WeightsError, match="another process waits to write to it") as caught:
        fd.load_weights(model, path)
    assert "FALSIFY-APR-PRETRAIN-INIT-006" in str(caught.value)
    assert tried == [False]
    assert bits(model) == before


@leasing
def test_who_wants_to_write_while_the_model_is_written_waits_until_it_is_done(saved, monkeypatch):
    model, wanted, path = saved
    code = "import sys; print('here', flush=True); open(sys.argv[1], 'r+b').write(bytes(400))"
    started = []

    def start():
        started.append(subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE))
        started[0].stdout.readline()

    before_each(monkeypatch, "write", once(start))
    fd.load_weights(model, path)
    assert bits(model) == wanted
    assert started[0].wait(timeout=20) == 0
    started[0].stdout.close()
    assert path.read_bytes()[:400] == bytes(400)


@leasing
@pytest.mark.parametrize("fits", [True, False])
def test_nobody_waits_any_longer_when_the_load_is_over(saved, fits):
    model, _, path = saved
    if fits:
        fd.load_weights(model, path)
    else:
        with pytest.raises(fd.WeightsError):
            fd.load_weights(nn.Linear(2, 2), path)
    assert may_write(path)


@leasing
def test_two_loads_of_one_checkpoint_do_not_end_each_others_leases(saved):
    with open_checkpoint(saved[2]) as checkpoint, leased(checkpoint.files) as first:
        with leased(checkpoint.files) as second:
            assert undisturbed(first)
            assert undisturbed(second)
        assert undisturbed(first)
        assert not may_write(saved[2])
        assert not undisturbed(first)


@leasing
def test_a_file_that_is_open_for_writing_or_has_lost_its_name_cannot_be_leased_and_is_loaded(saved):
    model, wanted, path = saved
    with open(path, "r+b"), open_checkpoint(path) as checkpoint:
        with leased(checkpoint.files) as found:
            assert found is None
        fd.load_weights(model, checkpoint)
    assert bits(model) == wanted
    with open_checkpoint(path) as checkpoint:
        save_file({"another": torch.ones(1)}, path.with_name("new"))
        path.with_name("new").replace(path)
        with leased(checkpoint.files) as found:
            assert found is None
        model = plain()
        fd.load_weights(model, checkpoint)
    assert bits(model) == wanted


@pytest.fixture
def unleased(monkeypatch):
    monkeypatch.setattr("firstdrift.weights.checkpoint.AVAILABLE", False)


@pytest.mark.usefixtures("unleased")
def test_without_leases_a_file_that_changes_while_it_is_read_is_refused_and_nothing_changes(saved, monkeypatch):
    model, _, path = saved
    before = bits(model)
    before_each(monkeypatch, "expect", once(lambda: overwrite(path)))
    with pytest.raises(fd.WeightsError, match="was changed since"):
        fd.load_weights(model, path)
    assert bits(model) == before


@pytest.mark.usefixtures("unleased")
def test_without_leases_a_change_after_the_last_look_is_found_before_anything_is_written(saved, monkeypatch):
    model, _, path = saved
    before = bits(model)
    calls = []
    before_each(monkeypatch, "scan", lambda: calls.append(1) or (len(calls) == 9 and overwrite(path)))
    with pytest.raises(fd.WeightsError, match="was changed since"):
        fd.load_weights(model, path)
    assert len(calls) == 9
    assert bits(model) == before


@pytest.mark.usefixtures("unleased")
def test_without_leases_what_was_checked_arrives_even_if_the_file_changes_unseen(saved, monkeypatch):
    model, wanted, path = saved
    before_each(monkeypatch, "write", once(lambda: overwrite(path, quietly=True)))
    fd.load_weights(model, path)
    assert bits(model) == wanted
    assert path.read_bytes()[-100:] == bytes(100)


def test_given_arrays_that_change_after_the_check_arrive_as_they_were_checked(monkeypatch):
    model, source = nn.Linear(3, 2, bias=False), np.ones((2, 3), np.float32)
    before_each(monkeypatch, "write", lambda: source.fill(np.nan))
    fd.load_weights(model, {"weight": source})
    assert torch.equal(model.weight, torch.ones(2, 3))


@leasing
def test_what_lies_plain_in_a_leased_file_is_not_copied(saved, monkeypatch):
    model, _, path = saved
    real, kept = arriving.write, []
    monkeypatch.setattr(arriving, "write", lambda tensor, array: (kept.append(array), real(tensor, array)))
    with open_checkpoint(path) as checkpoint:
        fd.load_weights(model, checkpoint)
        held = [checkpoint.array(name) for name in ("0.weight", "2.bias")]
        assert all(any(np.shares_memory(one, array) for array in kept) for one in held)


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_what_is_computed_waits_in_memory_up_to_a_limit_and_beyond_it_in_a_file(saved, monkeypatch, most):
    monkeypatch.setattr(arriving, "MOST_IN_MEMORY", most)
    real, kept = arriving.write, []

    def write(tensor, array):
        kept.append(array)
        real(tensor, array)

    monkeypatch.setattr(arriving, "write", write)
    model = plain(dtype=torch.float64)
    fd.load_weights(model, saved[2], cast=True)
    wide = [array for array in kept if array.dtype == np.float64]
    assert len(wide) == 8
    assert all(isinstance(array, np.memmap) == (most == 0) for array in wide)
    assert bits(model.float()) == saved[1]


def test_copies_share_one_limit(monkeypatch):
    monkeypatch.setattr(arriving, "MOST_IN_MEMORY", 100)
    hand = arriving.Hand(stable=False, given=True)
    arrays = [np.full(size, size, np.float32) for size in (15, 11, 10, 1)]
    kept = [hand.keep(array) for array in arrays]
    assert [isinstance(array, np.memmap) for array in kept] == [False, True, False, True]
    assert all(np.array_equal(a, b) and not np.shares_memory(a, b) for a, b in zip(arrays, kept, strict=True))


def test_an_interrupt_while_the_model_is_written_leaves_no_mixture(saved, monkeypatch):
    model, wanted, path = saved

    def interrupt():
        raise KeyboardInterrupt

    before_each(monkeypatch, "write", once(interrupt))
    with pytest.raises(KeyboardInterrupt):
        fd.load_weights(model, path)
    assert bits(model) == wanted
