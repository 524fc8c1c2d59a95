"""What a variant claims about the candidate, and how it is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..hypotheses import DOMINANT, Finding
from .fitting import Reference
from .formula import Settings
from .problem import SCREEN, WHOLE, Problem, first_head, fitted, sampled
from .rotary import Floats
from .sources import Sources

Tables = Callable[[], Iterator[tuple[str, Floats]]]


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """The reference's attention, and the candidate's numbers to be explained.

    Variants are tried on `screen`, a part of the candidate's problem, numbers fitted on `narrow`, a smaller part, and
    what is left is proven on `final`. `limit` is the error that noise explains, `whole` that of the reference's own
    settings; `restored` gives a prediction the recorded shape, `tables` the recorded
    weights in which a bias may be looked up.
    """

    reference: Reference
    candidate: Sources
    problem: Problem
    screen: Problem
    narrow: Problem
    final: Problem
    limit: float
    noise: float
    whole: float
    restored: Callable[[Floats], Floats]
    tables: Tables = lambda: iter(())

    @property
    def settings(self) -> Settings:
        """The reference's settings."""
        return self.reference.settings

    @property
    def channels(self) -> int:
        """The width of one head."""
        return int(self.problem.operands.q.shape[-1]) // self.settings.heads


@dataclass(frozen=True, eq=False, slots=True)
class Claim:
    """A cause, and the settings (or the other operands) under which the formula gives the candidate's numbers."""

    label: str
    sentence: str
    settings: Settings
    parameters: dict[str, Any] = field(default_factory=dict)
    free: int = 0
    problem: Problem | None = None


def narrowed(
    reference: Reference, candidate: Sources, whole: Problem, limit: float, noise: float,
    restored: Callable[[Floats], Floats], tables: Tables = lambda: iter(()),
) -> Case:  # fmt: skip
    """A case with the parts of its problem on which claims are tried."""
    heads, kv_heads = reference.settings.heads, reference.settings.kv_heads
    screen, final = (sampled(whole, heads, budget) for budget in (SCREEN, WHOLE))
    narrow = first_head(sampled(whole, 1, SCREEN >> 2), heads, kv_heads)
    error = screen.error(reference.settings)
    return Case(reference, candidate, whole, screen, narrow, final, limit, noise, error, restored, tables)


Variant = Callable[[Case], Iterable[Claim]]


def finding(case: Case, claim: Claim) -> Finding | None:
    """A claim with what it predicts, or None where it explains too little to be worth telling.

    Where there is too much to compute, the error on the queries that differ most takes the place of the prediction.
    """
    most = max(case.limit, DOMINANT * case.whole)
    heads = claim.settings.heads
    error = (sampled(claim.problem, heads, SCREEN) if claim.problem else case.screen).error(claim.settings)
    if not (np.isfinite(error) and error <= most):
        return None
    told = Finding(claim.label, claim.sentence, free=claim.free, parameters=claim.parameters)
    final = sampled(claim.problem, heads, WHOLE) if claim.problem else case.final
    if (
        final.observed.shape != case.problem.observed.shape
        or len(final.rows) < final.queries
        or final.reads == "scores"
    ):
        return replace(told, residual=final.error(claim.settings))
    return replace(told, predicted=case.restored(final.predicted(claim.settings)))


def factor(case: Case, settings: Callable[[float], Settings], starts: Iterable[float]) -> tuple[float, float] | None:
    """The positive number with which settings explain the candidate best, and the error that is left."""
    tried = sorted(starts, key=lambda one: case.narrow.error(settings(one)))
    best = None
    for start in tried[:2]:

        def off(x: Floats, start: float = start) -> Floats:
            return case.narrow.difference(settings(start * float(np.exp(np.clip(x[0], -3, 3))))) / case.narrow.scale

        x, error = fitted(off, [0.0])
        if best is None or error < best[1]:
            best = start * float(np.exp(np.clip(x[0], -3, 3))), error
    return best


def snapped(
    case: Case, settings: Callable[[float], Settings], value: float, error: float, menu: Iterable[float]
) -> float | None:
    """The value of a menu that explains the candidate as well as the fitted one does."""
    near = min(menu, key=lambda one: abs(np.log(abs(one / value))) if one * value > 0 else np.inf, default=None)
    if near is None or abs(near / value - 1) > 0.05:
        return None
    return near if case.narrow.error(settings(near)) <= max(1.2 * error, case.noise) else None


def with_rotary(settings: Settings, **changes: Any) -> Settings:
    """Settings with a change to the rotation."""
    assert settings.rotary is not None
    return replace(settings, rotary=replace(settings.rotary, **changes))
