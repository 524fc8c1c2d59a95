"""What repeats: the first drifts of all cases, grouped by where they are, and whether they have one cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..strict_json import Json
from .cases import name_of
from .rows import Place, Row
from .shares import Share


@dataclass(frozen=True, slots=True)
class Repeated:
    """A first drift at one place, introduced by one operation, in some of the cases."""

    place: Place
    introduced_by: str
    share: Share  # of the cases that were compared
    cases: tuple[str, ...]
    causes: dict[str, int]  # how often each label was named; `unknown` where none was
    why: str  # the first sentence that named the most frequent cause
    parameters: dict[str, Json] | None  # of the cause, where all cases agree on them

    @property
    def cause(self) -> str | None:
        """The label on which all cases agree."""
        labels = list(self.causes)
        return labels[0] if len(labels) == 1 and labels[0] != "unknown" else None


def repeated(rows: Sequence[Row]) -> list[Repeated]:
    """The first drifts, the most frequent first."""
    compared = [row for row in rows if not row.failed]
    grouped: dict[tuple[Place, str], list[Row]] = {}
    for row in compared:
        if row.first_drift is not None:
            grouped.setdefault((row.first_drift.place, row.first_drift.introduced_by), []).append(row)
    found = [_repeated(place, by, group, len(compared)) for (place, by), group in grouped.items()]
    return sorted(found, key=lambda one: -one.share.count)


def _repeated(place: Place, by: str, group: Sequence[Row], compared: int) -> Repeated:
    firsts = [row.first_drift for row in group if row.first_drift is not None]
    causes = Counter(first.label or "unknown" for first in firsts)
    most = causes.most_common(1)[0][0]
    of_it = [first for first in firsts if (first.label or "unknown") == most]
    agree = all(first.parameters == of_it[0].parameters for first in of_it)
    return Repeated(
        place, by, Share(len(group), compared), tuple(name_of(row.case) for row in group), dict(causes.most_common()),
        of_it[0].why, of_it[0].parameters if agree and len(causes) == 1 else None,
    )  # fmt: skip
