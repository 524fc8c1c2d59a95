"""One side's program changed in one place: the reference's until it gives what the candidate has, or the other way.

Of two programs that are written differently, the one difference that matters may be a small change of either: a term,
a number or an order that the candidate has and the reference has not is found by changing the candidate's program until
it gives what the reference has. What only one of the two holds is tried first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ...core.traces import Array
from ...program.calls import Call, Ref
from ...program.reruns import Rerun
from ..changes.constants import constants
from ..changes.states import dtypes
from ..one_program.around import Around, base
from ..one_program.refuting import Elsewhere
from ..one_program.search import arounds_of, changes_that_fit
from ..one_program.trying import Answer, Asked, OneSided, Question, Trial, Tried, apart
from ..step_names import SETTINGS, named, settings_of
from ..telling import told_of
from .lined import Lined, lined_up, shapes_of

WORK = 40_000.0  # calls that are made again, in all (program/reruns.py counts large ones several times)
HARDLY = 0.05  # of the drift: what the candidate's own calls may be off what it recorded
MOST_NUMBERS = 64  # that only one side is given, their negatives and reciprocals
UNSEEN = 8.0  # bits: that a call is another one which both programs show as the same
CALLS = (  # kinds of changes of what a call does
    "number ", "without ", "skipped", "order", "first", "second", "everywhere", "nowhere",
)  # fmt: skip
FAMILIES = (  # operations that may stand for each other
    frozenset({"add", "sub", "rsub", "addmm", "addcmul", "addcdiv", "lerp", "baddbmm"}),
    frozenset({"mul", "div", "reciprocal", "floor_divide", "addcmul", "addcdiv", "lerp", "_softmax"}),
    frozenset({"clamp", "clamp_min", "clamp_max", "hardtanh", "relu", "maximum", "minimum", "max", "min"}),
    frozenset({"lt", "le", "gt", "ge", "eq", "ne", "tril", "triu"}),
    frozenset({"pow", "exp", "exp2", "sqrt", "rsqrt", "square"}),
)  # fmt: skip
ELSEWHERE = 1.0  # bits: that it is the candidate's program

Brought = Callable[[Array], Array]


@dataclass(frozen=True)
class Level:
    """Both sides' programs, as they are or with larger operations opened; the candidate's where it is known."""

    asked: Asked
    reference: Rerun
    candidate: Rerun | None
    brought: Brought | None  # what brings the tensor that the candidate's calls make to what is compared

    @property
    def question(self) -> Question:
        """What the candidate has, asked of the reference's program."""
        return self.asked.question(self.reference)

    @cached_property
    def lined(self) -> Lined:
        """Which values both sides have."""
        assert self.candidate is not None
        trial = Trial(self.reference, self.question, 0.0)
        return lined_up(self.reference, self.candidate, trial.unchanged / trial.scale if trial.scale else 0.0)

    @property
    def reference_alone(self) -> OneSided:
        """What the candidate has not, and the numbers that it has."""
        if self.candidate is None:
            return OneSided()
        return _one_sided(self.reference, self.candidate, self.lined.equal)

    @property
    def candidate_alone(self) -> OneSided:
        """What the reference has not, and the numbers that it has."""
        assert self.candidate is not None
        return _one_sided(self.candidate, self.reference, frozenset(self.lined.twins))

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """Other tensors that the reference's program makes."""
        replays = self.asked.replays
        return Elsewhere(self.asked, partial(replays.rerun, exact=self.reference.exact), replays.counterparts.array)

    @cached_property
    def elsewhere_there(self) -> Elsewhere:
        """Other tensors that the candidate's program makes, and what the reference makes of what these begin with."""
        replays = self.asked.replays
        return Elsewhere(self.asked, partial(replays.own_rerun, exact=self.reference.exact), replays.expected)

    def opened(self) -> Level | None:
        """The same with larger operations as the smaller ones they consist of; None where there are none."""
        reference, candidate = self.reference.opened(), None if self.candidate is None else self.candidate.opened()
        if reference is None and candidate is None:
            return None
        return replace(self, reference=reference or self.reference, candidate=candidate or self.candidate)


@dataclass(frozen=True)
class Sides:
    """Both sides' programs, at either level."""

    whole: Level

    @cached_property
    def opened(self) -> Level | None:
        """With larger operations opened."""
        return self.whole.opened()

    @property
    def levels(self) -> Iterator[Level]:
        """As they are, then opened."""
        yield self.whole
        if self.opened is not None:
            yield self.opened


def _one_sided(rerun: Rerun, other: Rerun, both: frozenset[Ref]) -> OneSided:
    own = _numbers(rerun)
    settings = (value for side in (other, rerun) for value in settings_of(side, SETTINGS))
    strange = [value for value in dict.fromkeys((*_numbers(other), *settings)) if value not in own]
    as_written = (some for value in strange for some in (value, -value, *((1 / value, -1 / value) if value else ())))
    numbers = list(dict.fromkeys(as_written))
    tensors = [ref for ref in rerun.given if ref not in both and rerun.readers[ref]]
    return OneSided(tuple(numbers[:MOST_NUMBERS]), tuple(tensors), dtypes(other))


def _numbers(rerun: Rerun) -> dict[float, None]:
    return dict.fromkeys(constant.value for number in rerun.calls for constant in constants(Around(rerun, number)))


def of_reference(sides: Sides) -> Answer | None:
    """The smallest change of the reference's program, of its calls, then of the smaller ones that they consist of."""
    work = WORK
    for level in sides.levels:
        start = level.reference.spent
        trial = Trial(level.reference, level.question, work, level.reference_alone, level.elsewhere.held)
        found = changes_that_fit(trial, arounds_of(level.reference))
        if found:
            return told_of([_weighed(tried, level.candidate) for tried in found])
        work -= level.reference.spent - start
    return None


def of_candidate(sides: Sides) -> Answer | None:
    """The smallest change of the candidate's program that gives what the reference has, told as what it does."""
    work = WORK
    for level in sides.levels:
        if level.candidate is None or level.brought is None:
            return None
        asked, made = level.question, level.candidate.array(level.candidate.target)
        question = Question(asked.expected, level.brought(made), asked.noise, level.brought)
        start = level.candidate.spent
        trial = Trial(level.candidate, question, work, level.candidate_alone, level.elsewhere_there.held)
        found = changes_that_fit(trial, arounds_of(level.candidate))
        if found:
            told = told_of([_weighed(_undone(tried), level.reference) for tried in found])
            return replace(told, predicted=asked.found, both=True)
        work -= level.candidate.spent - start
    return None


def as_recorded(asked: Asked, candidate: Rerun, trial: Trial) -> Brought | None:
    """What brings the tensor that the candidate's own calls make to what it recorded; None where nothing does."""
    made, shape = candidate.array(candidate.target), trial.rerun.shape(trial.target)
    for at, shaped in enumerate(shapes_of(made, shape)):
        with suppress(ValueError, IndexError):
            wide = np.asarray(asked.brought(shaped), np.float64)
            if apart(wide, trial.found) <= max(trial.enough, HARDLY * trial.unchanged):
                return lambda array, at=at: asked.brought(_shaped(array, shape, at))  # type: ignore[misc]
    return None


def _shaped(array: Array, shape: tuple[int, ...], at: int) -> Array:
    for number, shaped in enumerate(shapes_of(array, shape)):
        if number == at:
            return shaped
    raise ValueError("another shape")


def _weighed(tried: Tried, other: Rerun | None) -> Tried:
    """A change, with what it takes more to say where the other side's step makes just as many such calls: then the two
    programs do not differ there, unless in what is read."""
    change = tried.change
    if other is not None and change.kind.startswith("number ") and not _may_be_made(tried, other):
        return replace(tried, change=replace(change, bits=change.bits + UNSEEN))
    is_call = change.kind.startswith(CALLS) or any(name.startswith("reference_") for name in change.parameters or {})
    if other is None or not is_call or not all(_is_alike(tried.rerun, number, other) for number in change.edit):
        return tried
    return replace(tried, change=replace(change, bits=change.bits + UNSEEN))


def _may_be_made(tried: Tried, other: Rerun) -> bool:
    """Whether the other side makes calls there that are of the kind given another number, or may stand for it."""
    ops = {base(call) for call in other.calls.values()}
    changed = {base(tried.rerun.calls[number]) for number in tried.change.edit if number in tried.rerun.calls}
    return all(any(op in alike and alike & ops for alike in FAMILIES) or op in ops for op in changed)


def _is_alike(rerun: Rerun, number: int, other: Rerun) -> bool:
    """Whether both sides' steps make as many calls of an operation with the same numbers in the same function."""
    place = rerun.place(number)
    if place is None or rerun.is_part(number):
        return False
    mine = _facts(rerun, number)
    counts = [sum(_facts(one, at) == mine for at, _ in one.step.calls()) for one in (rerun, other)]
    return counts[0] == counts[1] > 0


def _facts(rerun: Rerun, number: int) -> object:
    call, place = rerun.step.nodes[number], rerun.place(number)
    assert isinstance(call, Call)
    plain = [argument for argument in call.args if isinstance(argument, int | float)]
    return call.op, plain, dict(call.kwargs) == {} or str(call.kwargs), place and (place.function, place.file)


def _undone(tried: Tried) -> Tried:
    """A change that puts the candidate right, as what the candidate does otherwise."""
    before, change = tried.change, named(tried.change, tried.rerun)
    said = change.undone or f"the reference's numbers come out where {change.said}"
    label = change.undone_label if change.label == before.label and change.undone_label else change.label
    parameters = _exchanged(change.parameters)
    return replace(tried, change=replace(change, said=said, label=label, parameters=parameters,
                                         bits=change.bits + ELSEWHERE))  # fmt: skip


def _exchanged(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with what is the reference's and what is the candidate's in each other's place."""
    known = dict(parameters or {})
    found = dict(known)
    for name, value in known.items():
        other = f"reference_{name}"
        if other in known:
            found[name], found[other] = known[other], value
    return found
