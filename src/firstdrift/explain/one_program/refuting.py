"""A change held against other tensors: of later steps, of other parameters, layers or calls.

A change with a fitted number explains one tensor by that number, and at the beginning of a training run much comes to
the same. Where the same lines make another tensor that drifts as well, the same change has to explain it too; else it
is a coincidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ...program.calls import Call, NotReplayableError, Ref, reads
from ...program.edits import Edit, Fragment
from ...program.reruns import Rerun
from ..changes.rates import LABELS as RATES
from ..changes.rates import set_there
from ..one_program.trying import Asked
from .around import Change
from .trying import Question, Trial, Tried, apart
from .values import PART

STEPS = frozenset({"optim", "weight_after"})  # what one rule makes of every parameter
MOST_LIKE = 4  # tensors that a change is held against
LARGE = 1 << 20  # elements: larger ones are not
MORE = 10.0  # times as much noise as at the tensor itself
WORK = 4_000.0


@dataclass(frozen=True)
class Elsewhere:
    """The tensors beside the one that is asked about; `mine` is what runs the program that is changed, the reference's
    or the candidate's, and `other` what the other side has."""

    asked: Asked
    mine: Callable[[Site], Rerun | None]
    other: Callable[[Site], Array | None]

    def held(self, tried: Tried) -> int | None:
        """How many other tensors that drift the same change of the same lines makes; None where one is another one."""
        parts = (call.part for number in tried.change.edit if (call := tried.rerun.calls.get(number)) is not None)
        is_step = self.asked.site.phase in STEPS and all(part == PART for part in parts)
        if not (tried.change.free or is_step) or self.asked.piece is not None:
            return 0
        found = [self._bears_out(tried, rerun, question) for rerun, question in self._trials]
        return None if False in found else found.count(True)

    @cached_property
    def _trials(self) -> list[tuple[Rerun, Question]]:
        return list(islice(self._found(), MOST_LIKE))

    def _found(self) -> Iterator[tuple[Rerun, Question]]:
        for site in _alike(self.asked):
            with suppress(NotReplayableError, ValueError, IndexError, KeyError):
                rerun, found = self.mine(site), self.other(site)
                if rerun is None or found is None or found.size > LARGE:
                    continue
                taken = self._less_before(site)
                yield rerun, Question(taken(found), taken(rerun.array(rerun.target)), MORE * self.asked.noise, taken)

    def _less_before(self, site: Site) -> Callable[[Array], Array]:
        before = self.asked.replays.counterparts.array(site._replace(phase="weight"))
        if site.phase != "weight_after" or before is None:
            return lambda array: array
        return lambda array: np.subtract(array, before)

    def _bears_out(self, tried: Tried, rerun: Rerun, question: Question) -> bool | None:
        """Whether a change makes another tensor; None where that tells nothing."""
        with suppress(NotReplayableError, ValueError, IndexError, KeyError):
            like = rerun if tried.rerun.is_opened == rerun.is_opened else rerun.opened()
            edit = (
                None
                if like is None
                else (_set_there(tried.change, like) or _moved(tried.change.edit, tried.rerun, like))
            )
            if like is None or edit is None:
                return None
            trial = Trial(like, question, WORK)
            if trial.unchanged <= trial.enough:
                return None
            made = trial.run(edit)
            return made is not None and apart(made, trial.found) <= trial.enough
        return None


def _set_there(change: Change, rerun: Rerun) -> Edit | None:
    """The same change of a setting that several numbers of a step follow from; None of any other change."""
    name, known = change.kind.removeprefix("number "), change.parameters or {}
    if name not in RATES or name not in known:
        return None
    return set_there(name, float(known[name]), float(known[f"reference_{name}"]), rerun)


def _alike(asked: Asked) -> Iterator[Site]:
    """Sites of the same kind: of later steps, of other modules or calls."""
    site, port = asked.site, asked.site.port.rpartition(".")[2]
    kind = site.phase, port
    some = [
        one
        for one in asked.replays.counterparts.sites
        if one != site and (one.phase, one.port.rpartition(".")[2]) == kind
    ]
    yield from (one for one in some if one == site._replace(step=one.step) and one.step > site.step)
    yield from (one for one in some if one.step == site.step)


def _moved(edit: Edit, reference: Rerun, other: Rerun) -> Edit | None:
    """The same change of the calls that the same lines make, with the numbers that they have there; None where there
    are none, or where it holds numbers of this tensor alone."""
    places = _places(reference, other)
    moved = [(number, places[Ref(number)].node) for number in edit if Ref(number) in places]
    both = [(reference.calls[one], other.calls[two]) for one, two in moved if one in reference.calls]
    there = _numbers_there(edit, both)
    if there is None:
        return None

    def ref(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            raise KeyError(item.shape)
        if _is_number(item):
            return there.get(item, item)
        if isinstance(item, Ref):
            return item if item.node < 0 else places[item]
        if isinstance(item, Mapping):
            return {key: ref(one) for key, one in item.items()}
        return tuple(ref(one) for one in item) if isinstance(item, tuple | list) else item

    def call(one: Call) -> Call:
        return replace(one, args=ref(one.args), kwargs=ref(dict(one.kwargs)))

    try:
        return {
            places[Ref(number)].node: Fragment(tuple(call(one) for one in fragment.calls), ref(fragment.results))
            for number, fragment in edit.items()
        }
    except KeyError:
        return None


def _places(reference: Rerun, other: Rerun) -> dict[Ref, Ref]:
    """The values of another program by those of the same lines here, and what these read."""
    there = dict(_by_line(other))
    found = dict[Ref, Ref]()
    for line, number in _by_line(reference):
        if line not in there:
            continue
        mine, its = reference.calls[number], other.calls[there[line]]
        found |= {Ref(number, at): Ref(there[line], at) for at in range(len(mine.results))}
        if len(reads(mine)) == len(reads(its)):
            for one, two in zip(reads(mine), reads(its), strict=True):
                found.setdefault(one, two)
    return found


def _numbers_there(edit: Edit, both: Sequence[tuple[Call, Call]]) -> dict[float, float] | None:
    """What the numbers of some calls are in their counterparts, as a correction is another one at every step; None
    where they do not correspond, or where the change puts a number in the place of one that is another one there."""
    known, there = set[float](), dict[float, float]()
    for one, other in both:
        mine, its = _numbers(one), _numbers(other)
        if len(mine) != len(its):
            return None
        known |= set(mine)
        if any(there.setdefault(a, b) != b for a, b in zip(mine, its, strict=True)):
            return None
    written = {number for fragment in edit.values() for call in fragment.calls for number in _numbers(call)}
    is_replaced = any(a != b and a not in written for a, b in there.items()) and not written <= known
    return None if is_replaced else there


def _is_number(item: object) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)


def _numbers(call: Call) -> list[float]:
    return [one for one in (*call.args, *call.kwargs.values()) if isinstance(one, int | float)]


def _by_line(rerun: Rerun) -> Iterator[tuple[object, int]]:
    """The calls by operation and line, and how many of these came before."""
    seen = Counter[object]()
    for number, call in rerun.calls.items():
        place = rerun.place(number)
        line = call.op, None if place is None else (place.file, place.line)
        yield (line, seen[line]), number
        seen[line] += 1
