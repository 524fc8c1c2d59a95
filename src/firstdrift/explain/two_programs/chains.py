"""Several calls in a row that one side makes and the other does not: they are left out, or the candidate goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from ...core.sites import Site
from ...program.calls import Call, Earlier, Leaf, Ref, reads
from ...program.reruns import Rerun
from ..asked import Answer, Asked
from ..naming import CHANGED, additional_label
from ..one_program.around import MOVES, Around, Change, base
from ..one_program.rows import PART, between, dropped_label, lines, names
from ..one_program.values import line_of, site_told, told
from .lined import Lined

MOST_DEEP = 4  # calls within each other that are told
FEW_DEEP = 2  # where it is one term of many
MOST_MORE = 16  # calls that only the candidate makes, and still are one change


def ends_earlier(lined: Lined) -> Iterator[Change]:
    """The candidate gives what the reference goes on from: the calls behind it are left out."""
    earlier = lined.same.get(lined.candidate.target)
    target = lined.reference.target
    if (
        earlier is None
        or target.node not in lined.reference.calls
        or lined.reference.shape(earlier) != lined.reference.shape(target)
    ):
        return
    calls = between(lined.reference, target, earlier)
    if not calls:
        return
    last = Around(lined.reference, target.node)
    label = dropped_label(calls, earlier)
    are = "is" if len(calls) == 1 else "are"
    said = f"{names(calls)} {are} left out: {told(lined.reference, earlier)} is what remains"
    said += _elsewhere(calls, lined.candidate, lined.reference)
    results = tuple(earlier if at == target.at else Ref(target.node, at) for at in range(len(last.call.results)))
    edit = last.instead(last.call, results=results)
    yield Change("ends earlier", label, said, edit, 4.0, at=calls[-1].number)


def _elsewhere(calls: Sequence[Around], candidate: Rerun, reference: Rerun) -> str:
    """That the candidate makes the calls of something else, where it does."""
    wanted, first = _site(reference, reference.target), calls[0]
    if first.call.part != PART:
        return ""
    place = reference.place(first.number)
    if wanted is None or place is None:
        return ""
    for number, call in candidate.step.calls():
        other = candidate.place(number) if base(call) == first.op and number not in candidate.calls else None
        if other is None or other.function != place.function or PurePath(other.file).name != PurePath(place.file).name:
            continue
        for ref in reads(call)[:1]:
            site = _site(candidate, ref)
            if site is not None and (site.name, site.port.split(".")[0]) == (wanted.name, wanted.port.split(".")[0]):
                return f"; the candidate makes {first.written} of {site_told(site)}"
    return ""


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
    known = [ref for ref, own in lined.same.items() if own == target]
    if not known or rerun.target in lined.same or not lined.reference.array(target).any():
        return None
    calls, stop = between(rerun, rerun.target, max(known)), frozenset(lined.same)
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
