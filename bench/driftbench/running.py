"""Running cases, one after the other or in several processes, and asking everybody about each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from firstdrift.live.sides import one_thread

from . import baselines
from .asking import Answer, Recorded, check, diff_traces, record, run_side
from .c_port import is_port, record_port, record_port_truth
from .case import Case
from .cases import all_cases
from .scoring import Score, failed, score
from .sides import build


def run_case(case: Case, modes: Sequence[str], with_baselines: bool) -> list[Score]:
    """Everybody's answers to one case, scored."""
    found: list[Score] = []
    if "check" in modes and not is_port(case):
        found.append(_asked(case, "check", lambda: check(build(case))))
    if case.unmapped or ("traces" not in modes and not with_baselines):
        return found
    with tempfile.TemporaryDirectory(prefix="driftbench-") as place:
        directory = Path(place)
        try:
            recorded = _record(case, directory)
        except Exception as error:
            return [*found, failed(case, "traces", error)]
        if "traces" in modes:
            found.append(_asked(case, "traces", lambda: diff_traces(recorded)))
        if with_baselines:
            found += _baselines(case, recorded, directory)
    return found


def _record(case: Case, directory: Path) -> Recorded:
    return record_port(case, directory) if is_port(case) else record(build(case), directory)


def _asked(case: Case, by: str, ask: Callable[[], Answer]) -> Score:
    start = time.perf_counter()
    try:
        return score(case, by, ask(), time.perf_counter() - start)
    except Exception as error:  # a failure is an answer too, and a bad one
        return failed(case, by, error)


def _baselines(case: Case, recorded: Recorded, directory: Path) -> list[Score]:
    try:
        truth = directory / "float64"
        if is_port(case):
            record_port_truth(case, truth)
        else:
            run_side(build(case, "fp64").reference, truth, build(case, "fp64"), "reference")
        answers = baselines.first_failures(recorded, truth)
    except Exception as error:
        return [failed(case, name, error) for name in baselines.NAMES]
    return [score(case, name, answers[name]) for name in baselines.NAMES]


def run_cases(
    cases: Sequence[Case], modes: Sequence[str], *, with_baselines: bool, jobs: int
) -> Iterator[tuple[Case, list[Score]]]:  # fmt: skip
    """Case after case, in order; with several jobs, each process finds its case by name."""
    if jobs == 1:
        with one_thread():
            for case in cases:
                yield case, run_case(case, modes, with_baselines)
        return
    work = partial(_run_named, modes=tuple(modes), with_baselines=with_baselines)
    spawned = get_context("spawn")  # forked from a process that has loaded torch, a worker could run no program
    with ProcessPoolExecutor(jobs, mp_context=spawned, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from zip(cases, pool.map(work, [case.name for case in cases], chunksize=4), strict=True)


def _run_named(name: str, modes: tuple[str, ...], with_baselines: bool) -> list[Score]:
    return run_case(_by_name()[name], modes, with_baselines)


def _by_name() -> dict[str, Case]:
    if not _KNOWN:
        _KNOWN.update({case.name: case for case in all_cases()})
    return _KNOWN


_KNOWN: dict[str, Case] = {}
