"""A drift as a question to programs, and what is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.sites import Site
from ..core.traces import Array
from ..judge.replay.replays import Replays
from ..program.reruns import Piece, Rerun
from .one_program.trying import Question


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
