"""A norm of running statistics that the candidate has folded into the layer before it.

Proven by doing it: our layer and norm as one layer, element by element, against what the candidate holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.records import Record
from ..core.sites import Site
from ..core.traces import Array, Trace
from .arrangements import arrangement
from .conventions import PRODUCTS, family_of, role_of

NEAR = 1e-6  # of the norm: a few roundings
USUAL_EPS = 1e-5


class _Layer(NamedTuple):
    """Parameters of one module by what they are in it."""

    name: str
    held: dict[str, Record]
    op: str | None
    eps: float


def folded(reference: Trace, candidate: Trace, used: Iterable[Site]) -> dict[Site, str]:
    """Our weights that the candidate holds only as folded into one layer, with what holds them."""
    layers = _layers(reference)
    norms = [site for site in layers.values() if {"mean", "variance"} <= site.held.keys()]
    if not norms:
        return {}
    taken = set(used)
    free = [
        record
        for record in candidate.records
        if record.site.phase == "weight" and record.site not in taken and record.nbytes
    ]
    found: dict[Site, str] = {}
    for norm in norms:
        for layer in _before(reference, norm.name, layers):
            held = _held(reference, layer, norm, candidate, free)
            if held is not None:
                name = ".".join(filter(None, (held.site.name, held.site.port)))
                said = f"folded into the candidate's {name!r}: the same numbers, computed and compared"
                found |= {site.site: said for site in (*layer.held.values(), *norm.held.values())}
    return found


def _layers(trace: Trace) -> dict[str, _Layer]:
    held: dict[str, dict[str, Record]] = {}
    for record in trace.records:
        if record.site.phase == "weight" and record.nbytes:
            held.setdefault(record.site.name, {}).setdefault(role_of(record.site.port), record)
    made = {site.site.name: site for site in trace.records if site.site.phase == "fwd" and site.op is not None}
    return {
        name: _Layer(name, parts, made[name].op, float(made[name].attrs.get("eps") or USUAL_EPS))
        for name, parts in held.items()
        if name in made
    }


def _before(trace: Trace, name: str, layers: Mapping[str, _Layer]) -> Iterator[_Layer]:
    """The products of which a module reads the result, and nothing else."""
    reads = {
        producer.name
        for record in trace.records
        if record.site.name == name and record.site.port.startswith("in.")
        for producer in record.producers or ()
    }
    for other in reads if len(reads) == 1 else ():
        layer = layers.get(other)
        if layer is not None and family_of(layer.op) in PRODUCTS and "weight" in layer.held:
            yield layer


def _held(reference: Trace, layer: _Layer, norm: _Layer, candidate: Trace, free: Iterable[Record]) -> Record | None:
    """The candidate's weight that is both of the reference, if it has a bias that is, too."""
    weight, bias = _as_one(reference, layer, norm)
    found = [_like(made, candidate, free) for made in (weight, bias)]
    return None if None in found else found[0]


def _as_one(trace: Trace, layer: _Layer, norm: _Layer) -> tuple[Array, Array]:
    def part(site: _Layer, role: str, otherwise: float) -> NDArray[np.float64]:
        record = site.held.get(role)
        return np.asarray(otherwise if record is None else trace.array(record), np.float64)

    gain = part(norm, "weight", 1.0) / np.sqrt(part(norm, "variance", 1.0) + norm.eps)
    weight = part(layer, "weight", 0.0)
    channels = gain.reshape(-1, *[1] * (weight.ndim - 1))
    return weight * channels, (part(layer, "bias", 0.0) - part(norm, "mean", 0.0)) * gain + part(norm, "bias", 0.0)


def _like(made: Array, candidate: Trace, free: Iterable[Record]) -> Record | None:
    for record in free:
        if prod(record.shape or ()) == made.size:
            held = np.asarray(candidate.array(record), np.float64)
            if arrangement(made, held, NEAR) is not None:
                return record
    return None
