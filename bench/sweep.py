"""Bars of `fd.sweep`: what it costs beyond the runs and the comparisons themselves, and what a second job gains."""

import multiprocessing
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ratios import Row, seconds

import firstdrift as fd

SITES = 60
CASES = 20
PAIRS, ROUNDS = 24, 5


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
    """Comparisons of finished pairs, which are all work and no waiting.

    What a second process gains is a matter of the machine: so the second job is held against a second process that does
    half of the comparisons by hand.
    """
    pairs = [directory / "pairs" / str(case) for case in range(PAIRS)]
    for place in pairs:
        for side, name in enumerate(("reference", "candidate")):
            _record(place / name, side, "grad", 300, 256)

    def swept(jobs: int) -> float:
        return seconds(lambda: _green(fd.sweep(directory / "pairs", jobs=jobs).exit_code))

    def by_hand(processes: int) -> float:
        return seconds(lambda: _in_processes([pairs[number::processes] for number in range(processes)]))

    for measured in (swept, by_hand):
        measured(1)
        measured(2)
    gains = []
    for _ in range(ROUNDS):
        ours, theirs = (measured(1) / measured(2) for measured in (swept, by_hand))
        gains.append((ours / theirs, ours, theirs))
    share, ours, theirs = (statistics.median(column) for column in zip(*gains, strict=True))
    print(f"    2 jobs against 1: {ours:.2f}; 2 processes by hand against 1: {theirs:.2f}")
    yield Row("what a second job gains, of what a second process does", share, 0.8, True)


def _in_processes(shares: list[list[Path]]) -> None:
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=_compare, args=(share,)) for share in shares]
    for process in running:
        process.start()
    for process in running:
        process.join()
        _green(process.exitcode)


def _compare(places: list[Path]) -> None:
    for place in places:
        _green(fd.diff(place / "reference", place / "candidate").exit_code)


def _green(exit_code: int | None) -> None:
    assert exit_code == 0, exit_code


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
