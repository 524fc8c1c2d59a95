"""Rows of other lengths that nothing behind them sees: a norm without a gain before a rotation, or after it.

Both sides hold the same rows, each times a number of its own, wherever they differ; and everything that reads these
rows makes the same of them. What scales rows one by one is a norm; that it stands elsewhere is no bug where it does not
show. One factor for all rows is none: it is what a constant would be that was forgotten, and that a norm hides.
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
from .orders import agrees, all_change
from .parts import LARGEST

FEWEST = 4  # rows, and numbers in each
VARIED = 0.01  # by which the factors of rows differ at least, relative to their mean

Results = Mapping[Site, PairResult]
Load = Callable[[Pair], tuple[Array, Array]]


def other_lengths(results: Results, limits: Limits, graph: Graph, load: Load) -> dict[Site, str]:
    """The sites whose rows have other lengths without any consequence, with the reason in words."""
    found: dict[Site, str] = {}
    suspects = [
        site
        for site, result in results.items()
        if result.verdict is Verdict.DRIFT and site.phase == "fwd" and _is_rescaled(load(result.pair), limits, result)
    ]
    readers = _readers(results, graph) if suspects else {}
    for site in suspects:
        region = _region(site, results, readers, limits)
        behind = {other for one in region for other in readers.get(one, ())} - region
        if not behind or not all(_is_rescaled(load(results[one].pair), limits, results[one]) for one in region):
            continue
        if all_change(region, results, load) and all(
            outweighs(results[one], results[two], results[two].error or 0.0) for one in region for two in behind
        ):
            found |= dict.fromkeys(_inside(region, results), "its rows have other lengths, which nothing reads")
    return found


def _readers(results: Results, graph: Graph) -> dict[Site, list[Site]]:
    """What was computed from each tensor of the forward pass."""
    readers: dict[Site, list[Site]] = {}
    for site in results:
        for producer in graph.producers(site) if site.phase == "fwd" else ():
            readers.setdefault(producer, []).append(site)
    return readers


def _region(
    site: Site, results: Results, readers: Mapping[Site, Sequence[Site]], limits: Limits
) -> frozenset[Site]:  # fmt: skip
    """A site and what differs behind it, as far as that goes."""
    region, waiting = {site}, [site]
    while waiting:
        for other in readers.get(waiting.pop(), ()):
            if other not in region and not agrees(results[other], limits):
                region.add(other)
                waiting.append(other)
    return frozenset(region)


def _inside(region: frozenset[Site], results: Results) -> Iterator[Site]:
    """The sites of a region, and their gradients, which have the lengths that undo it."""
    for site in results:
        if site.phase in ("fwd", "agrad") and site._replace(phase="fwd", sample=None) in region:
            yield site


def _is_rescaled(both: tuple[Array, Array], limits: Limits, result: PairResult) -> bool:
    """Whether each row is the reference's times a positive number of its own."""
    ours = both[0]
    if ours.dtype.kind not in "fV" or ours.ndim < 2 or ours.shape[-1] < FEWEST or ours.size > LARGEST:
        return False
    x, z = (np.asarray(array, np.float64).reshape(-1, ours.shape[-1]) for array in both)
    squares = np.sum(x * x, axis=1)
    if len(x) < FEWEST or not np.isfinite(x).all() or not np.isfinite(z).all() or not squares.all():
        return False
    factors = np.sum(x * z, axis=1) / squares
    left = float(np.linalg.norm(z - factors[:, None] * x))
    within = left <= limits.local(limits.items[result.site], []) * float(np.linalg.norm(z))
    return within and bool((factors > 0).all()) and float(np.std(factors)) > VARIED * float(np.mean(factors))
