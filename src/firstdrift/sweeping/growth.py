"""How a difference develops over steps: does it compound, and more than the reference's own against float64?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import linear_regression, median
from typing import Any

import numpy as np

from ..core.traces import Array, Trace
from ..errors import FirstdriftError
from ..judge.measure.result import PairResult, Result
from ..pair.pairs import ReconcileError, apply_all
from .case_rows import Growth, Load
from .summaries import DEPENDENT, ROBUST, Share

COMPOUNDS = 4.0  # times the reference's own distance from float64
JUMP = 4.0  # times the step before: no smooth growth
FITTED = 20  # first steps, over which noise grows smoothly
_MEASURED = ("weight_after", "grad", "fwd", "loss")


def growth_of(result: Result, load: Load, reference: Trace, truth: Trace | None) -> Growth | None:
    """The curve of a case with several steps: of its weights, else of the first phase that all steps have."""
    for phase in _MEASURED:
        steps = _steps(result, phase)
        if len(steps) > 1 and phase == "weight_after":
            return _of_weights(steps, load, reference, truth)
        if len(steps) > 1:
            return Growth(phase, tuple(steps), tuple(_relative(pairs) for pairs in steps.values()))
    return None


def _steps(result: Result, phase: str) -> dict[int, list[PairResult]]:
    """The pairs of a phase by step, of those sites that every step has."""
    found: dict[int, dict[tuple[object, ...], PairResult]] = {}
    for pair in result.pairs:
        if pair.site.phase == phase and pair.measurement is not None:
            found.setdefault(pair.site.step, {})[pair.site[2:]] = pair
    everywhere = set.intersection(*(set(pairs) for pairs in found.values())) if found else set()
    return {
        step: [pairs[key] for key in pairs if key in everywhere] for step, pairs in sorted(found.items()) if everywhere
    }


def _of_weights(
    steps: dict[int, list[PairResult]], load: Load, reference: Trace, truth: Trace | None
) -> Growth:  # fmt: skip
    """All weights as one vector, after each step."""
    start = {pair.site[2:]: _stored(pair, reference, "weight") for pair in next(iter(steps.values()))}
    curves: tuple[list[float | None], ...] = ([], [], [], [])
    for pairs in steps.values():
        loaded = [(*load(pair.pair), start[pair.site[2:]], _stored(pair, truth, "weight_after")) for pair in pairs]
        for curve, (one, other) in zip(curves, ((0, 1), (0, 2), (0, 3), (1, 3)), strict=True):
            curve.append(_norm((tensors[one], tensors[other]) for tensors in loaded))
    apart, moved, of_reference, candidate = map(_whole, curves)
    return Growth("weights", tuple(steps), apart or (), moved, of_reference, candidate)


def _whole(curve: Sequence[float | None]) -> tuple[float, ...] | None:
    """A curve, if it has all its points."""
    points = tuple(point for point in curve if point is not None)
    return points if len(points) == len(curve) else None


def _stored(pair: PairResult, trace: Trace | None, phase: str) -> Array | None:
    """The reference's tensor as a trace has it in a phase, along the pair's axes."""
    site = pair.pair.reference.site._replace(phase=phase)
    if trace is None or site not in trace or trace[site].at is None:
        return None
    try:
        return apply_all(trace.array(site), pair.pair.reference_steps)
    except (ReconcileError, FirstdriftError):
        return None


def _norm(pairs: Iterable[tuple[Array | None, Array | None]]) -> float | None:
    """The length of the difference of many tensors as one vector; nothing where one of them is not there."""
    total = 0.0
    for one, other in pairs:
        if one is None or other is None or one.size != other.size:
            return None
        wide = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
        difference = one.astype(wide).ravel() - other.astype(wide).ravel()
        total += float(np.vdot(difference, difference).real)
    return math.sqrt(total) if total >= 0 else math.nan


def _relative(pairs: Sequence[PairResult]) -> float:
    """The relative error of many tensors as one vector, from their measurements."""
    error = size = 0.0
    for pair in pairs:
        m = pair.measurement
        assert m is not None
        if m.nonfinite_mismatches:
            return math.nan
        error += (m.rms or 0.0) ** 2 * m.compared
        size += m.norm_reference**2
    return math.sqrt(error / size) if size else math.inf if error else 0.0


def ratio(growth: Growth) -> float | None:
    """After the last step: the candidate's distance from float64, in units of the reference's."""
    if growth.reference is None or growth.candidate is None:
        return None
    reference, candidate = growth.reference[-1], growth.candidate[-1]
    return candidate / reference if reference else math.inf if candidate else 1.0


def compounds(growth: Growth) -> bool | None:
    """Whether the candidate parts from float64 by more than the reference does; unknown without a float64 run.

    What is not finite compounds: it never passes.
    """
    found = ratio(growth)
    return None if found is None else not found <= COMPOUNDS


def factor(growth: Growth) -> float | None:
    """By how much the distance grows in a step, over the first steps."""
    points = [(s, math.log(e)) for s, e in zip(growth.steps[:FITTED], growth.apart, strict=False) if 0 < e < math.inf]
    if len(points) < 3:
        return None
    return math.exp(linear_regression(*zip(*points, strict=True)).slope)


def jumps(growth: Growth) -> list[int]:
    """Steps at which the distance is more than a few times that of the step before."""
    curve = list(zip(growth.steps, growth.apart, strict=False))
    return [step for (_, before), (step, after) in pairwise(curve) if before > 0 and not after <= JUMP * before]


def describe_growth(curves: Sequence[Growth]) -> dict[str, Any] | None:
    """How differences develop over steps, over all cases that have several."""
    if not curves:
        return None
    factors = [value for value in map(factor, curves) if value is not None]
    ratios = [value for value in map(ratio, curves) if value is not None]
    found = [one for one in map(compounds, curves) if one is not None]
    jumped = Counter(step for curve in curves for step in jumps(curve))
    said = {
        "of": curves[0].of,
        "cases": len(curves),
        "steps": max(len(curve.steps) for curve in curves),
        "factor": median(factors) if factors else None,
        "jumps": {str(step): count for step, count in sorted(jumped.items())},
        "ratio": median(ratios) if ratios else None,
        "compounds": Share(sum(found), len(found)).to_json() if found else None,
    }
    return {**said, "sentence": _growing(said, found)}


def _growing(said: dict[str, Any], found: Sequence[bool]) -> str:
    """What the curves say. Only a float64 run tells what is the network's own growth from what a port adds."""
    steps = f"after {said['steps']} steps"
    grows = "" if said["factor"] is None else f"the sides part by a factor of {said['factor']:.2f} a step"
    if found:
        far = f"{steps} the candidate is {said['ratio']:.1f} times as far from float64 as the reference is"
        share = Share(sum(found), len(found))
        if not share.count:
            return f"nothing compounds that the reference does not: {far}"
        beyond = f"{far}, and more than {COMPOUNDS:g} times in {share}"
        if share.pattern == DEPENDENT:
            return f"{beyond}: batch-dependent, as a near-tie that one side decides otherwise would make it"
        return f"{'it compounds' if share.pattern == ROBUST else 'it may compound'}: {beyond}: {share.sentence}"
    jumped = f"; it jumps at step {', '.join(list(said['jumps'])[:5])}" if said["jumps"] else ""
    known = "whether that is the network's own, a float64 run would tell"
    return f"{grows or f'{steps} there is no growth to be seen'}{jumped}; {known}"
