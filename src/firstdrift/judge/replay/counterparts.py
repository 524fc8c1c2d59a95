"""The candidate's tensors where the reference's program wants them: whole, in the reference's layout and unit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...core.sites import Site
from ...core.traces import Array, Trace
from ...errors import FirstdriftError
from ...pair.pairs import Pair, ReconcileError, Transform, apply_all
from ..measure.measuring import load_recorded

_UNDONE = ("slice", "scale")  # steps from the reference's tensor to the pair's that can be gone back


class Counterparts:
    """What the candidate recorded, by the sites under which the reference recorded the same."""

    def __init__(self, reference: Trace, candidate: Trace, pairs: Sequence[Pair]) -> None:
        self._reference, self._candidate = reference, candidate
        there: dict[Site, list[Pair]] = {}
        for pair in pairs:
            if _has_values(pair) and all(step.kind in _UNDONE for step in pair.reference_steps) and _fits(pair):
                there.setdefault(pair.reference.site, []).append(pair)
        whole = {site: _covering(found) for site, found in there.items()}
        self._parts = {site: parts for site, parts in whole.items() if parts}

    @property
    def sites(self) -> list[Site]:
        """The reference's sites that have a whole counterpart, in causal order."""
        return list(self._parts)

    def __contains__(self, site: object) -> bool:
        return site in self._parts

    def first(self, site: Site) -> Pair:
        """The pair of a site, or the first of its samples."""
        return self._parts[site][0]

    def own_site(self, site: Site) -> Site | None:
        """The candidate's own site of the very tensor; None where it had to be cut, joined or scaled."""
        pair = self._parts[site][0] if site in self._parts else None
        if pair is None or pair.reference_steps or pair.candidate_steps or len(pair.candidate) > 1:
            return None
        return pair.candidate[0].site

    def array(self, site: Site) -> Array | None:
        """The candidate's tensor; None where there is none, or where it does not fit."""
        try:
            parts = [self._part(pair) for pair in self._parts.get(site, ())]
        except (FirstdriftError, ReconcileError, ValueError):
            return None
        return None if not parts else parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, pair: Pair) -> Array:
        candidate = load_recorded(pair, self._reference, self._candidate)[1]
        factor = prod(step.factor for step in pair.reference_steps if step.kind == "scale")
        if factor != 1.0:
            candidate = np.asarray(candidate, np.complex128 if candidate.dtype.kind == "c" else np.float64) / factor
        start, stop = _rows(pair)
        shape = pair.reference.shape or ()
        return candidate.reshape((stop - start, *shape[1:])) if pair.reference_steps and shape else candidate


def _has_values(pair: Pair) -> bool:
    return bool(pair.candidate) and all(record.at is not None for record in (pair.reference, *pair.candidate))


def _fits(pair: Pair) -> bool:
    """Whether the candidate's tensor has the shape that the program needs: a replay starts from no other."""
    try:
        needed = apply_all(_stand_in(pair.reference.shape), _reshaping(pair.reference_steps))
        brought = apply_all(_stand_in(_joined_shape(pair)), _reshaping(pair.candidate_steps))
    except (ReconcileError, IndexError):
        return False
    return [dim for dim in needed.shape if dim != 1] == [dim for dim in brought.shape if dim != 1]


def _joined_shape(pair: Pair) -> tuple[int, ...]:
    shape = list(pair.candidate[0].shape or ())
    if pair.concatenate is not None and shape:
        shape[pair.concatenate] = sum((record.shape or ())[pair.concatenate] for record in pair.candidate)
    return tuple(shape)


def _stand_in(shape: tuple[int, ...] | None) -> Array:
    """A tensor of that shape and of no bytes."""
    return np.broadcast_to(np.zeros((), np.bool_), shape or ())


def _reshaping(steps: Sequence[Transform]) -> list[Transform]:
    return [step for step in steps if step.kind != "scale"]


def _covering(pairs: Sequence[Pair]) -> list[Pair]:
    """One pair that has all of a tensor, or those that together have each of its rows once; none else."""
    rows = (pairs[0].reference.shape or (1,))[0]
    whole = next((pair for pair in pairs if _rows(pair) == (0, rows)), None)
    if whole is not None:
        return [whole]
    parts = sorted(pairs, key=_rows)
    ends = [0, *(_rows(pair)[1] for pair in parts)]
    return parts if [_rows(pair)[0] for pair in parts] == ends[:-1] and ends[-1] == rows else []


def _rows(pair: Pair) -> tuple[int, int]:
    """Which rows of the reference's tensor a pair has."""
    start, stop = 0, (pair.reference.shape or (1,))[0]
    for step in pair.reference_steps:
        if step.kind == "slice" and step.axes[0] != 0:
            return -1, -1
        if step.kind == "slice":
            start, stop = start + step.start, stop if step.stop is None else start + step.stop
    return start, stop
