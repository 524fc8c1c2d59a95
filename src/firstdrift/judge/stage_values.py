"""Two APRT stage files, value by value: aprender's numbers, and beside them a verdict.

Differences are taken in float32 and their squares summed in float64, as `apr diff --values` does. Values are
mapped, not read, and walked in chunks, so that memory does not grow with the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..aprt import HEADER_BYTES, StageHeader, is_stage_file, read_header
from ..core.dtypes import roundoff
from ..core.mapped import MappedFile
from ..core.stages import ALIASES, INDEX_PAYLOAD, PRODUCERS
from ..errors import FirstdriftError, FormatError, storage
from ..kernels import Measurement, measure
from .apriori.ladder import likely_limit, local_limit
from .measure.result import Verdict
from .measure.scales import Part, least_part, parts_of

SCHEMA = "apr-stage-diff-v1"
DEFAULT_LIMIT = 10
CHUNK = 1 << 16
EXIT = {Verdict.SAME: 0, Verdict.NOISE: 0, Verdict.DRIFT: 1, Verdict.INCONCLUSIVE: 2, Verdict.NOT_COMPARABLE: 2}

Values = NDArray[np.float32]


class StageMismatchError(FirstdriftError, ValueError):
    """Two stage files that hold different layers or different numbers of values."""


@dataclass(frozen=True, slots=True)
class TopDiff:
    """One of the largest differences. `abs_diff` is NaN where one of the values is, or both are the same infinity."""

    index: int
    a: float
    b: float
    abs_diff: float


@dataclass(frozen=True, slots=True)
class StageDiff:
    """What separates two stage files; `a` is the reference.

    The fields up to `top_diffs` follow aprender's rules. `measurement` has the finiteness of both sides and
    `rel_l2`; `noise_limit` is how large that could be by rounding alone. `integers` says that the values are
    expert ids, which are equal or not: their RMS and cosine mean nothing and are None.
    """

    path_a: str
    path_b: str
    layer: int | None  # None for the whole model
    dim_product: int
    max_abs_diff: float
    max_abs_diff_index: int
    rms_diff: float | None
    cosine_sim: float | None
    top_diffs: tuple[TopDiff, ...]
    integers: bool
    measurement: Measurement
    noise_limit: float
    verdict: Verdict
    reason: str

    @property
    def exit_code(self) -> int:
        """0 equal or within noise, 1 beyond it, 2 when there was nothing to compare."""
        return EXIT[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The schema `apr-stage-diff-v1`, and what this adds to it; numbers that are not finite are null, as there."""
        m, integers = self.measurement, self.integers
        tops = [(top.index, *(self._number(one) for one in (top.a, top.b, top.abs_diff))) for top in self.top_diffs]
        return {
            "schema": SCHEMA, "path_a": self.path_a, "path_b": self.path_b,
            "layer": "whole-model" if self.layer is None else self.layer, "dim_product": self.dim_product,
            "max_abs_diff": self._number(self.max_abs_diff), "max_abs_diff_index": self.max_abs_diff_index,
            "rms_diff": _finite_or_null(self.rms_diff), "cosine_sim": _finite_or_null(self.cosine_sim),
            "top_diffs": [dict(zip(("index", "a", "b", "abs_diff"), top, strict=True)) for top in tops],
            "integers": integers, "differing": m.differing, "nan_a": m.nan_reference, "nan_b": m.nan_candidate,
            "inf_a": m.inf_reference, "inf_b": m.inf_candidate, "nonfinite_mismatches": m.nonfinite_mismatches,
            "nonfinite_mismatch_index": m.nonfinite_mismatch_index, "rel_l2": _finite_or_null(m.rel_l2),
            "max_rel": None if integers else _finite_or_null(m.max_rel),
            "max_over_std": None if integers else _finite_or_null(m.max_over_std),
            "noise_limit": self.noise_limit, "verdict": self.verdict.value, "reason": self.reason,
            "exit_code": self.exit_code,
        }  # fmt: skip

    def _number(self, value: float) -> float | int | None:
        is_whole = self.integers and isfinite(value) and value == int(value)
        return int(value) if is_whole else _finite_or_null(value)


def diff_stage_files(
    path_a: str | os.PathLike[str], path_b: str | os.PathLike[str], *, limit: int = DEFAULT_LIMIT
) -> StageDiff:
    """Compare two stage files and list the `limit` largest differences (at least one).

    Raises StageMismatchError when their sizes or layers differ, FormatError or StorageError when one cannot be read.
    """
    a, b = os.fspath(path_a), os.fspath(path_b)
    header = _common_header(a, b)
    files = MappedFile(Path(a)), MappedFile(Path(b))
    count = header.dim_product
    left, right = (file.view(HEADER_BYTES, 4 * count).view("<f4") for file in files)
    measurement, integers = measure(left, right), any(_stage(path) in INDEX_PAYLOAD for path in (a, b))
    largest, at, rms, cosine = _sums(left, right)
    limit_of_noise = 0.0 if integers else noise_limit(count)
    verdict, reason = _judge_ids(left, right) if integers else _judge(left, right, measurement, limit_of_noise)
    top = _top_diffs(left, right, max(limit, 1))
    for file in files:
        file.check_unchanged()
    return StageDiff(
        a, b, None if header.is_whole_model else header.layer, count, largest, at, None if integers else rms,
        None if integers else cosine, top, integers, measurement, limit_of_noise, verdict, reason + _other_stage(a, b),
    )  # fmt: skip


def noise_limit(count: int) -> float:
    """Relative L2 error that rounding may leave in a float32 stage whose inputs are not known."""
    return local_limit(roundoff("f32"), count, "unknown", count)


def _common_header(a: str, b: str) -> StageHeader:
    for path in (a, b):
        with storage(path, "read the stage file", "check the path"):
            Path(path).stat()
        if not is_stage_file(path):
            raise FormatError(f"{path}: is not an APRT stage file, which --values compares; drop --values for traces")
    left, right = read_header(a), read_header(b)
    if left.dim_product != right.dim_product:
        raise StageMismatchError(
            f"dim_product mismatch: {a} has {left.dim_product} values, {b} has {right.dim_product}; "
            "compare the same stage of the same prompt"
        )
    if left.layer != right.layer:
        one, other = ("whole-model" if one.is_whole_model else f"layer {one.layer}" for one in (left, right))
        raise StageMismatchError(f"layer mismatch: {a} is {one}, {b} is {other}; compare the same layer")
    return left


def _stage(path: str) -> str:
    stem = Path(path).stem
    return ALIASES.get(stem, stem)


def _other_stage(a: str, b: str) -> str:
    """The file names may say that two different stages are compared; the headers cannot."""
    left, right = _stage(a), _stage(b)
    if left == right or not {left, right} <= PRODUCERS.keys():
        return ""
    return f"; note that by their names these are two stages, {left} and {right}"


def _chunks(left: Values, right: Values) -> Iterator[tuple[int, Values, Values, Values]]:
    """Pieces of both sides with their first index and their absolute difference in float32."""
    with np.errstate(all="ignore"):
        for start in range(0, left.size, CHUNK):
            a, b = left[start : start + CHUNK], right[start : start + CHUNK]
            yield start, a, b, np.abs(a - b)


def _sums(left: Values, right: Values) -> tuple[float, int, float, float]:
    """The largest difference and its index, the root mean square of all, and the cosine of both sides."""
    largest, index, sums = 0.0, 0, np.zeros(4)
    for start, a, b, d in _chunks(left, right):
        at = int(np.argmax(np.where(np.isnan(d), np.float32(-1), d)))
        if d[at] > largest:  # strictly, so that the first maximum wins and NaN never does
            largest, index = float(d[at]), start + at
        wide_a, wide_b, wide_d = (x.astype(np.float64) for x in (a, b, d))
        with np.errstate(all="ignore"):
            sums += [np.dot(x, y) for x, y in ((wide_d, wide_d), (wide_a, wide_b), (wide_a, wide_a), (wide_b, wide_b))]
    square, dot, square_a, square_b = sums.tolist()
    with np.errstate(over="ignore"):
        rms = float(np.float32(sqrt(square / left.size))) if left.size else 0.0
    is_known = square_a > 0 and square_b > 0  # a NaN norm is not above zero either
    return largest, index, rms, dot / (sqrt(square_a) * sqrt(square_b)) if is_known else 0.0


def _rank(a: Values, b: Values, d: Values) -> Values:
    """What `top_diffs` is sorted by. Where the original leaves the order open: NaN on one side first, on both last."""
    undefined = np.isnan(d)
    if not undefined.any():
        return d
    alike = (np.isnan(a) & np.isnan(b)) | (a == b)
    return np.where(undefined, np.where(alike, np.float32(-1), np.float32(np.inf)), d).astype(np.float32)


def _top_diffs(left: Values, right: Values, limit: int) -> tuple[TopDiff, ...]:
    """The largest differences, ties in the order of their index."""
    ranks, indices = np.empty(0, np.float32), np.empty(0, np.int64)
    for start, a, b, d in _chunks(left, right):
        rank = _rank(a, b, d)
        found = np.arange(rank.size)
        if rank.size > limit:  # those that may be among the largest: of equal ones the earlier stay
            found = np.flatnonzero(rank >= np.partition(rank, rank.size - limit)[rank.size - limit])
        if len(ranks) == limit:
            found = found[rank[found] > ranks[-1]]
        if len(found):
            ranks, indices = np.concatenate([ranks, rank[found]]), np.concatenate([indices, found + start])
            order = np.argsort(-ranks, kind="stable")[:limit]
            ranks, indices = ranks[order], indices[order]
    a, b = left[indices], right[indices]
    with np.errstate(all="ignore"):
        d = np.abs(a - b)
    return tuple(map(TopDiff, indices.tolist(), a.tolist(), b.tolist(), d.tolist()))


def _judge(left: Values, right: Values, m: Measurement, limit: float) -> tuple[Verdict, str]:
    """As a pair of a trace is judged that says nothing of how it was made: by all values, and by single ones."""
    if not m.count:
        return Verdict.INCONCLUSIVE, "both files are empty, so nothing was compared"
    if not m.nonfinite_agree:
        where = f"first at {m.nonfinite_mismatch_index}"
        return Verdict.DRIFT, f"{m.nonfinite_mismatches} values are NaN or Inf on one side only, {where}"
    said = "no value is finite on both sides" if m.rel_l2 is None else f"relative L2 error {m.rel_l2:.1e}"
    if m.rel_l2 is not None and m.rel_l2 > limit:
        return Verdict.DRIFT, f"{said} is beyond float32 noise of {m.count} values ({limit:.1e})"
    if m.nan_reference:
        return Verdict.NOT_COMPARABLE, f"{m.nan_reference} of {m.count} values are NaN in both files: no comparison"
    if m.bit_equal:
        return Verdict.SAME, f"all {m.count} values are bit-equal"
    part = _worst_part(left, right)
    if part.excess <= 1:
        return Verdict.NOISE, f"{said} is within float32 noise of {m.count} values ({limit:.1e})"
    return Verdict.INCONCLUSIVE, (
        f"{said}, {part.error:.1e} in {part.where}, where rounding alone leaves {part.limit:.1e}; compare traces that "
        "say how it was made"
    )


def _worst_part(left: Values, right: Values) -> Part:
    """The piece, or the single value, that is the furthest beyond what the gentlest operations leave two apart."""
    unit = roundoff("f32")
    worst = Part("all", 0.0, unit)
    for start, a, b, _ in _chunks(left, right):
        parts = parts_of(a, b, least=unit)
        if parts is not None:
            found = least_part(parts, unit, likely_limit(unit, 1))
            at = start + parts.at[2] * parts.shape[1] + parts.at[3]
            where = f"value {at}" if found.error == parts.element else f"values {start} to {start + a.size - 1}"
            worst = max(worst, replace(found, where=where), key=lambda one: one.excess)
    return worst


def _judge_ids(left: Values, right: Values) -> tuple[Verdict, str]:
    """Expert ids are whole numbers from 0, equal or not."""
    if not left.size:
        return Verdict.INCONCLUSIVE, "both files are empty, so nothing was compared"
    differing, first = 0, -1
    for start, a, b, _ in _chunks(left, right):
        for name, ids in (("the first file", a), ("the second file", b)):
            wrong = np.flatnonzero(~((ids >= 0) & (ids < 2.0**32) & (ids == np.trunc(ids))))
            if wrong.size:
                return Verdict.DRIFT, f"{name} has {ids[wrong[0]]} at {start + wrong[0]}, which is no expert id"
        apart = np.flatnonzero(a != b)
        differing += apart.size
        if first < 0 and apart.size:
            first = start + int(apart[0])
    if differing:
        return Verdict.DRIFT, f"{differing} of {left.size} expert ids differ, first at {first}"
    return Verdict.SAME, f"all {left.size} expert ids are equal"


def _finite_or_null(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
