"""The hypothesis of last resort where the reference can be run: something in its code, written otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from time import thread_time

import numpy as np
import torch

from ...causes.evidence import Evidence
from ...causes.hypotheses import Finding, Hypothesis
from ...causes.labels import LABELS
from ...causes.screening import LARGE
from ...traces import Trace
from ..forcing import Plan
from ..sides import Side, one_thread, randomness_kept
from . import arithmetic, operations, shapes, spatial
from .constants import constants, label
from .numbers import extra_numbers, other_numbers, other_tables
from .orders import Several, conjugates, leaves, orders, precisions
from .program import Program, recorded
from .trial import Trial
from .view import Rewrite, View

PATIENCE = 3.0  # seconds of work
MOST_NAN = 0.5  # of what was found
MOST_CALLS = 400  # a program of more calls is no one operation
MOST_TOGETHER = 6  # calls of one function that are changed in pairs
TABLES = (arithmetic.TABLE, shapes.TABLE, operations.TABLE, spatial.TABLE)


def rewritten(side: Side, candidate: Trace, plan: Plan, folder: Path) -> Hypothesis:
    """What one change of the reference's code would give the candidate's tensor, found by making it.

    Changes are made in the calls as they are written, then in the smaller ones that they consist of. A large tensor
    would take too long.
    """

    def one_change(evidence: Evidence) -> Iterator[Finding]:
        if evidence.found.size > LARGE:
            return
        if np.mean(np.isnan(evidence.found)) > MOST_NAN:
            return  # any change that spoils everything would do
        until = thread_time() + PATIENCE
        for expanded in (False, True):
            program = recorded(side, candidate, evidence.site, plan, folder, expanded=expanded)
            if program is None or len(program.calls) > MOST_CALLS or program.made.shape != evidence.found.shape:
                return
            whole = expanded or not program.expandable
            with side.environment(), torch.no_grad(), randomness_kept(), one_thread():
                findings = _findings(Trial(program, evidence, until), whole)
            yield from findings
            if findings or whole:
                return

    return one_change


def _findings(trial: Trial, whole: bool) -> list[Finding]:
    """What gives what was found: first what is left out or taken otherwise; then order, numbers and formats, which are
    looked for where the program is as detailed as it gets."""
    rewrites = {number: list(_rewrites(view)) for number, view in trial.views.items()}
    simple = _alone(trial, rewrites), _together(trial, rewrites)
    rest = (
        _several(trial, leaves, conjugates, orders), other_numbers(trial), extra_numbers(trial),
        _several(trial, precisions), other_tables(trial),
    )  # fmt: skip
    return next((found for some in (*simple, *(rest if whole else ())) if (found := list(some)) or trial.late), [])


def _alone(trial: Trial, rewrites: Mapping[int, Sequence[Rewrite]]) -> Iterator[Finding]:
    for number, some in rewrites.items():
        for one in some:
            yield from trial.tried(one, {number: one.change})


def _together(trial: Trial, rewrites: Mapping[int, Sequence[Rewrite]]) -> Iterator[Finding]:
    """Calls of one function, changed alike: two of them, or all."""
    alike: dict[tuple[str, str], dict[int, Rewrite]] = {}
    for number, some in rewrites.items():
        for one in some:
            alike.setdefault((trial.program.calls[number].name, one.kind), {})[number] = one
    for group in alike.values():
        pairs = combinations(group, 2) if 2 < len(group) <= MOST_TOGETHER else ()
        for numbers in chain([tuple(group)] if len(group) > 1 else [], pairs):
            most = max((group[number] for number in numbers), key=lambda one: LABELS[one.label].specificity)
            yield from trial.tried(most, {number: group[number].change for number in numbers})


def _several(trial: Trial, *ways: Callable[[Program], Iterator[Several]]) -> Iterator[Finding]:
    """Changes of calls that do not do the same."""
    for way in ways:
        for one, changes in way(trial.program):
            yield from trial.tried(one, changes)


def _rewrites(view: View) -> Iterator[Rewrite]:
    known = (one for table in TABLES for one in table.get(view.call.name, ()))
    for rewrite in (*known, arithmetic.swaps, _skipped):
        try:
            yield from rewrite(view)
        except (IndexError, TypeError, ValueError, KeyError, AttributeError, RuntimeError):
            continue  # a call of another form than this rewrite knows


def _skipped(view: View) -> Iterator[Rewrite]:
    """The call is not made: what it works on is passed on."""
    source = view.tensors[0] if view.tensors else None
    if source is None or source.shape != view.result.shape or not view.result.is_floating_point():
        return
    name, numbers = view.call.name, list(constants(view))
    if name in operations.NORMS:
        named = "norm-missing"
    elif numbers:
        named = label(numbers[0])
    else:
        named = "softcap" if name == "tanh" else "skipped-op"
    said = f"{name} is not applied"
    yield Rewrite("skipped", named, said, lambda *args, **_: next(a for a in args if isinstance(a, torch.Tensor)) + 0)
