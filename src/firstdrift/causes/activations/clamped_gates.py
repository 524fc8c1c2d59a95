"""A gated product whose factors are kept within a limit on one side only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np

from ...traces import Array
from ..agreement import Floats, distance, floats, limit, rounded
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..layout.packing import ROWS, SPLITS
from ..sums.mixtures import GATES

STOPPED = 4  # elements at a limit that make it one
SOLVED = 60  # halvings of an interval
CLAMPED = ("both factors", "the gated factor", "the gate")


def clamped_gate(evidence: Evidence) -> Iterator[Finding]:
    """act(gate) * up, where one side first keeps gate and up within a limit."""
    if evidence.site.phase != "fwd" or not evidence.expected.ndim or evidence.expected.dtype.kind != "f":
        return
    e, f = _rows(evidence.expected), _rows(evidence.found)
    for pair in _pairs(evidence):
        gate, up = (_rows(one) for one in pair)
        for name, plus in product(GATES, (0.0, 1.0)):
            made = GATES[name](gate) * (up + plus)
            for plain, other, side in ((e, f, "found"), (f, e, "expected")):
                if distance(made, plain) > limit(evidence):
                    continue
                for what, bound in _limits(name, plus, gate, up, other):
                    if distance(_clamped(name, plus, gate, up, what, bound), other) <= 2 * limit(evidence):
                        yield _finding(evidence, pair, (name, plus, what, bound), side)
                        return


def _finding(evidence: Evidence, pair: tuple[Array, Array], way: tuple[str, float, str, float], side: str) -> Finding:
    name, plus, what, bound = way
    said = f"{what} of {name}(gate) * up {'are' if what == CLAMPED[0] else 'is'} kept within {bound:.6g}"
    if side == "found":
        predicted = _clamped(name, plus, floats(pair[0]), floats(pair[1]), what, bound)
        return Finding("clamp", f"{said}, which the reference does not do", predicted, 1, {"limit": bound})
    predicted = GATES[name](floats(pair[0])) * (floats(pair[1]) + plus)
    said = f"the candidate does not do what the reference does: {said}"
    return Finding("clamp", said, predicted, 1, {"reference_limit": bound})


def _pairs(evidence: Evidence) -> Iterator[tuple[Array, Array]]:
    """The candidate's gate and what it gates: two tensors, or the halves of one."""
    shape = evidence.expected.shape
    values = list(evidence.candidate_inputs.values())
    yield from permutations([one for one in values if one.shape == shape][:4], 2)
    for one in values:
        if one.shape == (*shape[:-1], 2 * shape[-1]):
            for split in SPLITS:
                a, b = (
                    (one[..., : shape[-1]], one[..., shape[-1] :])
                    if split == SPLITS[0]
                    else (one[..., ::2], one[..., 1::2])
                )
                yield a, b
                yield b, a


def _rows(array: Array) -> Floats:
    return floats(array.reshape(-1, array.shape[-1])[:ROWS])


def _clamped(name: str, plus: float, gate: Floats, up: Floats, what: str, bound: float) -> Floats:
    kept = gate if what == CLAMPED[1] else np.minimum(gate, bound)
    within = up if what == CLAMPED[2] else np.clip(up, -bound, bound)
    return np.asarray(GATES[name](kept) * (within + plus))


def _limits(name: str, plus: float, gate: Floats, up: Floats, made: Floats) -> Iterator[tuple[str, float]]:
    """Limits that would explain many equal factors of a product."""
    with np.errstate(all="ignore"):
        stopped = _most_common(np.abs(made / GATES[name](gate) - plus))
        opened = _most_common(made / (up + plus))
    if stopped is not None and stopped > 0:
        yield CLAMPED[0], stopped
        yield CLAMPED[1], stopped
    if opened is not None and (bound := _inverse(name, opened, float(np.abs(gate).max()))) is not None:
        yield CLAMPED[2], bound
        yield CLAMPED[0], bound


def _most_common(values: Floats) -> float | None:
    """A number that occurs several times but for rounding, with few digits if those fit."""
    ranked = np.sort(values[np.isfinite(values)], axis=None)
    if ranked.size < STOPPED:
        return None
    width = ranked[STOPPED - 1 :] - ranked[: ranked.size - STOPPED + 1]
    tight = width / np.maximum(np.abs(ranked[STOPPED - 1 :]), 1e-300)
    at = int(np.argmin(np.where(ranked[: len(tight)] != 0, tight, np.inf)))
    middle = float(np.median(ranked[at : at + STOPPED]))
    return rounded(middle, max(float(tight[at]), 1e-6))


def _inverse(name: str, value: float, largest: float) -> float | None:
    """Where a gate that rises has a value, between zero and the largest gate."""
    low, high = 0.0, largest
    function = GATES[name]
    if not function(np.array(low)) < value < function(np.array(high)):
        return None
    for _ in range(SOLVED):
        middle = (low + high) / 2
        low, high = (middle, high) if function(np.array(middle)) < value else (low, middle)
    return rounded((low + high) / 2, 1e-6)


HYPOTHESES: tuple[Hypothesis, ...] = (clamped_gate,)
