"""Tensors joined along another axis than they should be, and read in the shape that was wanted all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from ...traces import Array
from ..agreement import agree, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..screening import LARGE, positions, sampled
from .axes_moved import Shape, source
from .merged_axes import has_heads

PARTS = (2, 3, 4)
MOST_AXES = 4
TRIED = 2048  # elements by which an order is tried
FEWEST = 16  # elements of a tensor that is said to be joined


@dataclass(frozen=True, slots=True)
class Join:
    """A tensor read as of a shape, with its axes put in an order: parts of `axis` become those of `other`."""

    split: Shape
    order: Shape
    axis: int
    other: int
    parts: int
    back: bool  # whether the reference joins along the other axis, and the candidate does not


def joined(evidence: Evidence) -> Iterator[Finding]:
    """found holds the equal parts of an axis of expected joined along another one, or the other way round."""
    shape, size = evidence.expected.shape, evidence.expected.size
    if evidence.site.phase != "fwd" or not 2 <= len(shape) <= MOST_AXES or size < FEWEST:
        return
    at = positions(size, TRIED)
    found = sampled(evidence.found, at)
    enough = 2 * limit(evidence) * float(np.linalg.norm(found))
    if not np.isfinite(found).all() or enough == 0.0:
        return
    flat = evidence.expected.reshape(-1)
    for one in _joins(shape):
        taken = source(one.split, one.order, at)
        if (taken == at).all() or float(np.linalg.norm(floats(flat[taken]) - found)) > enough:
            continue
        predicted = evidence.expected.reshape(one.split).transpose(one.order).reshape(shape)
        facts = {"parts": one.parts, "axis": one.axis, "other_axis": one.other, "reference_joins_there": one.back}
        label, said = _told(evidence, one)
        yield Finding(label, said, predicted, 0, facts)
        return


def joined_flat(evidence: Evidence) -> Iterator[Finding]:
    """found holds two parts of an axis of expected one after the other, all of each; the parts need not be equal."""
    shape = evidence.expected.shape
    if evidence.site.phase != "fwd" or not 2 <= len(shape) <= MOST_AXES or evidence.expected.size < FEWEST:
        return
    for axis in dict.fromkeys((len(shape) - 1, 1)):
        for cut, kept in product(_cuts(evidence, axis), range(axis)):
            if kept == 0 and evidence.expected.size > LARGE:
                continue
            few = slice(0, 1) if kept else slice(None)
            tried = _one_after_the_other(evidence.expected[few], axis, cut, kept)
            if distance(tried, evidence.found[few]) > 2 * limit(evidence):
                continue
            predicted = _one_after_the_other(evidence.expected, axis, cut, kept)
            if distance(predicted, evidence.expected) > 2 * limit(evidence):
                said = f"parts of {cut} and {shape[axis] - cut} that belong beside each other on axis {axis} are joined"
                said += f" one after the other along axis {kept}, and read in the same shape"
                yield Finding("axis-order", said, predicted, 0, {"parts": [cut, shape[axis] - cut], "axis": axis})
                return


def _joins(shape: Shape) -> Iterator[Join]:
    """Every way to move the parts of the last axis, or of the second, to another one, and back."""
    for axis, parts in product(dict.fromkeys((len(shape) - 1, 1)), PARTS):
        if shape[axis] % parts or shape[axis] == parts:
            continue
        split = (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :])
        rest = [one for one in range(len(split)) if one != axis]
        for to in (one for one in range(len(split)) if one not in (axis, axis + 1)):  # else it is an order of one axis
            order = (*rest[:to], axis, *rest[to:])
            other = min(to if to < axis else to - 1, len(shape) - 1)
            yield Join(split, order, axis, other, parts, False)
            inverse = tuple(int(one) for one in np.argsort(order))
            yield Join(tuple(split[one] for one in order), inverse, axis, other, parts, True)


def _told(evidence: Evidence, one: Join) -> tuple[str, str]:
    width = evidence.expected.shape[one.axis] // one.parts
    names = _names(evidence, one)
    known = len(names) == one.parts
    what = ", ".join(names) if known else f"{one.parts} parts of {width}"
    there, here = (one.axis, one.other) if one.back else (one.other, one.axis)
    said = f"{what} are joined along axis {there} instead of axis {here}, and read in the same shape"
    if not known and one.axis == evidence.expected.ndim - 1 and has_heads(evidence):
        return "head-permutation", f"heads and features are confused: {said}"
    return "axis-order", said


def _names(evidence: Evidence, one: Join) -> list[str]:
    """What was joined, in the order in which it was, where all of it is known."""
    right = evidence.found if one.back else evidence.expected
    given = evidence.candidate_inputs if one.back else evidence.inputs
    known = (
        next((name for name, value in given.items() if agree(evidence, value, part)), None)
        for part in np.split(right, one.parts, one.axis)
    )
    return [name for name in known if name is not None]


def _cuts(evidence: Evidence, axis: int) -> list[int]:
    """Where an axis may be made of two parts, one of which came before."""
    size = evidence.expected.shape[axis]
    widths = [value.shape[-1 if axis == evidence.expected.ndim - 1 else 1]
              for value in evidence.inputs.values() if value.ndim == evidence.expected.ndim]  # fmt: skip
    return list(dict.fromkeys(cut for one in widths if 0 < one < size for cut in (one, size - one) if 2 * cut != size))


def _one_after_the_other(array: Array, axis: int, cut: int, kept: int) -> Array:
    parts = np.split(array, [cut], axis)
    lead = array.shape[:kept]
    return np.concatenate([one.reshape(*lead, -1) for one in parts], kept).reshape(array.shape)


HYPOTHESES: tuple[Hypothesis, ...] = (joined, joined_flat)
