"""Which kernel runs, and what it costs: without the compiled module, in threads, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.kernels import pairs as p
from tests.kernels.closeness import assert_same_measurement, assert_same_stats

from firstdrift import kernels
from firstdrift.kernels import definition, pieces, threads


def test_everything_works_without_the_compiled_module(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((100, 70)).astype(np.float32)
    candidate = p.poisoned(rng, p.nudged(rng, reference))
    expected, statistics = kernels.measure(reference, candidate), kernels.stats(candidate)
    monkeypatch.setattr(kernels, "native", None)
    assert not kernels.native_available()
    assert_same_measurement(kernels.measure(reference, candidate, threads=2), expected, reference, candidate)
    assert_same_stats(kernels.stats(candidate), statistics)


def test_importing_without_the_compiled_module_and_nothing_but_numpy() -> None:
    script = """
import sys
import numpy, ml_dtypes
before = set(sys.modules)
sys.modules["firstdrift.kernels.native"] = None
import firstdrift.kernels as kernels
assert not kernels.native_available()
assert kernels.measure(numpy.zeros(3), numpy.ones(3)).max_abs == 1.0
third_party = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert third_party <= {"firstdrift", "numpy", "ml_dtypes"}, third_party
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_native_kernel_serves_the_common_formats_and_only_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the definition was asked")

    monkeypatch.setattr(definition, "measure", refuse)
    monkeypatch.setattr(definition, "stats", refuse)
    for dtype in p.NATIVE + p.COMPLEX:
        array = np.ones((3, 5), dtype)
        assert kernels.measure(array, array.T.copy().T).bit_equal
        assert kernels.stats(array.T).mean is not None
    with pytest.raises(AssertionError, match="the definition was asked"):
        kernels.measure(np.ones(3, np.int32), np.ones(3, np.int32))


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    together = threading.Barrier(2, timeout=30)

    def work(piece: int) -> None:
        together.wait()  # so that both threads take part
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError(f"no memory for {piece}")

    with pytest.raises(MemoryError, match="no memory for"):
        threads.share(work, 2, 2)


def test_every_piece_is_done_once_also_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    for count in (0, 1, 7):
        done: list[int] = []
        threads.share(done.append, count, 3)
        assert sorted(done) == list(range(count))
    monkeypatch.setattr(threads, "start_new_thread", refuse)
    done = []
    threads.share(done.append, 3, 2)
    assert done == [0, 1, 2]


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (64, 10**6), (65, 65), (10**6, 64), (10**4, 10**5), (1, 10**8)])
def test_pieces_cover_every_element_once_and_are_small(shape: tuple[int, int]) -> None:
    rows, columns = shape
    area = 0
    for start, stop in pieces.panel_groups(rows, columns):
        assert start % pieces.PANEL == 0
        for left, right in pieces.strips(stop - start, columns):
            assert left % pieces.RUN == 0
            assert (stop - start) * (right - left) <= pieces.PIECE_SIZE
            area += (stop - start) * (right - left)
    assert area == rows * columns


@pytest.mark.parametrize("transposed", [False, True])
def test_the_definition_allocates_a_few_mebibytes_whatever_the_tensor(transposed: bool) -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((2048, 4096), np.float32)
    candidate = reference + np.float32(1e-3)
    if transposed:
        reference, candidate = (
            reference.reshape(64, 32, 4096).swapaxes(0, 1),
            candidate.reshape(64, 32, 4096).swapaxes(0, 1),
        )
    peaks = []
    for work in (
        lambda: definition.measure(reference, candidate),
        lambda: definition.stats(reference),
        lambda: definition.stats(reference[..., 1:4000:2]),
    ):
        tracemalloc.start()
        try:
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert max(peaks) < 8 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_memory_mapped_gibibyte_is_measured_in_bounded_memory(tmp_path: Path) -> None:
    """Two sparse files of 512 MiB under a limit on private memory."""
    script = """
import re, resource, sys
import numpy as np
import firstdrift.kernels as kernels
sides = [np.memmap(path, np.float32, "r", shape=(2048, 65536)) for path in sys.argv[1:]]
data = int(re.search(r"VmData:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (data + (64 << 20),) * 2)
found = kernels.measure(*sides, threads=2)
assert (found.count, found.differing, found.max_abs_index) == (1 << 27, 1, 12345678), found
assert kernels.stats(sides[1]).max == 1.0
"""
    paths = [tmp_path / "reference.bin", tmp_path / "candidate.bin"]
    for path in paths:
        with path.open("wb") as file:
            file.truncate(512 << 20)
    with paths[1].open("r+b") as file:
        file.seek(12345678 * 4)
        file.write(np.float32(1).tobytes())
    subprocess.run([sys.executable, "-c", script, *map(str, paths)], check=True, timeout=120)
