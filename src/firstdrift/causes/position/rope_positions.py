"""Positions read off a rotation, token by token: other ones in some samples, as where padding is not counted out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from ..agreement import limit
from ..attention.rotary import Floats, Rotary, complex_pairs, rotate, tables
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from .rotations import as_tokens, back, fitted, layouts

SAMPLES = 4  # on which a rotation is sought
FARTHEST = 1 << 13  # places by which positions may be off
NAMED = 4  # samples whose shift is spelled out
HALF = 2  # at least one in so many slots must be off by the sample's own shift, the others hold padding

Integers = NDArray[np.int64]


def repositioned(evidence: Evidence) -> Iterator[Finding]:
    """A tensor of which the reference is a rotation of an input: the same rotation at other positions."""
    shape = evidence.expected.shape
    if evidence.site.phase != "fwd" or len(shape) < 3 or shape != evidence.found.shape or not evidence.expected.size:
        return
    for name, given in evidence.inputs.items():
        own = evidence.candidate_inputs.get(name, given)
        arrays = (given, evidence.expected, own, evidence.found)
        if any(x.shape != shape or x.dtype.kind != "f" or not np.isfinite(x).all() for x in arrays):
            continue
        for axes in layouts(given.ndim):
            before, after, mine, found = (as_tokens(x, axes) for x in arrays)
            rotary = _rotation(before, after, limit(evidence))
            if rotary is None:
                continue
            ours, theirs = _positions(before, after, rotary), _positions(mine, found, rotary)
            if _error(before, after, rotary, ours) <= limit(evidence):
                predicted = back(_turned(mine, rotary, theirs), axes, evidence.expected)
                yield from _told(ours, theirs, predicted)
            return


def _rotation(before: Floats, after: Floats, within: float) -> Rotary | None:
    """The rotation, seen on one sample: on all its tokens, or on the later ones where padding comes first."""
    half = before.shape[1] // 2
    for sample in range(min(len(before), SAMPLES)):
        one = slice(sample, sample + 1)
        for tokens in (slice(None), slice(half, None), slice(None, half)):
            found = fitted(before[one, tokens], after[one, tokens], within)
            if found is not None:
                return replace(found, shift=0.0)
    return None


def _positions(before: Floats, after: Floats, rotary: Rotary) -> Integers:
    """The position of every token of every sample: counted on with one shift, or where padding is put."""
    counted = np.arange(before.shape[1])
    pairs = len(rotary.frequencies)
    a, b = (complex_pairs(x, pairs, rotary.pairing) for x in (before, after))
    turn = np.einsum("bthp,bthp->btp", b, a.conj())
    plain = turn * np.exp(-1j * counted[:, None] * rotary.frequencies)
    reach = min(2 * len(counted) + 1, FARTHEST)
    shifts = np.arange(-reach, reach + 1)
    shifts = shifts[np.argsort(np.abs(shifts), kind="stable")]  # of those that are as good, the least
    score = np.real(plain.sum(axis=1) @ np.exp(-1j * np.outer(rotary.frequencies, shifts)))
    best = shifts[np.argmax(score, axis=1)]
    tried = np.stack(
        [counted + best[:, None], *(np.full(turn.shape[:2], one) for one in (0, 1)), counted + 0 * best[:, None]]
    )
    near = np.real(turn * np.exp(-1j * tried[..., None] * rotary.frequencies)).sum(axis=-1)
    chosen = np.argmax(near > near.max(axis=0) * (1 - 1e-9) - 1e-300, axis=0)
    return np.asarray(np.take_along_axis(tried, chosen[None], axis=0)[0], np.int64)


def _turned(x: Floats, rotary: Rotary, places: Integers) -> Floats:
    return rotate(x, *tables(rotary, places.astype(np.float64)), rotary.pairing)


def _error(before: Floats, after: Floats, rotary: Rotary, places: Integers) -> float:
    size = max(float(np.linalg.norm(after)), 1e-300)
    return float(np.linalg.norm(_turned(before, rotary, places) - after)) / size


def _told(ours: Integers, theirs: Integers, predicted: Array) -> Iterator[Finding]:
    """Positions that are off by one number in each sample, but for the slots that hold padding."""
    off = theirs - ours
    shifts = [_shift(one) for one in off]
    moved = {sample: shift for sample, shift in enumerate(shifts) if shift}
    if not moved or any(shift is None for shift in shifts):
        return
    amounts = set(moved.values())
    if len(moved) == len(off) and len(amounts) == 1:
        said = f"positions are off by {amounts.pop():+d}"
    else:
        some = [f"{shift:+d} in sample {sample}" for sample, shift in list(moved.items())[:NAMED]]
        more = f" and {len(moved) - NAMED} more" if len(moved) > NAMED else ""
        said = f"positions are off by {', '.join(some)}{more}"
    if (np.diff(theirs, axis=1) == 1).all() and not (np.diff(ours, axis=1) == 1).all():
        said += ": padding is counted as well"
    yield Finding("position-shift", said, predicted, 1, {"shifts": {str(key): one for key, one in moved.items()}})


def _shift(off: Integers) -> int | None:
    """The number by which a sample's positions are off; None where more than padding, at an end, is off otherwise."""
    values, counts = np.unique(off, return_counts=True)
    shift = int(values[np.argmax(counts)])
    same = np.flatnonzero(off == shift)
    inside = off[same[0] : same[-1] + 1]
    return shift if (inside == shift).all() and HALF * len(same) >= len(off) else None


HYPOTHESES: tuple[Hypothesis, ...] = (repositioned,)
