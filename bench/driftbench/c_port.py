"""The C port of the package as a network: its twin in PyTorch is the reference. It can be traced, not called."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

import torch

from firstdrift.demo.port import Port, find_bug
from firstdrift.demo.twin import Run, export

from .asking import Recorded
from .case import Case

NETWORK = "c-port"
BATCH = 4


def is_port(case: Case) -> bool:
    """Whether the case is one of the C port's."""
    return case.network == NETWORK


def record_port(case: Case, directory: Path) -> Recorded:
    """Traces of the twin and of the port."""
    port, weights = _built()
    bug, steps = _bug(case)
    reference, candidate = directory / "reference", directory / "candidate"
    _run(weights, case.seed, steps).record(reference)
    port.record(weights, candidate, start=4 * case.seed, batch=BATCH, samples=BATCH, steps=steps, seed=0, bug=bug)
    return Recorded(reference, candidate, {})


def record_port_truth(case: Case, path: Path) -> None:
    """The twin in float64."""
    _, weights = _built()
    _run(weights, case.seed, _bug(case)[1], torch.float64).record(path)


def _bug(case: Case) -> tuple[str, int]:
    name = next(iter(case.planted.bugs), "none")
    return name, max(case.steps, find_bug(name).steps)


def _run(weights: Path, seed: int, steps: int, dtype: torch.dtype = torch.float32) -> Run:
    return Run(weights, start=4 * seed, batch=BATCH, samples=BATCH, steps=steps, seed=0, dtype=dtype)


@cache
def _built() -> tuple[Port, Path]:
    """Built once in a process, in a place that goes away with it."""
    place = tempfile.TemporaryDirectory(prefix="driftbench-port-")
    atexit.register(place.cleanup)
    directory = Path(place.name)
    weights = directory / "weights.bin"
    export(weights)
    return Port.build(directory), weights
