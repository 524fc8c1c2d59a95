"""What a green verdict proves: the site at which the largest error could have been missed, and how large it is.

Where draws judged a pair, they say it; elsewhere the limits do, by which it would have been judged. Nothing is drawn
for this, so that it costs next to nothing.
"""

from __future__ import annotations

from ..case import Case, Chain, Chains, limit_of
from ..measure.measuring import Measured, unit_of
from ..measure.result import Proves, Why
from ..measure.scales import FEWEST
from .by_bytes import ROUNDED

MARGIN = 2.0  # times the limit of a site, an error has to be to show beside the noise that is there
MOST = 1.0  # relative: a tensor that is not there at all


def proves(case: Case, chains: Chains) -> Proves:
    """The weakest of all pairs, and the smallest factor on all of it that would have been found there."""
    if all(chain[-1].why in (Why.BIT_EQUAL, Why.EMPTY, Why.ABSENT_ON_BOTH) for chain in chains.values()):
        return Proves(None, 0.0)
    found = {site: seen_at(item, case, chains[site]) for site, item in case.items.items() if counts(item)}
    weakest = max(found, key=found.__getitem__, default=None)
    return Proves(weakest, 0.0 if weakest is None else found[weakest])


def counts(item: Measured) -> bool:
    """Whether a pair holds floats of its own: what goes into a module came out of another."""
    own = item.pair.site.phase != "fwd" or not item.pair.site.port.startswith("in.")
    measurement = item.measurement
    return own and measurement is not None and not item.is_integer and measurement.norm_reference > 0


def seen_at(item: Measured, case: Case, chain: Chain) -> float:
    """The smallest factor on all of a tensor, less one, that would have been found."""
    drawn = next((finding.facts["seen"] for finding in reversed(chain) if finding.facts.get("seen") is not None), None)
    return float(drawn) if drawn is not None else min(MOST, seen_by_limits(item, case, chain))


def seen_by_limits(item: Measured, case: Case, chain: Chain) -> float:
    """The same by the limits of a site, which no draw has sharpened; 1 or more where nothing would be seen."""
    if item.pair.tolerance is not None:
        return item.pair.tolerance.relative
    if item.pair.site.phase in ("input", "weight"):
        return ROUNDED * unit_of(item.pair)
    if item.update is not None:
        return item.update.limit
    producers = case.limits.producers(item.pair.site)
    assert item.measurement is not None
    scale = max(1.0, case.limits.scale_of_terms(item, producers) / item.measurement.norm_reference)
    few = MARGIN if item.count < FEWEST else 1.0
    return few * MARGIN * scale * max(limit_of(chain) or 0.0, case.limits.unshared(item, producers))
