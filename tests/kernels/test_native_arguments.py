"""The C functions refuse what they cannot trust, whatever Python passes."""

from __future__ import annotations

import importlib
import random
from typing import Any

import numpy as np
import pytest

from firstdrift.kernels.results import Sums

native: Any = importlib.import_module("firstdrift.kernels.native")  # where it is not compiled, this fails loudly

F32 = 1
ONES = np.ones(12, np.float32)


@pytest.mark.parametrize(
    "args",
    [
        (ONES, ONES, F32, 3, 5, True),
        (ONES, ONES, F32, 3, 3, True),
        (ONES, ONES[:6], F32, 3, 4, True),
        (ONES[:6], ONES, F32, 3, 4, True),
        (ONES, ONES, 0, 3, 4, True),
        (ONES, ONES, 4, 3, 4, True),
        (ONES, ONES, -1, 3, 4, True),
        (ONES, ONES, F32, -3, -4, True),
        (ONES, ONES, F32, 2**62, 2**62, True),
        (ONES, ONES, F32, 2**63 - 1, 0, True),
        (ONES, ONES, F32, 0, 2**63 - 1, True),
        (ONES, ONES, F32, 2**32, 2**32, True),
        (b"", b"", F32, 2**32, 2**32, True),
        (b"", b"", F32, 2**58, 2**5, True),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(args: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="rows \\* columns|out of range|unknown kind"):
        native.measure(*args)
    with pytest.raises(ValueError, match="rows \\* columns|out of range|unknown kind"):
        native.part(*args, bytearray(1 << 20), 0, 1)


@pytest.mark.parametrize("wrong", [None, 3, "text", [1.0], np.ones((4, 3), np.float32).T, np.ones(24, np.float32)[::2]])
def test_what_is_no_contiguous_buffer_is_refused(wrong: object) -> None:
    for args in ((wrong, ONES), (ONES, wrong)):
        with pytest.raises((TypeError, BufferError, ValueError)):
            native.measure(*args, F32, 3, 4, True)
    with pytest.raises((TypeError, BufferError, ValueError)):
        native.stats(wrong, F32)


def test_wrong_argument_counts_and_types_are_refused() -> None:
    for function in (native.measure, native.part, native.merge, native.partials_size, native.stats):
        with pytest.raises(TypeError):
            function()
    with pytest.raises(TypeError):
        native.measure(ONES, ONES, "f", 3, 4, True)
    with pytest.raises(OverflowError):
        native.measure(ONES, ONES, F32, 2**70, 4, True)


def test_partials_are_checked() -> None:
    bands, size = native.partials_size(3, 4, True)
    assert bands == 1
    pair = (ONES, ONES, F32, 3, 4, True)
    with pytest.raises(ValueError, match="too small"):
        native.part(*pair, bytearray(size - 1), 0, 1)
    with pytest.raises(ValueError, match="too small"):
        native.merge(bytearray(size - 1), 3, 4, True)
    with pytest.raises((BufferError, TypeError)):
        native.part(*pair, bytes(size), 0, 1)
    with pytest.raises(ValueError, match="aligned"):
        native.part(*pair, np.zeros(size + 8, np.uint8)[1:], 0, 1)
    for first, stop in ((-1, 1), (0, 2), (1, 0), (2**40, 2**41)):
        with pytest.raises(ValueError, match="no such bands"):
            native.part(*pair, bytearray(size), first, stop)


def test_shapes_whose_size_overflows_have_no_partials() -> None:
    for rows, columns in ((2**32, 2**32), (2**58, 2**5), (-1, 5)):
        with pytest.raises(ValueError, match="out of range"):
            native.partials_size(rows, columns, True)
        with pytest.raises(ValueError, match="out of range"):
            native.merge(bytearray(1 << 20), rows, columns, True)


def test_merging_garbage_returns_numbers_and_nothing_worse() -> None:
    _, size = native.partials_size(300, 8192, True)
    noise = random.Random(1)
    for _ in range(20):
        assert len(native.merge(bytearray(noise.randbytes(size)), 300, 8192, True)) == len(Sums._fields)


def test_statistics_want_whole_elements() -> None:
    with pytest.raises(ValueError, match="whole elements"):
        native.stats(bytes(7), F32)
    with pytest.raises(ValueError, match="unknown kind"):
        native.stats(ONES, 9)
    assert native.stats(b"", F32)[0] == 0


def test_reading_stops_at_the_end_of_a_page() -> None:
    """Tensors that end where memory ends: reading one element too many would crash."""
    import mmap

    page = mmap.PAGESIZE
    for count in (1, 3, 63, 64, 65, 77, 1000):
        memory = mmap.mmap(-1, page * 2)
        whole = np.frombuffer(memory, np.uint8)
        tensor = whole[-4 * count :].view(np.float32)
        tensor[:] = np.arange(count)
        for columns in {1, count}:
            found = native.measure(tensor, tensor.copy(), F32, count // columns, columns, True)
            assert found[0] == count
        assert native.stats(tensor, F32)[3] == count - 1
