"""Rows that are scaled by what a norm divides by: the size of the row that went in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..variants import forward

FEWEST = 4  # rows, and numbers in each, before a factor of their own means anything
VARIED = 1e-2  # relative spread of the factors: what is less is one factor for all
SCREEN = 256  # rows looked at first
EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)
POWERS = {-1: "divided by", 1: "multiplied by"}

SIZES: dict[str, Callable[[Floats, float], Floats]] = {
    "standard deviation": lambda x, eps: np.sqrt(x.var(1) + eps),
    "root mean square": lambda x, eps: np.sqrt((x * x).mean(1) + eps),
    "L2 norm": lambda x, eps: np.sqrt((x * x).sum(1) + eps),
    "L1 norm": lambda x, eps: np.abs(x).sum(1) + eps,
    "largest value": lambda x, eps: np.abs(x).max(1) + eps,
}


def scaled_by_its_input(evidence: Evidence) -> Iterator[Finding]:
    """Every row is what was expected, times or over the size of its input: a norm's division is lost, or made twice."""
    if not forward(evidence) or evidence.expected.ndim < 2 or evidence.expected.shape[-1] < FEWEST:
        return
    width = evidence.expected.shape[-1]
    expected, found = (floats(one).reshape(-1, width) for one in (evidence.expected, evidence.found))
    if len(expected) < FEWEST or _own_factors(evidence, expected[:SCREEN], found[:SCREEN]) is None:
        return
    for value in evidence.candidate_inputs.values():
        if value.dtype.kind != "f" or value.ndim < 2 or value.size // value.shape[-1] != len(expected):
            continue
        rows = floats(value).reshape(len(expected), -1)
        error, name, power, eps = min(_tried(rows[:SCREEN], expected[:SCREEN], found[:SCREEN]))
        if error <= 2 * limit(evidence):
            predicted = expected * SIZES[name](rows, eps)[:, None] ** power
            said = f"every row is {POWERS[power]} the {name} of the row that went in"
            facts = {"size": name, "power": power, "eps": eps}
            yield Finding("norm-missing", said, predicted.reshape(evidence.expected.shape), 0, facts)
            return


def _own_factors(evidence: Evidence, expected: Floats, found: Floats) -> Floats | None:
    """The factor of every row, where these explain everything and are not all the same."""
    square = (expected * expected).sum(1)
    if not np.isfinite(found).all() or not (square > 0).all():
        return None
    factors = (expected * found).sum(1) / square
    if distance(factors[:, None] * expected, found) > 2 * limit(evidence):
        return None
    return factors if np.ptp(factors) > max(VARIED, 8 * limit(evidence)) * np.abs(factors).max() else None


def _tried(rows: Floats, expected: Floats, found: Floats) -> Iterator[tuple[float, str, int, float]]:
    """What every size leaves."""
    for name, size in SIZES.items():
        for power in POWERS:
            for eps in EPS:
                with np.errstate(all="ignore"):
                    yield distance(expected * size(rows, eps)[:, None] ** power, found), name, power, eps


HYPOTHESES: tuple[Hypothesis, ...] = (scaled_by_its_input,)
