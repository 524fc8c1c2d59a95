"""Traces that other engines wrote themselves, clean and with a bug in one layer of the reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import firstdrift as fd
from firstdrift.compare.comparison import align_traces
from firstdrift.pair.arrangements import agrees

if TYPE_CHECKING:
    from firstdrift.pair.pairs import Pair

    from .making import Made, Question

TESTS = Path(__file__).resolve().parent.parent.parent / "tests" / "pair"


def recorded_questions() -> Iterator[Question]:
    """Every recorded pair."""
    from .making import Question

    sys.path.insert(0, str(TESTS))
    from recorded_engines import PAIRS

    for model, engine in PAIRS:
        for bug in ("", "-bug"):
            said = f"recorded {model} {engine}{bug.replace('-', ' ')}"
            yield Question(said, lambda folder, one=(model, engine, bug): _made(*one, folder))


def _made(model: str, engine: str, bug: str, folder: Path) -> Made:
    """What belongs together is what has the same numbers where nothing is wrong, element by element."""
    from recorded_engines import unpacked

    from .making import Made

    unpacked(model, folder)
    opened = align_traces(folder / "reference", folder / engine)
    sides = opened.reference, opened.candidate
    truth = {
        pair.site: (pair.candidate[0].site.name, pair.candidate[0].site.port)
        for pair in opened.alignment.pairs
        if pair.site.phase in ("fwd", "weight") and not pair.site.port.startswith("in.") and _agrees(pair, *sides)
    }
    return Made(folder / f"reference{bug}", folder / engine, truth, any_of_one_tensor=True)


def _agrees(pair: Pair, ours: fd.Trace, theirs: fd.Trace) -> bool:
    if pair.concatenate is not None or not pair.reference.nbytes:
        return False
    one, other = ours.array(pair.reference), theirs.array(pair.candidate[0])
    return agrees(np.asarray(one), np.asarray(other), pair.candidate_steps) or not np.any(one)
