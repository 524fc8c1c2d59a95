"""The bars of the measurement kernels: `python bench/kernels.py [--quick]`, or as part of `make bench`.

Ratios say how many times as fast the kernel is as what it is held against. `--quick` leaves out the pair of
1 GiB.
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from ratios import Clock, Row, best_ratio, median_ratio

from firstdrift import kernels
from firstdrift.kernels import definition
from firstdrift.kernels.threads import share

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]
Work = Callable[[], object]

COLUMNS = 4096
PIECES = 8  # of a tensor that two threads sum


def rows(quick: bool = False) -> Iterator[Row]:
    middle = pair_of(16)
    yield from against_sums("1 MiB", pair_of(1))
    yield from against_sums("16 MiB", middle)
    yield from half_precision()
    yield from against_comparators("16 MiB", middle, 5)
    yield from statistics(middle[0])
    yield from small_tensors(tuple(side[:1, :64].copy() for side in middle))
    if not quick:
        large = pair_of(1024)
        yield from against_sums("1 GiB", large)
        yield from against_comparators("1 GiB", large, 8)


def against_sums(size: str, pair: Pair) -> Iterator[Row]:
    """Against reading both tensors once, with numpy's sum: in one thread by CPU time, in two against two."""
    sums, cheap = partial(both_sums, *pair), measured(pair, full=False)
    if size == "1 MiB":  # so short that a single call measures whose turn it was to wake the processor
        yield bar(f"cheap sums vs sum(), {size}, 1 thread", 0.5, often(cheap), often(sums), 15)
        return
    yield bar(f"cheap sums vs sum(), {size}, 1 thread", 0.5, cheap, sums, 15)
    yield bar(f"all measurements vs sum(), {size}, 1 thread", 0.25, measured(pair), sums, 15)
    together = partial(sums_in_threads, *pair)
    for what, least, full in (("cheap sums", 0.5, False), ("all measurements", 0.25, True)):
        ratio = best_ratio(together, measured(pair, full=full, threads=2))
        yield Row(f"{what} vs sum(), {size}, 2 threads against 2", ratio, least, at_least=True)


def half_precision() -> Iterator[Row]:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        pair = pair_of(16, np.dtype(dtype), 1e-2)
        name = f"all measurements vs sum(), {np.dtype(dtype).name}, 1 thread"
        yield bar(name, 0.25, measured(pair), partial(both_sums, *pair))


def against_comparators(size: str, pair: Pair, least: float) -> Iterator[Row]:
    """Against what people use: torch's assertion, which has two threads too, and float64 copies."""
    close, pairs = assert_close(pair), 3 if size == "1 GiB" else 9
    ours = measured(pair, threads=2)
    yield bar(f"all measurements vs assert_close, {size}", least, ours, close, pairs, time.perf_counter)
    copies = partial(float64_copies, *pair)
    yield bar(f"all measurements vs float64 copies, {size}", least, ours, copies, pairs, time.perf_counter)
    if size == "16 MiB":
        plain = partial(definition.measure, *pair)
        yield bar(f"plain numpy kernel vs assert_close, {size}", 1, plain, close)


def statistics(array: Array) -> Iterator[Row]:
    operations = partial(seven_operations, torch.from_numpy(array))
    yield bar("statistics vs seven torch operations, 16 MiB", 10, partial(kernels.stats, array), operations)


def small_tensors(pair: Pair) -> Iterator[Row]:
    """The cost of a call: a hundred of them, on 64 elements."""
    close, operations = assert_close(pair), partial(seven_operations, torch.from_numpy(pair[0]))
    yield bar("all measurements vs assert_close, 64 elements", 2, often(measured(pair)), often(close))
    stats = partial(kernels.stats, pair[0])
    yield bar("statistics vs seven torch operations, 64 elements", 2, often(stats), often(operations))


def bar(name: str, least: float, ours: Work, theirs: Work, pairs: int = 9, clock: Clock = time.process_time) -> Row:
    """By CPU time, of both alike; of peers with threads of their own, by the clock on the wall."""
    return Row(name, median_ratio(theirs, ours, pairs, clock), least, at_least=True)


def pair_of(mebibytes: int, dtype: np.dtype[Any] | None = None, noise: float = 1e-7) -> Pair:
    """A float32 tensor (or as many elements of another dtype) and one with relative noise added."""
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((mebibytes * (1 << 18) // COLUMNS, COLUMNS), np.float32)
    candidate = rng.standard_normal(reference.shape, np.float32)
    candidate *= np.float32(noise)
    candidate += 1
    candidate *= reference
    if dtype is None:
        return reference, candidate
    return reference.astype(dtype), candidate.astype(dtype)


def measured(pair: Pair, **options: Any) -> Work:
    return partial(kernels.measure, *pair, **options)


def often(work: Work) -> Work:
    return lambda: [work() for _ in range(100)]


def both_sums(reference: Array, candidate: Array) -> tuple[Any, Any]:
    return reference.sum(), candidate.sum()


def sums_in_threads(reference: Array, candidate: Array) -> None:
    """Both sums, in as many pieces and threads as the kernel has."""
    pieces = [piece for side in (reference, candidate) for piece in np.array_split(side, PIECES)]
    share(lambda number: pieces[number].sum(), len(pieces), 2)


def assert_close(pair: Pair) -> Work:
    reference, candidate = map(torch.from_numpy, pair)
    return partial(torch.testing.assert_close, candidate, reference)


def float64_copies(reference: Array, candidate: Array) -> tuple[Any, Any]:
    """The largest absolute and relative difference, the way comparators are usually written."""
    c, p = candidate.astype(np.float64), reference.astype(np.float64)
    difference = np.abs(c - p)
    return difference.max(), (difference / np.maximum(np.abs(p), 1e-12)).max()


def seven_operations(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What statistics cost as framework operations."""
    return t.min(), t.max(), t.mean(), t.std(), t.norm(), t.isnan().sum(), t.isinf().sum()


def main() -> int:
    if not kernels.native_available():
        print("the native kernel is not compiled here: python setup.py build_ext --inplace")
        return 2
    missed = 0
    for row in rows(quick="--quick" in sys.argv[1:]):
        print(row, flush=True)
        missed += not row.reached
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
