"""How a bar is measured: two ways of doing a thing, alternated in one run, and the median of their ratios.

These machines are shared: an absolute time says more about the neighbours than about the code.
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


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_ratio(numerator: Callable[[], object], denominator: Callable[[], object], pairs: int = 9) -> float:
    """The median over paired runs of numerator's time divided by denominator's, after one run of each to warm up."""
    numerator()
    denominator()
    ratios = []
    for _ in range(pairs):
        below = seconds(denominator)
        ratios.append(seconds(numerator) / below)
        time.sleep(0.02)
    return statistics.median(ratios)


def cpu_seconds(*command: str) -> float:
    """CPU time, user and system, that a command takes with all its threads; it must end with exit code 0."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
