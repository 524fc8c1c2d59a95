"""Parameters that the candidate holds as one: a norm of running statistics in the layer before it, the length and the
direction of a normalised weight.

Proven by doing it: the reference's parameters as one, element by element, against what the candidate holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
EPS = ("eps", "epsilon")
LENGTH_AND_DIRECTION = (("original0", "original1"), ("weight_g", "weight_v"))  # torch's two ways of weight norm


class Fold(NamedTuple):
    """Parameters of the reference, the candidate's that are all of them, and the layer and norm that are one there."""

    sites: tuple[Site, ...]
    held: tuple[Record, ...]
    layer: str | None = None
    norm: str | None = None

    @property
    def name(self) -> str:
        """The parameter that is all of them."""
        return in_dots(self.held[0].site)

    @property
    def parts(self) -> str:
        """What it is made of."""
        return ", ".join(in_dots(site) for site in self.sites)


def in_dots(site: Site) -> str:
    """A parameter's module and name."""
    return ".".join(filter(None, (site.name, site.port)))


class _Layer(NamedTuple):
    """Parameters of one module by what they are in it."""

    name: str
    held: dict[str, Record]
    op: str | None
    eps: float


def folds(reference: Trace, candidate: Trace, missing: Collection[Site]) -> list[Fold]:
    """What the candidate holds folded, of parameters of the reference that have no counterpart of their name."""
    weights = [record for record in candidate.records if record.site.phase == "weight" and record.nbytes]
    return [*_norms(reference, candidate, missing, weights), *_directions(reference, candidate, missing, weights)]


def _norms(reference: Trace, candidate: Trace, missing: Collection[Site], weights: Sequence[Record]) -> Iterator[Fold]:
    layers = _layers(reference)
    for norm in layers.values():
        parts = tuple(record.site for record in norm.held.values())
        if not {"mean", "variance"} <= norm.held.keys() or not any(site in missing for site in parts):
            continue
        for layer in _before(reference, norm.name, layers):
            held = [_like(made, candidate, weights) for made in _as_one(reference, layer, norm)]
            whole = tuple(record for record in held if record is not None)
            if len(whole) == len(held):
                yield Fold((*(record.site for record in layer.held.values()), *parts), whole, layer.name, norm.name)


def _directions(
    reference: Trace, candidate: Trace, missing: Collection[Site], weights: Sequence[Record]
) -> Iterator[Fold]:
    records = {record.site: record for record in reference.records if record.site.phase == "weight"}
    for length, direction in LENGTH_AND_DIRECTION:
        for site, record in records.items():
            other = records.get(site._replace(port=direction))
            if site.port != length or other is None or site not in missing:
                continue
            held = _like(_normalised(reference.array(record), reference.array(other)), candidate, weights)
            if held is not None:
                yield Fold((site, other.site), (held,))


def _normalised(length: Array, direction: Array) -> Array:
    """A weight of a length along the axes that the length has, and a direction."""
    axes = tuple(axis for axis, size in enumerate(length.shape) if size == 1)
    wide = np.asarray(direction, np.float64)
    found: Array = np.asarray(length, np.float64) * wide / np.sqrt((wide * wide).sum(axis=axes, keepdims=True))
    return found


def _layers(trace: Trace) -> dict[str, _Layer]:
    held: dict[str, dict[str, Record]] = {}
    for record in trace.records:
        if record.site.phase == "weight" and record.nbytes:
            held.setdefault(record.site.name, {}).setdefault(role_of(record.site.port), record)
    made = {site.site.name: site for site in trace.records if site.site.phase == "fwd" and site.op is not None}
    return {name: _Layer(name, parts, made[name].op, _eps(made[name])) for name, parts in held.items() if name in made}


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


def _eps(record: Record) -> float:
    said = next((record.attrs[key] for key in EPS if record.attrs.get(key)), USUAL_EPS)
    return float(said) if isinstance(said, int | float) else USUAL_EPS


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
