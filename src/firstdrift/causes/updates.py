"""States that modules update again and again, as a sampler or a looped block does: one update that is not made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..sites import Site
from .agreement import Floats, floats, limit
from .evidence import Evidence
from .screening import positions, sampled

TRIED = 1024  # elements by which an update is fitted
PLAIN = 2.0  # times what noise explains: what an update changes at least
MOST_TERMS = 64


@dataclass(frozen=True, slots=True)
class Update:
    """What a state becomes in the reference: `kept` times itself, and `weight` times what a module gave."""

    term: Site
    kept: float
    weight: float

    def __str__(self) -> str:
        return f"{self.term.name} of call {self.term.call}, times {self.weight:.6g}"


def update_of(evidence: Evidence, state: Site, before: Sequence[Site]) -> Update | None:
    """The update that makes what was expected of an earlier state, by a module that is called again and again."""
    at = positions(evidence.expected.size, TRIED)
    wanted, held = sampled(evidence.expected, at), evidence.around.reference(state)
    if held is None or held.shape != evidence.expected.shape or not np.isfinite(wanted).all():
        return None
    base = sampled(held, at)
    enough = 2 * limit(evidence) * float(np.linalg.norm(wanted))
    for term in _terms(evidence, state, before):
        value = evidence.around.reference(term)
        if value is None or value.shape != held.shape or value.dtype.kind != "f":
            continue
        some = sampled(value, at)
        for alone in (True, False):  # the state is kept as it is, or shrinks
            kept, weight = _fitted(base, some, wanted, alone)
            left = float(np.linalg.norm(wanted - kept * base - weight * some))
            if not left <= enough or abs(weight) * float(np.linalg.norm(some)) < PLAIN * enough:
                continue
            rest = floats(evidence.expected) - kept * floats(held) - weight * floats(value)
            if float(np.linalg.norm(rest)) <= 2 * limit(evidence) * float(np.linalg.norm(floats(evidence.expected))):
                return Update(term, kept, weight)
    return None


def _fitted(base: Floats, some: Floats, wanted: Floats, alone: bool) -> tuple[float, float]:
    if alone:
        square = float(some @ some)
        return 1.0, float(some @ (wanted - base)) / square if square > 0 else 0.0
    kept, weight = np.linalg.lstsq(np.stack((base, some), 1), wanted, rcond=None)[0]
    return float(kept), float(weight)


def _terms(evidence: Evidence, state: Site, before: Sequence[Site]) -> Iterator[Site]:
    """What modules gave after the state was there, the latest first, of those that gave something before it, too."""
    place = list(before).index(state)
    earlier = {one.name for one in before[:place] if not one.port.startswith("in.")}
    later = [one for one in reversed(before[place:]) if not one.port.startswith("in.") and one.call]
    now = evidence.site.step, evidence.site.sample
    yield from [one for one in later if one.name in earlier and (one.step, one.sample) == now][:MOST_TERMS]
