"""Windows whose input one side pads before it is handed to them, and the other side inside: what both began with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ...strict_json import Json
from ...traces import Array
from ..agreement import agree
from ..evidence import Evidence
from ..variants import forward

WIDEST = 16  # elements of padding along an axis, both ends together

Offset = tuple[int, ...]


def unpadded(evidence: Evidence) -> Evidence:
    """The same drift with the input as it was before either side padded it, and the reference's padding as one.

    Where both inputs have one shape, or neither is the other within a border, this is the evidence as it was.
    """
    site = evidence.site._replace(port="in.0")
    if not forward(evidence) or evidence.site.port.startswith("in.") or evidence.inputs:
        return evidence
    both = evidence.around.recorded(site)
    if both is None or both[0].ndim != both[1].ndim or both[0].ndim < 3 or {one.dtype.kind for one in both} != {"f"}:
        return evidence
    ours, theirs = both
    at = _within(evidence, ours, theirs)
    if at is not None:  # the reference is handed what is padded already
        attrs = {**evidence.attrs, "padding": _added(evidence.attrs.get("padding", 0), at)}
        return _with(evidence, _cut(ours, theirs.shape, at), theirs, attrs)
    at = _within(evidence, theirs, ours)
    return evidence if at is None else _with(evidence, ours, _cut(theirs, ours.shape, at), evidence.attrs)


def _with(evidence: Evidence, ours: Array, theirs: Array, attrs: Any) -> Evidence:
    inputs = {"in.0": theirs if evidence.replayed else ours}
    return replace(evidence, inputs=inputs, candidate_inputs={"in.0": theirs}, attrs=attrs)


def _within(evidence: Evidence, large: Array, small: Array) -> Offset | None:
    """Where the smaller tensor lies in the larger one, which has a border around it."""
    if large.shape[:2] != small.shape[:2] or large.shape == small.shape or not small.size:
        return None
    for at in _offsets(large.shape[2:], small.shape[2:]):
        if agree(evidence, _cut(large[:1], small[:1].shape, at), small[:1]):
            return at if agree(evidence, _cut(large, small.shape, at), small) else None
    return None


def _offsets(large: Offset, small: Offset) -> Iterator[Offset]:
    more = [a - b for a, b in zip(large, small, strict=True)]
    if all(0 <= one <= WIDEST for one in more):
        yield from product(*(range(one + 1) for one in more))


def _cut(array: Array, shape: Offset, at: Offset) -> Array:
    kept = tuple(slice(start, start + size) for start, size in zip(at, shape[2:], strict=True))
    return np.asarray(array[(slice(None), slice(None), *kept)])


def _added(stated: Json, at: Offset) -> Json:
    """The padding before the first element, inside and outside; as stated where that is no number."""
    if isinstance(stated, int):
        return [stated + one for one in at]
    each = [one for one in stated if isinstance(one, int)] if isinstance(stated, list) else []
    each = each * len(at) if len(each) == 1 else each
    return [a + b for a, b in zip(each, at, strict=True)] if len(each) == len(at) else stated
