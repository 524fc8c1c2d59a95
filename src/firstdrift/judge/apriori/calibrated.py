"""Limits from a calibrated reference: how far the reference's own runs are from each other, site by site.

A line of a calibrated trace has `noise`: the distance of the run from its float64 run, from runs perturbed by one
rounding, and the worst part of those. They say how much rounding grows on its way to a site, which no table knows:

- A site may be four times as far off as the reference is from itself, however much that is: amplified noise.
- It amplifies the error of its inputs as it was seen to, and not as its kind of operation might.
- It adds as much error of its own as its peers do. A table must leave room for a serial sum; where three other
  sites of the operation show none, this one has none either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from ...core.dtypes import roundoff
from ...core.records import Record
from ...core.sites import Site
from ...pair.pairs import Pair
from ..graph import Graph
from ..measure.measuring import Measured, unit_of
from ..truth import FACTOR, FACTORS, STORED
from .kinds import GAIN, LEAST_MARGIN, PEER_MARGIN, PEERS, kind_of
from .ladder import LONGEST_SUM, small
from .limits import CALIBRATION, Limits

FLOWING = ("fwd", "agrad", "grad")  # phases in which errors pass from tensor to tensor as they were seen to
LEAST = 0.5  # units of roundoff that noise is never below
AGREE = 64.0  # runs that differ from the reference by as different amounts differ by more than rounding: a flip


def figure(record: Record) -> float | None:
    """How far the reference is from itself at a site; None where it was not calibrated."""
    said = record.details.get(CALIBRATION)
    if not isinstance(said, Mapping):
        return None
    perturbed, precise = _number(said.get("perturbed")), _number(said.get("float64"))
    if precise is not None and not is_rounding(precise, perturbed or 0.0, record.dtype):
        precise = None
    return max((value for value in (perturbed, precise) if value is not None), default=None)


def is_rounding(precise: float, perturbed: float, dtype: str | None) -> bool:
    """Whether the distance from a float64 run is that of rounding, and not of casts, random numbers, or a decision
    that fell the other way."""
    return precise <= AGREE * max(perturbed, roundoff(dtype))


class CalibratedLimits(Limits):
    """Limits of a run whose reference says how noisy its sites are."""

    def __init__(self, items: Mapping[Site, Measured], graph: Graph) -> None:
        super().__init__(items, graph)
        self.plain = Limits(items, graph)
        self._noise: dict[Site, float | None] = {}
        self.own_errors = self._own_errors()

    def limit(self, item: Measured, producers: Sequence[Site], inherited: float) -> float:
        """As much as the ladder and the inputs explain; where that is not enough, as much as the noise seen here."""
        found = super().limit(item, producers, inherited)
        noise = self.noise(item)
        if noise is None or item.pair.tolerance or self.error_of(item, producers) <= found:
            return found
        passed = self.gains_seen(item.pair)[1] * (inherited if math.isfinite(inherited) else 0.0)
        return max(found, self.allowed(item, noise), self.local(item, producers) + passed)

    def local(self, item: Measured, producers: Sequence[Site]) -> float:
        """What the operation itself can add: no more than its peers, where there are some."""
        believed = super().local(item, producers)
        noise = self.noise(item)
        op = item.pair.reference.op
        if noise is None or op is None or item.pair.tolerance or item.pair.site.phase != "fwd":
            return believed
        others = [own for own, site in self.own_errors.get(op, ()) if site != item.pair.site]
        if len(others) < PEERS:
            return believed
        shared = median(others) * _root(self.length(item.pair, kind_of(op), producers))
        return min(believed, max(self.allowed(item, noise), PEER_MARGIN * shared))

    def unshared(self, item: Measured, producers: Sequence[Site]) -> float:
        """What the ladder says: peers sharpen it by errors that they may have in common."""
        return max(self.plain.local(item, producers), self.local(item, producers))

    def gain(self, pair: Pair) -> float:
        """How much a site amplifies: no more than was seen, by whichever of its inputs that may have been."""
        return min(super().gain(pair), self.gains_seen(pair)[0])

    def gains_seen(self, pair: Pair) -> tuple[float, float]:
        """The largest and the smallest gain that calibration allows for; nothing and none where it saw none."""
        item = self.items[pair.site]
        noise = self.noise(item)
        inputs = [self.noise(self.items[site]) for site in self.known(pair.site)]
        known = [value for value in inputs if value is not None]
        if pair.site.phase not in FLOWING or noise is None or not known or len(known) < len(inputs):
            return math.inf, 0.0
        kind = kind_of(pair.reference.op) if pair.site.phase == "fwd" else "linear"
        margin = PEER_MARGIN * small(item.count, FACTORS, FACTOR) / FACTOR
        most, least = (max(margin * noise / value, LEAST_MARGIN * GAIN[kind]) for value in (min(known), max(known)))
        return most, least

    def is_calibrated(self, item: Measured) -> bool:
        """Whether the reference's own runs say how noisy a site is."""
        return self.noise(item) is not None

    def calibrated(self, item: Measured, error: float, limit: float) -> float | None:
        """How noisy the reference itself is, where the ladder would have said otherwise."""
        noise, producers = self.noise(item), self.producers(item.pair.site)
        inherited = max(
            (self.error_of(self.items[producer], self.producers(producer)) for producer in producers), default=0.0
        )
        if noise is None or (error <= limit) == (error <= self.plain.limit(item, producers, inherited)):
            return None
        return noise

    def allowed(self, item: Measured, noise: float) -> float:
        """How far a site may be off that is so noisy."""
        return small(item.count, FACTORS, FACTOR) * noise + STORED * unit_of(item.pair)

    def noise(self, item: Measured) -> float | None:
        """The calibrated noise of a site, on the scale of its error."""
        site = item.pair.site
        if site not in self._noise:
            found = figure(item.pair.reference)
            scaled = None if found is None else max(self._scaled(item, found), LEAST * unit_of(item.pair))
            self._noise[site] = scaled
        return self._noise[site]

    def known(self, site: Site) -> list[Site]:
        """What a site was computed from and that can be noisy: inputs and weights are given."""
        return [other for other in self.producers(site) if other.phase not in ("input", "weight")]

    def _scaled(self, item: Measured, found: float) -> float:
        """A figure on the scale of the terms of a site that cancels, and of the coarser of two dtypes."""
        reference, candidate = roundoff(item.pair.reference.dtype), unit_of(item.pair)
        found *= max(1.0, candidate / reference) if reference else 1.0
        norm = item.measurement.norm_reference if item.measurement is not None else 0.0
        terms = self.scale_of_terms(item, self.producers(item.pair.site))
        return found * norm / terms if terms > norm else found

    def _own_errors(self) -> dict[str, list[tuple[float, Site]]]:
        """By operation, the error of every calibrated output over the square root of the terms it sums: at least what
        one implementation of that operation adds by itself."""
        found: dict[str, list[tuple[float, Site]]] = {}
        for site, item in self.items.items():
            op = item.pair.reference.op
            if site.phase != "fwd" or op is None or item.measurement is None or figure(item.pair.reference) is None:
                continue
            producers = self.producers(site)
            error = self.error_of(item, producers)
            if math.isfinite(error):
                root = _root(self.length(item.pair, kind_of(op), producers))
                found.setdefault(op, []).append((error / root, site))
        return found


def _root(length: int) -> float:
    return math.sqrt(min(length, LONGEST_SUM))


def _number(said: object) -> float | None:
    """A figure as a line says it; anything else there is somebody else's."""
    return float(said) if type(said) in (int, float) and 0 <= said < math.inf else None  # type: ignore[operator,arg-type]
