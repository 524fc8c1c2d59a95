"""Two programs laid over each other, call by call from the end: the few calls in which they differ.

Both have been run, and each gives what its side recorded. All other calls are alike, down to values that both sides
have, so that the reference with these calls changed is the candidate. Values need not have the same shapes on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from math import inf, prod
from pathlib import PurePath

import numpy as np

from ..program.calls import Ref
from ..program.reruns import Rerun
from .around import MOVES, Around
from .chains import expression
from .changes.numbers import SHAPES, Constant, constants
from .changes.terms import SYMMETRIC
from .naming import CHANGED, additional_label, kind_label, setting_label, skipped_label
from .narrowing import Lined, as_shaped
from .step_names import named
from .values import told

MOST_PAIRS = 6_000  # values of either side that are held against each other
MOST_DEEP = 120  # calls, one behind the other
MOST_DIFFERENCES = 3
READS = 2.0  # what another tensor that is read costs; another number costs one
CALL = 1.5  # what a call costs that one side makes alone
MOST_COST = 4.0


@dataclass(frozen=True, slots=True)
class Difference:
    """One call that only one side makes, or that both make otherwise."""

    named: Callable[[], str] = field(compare=False)  # names are looked up for the few that are told
    said: str
    at: int  # the reference's call, or the one behind which the candidate makes one more
    alone: int = 0  # 1 where only the candidate makes it, -1 where only the reference does

    @property
    def label(self) -> str:
        """What it is called."""
        return self.named()


@dataclass(frozen=True, slots=True)
class Found:
    """What two values differ in, and what that costs."""

    cost: float = 0.0
    differences: tuple[Difference, ...] = ()

    def but(self, cost: float, *more: Difference) -> Found:
        """The same with a difference more."""
        return Found(self.cost + cost, (*self.differences, *more))


NEVER = Found(inf)


@dataclass
class Overlay:
    """The comparison of two programs."""

    lined: Lined
    known: dict[tuple[Ref, Ref], Found] = field(default_factory=dict)
    sizes: set[tuple[object, object]] = field(default_factory=set)  # of what both make in other shapes

    def between(self, ours: Ref, theirs: Ref, deep: int = 0) -> Found:
        """The least that two values differ in."""
        key = ours, theirs
        if key not in self.known:
            if len(self.known) >= MOST_PAIRS or deep > MOST_DEEP:
                return NEVER
            self.known[key] = NEVER  # until it is known
            self.known[key] = self._least(ours, theirs, deep + 1)
        return self.known[key]

    def _least(self, ours: Ref, theirs: Ref, deep: int) -> Found:
        if self._same(ours, theirs):
            return Found()
        one, other = _call(self.lined.ours, ours), _call(self.lined.theirs, theirs)
        if one is not None and one.op in MOVES and len(one.tensors) == 1:
            return self.between(one.tensors[0], theirs, deep)
        if other is not None and other.op in MOVES and len(other.tensors) == 1:
            return self.between(ours, other.tensors[0], deep)
        return min(self._ways(ours, theirs, one, other, deep), key=lambda found: found.cost, default=NEVER)

    def _ways(self, ours: Ref, theirs: Ref, one: Around | None, other: Around | None, deep: int) -> Iterator[Found]:
        if one is not None and other is not None and len(one.tensors) == len(other.tensors):
            yield from self._alike(one, other, deep)
        for ref in dict.fromkeys(other.tensors) if other is not None else ():
            assert other is not None
            alone = one is not None and len(other.tensors) == 1
            around = Around(self.lined.ours, ours.node)
            label = partial(additional_label, other.op, around) if alone else _changed
            said = f"the candidate has {self._told(other)} more"
            yield self.between(ours, ref, deep).but(CALL, Difference(label, said, ours.node, 1))
        for ref in dict.fromkeys(one.tensors) if one is not None else ():
            assert one is not None
            said = f"{one.written} of {told(self.lined.ours, ref)} is left out"
            yield self.between(ref, theirs, deep).but(
                CALL, Difference(partial(skipped_label, one), said, one.number, -1)
            )
        if one is None and other is None:
            said = f"{told(self.lined.theirs, theirs)} is read instead of {told(self.lined.ours, ours)}"
            yield Found(READS, (Difference(_changed, said, ours.node),))

    def _alike(self, one: Around, other: Around, deep: int) -> Iterator[Found]:
        """Both make a call of as many tensors: of the same operation, with other numbers, or of another one."""
        alike = one.op == other.op
        if alike and len(one.shape) == len(other.shape):
            self.sizes |= {*zip(one.shape, other.shape, strict=True), (prod(one.shape), prod(other.shape))}
        for order in permutations(other.tensors) if alike and one.op in SYMMETRIC else (other.tensors,):
            found = Found()
            for ref, theirs in zip(one.tensors, order, strict=True):
                part = self.between(ref, theirs, deep)
                fresh = [each for each in part.differences if each not in found.differences]
                found = found.but(part.cost if fresh or not part.differences else 0.0, *fresh)
            own = self._otherwise(one, other) if alike else (_instead(one, other),)
            yield found.but(float(len(own)), *own)

    def _otherwise(self, one: Around, other: Around) -> tuple[Difference, ...]:
        """The numbers and settings in which two calls of one operation differ; sizes follow from what is read."""
        if one.op in MOVES | SHAPES:
            return ()
        mine: dict[str, Constant] = {each.name: each for each in constants(one)}
        found = []
        for each in constants(other):
            known = mine.get(each.name)
            if known is not None and known.value != each.value and (known.value, each.value) not in self.sizes:
                label = partial(_label_of, known, each.value, self.lined.ours)
                found.append(Difference(label, known.said(each.value), one.number))
        for name, setting in other.settings.items():
            ours = one.settings.get(name)
            if ours is None or name in mine or ours.value == setting.value or self._is_size(ours.value, setting.value):
                continue
            said = f"{name} of {one.written} is {setting.value} instead of {ours.value}"
            found.append(Difference(partial(setting_label, one, name), said, one.number))
        return tuple(found)

    def _is_size(self, ours: object, theirs: object) -> bool:
        return not isinstance(ours, Mapping) and not isinstance(theirs, Mapping) and (ours, theirs) in self.sizes

    def _same(self, ours: Ref, theirs: Ref) -> bool:
        if self.lined.same.get(theirs) == ours:
            return True
        if ours not in self.lined.ours_same or theirs not in self.lined.same:
            return False
        one, other = self.lined.ours.array(ours), self.lined.theirs.array(theirs)
        return as_shaped(np.asarray(other), np.asarray(one), self.lined.near) is not None

    def _told(self, call: Around) -> str:
        """A call of the candidate's, with its line."""
        place = self.lined.theirs.place(call.number)
        where = "" if place is None else f" ({PurePath(place.file).name}:{place.line})"
        return f"{expression(self.lined.theirs, call.result, frozenset(self.lined.same))}{where}"


def _changed() -> str:
    return CHANGED


def _label_of(constant: Constant, value: float, rerun: Rerun) -> str:
    return named(constant.change(value, free=0), rerun).label


def _call(rerun: Rerun, ref: Ref) -> Around | None:
    return Around(rerun, ref.node) if ref not in rerun.given and ref.node in rerun.calls else None


def _instead(one: Around, other: Around) -> Difference:
    return Difference(
        partial(kind_label, one.op, other.op), f"{other.written} is called instead of {one.written}", one.number
    )


def differing_calls(lined: Lined) -> tuple[Difference, ...]:
    """The few calls in which two programs differ, in order; none where these are more."""
    found = Overlay(lined).between(lined.ours.target, lined.theirs.target)
    some = tuple(dict.fromkeys(found.differences))
    is_other = {1, -1} <= {one.alone for one in some}  # one thing for another: that is where, and not yet why
    if not 0 < len(some) <= MOST_DIFFERENCES or found.cost > MOST_COST or is_other:
        return ()
    return tuple(sorted(some, key=lambda one: one.at))
