"""Derived tensors: equal whatever their size, and large ones not in memory."""

import errno

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.core import scratch
from firstdrift.pair.pairs import Transform


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(scratch, "IN_MEMORY", 1000)
    monkeypatch.setattr(scratch, "CHUNK", 100)


def test_large_tensors_lie_in_a_file(tiny):
    assert isinstance(scratch.scratch((300,), np.dtype(np.float64)), np.memmap)
    assert not isinstance(scratch.scratch((30,), np.dtype(np.float64)), np.memmap)


@pytest.mark.parametrize("shape", [(1000,), (7, 300), (1, 5000), (3000, 1), (5, 20, 30)])
def test_work_in_slices_gives_what_work_at_once_gives(tiny, shape):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    sliced = scratch.mapped_rows(lambda a, b: a * 2 - b, array, array + 1)
    assert isinstance(sliced, np.memmap)
    np.testing.assert_array_equal(sliced, array * 2 - (array + 1))
    np.testing.assert_array_equal(Transform("scale", factor=32.0).apply(array), array * 32)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_parts_are_joined_in_a_file_too(tiny, axis):
    parts = [np.full((20, 20), value, np.float32) for value in range(3)]
    joined = scratch.concatenated(parts, axis)
    assert isinstance(joined, np.memmap)
    np.testing.assert_array_equal(joined, np.concatenate(parts, axis))


def test_a_disk_without_room_is_an_error_and_not_a_crash(tiny, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scratch.os, "posix_fallocate", full)
    with pytest.raises(fd.StorageError, match="cannot make room for a large tensor .No space left on device"):
        scratch.scratch((300,), np.dtype(np.float64))
