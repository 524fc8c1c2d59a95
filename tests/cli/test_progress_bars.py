"""Bars: what is done never comes to more than there is, and to all of it in the end."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from firstdrift.cli import options
from firstdrift.core.bars import within
from firstdrift.weights.conversion import convert
from firstdrift.weights.inspection import inspect_checkpoint
from firstdrift.weights.writing import write_checkpoint

WEIGHTS = {"a": np.zeros((64, 256), np.float32), "b": np.ones(64, np.float32)}


def spy():
    seen = []

    @contextmanager
    def bar(description, total):
        seen.append([total, 0])

        def advance(count):
            seen[-1][1] += count

        yield advance

    return bar, seen


def source(path, kind):
    if kind == "npz":
        np.savez_compressed(path / "w.npz", **WEIGHTS)  # a file that is far smaller than what it holds
    else:
        write_checkpoint(path / f"w.{kind}", WEIGHTS.items(), format=kind, dtype="apr_q4" if kind == "apr" else None)
    return path / f"w.{kind}"


@pytest.mark.parametrize("kind", ["npz", "safetensors", "apr"])
def test_inspecting_is_told_in_bytes_of_the_tensors(tmp_path, kind):
    bar, seen = spy()
    inspect_checkpoint(source(tmp_path, kind), bar)
    assert seen[0][0] == seen[0][1] > 0


@pytest.mark.parametrize("target", ["safetensors", "apr", "npz", "pt"])
@pytest.mark.parametrize("kind", ["npz", "apr"])
def test_converting_is_told_in_bytes_that_are_written(tmp_path, kind, target):
    bar, seen = spy()
    convert(source(tmp_path, kind), tmp_path / f"out.{target}", bar=bar)
    assert seen[0][0] == seen[0][1] > 0


@pytest.mark.parametrize(("module", "name"), [(options, "progress"), (options, "counted")])
def test_a_bar_never_shows_more_done_than_there_is(monkeypatch, module, name):
    import rich.progress

    shown = []
    real = rich.progress.Progress.update

    def update(bar, task, **changes):
        real(bar, task, **changes)
        shown.append((bar.tasks[0].completed, bar.tasks[0].total))

    monkeypatch.setattr(rich.progress.Progress, "update", update)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    total = options.SHOW_PROGRESS_FROM
    with getattr(module, name)("working", total) as tell:
        for part in (total // 2, total // 4, total, total):
            tell(part)
    assert shown == [(total // 2, total), (3 * total // 4, total), (total, total), (total, total)]


def test_without_a_total_everything_is_told():
    told = []
    tell = within(told.append, None)
    tell(5), tell(7)
    assert told == [5, 7]
