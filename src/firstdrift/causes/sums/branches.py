"""Which of the terms of a sum goes around the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...sites import Site
from ..evidence import Evidence, Surroundings

PROJECTION = 2  # modules on a shortcut that changes the width: a projection and its norm
MOST_VISITED = 20_000


def site_of(evidence: Evidence, name: str) -> Site | None:
    """The forward tensor that an input is known by, nearest before the drift."""
    sites = list(evidence.around.sites("fwd"))
    before = sites[: sites.index(evidence.site)] if evidence.site in sites else sites
    owner, _, port = name.partition(":")
    ports = (port,) if port else ("out", "in.0")
    return next((one for one in reversed(before) if one.name == owner and one.port in ports), None)


def goes_around(evidence: Evidence, lost: Sequence[str], kept: Sequence[str]) -> bool:
    """Whether lost terms of a sum are what the kept ones were computed from, or a projection of it.

    Embeddings that are added up start from nothing that they share, and have no skip. Where the run did not record
    what was computed from what, the earlier term is taken to go around the later one.
    """
    ours, theirs = [site_of(evidence, one) for one in lost], [site_of(evidence, one) for one in kept]
    known, others = [one for one in ours if one is not None], [one for one in theirs if one is not None]
    if any("embedding" in evidence.around.op(one).lower() for one in others):
        return False
    recorded = any(evidence.around.producers(one) for one in (*known, *others))
    if len(known) < len(lost) or len(others) < len(kept) or not recorded:
        return _is_first(evidence, lost, kept)
    return are_around(evidence.around, known, others)


def are_around(around: Surroundings, lost: Sequence[Site], kept: Sequence[Site]) -> bool:
    """Whether the kept sites were computed from the lost ones; or the lost ones are a projection of what they share.

    Where one of the kept is such a projection too, all are taps of one kind, of which none goes around the others.
    """
    before = ancestors(around, kept)
    if not kept or all(one in before for one in lost):
        return bool(kept)
    others = ((one, [other for other in kept if other != one]) for one in kept)
    taps = any(rest and _is_projection(around, [one], rest) for one, rest in others)
    return _is_projection(around, lost, kept) and not taps


def _is_projection(around: Surroundings, lost: Sequence[Site], kept: Sequence[Site]) -> bool:
    """Whether the lost sites are few modules away from what the kept ones, which are more away, were computed from."""
    before, own = ancestors(around, kept), ancestors(around, lost)
    if all(one in before for one in lost):
        return False
    longer = min(len(_modules(ancestors(around, [one]) - own)) for one in kept)
    return bool(own & before) and len(_modules(own - before)) <= min(PROJECTION, longer - 1)


def ancestors(around: Surroundings, sites: Iterable[Site]) -> set[Site]:
    """These sites and all that they were computed from."""
    waiting, seen = list(sites), set(sites)
    while waiting and len(seen) < MOST_VISITED:
        for other in around.producers(waiting.pop()):
            if other.phase in ("fwd", "input") and other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def _modules(sites: set[Site]) -> set[str]:
    """The modules among sites that have no part among them."""
    names = {one.name for one in sites if one.phase == "fwd" and not one.port.startswith("in.")}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def _is_first(evidence: Evidence, lost: Sequence[str], kept: Sequence[str]) -> bool:
    """Whether the lost terms come before the kept ones in what is known of the order."""
    order = list(evidence.inputs)
    if not kept:
        return False
    known = [order.index(one) for one in (*lost, *kept) if one in order]
    return len(known) == len(lost) + len(kept) and max(known[: len(lost)]) < min(known[len(lost) :])
