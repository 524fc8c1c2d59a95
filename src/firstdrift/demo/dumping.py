"""The twin's trace as the port dumps its own: sample after sample, with gradients of the sum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ..core.records import Record
from ..core.traces import Array, Trace
from ..pair.batches import SCALED_PHASES, sample_steps
from ..pair.pairs import Transform, apply_all
from ..store.formats import npy_steps

BATCHED = frozenset({"input", "fwd", "lossgrad", "agrad"})  # of which a sample is a row


def dump(trace: Trace, directory: Path, samples: int, *, overwrite: bool) -> None:
    """Write npy step directories with the names and the units that the port's have."""
    batch = trace.header["batch"]
    made = [site for record in trace.lines for site in _as_the_port_has_it(record, samples, batch)]
    arrays = {line.site: partial(_array, trace, record, steps) for line, record, steps in made}
    said = {"gradient_of": {"reduction": "sum", "batch": batch}}
    lines = [line for line, _, _ in made]
    whole = Trace(trace.path, trace.format, lines, lambda number: trace.path, header=said, special=arrays)
    npy_steps.write(whole, directory, overwrite=overwrite, advance=lambda nbytes: None)


def _as_the_port_has_it(
    record: Record, samples: int, batch: int
) -> Iterator[tuple[Record, Record, tuple[Transform, ...]]]:
    """What the port would dump of a tensor, the tensor, and the way there; of what it does not dump, nothing."""
    site, shape = record.site, record.shape
    if record.at is None or shape is None or site.phase == "optim" or site.port.startswith("in."):
        return
    scaled = (Transform("scale", factor=float(batch)),) if site.phase in SCALED_PHASES else ()
    if site.phase not in BATCHED:
        yield record, record, scaled
        return
    for sample in range(min(samples, batch)):
        line = record._replace(site=site._replace(sample=sample), shape=(1, *shape[1:]))
        yield line, record, (*sample_steps(sample), *scaled)


def _array(trace: Trace, record: Record, steps: tuple[Transform, ...]) -> Array:
    return apply_all(trace.array(record), steps)
