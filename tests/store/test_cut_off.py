"""Files that are cut off or written to while they are read end in an error that names them, never in SIGBUS."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.compare.comparison import align_traces
from firstdrift.core import mapped
from firstdrift.judge.isolation import isolate
from firstdrift.store.formats import native_format, npy_steps, npz, safetensors_trace

LARGE = 1 << 20  # elements: far more than a page, so that a map of what is cut off has nothing behind it
SIDES = ("reference", "candidate")


def _write(path: Path, factor: float = 1.0, **options: object) -> Path:
    numbers = np.random.default_rng(0).standard_normal((4, LARGE // 4), np.float32)
    with fd.Writer(path, **options) as writer:  # type: ignore[arg-type]
        for layer in range(3):
            writer.put(f"layer{layer}", "fwd", (numbers + layer) * np.float32(factor))
    return path


def _write_relu(path: Path) -> Path:
    """Two layers of which the second can be computed once more."""
    numbers = np.random.default_rng(0).standard_normal((4, LARGE // 4), np.float32)
    with fd.Writer(path) as writer:
        writer.put("layer0", "fwd", numbers)
        writer.put("layer1", "fwd", np.maximum(numbers, 0), op="ReLU")
    return path


def _run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own: what is tested used to end it."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


CUT_DURING_DIFF = """
import os, sys, firstdrift as fd
from pathlib import Path
path, file = Path(sys.argv[1]), Path(sys.argv[2])
def advance(nbytes): os.truncate(file, 4096)
try:
    fd.diff(path / "reference", path / "candidate", advance=advance, verify=sys.argv[3] == "verify")
except fd.FormatError as error:
    print(error)
"""


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("verify", ["verify", ""])
def test_a_trace_cut_off_during_a_diff_is_named(tmp_path: Path, side: str, verify: str) -> None:
    for one, factor in zip(SIDES, (1.0, 1.5), strict=True):
        _write(tmp_path / one, factor)
    file = tmp_path / side / "data-00000.bin"
    size = file.stat().st_size
    run = _run(CUT_DURING_DIFF, tmp_path, file, verify)
    assert run.returncode == 0, run.stderr
    assert f"{file}: had {size} bytes when it was opened and was changed since (it has 4096)" in run.stdout


CUT_IN_HAND = """
import os, sys, numpy as np, firstdrift as fd
trace = fd.open_trace(sys.argv[1])
arrays = [trace.array(record) for record in trace]
os.truncate(sys.argv[2], 0)
print(sum(np.isnan(array).sum() for array in arrays))
try:
    trace.check_unchanged()
except fd.FormatError as error:
    print(error)
"""


@pytest.mark.parametrize("format", [native_format, npz, safetensors_trace, npy_steps], ids=lambda one: one.NAME)
def test_what_is_lost_of_an_array_in_hand_reads_as_nan(tmp_path: Path, format: object) -> None:
    source = fd.open_trace(_write(tmp_path / "source")).select(["layer1"])
    path = tmp_path / {"npz": "x.npz", "safetensors": "x.safetensors"}.get(format.NAME, "x")  # type: ignore[attr-defined]
    format.write(source, path, overwrite=False, advance=lambda nbytes: None)  # type: ignore[attr-defined]
    file = next(one for one in [path, *path.rglob("*")] if one.is_file() and one.stat().st_size > LARGE)
    run = _run(CUT_IN_HAND, path, file)
    assert run.returncode == 0, run.stderr
    lost, said = run.stdout.splitlines()
    assert int(lost) == LARGE
    assert said.startswith(f"{file}: had ")


CUT_CHECKPOINT = """
import os, sys, numpy as np
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.errors import FormatError
checkpoint = open_checkpoint(sys.argv[1])
array = checkpoint.array("w")
os.truncate(sys.argv[1], 512)
np.sum(array)
try:
    checkpoint.array("w")
except FormatError as error:
    print(error)
"""


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_a_checkpoint_cut_off_while_it_is_read_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    numbers = np.ones((64, LARGE // 64), np.float32)
    if suffix == ".pt":
        torch = pytest.importorskip("torch")
        torch.save({"w": torch.from_numpy(numbers)}, path)
    elif suffix == ".npz":
        np.savez(path, w=numbers)
    else:
        from safetensors.numpy import save_file

        save_file({"w": numbers}, path)
    run = _run(CUT_CHECKPOINT, path)
    assert run.returncode == 0, run.stderr
    assert f"{path}: had " in run.stdout
    assert "it has 512" in run.stdout


def test_numbers_written_over_after_opening_are_noticed(tmp_path: Path) -> None:
    path = _write(tmp_path / "trace")
    trace = fd.open_trace(path)
    file = path / "data-00000.bin"
    _write_over(file)
    with pytest.raises(fd.FormatError, match="had bytes of .* when it was opened and was changed since"):
        trace.array(trace.records[0])


def test_numbers_written_over_between_two_reads_are_noticed(tmp_path: Path) -> None:
    ours, theirs = fd.open_trace(_write(tmp_path / "reference")), fd.open_trace(_write(tmp_path / "candidate"))

    def advance(nbytes: int) -> None:
        _write_over(tmp_path / "candidate" / "data-00000.bin")

    with pytest.raises(fd.FormatError, match="candidate.*was changed since"):
        fd.diff(ours, theirs, advance=advance)


def _isolate(ours: fd.Trace, theirs: fd.Trace, advance: Callable[[int], None]) -> object:
    return isolate(ours, theirs, align_traces(ours, theirs).alignment, "layer1", advance)


def _power(ours: fd.Trace, theirs: fd.Trace, advance: Callable[[int], None]) -> object:
    return fd.power(ours, theirs, advance=advance)


@pytest.mark.parametrize("command", [_isolate, _power], ids=["isolate", "power"])
@pytest.mark.parametrize("side", SIDES)
def test_numbers_written_over_after_the_last_read_are_noticed(
    tmp_path: Path, side: str, command: Callable[..., object]
) -> None:
    ours, theirs = (fd.open_trace(_write_relu(tmp_path / side)) for side in SIDES)
    told = 0

    def advance(count: int) -> None:
        nonlocal told
        told += 1
        if told == len(ours):
            _write_over(tmp_path / side / "data-00000.bin")

    with pytest.raises(fd.FormatError, match=f"{side}.*was changed since"):
        command(ours, theirs, advance)


def test_a_reference_written_over_while_it_is_calibrated_is_noticed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    told = 0

    def advance(count: int) -> None:
        nonlocal told
        told += 1
        if told == 2:  # the reference and its float64 run were recorded and read
            _write_over(tmp_path / "t" / "data-00000.bin")

    with pytest.raises(fd.FormatError, match="was changed since"):
        fd.calibrate(torch.nn.Linear(64, 64), torch.ones(2, 64), tmp_path / "t", advance=advance)


def test_bytes_changed_behind_the_clock_are_noticed_by_verify(tmp_path: Path) -> None:
    sides = [_write(tmp_path / side, checksum=True) for side in SIDES]
    ours, theirs = map(fd.open_trace, sides)
    file = sides[1] / "data-00000.bin"
    times = file.stat()
    _write_over(file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "they were damaged" in fd.diff(ours, theirs, verify=True).problems[0]


def test_a_trace_that_is_still_written_may_grow(tmp_path: Path) -> None:
    numbers = np.arange(LARGE, dtype=np.float32)
    with fd.Writer(tmp_path / "trace") as writer:
        writer.put("a", "fwd", numbers)
        trace = fd.open_trace(tmp_path / "trace")
        writer.put("b", "fwd", numbers)
        assert np.array_equal(trace.array(trace.records[0]), numbers)
        trace.check_unchanged()


def test_without_the_guard_bytes_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "guard", None)
    path = _write(tmp_path / "trace")
    trace = fd.open_trace(path)
    array = trace.array(trace.records[0])
    before = array.copy()
    os.truncate(path / "data-00000.bin", 0)
    assert np.array_equal(array, before)
    with pytest.raises(fd.FormatError, match="was changed since"):
        trace.array(trace.records[1])


def test_a_fault_elsewhere_still_ends_the_process(tmp_path: Path) -> None:
    """Only our own maps are mended."""
    path = _write(tmp_path / "trace")
    code = """
import mmap, os, sys, firstdrift as fd
trace = fd.open_trace(sys.argv[1])
trace.array(trace.records[0])
with open(sys.argv[2], "w+b") as file:
    file.truncate(1 << 20)
    theirs = mmap.mmap(file.fileno(), 0)
    file.truncate(0)
    theirs[9000]
"""
    assert _run(code, path, tmp_path / "other").returncode < 0


def _write_over(file: Path) -> None:
    with open(file, "r+b") as stream:
        stream.write(b"\x00\x01\x02\x03" * 64)
    later = file.stat().st_mtime_ns + 1_000_000  # a clock may be too coarse to tell
    os.utime(file, ns=(later, later))
