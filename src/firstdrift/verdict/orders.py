"""Operations in another order: the same modules, fed the same, hand on the same, though between them all differs.

A norm without a gain before a rotation is the same as one after it. That is seen where both runs recorded what was
computed from what: the modules are connected otherwise, what enters them agrees, and so does what each side's last
module hands on, be it to a module or to operations that nobody recorded. Nothing behind them can hide anything, for
what they hand on is compared as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..compare.pairs import Pair
from ..compare.result import CLEAN, PairResult, Verdict
from ..sites import Site
from ..traces import Array
from .graph import RECORDED, Graph
from .limits import Limits
from .made_up import outweighs

PRODUCED = frozenset({Verdict.DRIFT, Verdict.INHERITED})

Results = Mapping[Site, PairResult]
Load = Callable[[Pair], tuple[Array, Array]]
Edges = dict[Site, frozenset[Site]]
Call = tuple[int, str, int]  # of a module: the step, its name, and which call


@dataclass(frozen=True, slots=True)
class _Region:
    """Sites that differ and are connected, and what lies around them: what they read, what reads them, on each side."""

    sites: frozenset[Site]
    entered: tuple[frozenset[Site], frozenset[Site]]
    left: frozenset[Site]

    @property
    def calls(self) -> frozenset[Call]:
        return frozenset(_call(site) for site in self.sites)


def other_orders(results: Results, limits: Limits, graph: Graph, load: Load) -> dict[Site, str]:
    """The sites between modules that are run in another order and give the same, with the reason in words."""
    if graph.kind != RECORDED or not any(r.verdict is Verdict.DRIFT and _is_made(r.site) for r in results.values()):
        return {}
    edges = _edges(results)
    if edges is None:
        return {}
    apart = {site for site, result in results.items() if _is_made(site) and _differs(result, limits)}
    found: dict[Site, str] = {}
    for region in _regions(apart, edges):
        if _is_order(region, results, edges, limits, load):
            names = sorted({site.name for site in region.sites})
            reason = f"{', '.join(names)} are run in another order, and what they hand on agrees"
            inside = (one for one in results if one.phase in ("fwd", "agrad") and _call(one) in region.calls)
            found |= dict.fromkeys(inside, reason)
            found |= dict.fromkeys(_arriving(region, results, limits), reason)
    return found


def _call(site: Site) -> Call:
    return site.step, site.name, site.call


def _is_made(site: Site) -> bool:
    return site.phase == "fwd" and site.name != ""


def _differs(result: PairResult, limits: Limits) -> bool:
    error = result.error
    return result.verdict in PRODUCED and error is not None and error > limits.local(limits.items[result.site], [])


def _arriving(region: _Region, results: Results, limits: Limits) -> Iterator[Site]:
    """The gradients of what enters a region, which another module sends back on either side, where they agree."""
    for site, result in results.items():
        entered = site._replace(phase="fwd", sample=None) in region.entered[0]
        if site.phase == "agrad" and entered and agrees(result, limits):
            yield site


def _edges(results: Results) -> tuple[Edges, Edges] | None:
    """What every tensor of the forward pass was computed from on both sides, by the reference's sites; None where a
    side does not say, or names what was not compared."""
    names = {record.site: site for site, result in results.items() for record in result.pair.candidate}
    ours: Edges = {}
    theirs: Edges = {}
    for site, result in results.items():
        if site.phase != "fwd":
            continue
        own, other = result.pair.reference.producers, [one.producers for one in result.pair.candidate]
        if own is None or len(other) != 1 or other[0] is None:
            continue
        ours[site] = frozenset(own)
        theirs[site] = frozenset(names.get(one, one) for one in other[0])
    return (ours, theirs) if ours else None


def _regions(apart: set[Site], edges: tuple[Edges, Edges]) -> Iterator[_Region]:
    """Connected sites that differ, each with what is around it."""
    near: dict[Site, set[Site]] = {site: set() for site in apart}
    for side in edges:
        for site, sources in side.items():
            for source in sources & apart if site in apart else ():
                near[site].add(source)
                near[source].add(site)
    left = set(apart)
    while left:
        waiting = [left.pop()]
        sites = set(waiting)
        while waiting:
            new = near[waiting.pop()] - sites
            sites |= new
            waiting.extend(new)
        left -= sites
        entered = [frozenset(s for one in sites for s in side.get(one, ())) - sites for side in edges]
        readers = frozenset(one for side in edges for one, s in side.items() if one not in sites and s & sites)
        yield _Region(frozenset(sites), (entered[0], entered[1]), readers)


def _is_order(region: _Region, results: Results, edges: tuple[Edges, Edges], limits: Limits, load: Load) -> bool:
    """Whether the modules of a region are the same ones in another order, and do the same."""
    ours, theirs = edges
    if len(region.calls) < 2 or not region.left or region.entered[0] != region.entered[1]:
        return False
    if not all(site in ours and site in results for site in (*region.sites, *region.left)):
        return False
    if all(ours[site] == theirs[site] for site in (*region.sites, *region.left)):
        return False
    if not all(site in results and agrees(results[site], limits) for site in (*region.entered[0], *region.left)):
        return False
    names = {name for _, name, _ in region.calls}
    weights = (r for site, r in results.items() if site.phase == "weight" and site.name in names)
    if any(result.verdict not in CLEAN for result in weights):
        return False
    behind = [results[site] for site in region.left]
    outweighed = all(outweighs(results[one], other, other.error or 0.0) for one in region.sites for other in behind)
    return (
        outweighed
        and all_change(region.sites, results, load)
        and all(
            _is_handed_on(site, region, results, edges, load)
            or _reads_the_same(site, region, results, edges, limits, load)
            for site in region.left
        )
    )


def agrees(result: PairResult, limits: Limits) -> bool:
    """Whether a tensor differs by no more than one operation's noise, whatever went before it."""
    measurement = result.measurement
    if measurement is None or not measurement.nonfinite_agree or result.error is None or not measurement.compared:
        return False
    return result.error <= limits.local(limits.items[result.site], [])


def all_change(sites: frozenset[Site], results: Results, load: Load) -> bool:
    """Whether every module among some sites does something on both sides: one that does nothing here says nothing
    about its place."""
    return all(
        _changes([site for site in sites if _call(site) == call], results, load) for call in {_call(s) for s in sites}
    )


def _changes(sites: Sequence[Site], results: Results, load: Load) -> bool:
    fed = [load(results[site].pair) for site in sites if site.port.startswith("in.")]
    made = [load(results[site].pair) for site in sites if not site.port.startswith("in.")]
    return bool(made) and not any(
        _same(one[side], other[side]) for one in fed for other in made for side in (0, 1)
    )  # fmt: skip


def _is_handed_on(site: Site, region: _Region, results: Results, edges: tuple[Edges, Edges], load: Load) -> bool:
    """Whether what is read behind a region is, on either side, one module's output as it is."""
    values = load(results[site].pair)
    for side, value in zip((0, 1), values, strict=True):
        sources = edges[side][site] & region.sites
        if not sources or not all(_same(load(results[one].pair)[side], value) for one in sources):
            return False
    return True


def _reads_the_same(
    site: Site, region: _Region, results: Results, edges: tuple[Edges, Edges], limits: Limits, load: Load
) -> bool:
    """Whether what is made of a region, by operations that nobody recorded, is made of equal tensors on both sides:
    each that the reference takes from one module, the candidate takes from another."""
    ours, theirs = (sorted(side[site] & region.sites) for side in edges)
    if not ours or len(ours) != len(theirs) or set(ours) == set(theirs):
        return False
    left = [load(results[one].pair)[1] for one in theirs]
    for source in ours:
        expected = load(results[source].pair)[0]
        limit = limits.local(limits.items[source], [])
        match = next((n for n, found in enumerate(left) if _close(expected, found, limit)), None)
        if match is None:
            return False
        left.pop(match)
    return True


def _close(expected: Array, found: Array, limit: float) -> bool:
    if expected.shape != found.shape or expected.dtype.kind not in "fV" or found.dtype.kind not in "fV":
        return False
    x, z = (np.asarray(array, np.float64) for array in (expected, found))
    return bool(np.linalg.norm(z - x) <= limit * np.linalg.norm(x))


def _same(one: Array, other: Array) -> bool:
    """Whether two tensors hold the same numbers, in whatever layout."""
    return one.size == other.size and bool(np.array_equal(np.sort(one, axis=None), np.sort(other, axis=None)))
