"""One factor that a tensor has on one side alone, and that is gone where the tensor is added to something: a constant
that stands before a product, or after it, as the scale of a low-rank adapter.

A norm hides a factor too, and then it may be one that was forgotten: so what is made of the tensor must be a sum with
it, or the tensor itself times a constant, which is seen in the numbers; or else the output of a module around it, and
no norm of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..compare.pairs import Pair
from ..compare.result import PairResult
from ..dtypes import roundoff
from ..sites import Site
from ..traces import Array
from .handed_on import one_factor
from .parts import LARGEST
from .rows import FEWEST, Floats, matrices, varies

NORMED = 1e-2  # of a tensor: how far a norm of another, with a gain and a bias, may be from one that is computed anew
SAMPLED = 1 << 18  # elements at least, where there are so many, that tell a sum or a norm
SOME = 16  # rows at least, likewise
ADDED = 1e-3  # of a tensor: how far it may be from a sum
ROUNDINGS = 4.0  # or so many of a short format

Results = Mapping[Site, PairResult]
Load = Callable[[Pair], tuple[Array, Array]]


def is_one_factor(both: tuple[Array, Array], limit: float) -> bool:
    """Whether a tensor is the reference's times one positive number."""
    ours, theirs = both
    fitted = one_factor(theirs, ours) if ours.size >= FEWEST**2 else None
    return fitted is not None and fitted[0] > 0 and fitted[1] <= limit


def passes_modules(region: frozenset[Site]) -> bool:
    """Whether a factor is there before every module that hands it on: no module has made it up."""
    fed = {(site.step, site.name, site.call) for site in region if site.port.startswith("in.")}
    return all((site.step, site.name, site.call) in fed for site in region)


def is_added_with_its_factor(site: Site, reader: Site, results: Results, load: Load) -> bool:
    """Whether what is made of a tensor on either side shows how large the tensor is."""
    values, made = load(results[site].pair), load(results[reader].pair)
    if _is_sum(site, reader, results, load):
        return True
    around = not reader.name or site.name.startswith(f"{reader.name}.")
    if not around or not reader.port.startswith("out"):
        return False
    return not any(_is_norm(before, after) for before, after in zip(values, made, strict=True))


def _is_sum(site: Site, reader: Site, results: Results, load: Load) -> bool:
    """Whether a tensor is, on both sides, a sum of those that it was computed from, each times a constant."""
    sources = [one for one in results[reader].pair.reference.producers or () if one in results]
    pair = results[reader].pair
    made = load(pair)
    limit = max(ADDED, ROUNDINGS * roundoff(pair.reference.dtype, pair.candidate[0].dtype))
    if site not in sources:
        return False
    for side in (0, 1):
        terms = [load(results[one].pair)[side] for one in sources]
        if any(term.shape != made[side].shape or term.dtype.kind not in "fV" for term in terms):
            return False
        every = max(1, made[side].size // SAMPLED)
        columns = np.stack([np.asarray(term.reshape(-1)[::every], np.float64) for term in terms], axis=1)
        total = np.asarray(made[side].reshape(-1)[::every], np.float64)
        if len(total) <= 2 * len(terms) or not np.isfinite(columns).all() or not np.isfinite(total).all():
            return False
        parts = columns * np.linalg.lstsq(columns, total, rcond=None)[0]
        size = float(np.linalg.norm(total))
        counts = np.linalg.norm(parts, axis=0) > limit * size
        if np.linalg.norm(parts.sum(axis=1) - total) > limit * size or not counts[sources.index(site)]:
            return False
        if counts.sum() == 1 and not _has_rows_of_other_lengths(made[side]):
            return False
    return True


def _has_rows_of_other_lengths(array: Array) -> bool:
    """Whether rows differ in length, so that one factor for all of them is no norm of each."""
    rows = matrices((array, array))
    return rows is not None and varies(np.linalg.norm(rows[0], axis=1))


def _is_norm(before: Array, after: Array) -> bool:
    """Whether a tensor is another one normed, along its last axis or its second, maybe with a gain and a bias."""
    if before.shape != after.shape or before.ndim < 2 or before.dtype.kind not in "fV" or after.size > LARGEST:
        return False
    for axis in {1, before.ndim - 1}:
        count = before.size // before.shape[axis]
        every = max(1, min(before.size // SAMPLED, count // SOME))
        x, y = (_rows(one, axis)[::every] for one in (before, after))
        if len(x) > 2 and any(_is_affine(one, y) for one in _normed(x)):
            return True
    return False


def _rows(array: Array, axis: int) -> Floats:
    return np.moveaxis(np.asarray(array, np.float64), axis, -1).reshape(-1, array.shape[axis])


def _normed(x: Floats) -> Iterator[Floats]:
    """Rows of length one, rows of mean zero and length one, and columns as they are, for a norm over these."""
    yield x
    for rows in (x, x - x.mean(axis=1, keepdims=True)):
        yield rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def _is_affine(x: Floats, y: Floats) -> bool:
    """Whether every column is another one times a number, plus a number."""
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    slopes = np.sum(a * b, axis=0) / np.maximum(np.sum(a * a, axis=0), np.finfo(np.float64).tiny)
    return float(np.linalg.norm(b - slopes * a)) <= NORMED * float(np.linalg.norm(b))
