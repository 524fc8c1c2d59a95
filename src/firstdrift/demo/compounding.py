"""Whether the port's difference grows over many steps: both float32 runs against a float64 run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..compare.open_trace import open_trace

COMPOUNDS = 4.0  # times PyTorch's own distance from float64


@dataclass(frozen=True, slots=True)
class Distance:
    """How far all weights, as one vector, are from those of the float64 run after a step."""

    step: int
    port: float
    torch: float
    moved: float  # how far the float64 run has come since its first step began

    @property
    def ratio(self) -> float:
        """The port's distance, in units of PyTorch's."""
        return self.port / self.torch if self.torch else math.inf if self.port else 1.0


def distances(port: Path, torch: Path, double: Path) -> list[Distance]:
    """From three traces of the same steps."""
    start = next(_weights(double, "weight"))
    runs = (_weights(path, "weight_after") for path in (port, torch, double))
    return [
        Distance(
            number + 1,
            float(np.linalg.norm(reference - truth)),
            float(np.linalg.norm(candidate - truth)),
            float(np.linalg.norm(truth - start)),
        )
        for number, (reference, candidate, truth) in enumerate(zip(*runs, strict=True))
    ]


def _weights(path: Path, phase: str) -> Iterator[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """All parameters of a step in one vector, step after step."""
    trace = open_trace(path)
    by_step: dict[int, dict[tuple[str, str], np.ndarray[tuple[int], np.dtype[np.float64]]]] = {}
    for record in trace:
        site = record.site
        if site.phase == phase:
            value = np.asarray(trace.array(record), np.float64).ravel()
            by_step.setdefault(site.step, {})[site.name, site.port] = value
    for step in sorted(by_step):
        yield np.concatenate([by_step[step][key] for key in sorted(by_step[step])])


def conclusion(found: Sequence[Distance]) -> str:
    """What the distances say, in a sentence."""
    last = found[-1]
    after = f"after {last.step} steps the port is {last.ratio:.1f} times as far from float64 as PyTorch is"
    share = f"{last.port / (last.moved or 1.0):.0e} of the way that the weights went"
    if last.ratio <= COMPOUNDS:
        return f"the port adds nothing that compounds: {after}; both have parted from it by {share}"
    return f"the port's difference compounds: {after}; it has parted from it by {share}"
