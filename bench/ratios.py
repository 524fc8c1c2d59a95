"""How a bar is measured: two ways of doing a thing, alternated in one run, and the median of their ratios.

These machines are shared: an absolute time says more about the neighbours than about the code, and so does the time by
the clock on the wall of one thing against another that has more threads. So what runs in one thread is measured by its
CPU time, which neighbours take little of; what runs in several is held against something else in as many.
"""

import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One bar: what was measured, how it came out, and what it must reach."""

    name: str
    value: float
    bar: float
    at_least: bool
    unit: str = "x"

    @property
    def reached(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        mark = "ok" if self.reached else "MISSED"
        return f"{self.name:<66} {self.value:>8.2f} {self.unit:<4} {sign} {self.bar:g} {mark}"


Clock = Callable[[], float]


def seconds(work: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def median_ratio(
    numerator: Callable[[], object], denominator: Callable[[], object], pairs: int = 9,
    clock: Clock = time.perf_counter,
) -> float:  # fmt: skip
    """The median over paired runs of numerator's time divided by denominator's, after one run of each to warm up."""
    return statistics.median(above / below for above, below in _paired(numerator, denominator, pairs, clock))


def best_ratio(numerator: Callable[[], object], denominator: Callable[[], object], pairs: int = 25) -> float:
    """The same of the best time of each: to a few milliseconds in several threads, neighbours only ever add."""
    times = _paired(numerator, denominator, pairs, time.perf_counter)
    return min(above for above, _ in times) / min(below for _, below in times)


def _paired(
    numerator: Callable[[], object], denominator: Callable[[], object], pairs: int, clock: Clock
) -> list[tuple[float, float]]:
    numerator()
    denominator()
    times = []
    for _ in range(pairs):
        below = seconds(denominator, clock)
        times.append((seconds(numerator, clock), below))
        time.sleep(0.02)
    return times


def cpu_seconds(*command: str, codes: tuple[int, ...] = (0,)) -> float:
    """CPU time, user and system, that a command takes with all its threads; it must end with one of the exit codes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode in codes, done.stderr.decode(errors="replace")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
