"""Rows of other lengths, or turned ones, that nothing behind them sees: a norm without a gain before a rotation, or
after it; and a factor that is applied in another place of a sum.

Both sides hold the same rows, each times a number of its own, wherever they differ; and everything that reads these
rows makes the same of them. What scales rows one by one is a norm; that it stands elsewhere is no bug where it does not
show. One factor for all rows may be a constant that was forgotten, and that a norm hides; see moved_factors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ..compare.pairs import Pair
from ..compare.result import PairResult, Verdict
from ..sites import Site
from ..traces import Array
from .graph import Graph
from .limits import Limits
from .made_up import outweighs
from .moved_factors import is_added_with_its_factor, is_one_factor, passes_modules
from .orders import agrees, all_change
from .rows import matrices, varies
from .turned import are_scaled, is_turned

Results = Mapping[Site, PairResult]
Load = Callable[[Pair], tuple[Array, Array]]
Readers = Mapping[Site, Sequence[Site]]


def other_lengths(results: Results, limits: Limits, graph: Graph, load: Load) -> dict[Site, str]:
    """The sites whose rows have other lengths, or directions, without any consequence, with the reason in words."""
    found: dict[Site, str] = {}
    suspects = [
        site
        for site, result in results.items()
        if result.verdict is Verdict.DRIFT and site.phase == "fwd" and _is_alike(load(result.pair), limits, result)
    ]
    readers = _readers(results, graph) if suspects else {}
    for site in suspects:
        if site in found:
            continue
        region = _region(site, results, readers, limits)
        behind = frozenset(other for one in region for other in readers.get(one, ())) - region
        made_up = all(
            outweighs(results[one], results[two], results[two].error or 0.0) for one in region for two in behind
        )
        if behind and made_up and (reason := _reason(region, behind, results, readers, limits, load)) is not None:
            found |= dict.fromkeys(_inside(region, results, graph, limits), reason)
    return found


def _reason(
    region: frozenset[Site], behind: frozenset[Site], results: Results, readers: Readers, limits: Limits, load: Load
) -> str | None:  # fmt: skip
    """What the difference between the two sides of a region is, if nothing behind it can tell."""
    local = {site: limits.local(limits.items[site], []) for site in region}
    if all(_is_rescaled(load(results[one].pair), local[one]) for one in region):
        return "its rows have other lengths, which nothing reads" if all_change(region, results, load) else None
    if all(is_turned(load(results[one].pair), local[one]) for one in region):
        return "its rows are turned before they are scaled, not after" if are_scaled(region, results, load) else None
    if passes_modules(region) and all(is_one_factor(load(results[one].pair), local[one]) for one in region):
        read = [(one, two) for two in behind for one in region if two in readers.get(one, ())]
        if all(is_added_with_its_factor(one, two, results, load) for one, two in read):
            return "a factor is applied in another place, and what comes out agrees"
    return None


def _readers(results: Results, graph: Graph) -> dict[Site, list[Site]]:
    """What was computed from each tensor of the forward pass."""
    readers: dict[Site, list[Site]] = {}
    for site in results:
        for producer in graph.producers(site) if site.phase == "fwd" else ():
            readers.setdefault(producer, []).append(site)
    return readers


def _region(
    site: Site, results: Results, readers: Readers, limits: Limits
) -> frozenset[Site]:  # fmt: skip
    """A site and what differs behind it, as far as that goes."""
    region, waiting = {site}, [site]
    while waiting:
        for other in readers.get(waiting.pop(), ()):
            if other not in region and not agrees(results[other], limits):
                region.add(other)
                waiting.append(other)
    return frozenset(region)


def _inside(region: frozenset[Site], results: Results, graph: Graph, limits: Limits) -> Iterator[Site]:
    """The sites of a region, and their gradients, which have the lengths that undo it; and the gradients of what enters
    it, which another operation sends back on either side, where they agree."""
    entered = {producer for site in region for producer in graph.producers(site)} - region
    for site, result in results.items():
        forward = site._replace(phase="fwd", sample=None)
        arrives = site.phase == "agrad" and forward in entered and agrees(result, limits)
        if arrives or (site.phase in ("fwd", "agrad") and forward in region):
            yield site


def _is_alike(both: tuple[Array, Array], limits: Limits, result: PairResult) -> bool:
    limit = limits.local(limits.items[result.site], [])
    return _is_rescaled(both, limit) or is_turned(both, limit) or is_one_factor(both, limit)


def _is_rescaled(both: tuple[Array, Array], limit: float) -> bool:
    """Whether each row is the reference's times a positive number of its own."""
    rows = matrices(both)
    if rows is None:
        return False
    x, z = rows
    factors = np.sum(x * z, axis=1) / np.sum(x * x, axis=1)
    left = float(np.linalg.norm(z - factors[:, None] * x))
    within = left <= limit * float(np.linalg.norm(z))
    return within and bool((factors > 0).all()) and varies(factors)
