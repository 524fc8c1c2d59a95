"""Gradients that are sums over paths: one side has a path more, because the other detaches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ...program.calls import Call, Place, Ref, Step, reads
from ...program.reruns import Rerun
from ..asked import Answer, Asked
from ..one_program.around import MOVES, base
from ..one_program.trying import apart, size
from ..one_program.values import site_told

LEAST = 1e-7  # relative: what both sides may round their other paths by
MOST_TERMS = 16  # of a sum of paths


def by_path(asked: Asked, rerun: Rerun | None) -> Answer | None:
    """A path that only one side's gradient has: the rest of it is the other side's."""
    replays, site = asked.replays, asked.site
    candidate, own, noise = replays.own_rerun(site), replays.own_site(site), max(asked.noise, LEAST)
    first = replays.counterparts.array(replays.first(site)) if rerun is None else rerun.array(rerun.target)
    reference = replays.step(site)
    if candidate is None or own is None or first is None or reference is None:
        return None
    path, label, has = _besides(candidate, first, noise), "gradient-formula", "has a term more"
    told = None if path is None else _told(candidate, path)
    if told is None and rerun is not None:
        path, label, has = _besides(rerun, candidate.array(candidate.target), noise), "gradient-missing", "lacks a term"
        told = None if path is None else _told(rerun, path)
    if told is None:
        return None
    said = f"the candidate's gradient {has}, {told}{_detached(reference, candidate.step, site, own)}"
    return Answer(label, said, {}, asked.found, 0.0, 6.0, 0, both=True)


def _besides(rerun: Rerun, rest: Array, noise: float) -> Ref | None:
    """The one term of a sum besides which it is a given tensor."""
    terms = list(_terms(rerun, rerun.target))
    for one, other in terms:
        array = rerun.array(one)
        if array.shape == rest.shape and apart(
            np.asarray(array, np.float64), np.asarray(rest, np.float64)
        ) <= 4 * noise * size(rest):
            return other
    return None


def _terms(rerun: Rerun, target: Ref) -> Iterator[tuple[Ref, Ref]]:
    """Both terms of a sum, in either order, past calls that only move numbers."""
    call = rerun.calls.get(target.node)
    while call is not None and base(call) in MOVES and target not in rerun.given and len(reads(call)) == 1:
        target = reads(call)[0]
        call = rerun.calls.get(target.node)
    if call is None or base(call) != "add" or target in rerun.given or call.kwargs.get("alpha", 1) != 1:
        return
    one, other = (*reads(call), *reads(call))[:2]
    if one != other:
        yield from ((one, other), (other, one))


def _told(rerun: Rerun, path: Ref) -> str:
    """A term by the forward call through which it comes."""
    left, seen = [path], 0
    while left and seen < MOST_TERMS:
        ref, seen = left.pop(0), seen + 1
        site = rerun.given.get(ref)
        if site is not None:
            return site_told(site)
        call = rerun.step.nodes[ref.node]
        if isinstance(call, Call):
            place = rerun.step.as_written(call.of).place if call.of is not None else call.place
            if place is not None:
                return f"which comes through {PurePath(place.file).name}:{place.line}"
            left += reads(call)
    return "of another path"


def _detached(reference: Step, candidate: Step, site: Site, own: Site) -> str:
    """That one side detaches the value of which this is a gradient, and where."""
    one, other = _detaching(reference, site), _detaching(candidate, own)
    if len(one) == len(other):
        return ""
    who, place = ("reference", one[-1]) if len(one) > len(other) else ("candidate", other[-1])
    return f"; the {who} detaches it ({PurePath(place.file).name}:{place.line})"


def _detaching(step: Step, site: Site) -> list[Place]:
    """The lines that detach a value of the forward pass."""
    value = step.sites.get(site._replace(phase="fwd"))
    if value is None:
        return []
    alike, found = {value}, list[Place]()
    for number, call in step.calls():
        if call.part == "forward" and any(ref in alike for ref in reads(call)):
            place = step.as_written(number).place
            if base(call) == "detach" and place is not None:
                found.append(place)
            elif base(call) in MOVES:
                alike.add(Ref(number))
    return found
