"""What two programs show by their calls alone: calls in a row that one side makes, paths that one gradient has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ...program.calls import Call, Earlier, Leaf, Place, Ref, Step, reads
from ...program.reruns import Rerun
from ..naming import CHANGED, additional_label
from ..one_program.agreement import size_of
from ..one_program.around import MOVES, Around, Change, base
from ..one_program.trying import Answer, Asked, apart
from ..one_program.values import between, dropped_label, line_of, lines, names, site_told, told
from .lined import Lined

MOST_DEEP = 4  # calls within each other that are told
FEW_DEEP = 2  # where it is one term of many
LEAST = 1e-7  # relative: what both sides may round their other paths by
MOST_TERMS = 16  # of a sum of paths
PATH = "path"  # the parameter of an answer that names a path which one gradient alone has
MOST_MORE = 16  # calls that only the candidate makes, and still are one change


def ends_earlier(lined: Lined) -> Iterator[Change]:
    """The candidate gives what the reference goes on from: the calls behind it are left out."""
    earlier, target = lined.twins.get(lined.candidate.target), lined.reference.target
    if earlier is None or lined.reference.shape(earlier) != lined.reference.shape(target):
        return
    calls = between(lined.reference, target, earlier) if target.node in lined.reference.calls else []
    if not calls:
        return
    last = Around(lined.reference, target.node)
    label = dropped_label(calls, earlier)
    are = "is" if len(calls) == 1 else "are"
    said = f"{names(calls)} {are} left out: {told(lined.reference, earlier)} is what remains"
    results = tuple(earlier if at == target.at else Ref(target.node, at) for at in range(len(last.call.results)))
    edit = last.instead(last.call, results=results)
    yield Change("ends earlier", label, said, edit, 4.0, at=calls[-1].number)


def _site(rerun: Rerun, ref: Ref) -> Site | None:
    """The site that a value of the step is, past calls that only move numbers."""
    while True:
        for site, other in rerun.step.sites.items():
            if other == ref:
                return site
        node = rerun.step.nodes[ref.node]
        if isinstance(node, Leaf):
            source = node.source.site if isinstance(node.source, Earlier) else node.source
            return source if isinstance(source, Site) else None
        read = reads(node)
        if base(node) not in MOVES or not read:
            return None
        ref = read[0]


def goes_on(asked: Asked, lined: Lined) -> Answer | None:
    """What the candidate makes of what the reference leaves as it is."""
    target, rerun = lined.reference.target, lined.candidate
    known = [ref for ref, own in lined.twins.items() if own == target]
    if not known or rerun.target in lined.twins or not lined.reference.array(target).any():
        return None
    calls, stop = between(rerun, rerun.target, max(known)), frozenset(lined.twins)
    more = makers_of(rerun, rerun.target, stop)
    if not calls or len(more) > MOST_MORE:
        return None
    label = additional_label(more[0].op, Around(lined.reference, target.node)) if len(more) == 1 else CHANGED
    masks = " by a mask" if any(around.kind == "b" for around in more) else ""
    site = _site(lined.reference, target)
    what = told(lined.reference, target) if site is None else site_told(site)
    becomes = f"it becomes {expression(rerun, rerun.target, stop)} ({lines(more)})"
    place, copied = line_of(lined.reference, target.node), _of_a_copy(lined, calls)
    said = f"{place}: " if place else ""
    said += f"the candidate goes on with {what}{masks}: {becomes}{copied}"
    count = 1 if copied else len(more)
    return Answer(label, said, {"more": count}, asked.found, 0.0, 4.0 * count, 0, both=True)


def _of_a_copy(lined: Lined, calls: Sequence[Around]) -> str:
    """That the reference makes the first of these calls as well, and not in the tensor itself."""
    reference, target = lined.reference, lined.reference.target
    behind = [reference.step.nodes[number] for number in _readers(reference, target)]
    alike = [call for call in behind if isinstance(call, Call) and base(call) == calls[0].op]
    return ", in place, where the reference works on a copy" if alike else ""


def _readers(rerun: Rerun, ref: Ref) -> list[int]:
    """Who reads a value behind the cut, past copies."""
    found: list[int] = []
    left = list(rerun.ahead.get(ref, ()))
    while left:
        number = left.pop()
        node = rerun.step.nodes[number]
        if isinstance(node, Call) and base(node) in MOVES:
            left += [other for other, call in rerun.step.calls() if Ref(number) in reads(call)]
        else:
            found.append(number)
    return found


def makers_of(rerun: Rerun, ref: Ref, stop: frozenset[Ref]) -> list[Around]:
    """The calls that make a value out of others, in order, without those that only move numbers."""
    left, seen = [ref], dict[int, None]()
    while left:
        one = left.pop()
        if one.node in seen or one in stop or one in rerun.given or one.node not in rerun.calls:
            continue
        seen[one.node] = None
        left += reads(rerun.calls[one.node])
    made = (Around(rerun, number) for number in sorted(seen, key=rerun.order.index))
    return [around for around in made if around.op not in MOVES]


def expression(rerun: Rerun, ref: Ref, stop: frozenset[Ref], deep: int = MOST_DEEP) -> str:
    """A value as calls within each other, down to what both sides have."""
    if ref in stop or ref in rerun.given or ref.node not in rerun.calls:
        return told(rerun, ref)
    around = Around(rerun, ref.node)
    if around.op in MOVES and len(around.tensors) == 1:
        return expression(rerun, around.tensors[0], stop, deep)
    if not deep:
        return "..."
    return f"{around.op}({', '.join(_argument(rerun, one, stop, deep) for one in around.call.args)})"


def _argument(rerun: Rerun, item: object, stop: frozenset[Ref], deep: int) -> str:
    if isinstance(item, Ref):
        return expression(rerun, item, stop, deep - 1)
    if isinstance(item, tuple | list):
        return f"[{', '.join(_argument(rerun, one, stop, deep) for one in item)}]"
    return f"{item:g}" if isinstance(item, float) else str(item)


def by_path(asked: Asked, rerun: Rerun | None) -> Answer | None:
    """A path that only one side's gradient has: the rest of it is the other side's."""
    replays, site = asked.replays, asked.site
    candidate, own, noise = replays.own_rerun(site), replays.own_site(site), max(asked.noise, LEAST)
    first = replays.counterparts.array(replays.first(site)) if rerun is None else rerun.array(rerun.target)
    reference = replays.step(site)
    if candidate is None or own is None or first is None or reference is None:
        return None
    path, label, has = _besides(candidate, first, noise), "gradient-formula", "has a term more"
    side = candidate
    if path is None and rerun is not None:
        path, label, has = _besides(rerun, candidate.array(candidate.target), noise), "gradient-missing", "lacks a term"
        side = rerun
    if path is None:
        return None
    said = f"the candidate's gradient {has}, {_through(side, path)}{_detached(reference, candidate.step, site, own)}"
    return Answer(label, said, {PATH: has}, asked.found, 0.0, 6.0, 0, both=True)


def _besides(rerun: Rerun, rest: Array, noise: float) -> Ref | None:
    """The one term of a sum besides which it is a given tensor."""
    wide = np.asarray(rest, np.float64)
    for one, other in _terms(rerun, rerun.target):
        array = np.asarray(rerun.array(one), np.float64)
        if array.shape == wide.shape and apart(array, wide) <= 4 * noise * size_of(wide):
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


def _through(rerun: Rerun, path: Ref) -> str:
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
