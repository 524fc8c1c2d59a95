"""How far a run is, and what it has found so far: everything that decides when it ends."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from ..strict_json import Json
from .fields import check_fields


@dataclass(frozen=True, slots=True)
class Progress:
    """Evaluations after the first step so far, the best of their losses, and how many have passed since."""

    evaluations: int = 0
    best: float | None = None
    since_best: int = 0

    def after(self, loss: float) -> Progress:
        """What is known after one more evaluation."""
        if self.best is None or loss < self.best:
            return Progress(self.evaluations + 1, loss, 0)
        return replace(self, evaluations=self.evaluations + 1, since_best=self.since_best + 1)

    def is_stuck(self, patience: int, min_epochs: int) -> bool:
        """Whether it has not become better for too long; it is given `min_epochs` evaluations in any case."""
        return 0 < patience <= self.since_best and self.evaluations >= min_epochs

    def to_json(self) -> dict[str, Json]:
        """The three by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: Json, place: object) -> Progress:
        """The progress that a checkpoint has stored."""
        kinds = {"evaluations": "a count", "best": "a finite number or null", "since_best": "a count"}
        check_fields(said, kinds, f"{place}, progress")
        return cls(**{key: said[key] for key in kinds})
