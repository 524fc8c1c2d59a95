"""Questions to a program, what is answered, and runs of it with changes, within so much work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.sites import Site
from ...core.traces import Array
from ...judge.replay.replays import Replays
from ...program.calls import Ref
from ...program.edits import Edit
from ...program.reruns import Piece, Rerun
from ..masked_fills import without_fills
from .agreement import CHANCE, EXACT, LEAST_NOISE, size_of
from .around import Change

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Question:
    """What the candidate has in the place of a value of the reference's program.

    `brought` is what brings a value of the program to what is compared; `noise` the relative error that noise explains.
    """

    found: Array
    expected: Array
    noise: float
    brought: Callable[[Array], Array] = field(default=lambda array: array)


@dataclass(frozen=True, slots=True)
class OneSided:
    """What only one of two programs has: `numbers` that the other one is given and `dtypes` that it computes in,
    tensors that it alone reads."""

    numbers: tuple[float, ...] = ()
    tensors: tuple[Ref, ...] = ()
    dtypes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Tried:
    """A change that gives what was found, and how much it leaves relative to it."""

    change: Change
    left: float
    predicted: Array
    rerun: Rerun  # the program that it is a change of
    held: int = 0  # other tensors that it makes as well


class Trial:
    """One program, one question, and how much work may be spent on it."""

    def __init__(
        self, rerun: Rerun, question: Question, work: float, only: OneSided | None = None,
        held: Callable[[Tried], int | None] = lambda _: 0, *, guesses: bool = True,
    ) -> None:  # fmt: skip
        """`held` says how many other tensors a change makes, None where one refutes it; `guesses`, whether changes are
        tried that no program shows, of which one may fit by chance."""
        self.rerun, self.question, self.only, self.held = rerun, question, only or OneSided(), held
        self.found = np.asarray(question.found, np.float64)
        expected = np.asarray(question.expected, np.float64)
        self.scale = max(size_of(self.found), size_of(expected))
        self.unchanged = apart(expected, self.found)
        self.enough = EXACT * max(question.noise, LEAST_NOISE) * self.scale
        self.target: Ref = rerun.target
        self.until = rerun.spent + work
        self.guesses, self.tries = guesses, 0

    @cached_property
    def telling(self) -> int:
        """How many numbers were found: a tensor of one number everywhere says no more than that number."""
        return len(np.unique(self.found))

    @property
    def late(self) -> bool:
        """Whether the work is used up."""
        return self.rerun.spent > self.until

    def run(self, edit: Edit) -> Floats | None:
        """What the program makes with some calls changed; none where they cannot be, or nothing changes."""
        if self.late:
            return None
        made = self.rerun.run(edit, self.target)
        if made is None:
            return None
        self.tries += 1
        try:
            made = self.question.brought(made)
        except (ValueError, IndexError):
            return None
        return np.asarray(made, np.float64) if made.shape == self.found.shape and made.dtype.kind != "c" else None

    def left(self, edit: Edit) -> Floats | None:
        """What a changed program makes less what was found."""
        made = self.run(edit)
        return None if made is None else difference(made, self.found)

    def tried(self, change: Change) -> Tried | None:
        """A change that gives what was found, where that differs from what is expected."""
        made = self.run(change.edit)
        if made is None:
            return None
        left = apart(made, self.found)
        if not left <= self.enough < self.unchanged:
            return None
        predicted, _ = without_fills(made, self.found)
        found = Tried(change.named, left / self.scale if self.scale else left, predicted, self.rerun)
        held = None if self._by_chance else self.held(found)
        return None if held is None else replace(found, held=held)

    @property
    def _by_chance(self) -> bool:
        """Whether one of so many changes would meet a single number within the noise, wherever they lead."""
        return self.guesses and self.telling == 1 and 2 * self.tries * self.enough > CHANCE * self.unchanged


def difference(made: Floats, found: Floats) -> Floats:
    """How two tensors differ; what both mask, or have as the same infinity, does not."""
    reference, candidate = (np.asarray(fill, np.float64) for fill in without_fills(made, found))
    with np.errstate(invalid="ignore"):
        same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
        return np.where(same, 0.0, reference - candidate)


def apart(made: Floats, found: Floats) -> float:
    """The size of the difference; infinite where one side alone is not finite."""
    found_apart = float(np.linalg.norm(difference(made, found)))
    return found_apart if np.isfinite(found_apart) else np.inf


@dataclass(frozen=True, slots=True)
class Answer:
    """The smallest change that was found, and others that cannot be told from it."""

    label: str
    sentence: str
    parameters: dict[str, Any]
    predicted: Array
    left: float
    bits: float
    free: int
    rivals: tuple[str, ...] = ()
    both: bool = False  # both sides' programs were lined up
    held: int = 0  # other tensors that the same change makes


@dataclass(frozen=True)
class Asked:
    """A drift: the site, and what the candidate has there, as the reference's program has it."""

    site: Site
    replays: Replays
    found: Array
    noise: float
    brought: Callable[[Array], Array]
    piece: Piece | None = None

    def question(self, rerun: Rerun) -> Question:
        """The whole of it, asked of a program."""
        expected = self.brought(rerun.array(rerun.target))
        return Question(self.found, expected, self.noise, self.brought)
