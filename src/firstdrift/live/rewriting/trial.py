"""Runs of a changed program, held against what was found, within a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import thread_time

import numpy as np

from ...causes.evidence import Evidence
from ...causes.hypotheses import EXACT, LEAST_NOISE, Finding
from ...causes.variants import Floats
from ...compare.fills import without_fills
from .program import Change, Program
from .view import Rewrite, View

ENDLESS = 1e30  # no scale: the lowest numbers of a dtype fill what is masked
AT_LOSS = frozenset({"scale", "skipped-op"})  # what is a divisor of a loss


class Trial:
    """One program, what the candidate has in its place, and until when to try."""

    def __init__(self, program: Program, evidence: Evidence, until: float) -> None:
        self.program = program
        self.found = np.asarray(evidence.found, np.float64)
        self.scale = max(_size(self.found), _size(np.asarray(evidence.expected, np.float64)))
        self.enough = EXACT * max(evidence.noise, LEAST_NOISE) * self.scale
        self.until = until
        self.is_loss = evidence.site.phase == "loss"
        self.views = {number: View(program, number) for number in sorted(program.calls, reverse=True)}

    @property
    def late(self) -> bool:
        """Whether time is up."""
        return thread_time() > self.until

    def run(self, changes: Mapping[int, Change]) -> Floats | None:
        """What the program makes with some calls changed; none where they cannot be."""
        try:
            made = self.program.run(changes)
        except Exception:  # arguments that a function does not take
            return None
        return made.double().numpy() if made.shape == self.found.shape else None

    def left(self, changes: Mapping[int, Change]) -> Floats | None:
        """What a changed program makes less what was found."""
        made = self.run(changes)
        return None if made is None else _difference(made, self.found)

    def tried(self, one: Rewrite, changes: Mapping[int, Change]) -> Iterator[Finding]:
        """A finding, if the program so changed gives what was found and did not before."""
        made = None if self.late else self.run(changes)
        if made is None or not _apart(made, self.found) <= self.enough < _apart(
            made, self.program.made.double().numpy()
        ):
            return
        predicted, _ = without_fills(made, self.found)
        yield Finding(self._label(one), self._said(one, changes), predicted, one.free, one.parameters)

    def _label(self, one: Rewrite) -> str:
        if one.label == "dtype-rounding" and not np.isfinite(self.found).all():
            return "overflow"
        return "reduction-scale" if self.is_loss and one.label in AT_LOSS else one.label

    def _said(self, one: Rewrite, changes: Mapping[int, Change]) -> str:
        call = self.program.calls[max(changes)]
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        place = f" ({call.place})" if call.place else ""
        return f"the reference gives what was found if changed at {call.name}{more}{place}: {one.said}"


def _difference(made: Floats, found: Floats) -> Floats:
    """How two tensors differ; what both mask, or have as the same infinity, does not."""
    ours, theirs = (np.asarray(one, np.float64) for one in without_fills(made, found))
    with np.errstate(invalid="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        return np.where(same, 0.0, ours - theirs)


def _apart(made: Floats, found: Floats) -> float:
    apart = float(np.linalg.norm(_difference(made, found)))
    return apart if np.isfinite(apart) else np.inf


def _size(array: Floats) -> float:
    usual = np.abs(array) < ENDLESS
    return float(np.linalg.norm(array if usual.all() else np.where(usual, array, 0.0)))
