"""Many cases, by as many processes as there are cores for: a batch is one process's, and its cases depend on its number
alone, so that they are the same however many work."""

from __future__ import annotations

import multiprocessing
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count, islice
from pathlib import Path

import torch

from .cases import CASES, Outcome, open_batch, run_case

AHEAD = 2  # batches for each process, that are begun before they are asked for


def outcomes(seed: int, cases: int, scratch: Path, only: str | None = None, workers: int = 1) -> Iterator[Outcome]:
    """Judged cases until there are enough, in the order of their ids."""
    found = _in_turn(seed, scratch, only) if workers == 1 else _by_many(seed, scratch, only, workers)
    try:
        yield from islice((one for batch in found for one in batch), cases)
    finally:
        found.close()


def judged(seed: int, number: int, scratch: Path, only: str | None) -> Iterator[Outcome]:
    """The cases of one batch."""
    batch = open_batch(seed, number, scratch, only)
    for index in range(CASES):
        outcome = run_case(batch, index)
        if outcome is not None and (only is None or only in (outcome.kind, outcome.network)):
            yield outcome


def _in_turn(seed: int, scratch: Path, only: str | None) -> Iterator[Iterator[Outcome]]:
    for number in count():
        yield judged(seed, number, scratch, only)


def _by_many(seed: int, scratch: Path, only: str | None, workers: int) -> Iterator[list[Outcome]]:
    numbers = count()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin) as pool:
        begun: deque[Future[list[Outcome]]] = deque()
        try:
            while True:
                while len(begun) < AHEAD * workers:
                    begun.append(pool.submit(_batch, seed, next(numbers), scratch, only))
                yield begun.popleft().result()
        finally:
            for one in begun:
                one.cancel()


def _begin() -> None:
    """A process that shares its cores with others; it was spawned, and what it starts is as well."""
    multiprocessing.set_start_method("spawn", force=True)
    torch.set_num_threads(1)


def _batch(seed: int, number: int, scratch: Path, only: str | None) -> list[Outcome]:
    own = scratch / str(number)
    try:
        return list(judged(seed, number, own, only))
    finally:
        shutil.rmtree(own, ignore_errors=True)
