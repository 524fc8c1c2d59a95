"""The jump rule of training-step traces (1000 times the floor of its tier, above an absolute floor), kept for those
who are used to it: with NaN seen, both sides covered, gradients walked as they flow, and every drift marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..compare.measuring import Measured
from ..compare.result import PairResult, Verdict

FACTOR = 1000.0
START = 1e-6


def judge_by_jump(measured: Sequence[Measured], judged: Sequence[PairResult], abs_floor: float) -> list[PairResult]:
    """The verdicts of the jump rule; what has no numbers keeps the verdict that the default rule gave it."""
    floor, tier, drifted = START, None, False
    results = []
    for item, before in zip(measured, judged, strict=True):
        phase = (item.pair.site.step, item.pair.site.phase)
        if phase != tier:
            floor, tier = START, phase
        measurement = item.measurement
        if measurement is None or measurement.bit_equal or not measurement.nonfinite_agree or item.is_integer:
            results.append(before)
            drifted |= before.verdict is Verdict.DRIFT
            continue
        relative = measurement.max_rel or 0.0
        beyond = float(measurement.max_abs) > abs_floor and relative > FACTOR * floor
        if not beyond and relative < 1:
            floor = max(floor, relative)
        verdict = Verdict.NOISE if not beyond else Verdict.INHERITED if drifted else Verdict.DRIFT
        said = f"largest error {float(measurement.max_abs):.1e}, relative {relative:.1e}"
        reason = f"{said}, floor {floor:.1e}" if beyond else f"{said}: no jump"
        by = (before.introduced_by or item.pair.site.name) if verdict is Verdict.DRIFT else None
        judged_so = replace(before, verdict=verdict, reason=reason, introduced_by=by)
        results.append(replace(judged_so, error=relative, limit=FACTOR * floor, inherited=None))
        drifted |= beyond
    return results
