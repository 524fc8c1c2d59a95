"""A case from its two runs to its row, and many of them on an executor."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..core.strict_json import Json
from ..errors import FirstdriftError, NotATraceError, storage
from .case_rows import INTERNAL_ERROR, Row, failed_row, printed_losses
from .case_sides import Command, Function, Run
from .cases import RUNNING, Case, is_trace
from .comparing import compared
from .templates import leave_when_told

Side = Command | Function
Done = Callable[[Row], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with every case."""

    reference: Side
    candidate: Side
    truth: Side | None = None
    timeout: float | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the comparison

    def row(self, case: Case, place: Path) -> Row:
        """Run both sides into fresh directories, and compare what they left."""
        seconds: dict[str, float] = {}
        found: dict[str, Path] = {}
        with _fresh(place) as own:
            for name, side in (("reference", self.reference), ("candidate", self.candidate), ("truth", self.truth)):
                if side is None:
                    continue
                out = own / name
                out.mkdir()
                with _timed(seconds, name):
                    left = side.run(Run(case, out, own / f"{name}.log", self.timeout))
                trace = _trace_at(left, name)
                found[name] = place / trace.relative_to(own) if trace.is_relative_to(own) else trace
        with _timed(seconds, "diff"):
            row = compared(case, found, self.options)
        losses = row.losses or printed_losses(place / "reference.log", place / "candidate.log")
        return replace(row, losses=losses, seconds=seconds, traces=str(place))


@dataclass(frozen=True, slots=True)
class Finished:
    """Pairs of traces that are there already, by case."""

    pairs: dict[str, dict[str, Path]]
    options: dict[str, Any] = field(default_factory=dict)

    def row(self, case: Case, place: Path) -> Row:
        """Compare one of them."""
        found, seconds = self.pairs[str(case["pair"])], dict[str, float]()
        for side in ("reference", "candidate"):
            if side not in found:
                raise NotATraceError(f"the pair has no {side}; record it, or remove the other")
        with _timed(seconds, "diff"):
            row = compared(case, found, self.options)
        return replace(row, seconds=seconds, stamp=self.stamp(case))

    def stamp(self, case: Case) -> Json:
        """When the traces of a case were written, and how large they are."""
        files = [file for path in self.pairs[str(case["pair"])].values() for file in (path, *sorted(path.rglob("*")))]
        return [sum(file.stat().st_size for file in files), max(file.stat().st_mtime_ns for file in files)]


Work = Plan | Finished


def run_case(work: Work, case: Case, place: Path) -> Row:
    """The row of a case, whatever becomes of it."""
    try:
        return work.row(case, place)
    except FirstdriftError as error:
        return failed_row(case, str(error), traces=str(place) if place.exists() else None)
    except Exception as error:
        sentence = f"internal error, {type(error).__name__}: {error}"
        return failed_row(case, sentence, INTERNAL_ERROR, traces=str(place) if place.exists() else None)


def run_cases(
    work: Work, todo: Sequence[tuple[Case, Path]], done: Done, executor: Executor | None, jobs: int
) -> None:  # fmt: skip
    """Run cases, and hand over each row as soon as it is there."""
    if executor is not None:
        _wait({executor.submit(run_case, work, *one): one for one in todo}, done)
    elif jobs == 1 or len(todo) < 2:
        for case, place in todo:
            done(run_case(work, case, place))
    else:
        for case, place in _in_processes(work, todo, done, min(jobs, len(todo))):
            if _in_processes(work, [(case, place)], done, 1):  # again, and alone, to see who it was
                done(failed_row(case, "the process that compared it died, twice; is there enough memory?"))


def _wait(futures: dict[Future[Row], tuple[Case, Path]], done: Done) -> list[tuple[Case, Path]]:
    """Hand over the rows as they come; gives the cases that were lost with their executor."""
    lost = []
    try:
        for future in as_completed(futures):
            case = futures[future][0]
            try:
                row = future.result()
            except BrokenExecutor:
                lost.append(futures[future])
                continue
            except Exception as error:
                row = failed_row(case, f"the executor could not run it ({type(error).__name__}: {error})")
            done(row)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return lost


def _in_processes(
    work: Work, todo: Sequence[tuple[Case, Path]], done: Done, jobs: int
) -> list[tuple[Case, Path]]:  # fmt: skip
    """Run cases in processes of our own, which an interruption ends; gives those that were lost."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, context, _start_worker, (work,))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries, idle now
            futures = {pool.submit(_in_worker, *one): one for one in todo}
        lost = _wait(futures, done)
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
    return lost


_work: Work | None = None  # of a worker; inherited where processes are forked, so that any function will do


def _start_worker(work: Work) -> None:
    global _work
    _work = work
    leave_when_told()


def _in_worker(case: Case, place: Path) -> Row:
    assert _work is not None
    return run_case(_work, case, place)


@contextmanager
def _fresh(place: Path) -> Iterator[Path]:
    """An empty directory that no other run knows of, which becomes `place` at the end.

    Runs of a sweep that was itself killed may be alive, and may still write to the directory that they were given.
    """
    own = place.with_name(f"{place.name}{RUNNING}{uuid4().hex[:8]}")
    with storage(place, "make the directory of a case", "free some space, or choose another --out"):
        own.mkdir(parents=True)
        if place.exists():
            shutil.rmtree(place)
    try:
        yield own
    finally:
        with storage(place, "keep the traces of a case", "free some space, or choose another --out"):
            own.rename(place)


def _trace_at(out: Path, side: str) -> Path:
    """What a side left: at the place it was given, the one thing in it, or beside it with a suffix."""
    if not out.exists():
        raise NotATraceError(f"the {side} left no trace at {out.name}; let it write to {{out}}")
    if not out.is_dir():
        return out
    inside = list(out.iterdir())
    if not inside:
        beside = [path for path in out.parent.glob(f"{out.name}.*") if path.suffix != ".log"]
        if len(beside) == 1:
            return beside[0]
        raise NotATraceError(f"the {side} ended well and wrote no trace; let it write to {{out}}")
    if len(inside) == 1 and not is_trace(out):
        return inside[0]
    return out


@contextmanager
def _timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[what] = round(time.perf_counter() - start, 4)
