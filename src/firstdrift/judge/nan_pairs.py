"""NaN on both sides: nothing was compared there, so that it is never green."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ..compare.result import CLEAN, PairResult, Verdict


def refuse_nan(judged: Sequence[PairResult], allowed: Sequence[str]) -> list[PairResult]:
    """Pairs that are clean where they are finite, and NaN elsewhere on both sides, cannot be compared, unless a glob
    names them."""
    return [_refused(result) if _has_nan(result) and not _is_allowed(result, allowed) else result for result in judged]


def _has_nan(result: PairResult) -> bool:
    found = result.measurement
    return result.verdict in CLEAN and found is not None and min(found.nan_reference, found.nan_candidate) > 0


def _is_allowed(result: PairResult, allowed: Sequence[str]) -> bool:
    site = result.site
    return any(fnmatchcase(name, glob) for name in (site.name, f"{site.name}.{site.port}") for glob in allowed)


def _refused(result: PairResult) -> PairResult:
    assert result.measurement is not None
    count, total = result.measurement.nan_reference, result.measurement.count
    where = "every element is" if count == total else f"{count:,} of {total:,} elements are"
    reason = f"{where} NaN on both sides, where nothing can be compared"
    return replace(result, verdict=Verdict.NOT_COMPARABLE, reason=reason)
