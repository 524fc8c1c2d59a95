"""The result of comparing two checkpoints: a line for every tensor of the reference, and the worst of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..strict_json import Json
from .map_lines import MapLine

SCHEMA = "firstdrift-weights-diff-v1"
CODES = {"drift": 1, "not comparable": 2, "missing": 2, "nothing compared": 2}
ORDER = ("drift", "not comparable", "missing", "moved", "rounded", "same")


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """One tensor of the reference: `same`, `rounded` to the candidate's dtype, `moved`, `drift`, `missing`, or
    `not comparable` where both sides have no numbers in it."""

    name: str
    verdict: str
    sentence: str = ""
    label: str | None = None
    error: float | None = None
    others: tuple[str, ...] = ()
    line: MapLine | None = None  # how a map says where its numbers are; none where names and layouts are the same
    is_empty: bool = False  # it covers nothing

    def to_json(self) -> dict[str, Json]:
        """As it stands in the result."""
        return {
            "name": self.name, "verdict": self.verdict, "label": self.label, "sentence": self.sentence,
            "error": self.error, "others": list(self.others),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckpointDifference:
    """The result of a comparison: a line for every tensor of the reference, and what only the candidate has."""

    reference: str
    candidate: str
    tensors: tuple[TensorDifference, ...]
    candidate_only: tuple[str, ...] = field(default=())
    candidate_tied: Mapping[str, str] = field(default_factory=dict)  # further names of tensors that both have

    @property
    def counts(self) -> dict[str, int]:
        """How many tensors there are of each verdict."""
        found = Counter(one.verdict for one in self.tensors)
        return {verdict: found[verdict] for verdict in ORDER if found[verdict]}

    @property
    def verdict(self) -> str:
        """The worst verdict of all."""
        compared = any(one.verdict != "missing" and not one.is_empty for one in self.tensors)
        if not compared:
            return "nothing compared"
        return next(verdict for verdict in ORDER if verdict in self.counts)

    @property
    def exit_code(self) -> int:
        """0 when every number is there, 1 when some differ, 2 when tensors are missing or nothing was compared."""
        return CODES.get(self.verdict, 0)

    def to_json(self) -> dict[str, Json]:
        """The result as JSON's own types."""
        return {
            "schema": SCHEMA, "verdict": self.verdict, "reference": self.reference, "candidate": self.candidate,
            "counts": self.counts, "tensors": [one.to_json() for one in self.tensors],
            "candidate_only": list(self.candidate_only),
        }  # fmt: skip
