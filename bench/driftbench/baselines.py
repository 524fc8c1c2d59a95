"""The rules that others use, on the same two traces: where each of them first sees a difference.

They walk the pairs in causal order and stop at the first that fails; none knows noise, inheritance or causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstdrift import open_trace
from firstdrift.compare.comparison import Opened, align_traces
from firstdrift.core.traces import Trace
from firstdrift.errors import FirstdriftError
from firstdrift.judge.measure.measuring import load_recorded
from firstdrift.pair.pairs import Pair, ReconcileError

from .asking import Answer, Recorded, diff_traces
from .case import Place

Array = NDArray[Any]
NAMES = ("allclose", "jump", "cosine", "same")
TESTING = {"f16": (1e-3, 1e-5), "bf16": (1.6e-2, 1e-5), "f32": (1.3e-6, 1e-5), "f64": (1e-7, 1e-7)}
COSINE = 0.99


def first_failures(recorded: Recorded, truth: Path | None) -> dict[str, Answer]:
    """What each rule says; `truth` is a trace of the reference in float64, for PyTorch's `same()`."""
    opened = align_traces(recorded.reference, recorded.candidate, map=recorded.options.get("map"))
    double = None if truth is None else open_trace(truth)
    rules: dict[str, Callable[[Pair, Array, Array], bool]] = {
        "allclose": _allclose,
        "cosine": lambda pair, ours, theirs: _cosine(ours, theirs) >= COSINE,
        "same": lambda pair, ours, theirs: _same(pair, ours, theirs, double),
    }
    found: dict[str, Answer] = {}
    for pair, ours, theirs in _values(opened):
        for name, passes in rules.items():
            if name not in found and not passes(pair, ours, theirs):
                site = pair.site
                found[name] = Answer("drift", Place(site.phase, site.name, site.port), site.step, site.call)
        if len(found) == len(rules):
            break
    answers = {name: found.get(name, Answer("same")) for name in rules}
    return answers | {"jump": diff_traces(recorded, rule="jump")}


def _values(opened: Opened) -> Iterator[tuple[Pair, Array, Array]]:
    for pair in opened.alignment.pairs:
        try:
            ours, theirs = load_recorded(pair, opened.reference, opened.candidate)
        except (ReconcileError, FirstdriftError, ValueError):
            continue
        if ours.shape == theirs.shape:
            yield pair, ours.astype(np.float64), theirs.astype(np.float64)


def _allclose(pair: Pair, ours: Array, theirs: Array) -> bool:
    """torch.testing's defaults; of two dtypes the looser ones."""
    limits = [TESTING.get(str(record.dtype), (0.0, 0.0)) for record in (pair.reference, pair.candidate[0])]
    rtol, atol = (max(limit[index] for limit in limits) for index in range(2))
    return bool(np.allclose(theirs, ours, rtol=rtol, atol=atol, equal_nan=True))


def _cosine(ours: Array, theirs: Array) -> float:
    a, b = ours.ravel(), theirs.ravel()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else float(np.array_equal(a, b))


def _same(pair: Pair, ours: Array, theirs: Array, double: Trace | None) -> bool:
    """`torch._dynamo.utils.same` with a float64 reference: allclose, or not much further from float64 than it."""
    short = pair.candidate[0].dtype in ("bf16", "f16")
    tolerance = 1e-2 if short else 1e-4
    if np.allclose(theirs, ours, rtol=tolerance, atol=tolerance, equal_nan=True):
        return True
    if double is None:
        return False
    try:
        exact = double.array(pair.reference.site).astype(np.float64)
    except (FirstdriftError, KeyError):
        return False
    if exact.shape != ours.shape:
        return False
    multiplier = 3.0 if short or ours.size < 1000 else 2.0
    return _rmse(exact, theirs) <= multiplier * _rmse(exact, ours) + tolerance / 10


def _rmse(a: Array, b: Array) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))
