"""Gradients that are sums over paths: one side has a path more, because the other detaches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ...program.calls import Call, Place, Ref, Step, reads
from ...program.reruns import Rerun
from ..one_program.around import MOVES, base
from ..one_program.trying import apart, size
from ..one_program.values import site_told

LEAST = 1e-7  # relative: what both sides may round their other paths by
MOST_TERMS = 16  # of a sum of paths


def one_path_more(candidate: Rerun, expected: Array, noise: float) -> str | None:
    """Which path only the candidate's gradient has: the rest of it is what is expected."""
    path = _besides(candidate, expected, noise)
    return None if path is None else f"the candidate's gradient has a term more, {_told(candidate, path)}"


def one_path_less(reference: Rerun, found: Array, noise: float) -> str | None:
    """Which path the candidate's gradient has not: the rest of the reference's is what was found."""
    path = _besides(reference, found, noise)
    return None if path is None else f"the candidate's gradient lacks a term, {_told(reference, path)}"


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


def detached(reference: Step, candidate: Step, site: Site, own: Site) -> str:
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
