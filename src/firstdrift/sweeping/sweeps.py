"""`fd.sweep`: many cases, one answer."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..core.strict_json import Json
from ..errors import SelectionError
from . import templates
from .answer import SweepResult
from .case_rows import Row
from .case_runs import Done, Finished, Plan, Side, Work, run_cases
from .case_sides import Command, Function
from .cases import Case, as_cases, find_pairs, key_of
from .ledger import Ledger, open_ledger

Given = str | Callable[..., Any]
Cases = str | PathLike[str] | Mapping[str, Iterable[Json]] | Iterable[Json]


def sweep(
    cases: Cases, reference: Given | None = None, candidate: Given | None = None, executor: Executor | None = None, *,
    truth: Given | None = None, out: str | PathLike[str] | None = None, jobs: int = 1, timeout: float | None = None,
    force: bool = False, done: Callable[[Row], None] | None = None, **options: Any,
) -> SweepResult:  # fmt: skip
    """Run two implementations on many cases, compare each, and give one answer.

    - `cases`: dicts of variables, a dict of lists (all combinations), plain values (called `case`), a text such as
      `start=0:320:32`, or a directory of finished pairs, without sides.
    - `reference`, `candidate`: commands such as `./port --start {start} --out {out}`, or functions with the variables
      and `out` as parameters. `truth`: the same in float64.
    - `executor`: runs the functions. Without it each run is a process, `jobs` cases at once, `timeout` seconds each.
    - `out`: keeps finished cases, for the next run of the same sweep. `force`: run them again.
    - `done(row)`: called after each case. `options` are those of `diff`.
    """
    given = (reference, candidate, truth)
    with ExitStack() as stack:
        where = (
            Path(out) if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sweep-")))
        )
        prepared = prepare(cases, given, executor=executor, timeout=timeout, options=options)
        ledger = stack.enter_context(open_ledger(where, prepared.identity, force=force))
        reused = prepared.run(ledger, executor=executor, jobs=jobs, done=done)
        return prepared.result(ledger, reused, keep=out is not None)


class Prepared:
    """A sweep whose cases and sides were checked."""

    def __init__(self, cases: list[Case], work: Work, identity: dict[str, Any]) -> None:
        self.cases = cases
        self.work = work
        self.identity = identity

    def todo(self, ledger: Ledger) -> list[Case]:
        """The cases that are not finished."""
        return [case for case in self.cases if not ledger.finished(case, self._stamp(case))]

    def run(self, ledger: Ledger, *, executor: Executor | None = None, jobs: int = 1, done: Done | None = None) -> int:
        """Run what is not finished, and keep every row; gives how many were finished before."""
        if jobs < 1:
            raise SelectionError(f"jobs {jobs}: is no number of processes; give one from 1 on")
        todo = self.todo(ledger)
        kinds = {_kind(row) for row in ledger.rows.values() if row.traces is not None}

        def keep(row: Row) -> None:
            """Keep the row, and of each kind of finding the traces of one case."""
            dull = row.verdict in ("same", "noise") and not row.exit_code
            if row.traces is not None and (dull or _kind(row) in kinds):
                shutil.rmtree(row.traces, ignore_errors=True)
                row = replace(row, traces=None)
            elif row.traces is not None:
                kinds.add(_kind(row))
            ledger.add(row)
            if done is not None:
                done(row)

        run_cases(self.work, [(case, ledger.place(case)) for case in todo], keep, executor, jobs)
        return len(self.cases) - len(todo)

    def result(self, ledger: Ledger, reused: int, *, keep: bool = True) -> SweepResult:
        """What the rows that are there say together."""
        rows = [ledger.rows[key] for case in self.cases if (key := key_of(case)) in ledger.rows]
        if not keep:
            rows = [replace(row, traces=None) for row in rows]
        directory = str(ledger.directory) if keep else None
        return SweepResult(tuple(self.cases), tuple(rows), directory, reused, tuple(ledger.notes))

    def _stamp(self, case: Case) -> Json:
        return self.work.stamp(case) if isinstance(self.work, Finished) else None


def prepare(
    cases: Cases, given: tuple[Given | None, Given | None, Given | None], *, options: dict[str, Any],
    executor: Executor | None = None, timeout: float | None = None,
) -> Prepared:  # fmt: skip
    """Check everything that can be checked before anything runs."""
    if timeout is not None and not 0 < timeout < float("inf"):
        raise SelectionError(f"timeout {timeout}: is no number of seconds; give one above 0")
    for name in ("truth", "advance"):
        if name in options:
            raise SelectionError(f"{name!r} is no option of the comparison here")
    reference, candidate, truth = given
    if reference is None and candidate is None and truth is None:
        if not isinstance(cases, str | PathLike):
            raise SelectionError(
                "a sweep needs a reference and a candidate, or a directory of finished pairs; give them"
            )
        found, pairs = find_pairs(Path(cases))
        work: Work = Finished(pairs, options)
        return Prepared(found, work, {"pairs": str(Path(cases).resolve()), "options": _options(options)})
    if reference is None or candidate is None:
        lacking = "reference" if reference is None else "candidate"
        raise SelectionError(f"there is no {lacking}; give two commands, or two functions, or a directory of pairs")
    listed = as_cases(fspath(cases) if isinstance(cases, PathLike) else cases)
    sides: dict[str, Side] = {}
    for name, side in (("reference", reference), ("candidate", candidate), ("truth", truth)):
        if side is not None:
            sides[name] = Command(side, name) if isinstance(side, str) else Function(side, name, executor is None)
    if executor is not None and timeout is not None and any(isinstance(side, Function) for side in sides.values()):
        raise SelectionError(
            "a function on an executor of yours cannot be killed, so timeout would be ignored; drop one"
        )
    used = set().union(*(side.check(listed) for side in sides.values()))
    templates.check_used(used, list(listed[0]))
    plan = Plan(sides["reference"], sides["candidate"], sides.get("truth"), timeout, options)
    return Prepared(
        listed, plan, {name: side.identity() for name, side in sides.items()} | {"options": _options(options)}
    )


def _kind(row: Row) -> tuple[object, ...]:
    """Rows of one kind have the same thing to show."""
    first = row.first_drift
    return row.verdict, row.exit_code, first and (first.place, first.introduced_by, first.label)


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """The options as a results file keeps them; a file among them with its time of change."""
    return {
        name: _kept(value) for name, value in sorted(options.items()) if value is not None and value not in ((), [])
    }


def _kept(value: Any) -> Json:
    if isinstance(value, str | PathLike) and Path(value).is_file():
        stat = Path(value).stat()
        return [str(value), stat.st_size, stat.st_mtime_ns]
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
