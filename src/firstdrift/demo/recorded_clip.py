"""Traces of one clip for machines without a compiler or without PyTorch: the last nine layers, both sides.

    python -m firstdrift.demo.recorded_clip

records them again, into the package. They are small because the first two stages are left out.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from ..compare.comparison import diff
from ..compare.open_trace import load_format, open_trace
from ..errors import SelectionError
from .demo_batches import Batch
from .port import Port, find_bug
from .spotter_files import HERE, read_probes

RECORDED = HERE / "recorded"
LAST = 9  # layers, from the second stage's pool on
RECORDED_PHASES = ("weight", "fwd", "loss", "lossgrad", "agrad", "grad", "grad_scaled", "weight_after")
BUGS = ("none", "relu-mask", "momentum-sign")


def recorded_batch(bug: str) -> Batch:
    """The recorded clip, compared now."""
    if find_bug(bug).name not in BUGS:
        raise SelectionError(f"the bug {bug!r} was not recorded; choose one of: {', '.join(BUGS)}")
    reference, candidate = RECORDED / "reference.npz", RECORDED / f"{bug}.npz"
    return Batch(0, 0, 1, reference, candidate, diff(reference, candidate))


def record(directory: Path) -> None:
    """Record the reference and every candidate."""
    from .twin import Run, export

    names = read_probes()[-LAST:]
    directory.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="firstdrift-kws-") as scratch:
        here, weights = Path(scratch), Path(scratch, "weights.bin")
        port = Port.build(here)
        export(weights)
        Run(weights, batch=1).record(here / "reference")
        for bug in BUGS:
            port.record(weights, here / bug, start=0, batch=1, samples=1, steps=1, seed=0, bug=bug)
        for name in ("reference", *BUGS):
            trace = open_trace(here / name).select([*names, "loss"], RECORDED_PHASES)
            load_format("npz").write(trace, here / f"{name}.npz", overwrite=True, advance=lambda done: None)
            _compress(here / f"{name}.npz", directory / f"{name}.npz")


def _compress(source: Path, target: Path) -> None:
    """The same archive, smaller, and without the time at which it was made."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.infolist():
            new.writestr(zipfile.ZipInfo(member.filename), old.read(member), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    record(RECORDED)
