"""Activations that the candidate keeps along other axes: found by the numbers of some, believed where others share it.

An arrangement that the shapes demand is taken where numbers prove it and another tensor shares it or what comes after
agrees; padding is cut off only where what comes after shows that nothing reads it. One that changes no shape could hide
a mistake: there, both have to be. What a mistake has changed lies as its like does. Every tensor is judged all the
same, after the steps that are named with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from ..core.records import Record
from ..core.sites import Site
from ..core.traces import Array, Trace
from .arrangements import Steps, agrees, arrangement, deinterleaved
from .moments import EXACT
from .pairs import Pair

SHARED = 2  # tensors that have to lie in one arrangement where shapes do not show it
NAMED = frozenset({"name", "prefix", "alias", "map"})  # whose numbers are not asked for another arrangement
LIES = "lies otherwise"


def with_layouts(pairs: Mapping[Site, Pair], reference: Trace, candidate: Trace) -> dict[Site, Pair]:
    """The pairs whose candidate lies otherwise, with the steps that undo it."""
    plain = {site: pair for site, pair in pairs.items() if _is_plain(pair)}
    steps = _Layouts(plain, reference, candidate).found()
    for site in [site for site in plain if site.phase == "agrad"]:
        forward = site._replace(phase="fwd")
        if forward in steps:
            steps[site] = steps[forward]
    rows = _rows(steps, pairs, reference, candidate)
    return {site: _undone(pairs[site], one) for site, one in (steps | rows).items() if one}


class _Layouts:
    """What is known of how outputs lie, while it is found."""

    def __init__(self, pairs: Mapping[Site, Pair], reference: Trace, candidate: Trace) -> None:
        self.pairs = {site: pair for site, pair in pairs.items() if site.phase in ("fwd", "input")}
        self.traces = reference, candidate

    def arrays(self, pair: Pair) -> tuple[Array, Array]:
        return self.traces[0].array(pair.reference), self.traces[1].array(pair.candidate[0])

    def found(self) -> dict[Site, Steps]:
        """The steps of every pair that needs some."""
        shown = {site: pair for site, pair in self.pairs.items() if _shapes_differ(pair)}
        told = {site: arrangement(*self.arrays(pair)) for site, pair in shown.items()}
        found = {site: steps for site, steps in told.items() if steps and self._is_borne_out(site, told)}
        usual = _usual(found, self.pairs)
        for site, steps in told.items():
            if steps is None and (alike := _fitting(self.pairs[site], usual)) is not None:
                found[site] = alike
        return found | self._hidden(found, usual)

    def _is_borne_out(self, site: Site, told: Mapping[Site, Steps | None]) -> bool:
        """Whether more than this tensor's numbers speak for its arrangement: merged axes are in order, another tensor
        shares it, or what comes after agrees."""
        steps = told[site] or ()
        if _is_cut(steps):
            return self._is_unread(site, told)
        if all(step.kind == "reshape" for step in steps):
            return True
        kinds = [step.kind for step in steps]
        like = ([step.kind for step in one] for other, one in told.items() if one and other != site)
        return kinds in like or self._agrees_after(site, told)

    def _is_unread(self, site: Site, told: Mapping[Site, Steps | None]) -> bool:
        """Whether nothing reads what is cut off: it is no result of the model, and what comes after the last of its
        like is whole and agrees."""
        last = [other for other, steps in told.items() if _is_cut(steps or ())][-1]
        return site.name != "" and self._agrees_after(last, told)

    def _agrees_after(self, site: Site, told: Mapping[Site, Steps | None]) -> bool:
        sites = list(self.pairs)
        later = [self.pairs[other] for other in sites[sites.index(site) + 1 :] if other not in told]
        return any(agrees(*self.arrays(pair), ()) for pair in later)

    def _hidden(self, shown: Mapping[Site, Steps], usual: Mapping[object, Steps]) -> dict[Site, Steps]:
        """Arrangements that change no shape: of axes as others show it, of halves of heads as others share it."""
        found: dict[Site, Steps] = {}
        shared: dict[Steps, list[Site]] = {}
        agreeing = -1
        asked = usual or any(pair.matched not in NAMED for pair in self.pairs.values())
        for place, (site, pair) in enumerate(self.pairs.items() if asked else ()):
            if site in shown or _shapes_differ(pair):
                continue
            axes = _fitting(pair, usual)
            if axes is None and pair.matched in NAMED:
                continue
            reference, candidate = self.arrays(pair)
            if agrees(reference, candidate, ()):
                agreeing = place
            elif axes is not None:
                found[site] = axes
            elif (steps := arrangement(reference, candidate)) is not None:
                shared.setdefault(steps, []).append(site)
        order = {site: place for place, site in enumerate(self.pairs)}
        for steps, sites in shared.items():
            if len(sites) >= SHARED and agreeing > max(order[site] for site in sites):
                found.update(dict.fromkeys(sites, steps))
        return found


def _is_cut(steps: Steps) -> bool:
    return any(step.kind == "slice" for step in steps)


def _is_plain(pair: Pair) -> bool:
    single = len(pair.candidate) == 1 and not pair.candidate_steps and not pair.reference_steps
    return single and _is_dense(pair.reference) and _is_dense(pair.candidate[0]) and pair.site.sample is None


def _is_dense(record: Record) -> bool:
    return record.at is not None and bool(record.nbytes)


def _shapes_differ(pair: Pair) -> bool:
    reference, candidate = pair.reference.shape or (), pair.candidate[0].shape or ()
    return [dim for dim in reference if dim != 1] != [dim for dim in candidate if dim != 1]


def _usual(found: Mapping[Site, Steps], pairs: Mapping[Site, Pair]) -> dict[object, Steps]:
    """How tensors of so many axes lie that several show to lie so."""
    votes: dict[object, Counter[Steps]] = {}
    for site, steps in found.items():
        if all(step.kind == "permute" for step in steps):
            votes.setdefault(_ranks(pairs[site]), Counter())[steps] += 1
    best = {ranks: counted.most_common(1)[0] for ranks, counted in votes.items() if len(counted) == 1}
    return {ranks: steps for ranks, (steps, count) in best.items() if count >= SHARED}


def _ranks(pair: Pair) -> object:
    return len(pair.reference.shape or ()), len(pair.candidate[0].shape or ())


def _fitting(pair: Pair, usual: Mapping[object, Steps]) -> Steps | None:
    """What others of as many axes need, where it brings this one into our shape."""
    steps = usual.get(_ranks(pair))
    if steps is None:
        return None
    shape = pair.candidate[0].shape or ()
    for step in steps:
        shape = tuple(shape[axis] for axis in step.axes)
    return steps if shape == pair.reference.shape else None


def _rows(
    steps: Mapping[Site, Steps], pairs: Mapping[Site, Pair], reference: Trace, candidate: Trace
) -> dict[Site, Steps]:  # fmt: skip
    """Weights whose rows lie as their outputs do, or as outputs of that length do where these have other names."""
    found: dict[Site, Steps] = {}
    heads = {site: head for site, one in steps.items() if (head := _head(one)) is not None}
    own = {site.name: head for site, head in heads.items()}
    by_length: dict[int, set[tuple[int, bool]]] = {}
    for site, head in heads.items():
        for length in _lengths(pairs[site].reference):
            by_length.setdefault(length, set()).add(head)
    for site, pair in pairs.items() if heads else ():
        shape = pair.reference.shape or ()
        if site.phase != "weight" or not _is_plain(pair) or not shape or shape != pair.candidate[0].shape:
            continue
        for size, halves in [own[site.name]] if site.name in own else by_length.get(shape[0], ()):
            rows = deinterleaved(shape, 0, size, halves=halves)
            arrays = reference.array(pair.reference), candidate.array(pair.candidate[0])
            if shape[0] % size == 0 and not agrees(*arrays, (), EXACT) and agrees(*arrays, rows, EXACT):
                found |= dict.fromkeys(_of_parameter(site, pairs), rows)
    return found


def _lengths(record: Record) -> tuple[int, int]:
    """How long an output is, with its heads apart or joined."""
    shape = (1, *(record.shape or (1,)))
    return shape[-1], shape[-1] * shape[-2]


def _of_parameter(site: Site, pairs: Mapping[Site, Pair]) -> list[Site]:
    others = [site._replace(phase=phase) for phase in ("weight", "grad", "grad_scaled", "weight_after")]
    return [other for other in others if other in pairs and _is_plain(pairs[other])]


def _head(steps: Steps) -> tuple[int, bool] | None:
    """The size of a head, and which way, where steps pull the pairs of a rotation apart along the last axis."""
    steps = steps[-3:]
    if [step.kind for step in steps] != ["reshape", "permute", "reshape"]:
        return None
    size, halves = steps[0].shape[-2] * steps[0].shape[-1], steps[0].shape[-2] == 2 != steps[0].shape[-1]
    same = deinterleaved(steps[2].shape, len(steps[2].shape) - 1, size, halves=halves)
    return (size, halves) if steps == same else None


def _undone(pair: Pair, steps: Steps) -> Pair:
    said = ", then ".join(map(str, steps))
    return replace(pair, candidate_steps=(*pair.candidate_steps, *steps), notes=(*pair.notes, f"{LIES}: {said}"))
