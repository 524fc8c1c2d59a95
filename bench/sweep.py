"""Bars of `fd.sweep`: what it costs beyond the runs and the comparisons themselves, and what a second job gains."""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ratios import Row, seconds

import firstdrift as fd

SITES = 60
CASES = 20
PAIRS, ROUNDS = 48, 3
SWEEP = """
import resource, sys, time
import firstdrift as fd
code = fd.sweep(sys.argv[1], jobs=int(sys.argv[2])).exit_code
ended = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, time.process_time(), ended.ru_utime + ended.ru_stime)
"""


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        yield from _overhead(Path(directory))
        yield from _jobs(Path(directory))


def _record(path: Path, side: int, phase: str, sites: int, size: int) -> None:
    rng = np.random.default_rng(0)
    with fd.Writer(path) as writer:
        for site in range(sites):
            values = rng.standard_normal(size).astype(np.float32)
            writer.put(f"layer{site}", phase, values * np.float32(1 + 1e-7 * side), port="out")


def _overhead(directory: Path) -> Iterator[Row]:
    """A sweep of commands, against the same commands and comparisons one after the other."""
    for side, name in enumerate(("reference", "candidate")):
        _record(directory / name, side, "grad", SITES, 256)
    ours, theirs = (f"cp -r {directory / name}/. {{out}}" for name in ("reference", "candidate"))

    def by_hand() -> None:
        for case in range(CASES):
            place = directory / "by-hand" / str(case)
            for command, side in ((ours, "reference"), (theirs, "candidate")):
                (place / side).mkdir(parents=True)
                subprocess.run(command.format(out=place / side).split(), check=True)
            fd.diff(place / "reference", place / "candidate")
        shutil.rmtree(directory / "by-hand")

    def swept() -> None:
        cases = [{"case": case} for case in range(CASES)]
        assert fd.sweep(cases, ours, f"env CASE={{case}} {theirs}", out=directory / "out").exit_code == 0
        shutil.rmtree(directory / "out")

    by_hand()
    swept()
    extra = []
    for _ in range(5):
        extra.append((seconds(swept) - seconds(by_hand)) / CASES * 1e3)
        time.sleep(0.02)
    yield Row("overhead per case beyond the two runs and the diff", statistics.median(extra), 30, False, "ms")


def _jobs(directory: Path) -> Iterator[Row]:
    """Comparisons of finished pairs, which are all work and no waiting, each time in a new process.

    What a second job would gain on a machine with a core for each, whatever the neighbours do: the CPU time of one job,
    against that of two where what the workers did is shared by two and what the sweep did itself is not.
    """
    pairs = directory / "pairs"
    for case in range(PAIRS):
        for side, name in enumerate(("reference", "candidate")):
            _record(pairs / str(case) / name, side, "grad", 300, 256)

    def swept(jobs: int) -> float:
        asked = [sys.executable, "-c", SWEEP, str(pairs), str(jobs)]
        exit_code, own, workers = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
        _green(int(exit_code))
        return float(own) + float(workers) / jobs

    gains = [swept(1) / swept(2) for _ in range(ROUNDS)]
    yield Row("what a second job gains, by CPU time of one and of two", statistics.median(gains), 1.6, True)


def _green(exit_code: int | None) -> None:
    assert exit_code == 0, exit_code


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
