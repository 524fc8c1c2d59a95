"""Fits: another number in the code, one more, or other numbers in a small table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from ...causes.hypotheses import Finding
from ...causes.variants import Floats
from .constants import Constant, constants, factor_label, label, offset_label, plain, plainly, table_label
from .fitting import Left, fitted, fitted_table
from .orders import MOVES
from .trial import Trial
from .view import Rewrite, View

TELLING = 16  # elements found for every number fitted to them
SMALL = 32  # elements of a table, all of which are fitted at once
NEARBY = (1, -1, 2, -2)

Fit = tuple[Constant, float, Sequence[Constant]]


def other_numbers(trial: Trial) -> Iterator[Finding]:
    """Another number in the place of one that the code gives, or of all that are the same."""
    if trial.found.size < TELLING:
        return
    fits = [fit for group in _groups(trial) for fit in _fit(trial, group)]
    if fits:
        constant, value, group = min(fits, key=lambda fit: (len(plainly(fit[1])), len(fit[2])))
        said = f"{plainly(value)} instead of {plainly(constant.value)}"
        parameters = {"value": plain(value), "reference_value": constant.value}
        one = Rewrite("number", label(constant), said, constant.changed(value), 1, parameters)
        yield from trial.tried(one, {other.view.number: other.changed(value) for other in group})


def _groups(trial: Trial) -> list[list[Constant]]:
    """Every number of the code alone, and those that are the same together: a cap divides and multiplies."""
    known = [one for view in trial.views.values() for one in constants(view)]
    alike: dict[object, list[Constant]] = {}
    for one in known:
        alike.setdefault(one.value, []).append(one)
        alike.setdefault((one.view.call.name, one.value), []).append(one)
    together = {tuple(id(one) for one in group): group for group in alike.values() if len(group) > 1}
    return [*([one] for one in known), *together.values()]


def _fit(trial: Trial, group: Sequence[Constant]) -> Iterator[Fit]:
    """The number that in place of one, or of several, gives what was found."""
    first = group[0]

    def left(value: float) -> Floats | None:
        return None if trial.late else trial.left({one.view.number: one.changed(value) for one in group})

    best = _nearby(first.value, left) if first.whole else fitted(first.value, left)
    if best is not None and best[1] <= trial.enough and best[0] != first.value:
        yield first, best[0], group


def _nearby(value: float, left: Callable[[float], Floats | None]) -> tuple[float, float] | None:
    tried = ((value + by, left(value + by)) for by in NEARBY)
    sizes = [(number, float(np.linalg.norm(array))) for number, array in tried if array is not None]
    return min(sizes, key=lambda one: one[1], default=None)


def extra_numbers(trial: Trial) -> Iterator[Finding]:
    """A factor or an offset that the code does not have, behind any call."""
    for number, view in trial.views.items() if trial.found.size >= TELLING else ():
        if trial.late:
            return
        if not view.result.is_floating_point() or view.call.name in MOVES:
            continue
        for work, start, word, named in ((torch.mul, 1.0, "multiplied by", factor_label),
                                         (torch.add, 0.0, "increased by", offset_label)):  # fmt: skip
            best = fitted(start, _extra(trial, view, work))
            if best is not None and best[1] <= trial.enough:
                change = view.then(partial(_by, work, best[0]))
                said = f"what it makes is {word} {plainly(best[0])}"
                one = Rewrite(word, named(view), said, change, 1, {"value": plain(best[0]), "reference_value": start})
                yield from trial.tried(one, {number: change})


def _extra(trial: Trial, view: View, work: Callable[..., torch.Tensor]) -> Left:
    return lambda value: trial.left({view.number: view.then(partial(_by, work, value))})


def _by(work: Callable[..., torch.Tensor], value: float, tensor: torch.Tensor) -> torch.Tensor:
    return work(tensor, value)


def other_tables(trial: Trial) -> Iterator[Finding]:
    """Other numbers in a small table: slopes, frequencies."""
    small = (view for view in trial.views.values() if 1 < view.result.numel() <= SMALL)
    for view in sorted(small, key=lambda view: view.result.numel()):
        count = view.result.numel()
        fits = view.result.is_floating_point() and view.call.name not in MOVES and trial.found.size >= TELLING * count
        best = _table(trial, view) if fits and not trial.late else None
        if best is not None and best[1] <= trial.enough:
            shown = ", ".join(plainly(float(one)) for one in best[0].flatten()[:4])
            said = f"its {count} numbers are {shown}{', ...' if count > 4 else ''}"
            one = Rewrite("table", table_label(view), said, _constant(best[0]), count)
            yield from trial.tried(one, {view.number: one.change})


def _table(trial: Trial, view: View) -> tuple[torch.Tensor, float] | None:
    def left(table: torch.Tensor) -> Floats | None:
        return None if trial.late else trial.left({view.number: _constant(table)})

    return fitted_table(view.result, left)


def _constant(table: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda *_, **__: table
