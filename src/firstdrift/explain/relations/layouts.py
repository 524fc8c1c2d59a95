"""Axes in another order: exchanged, or merged and split in another order than the reference does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..one_program.agreement import limit
from .hypotheses import Finding, Hypothesis
from .regions import heads_of
from .screening import positions, sampled


def is_convolution(evidence: Evidence) -> bool:
    """Whether a drift is in the kernel of a convolution."""
    dimensions = evidence.expected.ndim
    named = "conv" in evidence.op.lower() or (not evidence.op and dimensions >= 4)
    return evidence.site.phase == "weight" and dimensions >= 3 and named


Shape = tuple[int, ...]


def source(split: Shape, axes: Shape, at: NDArray[np.intp]) -> NDArray[np.intp]:
    """Where in the tensor the elements lie that the other order of axes brings to these places."""
    there = np.unravel_index(at, tuple(split[axis] for axis in axes))
    here = [there[axes.index(axis)] for axis in range(len(split))]
    return np.asarray(np.ravel_multi_index(here, split))


TRIED = 2048  # elements by which an order of axes is tried
MOST_AXES = 5
SPLITS = 24  # ways of splitting an axis that are tried where the number of heads is not known


def axis_order(evidence: Evidence) -> Iterator[Finding]:
    """found holds expected's numbers with the axes in another order, read as the same shape."""
    shape = evidence.expected.shape
    if evidence.expected.size < 4 or not len(shape) <= MOST_AXES:
        return
    at = positions(evidence.expected.size, TRIED)
    found = sampled(evidence.found, at)
    flat = evidence.expected.reshape(-1)
    enough = 2 * limit(evidence) * float(np.linalg.norm(found))
    if not np.isfinite(found).all() or enough == 0.0:
        return
    for split in _splits(evidence):
        for axes in permutations(range(len(split))):
            taken = source(split, axes, at)
            if (taken == at).all() or np.linalg.norm(np.asarray(flat[taken], np.float64) - found) > enough:
                continue
            predicted = evidence.expected.reshape(split).transpose(axes).reshape(shape)
            label, sentence = _told(evidence, split, axes)
            yield Finding(label, sentence, predicted, 0, {"shape": list(split), "axes": list(axes)})


def _splits(evidence: Evidence) -> Iterator[Shape]:
    """The tensor's own shape, those of what it was made from, and its last axis split into heads and features."""
    shape, size = evidence.expected.shape, evidence.expected.size
    seen = {shape}
    yield shape
    if evidence.site.phase == "weight":
        yield from set(permutations(shape)) - seen
        return
    for array in evidence.inputs.values():
        if array.size == size and array.ndim <= MOST_AXES and array.shape not in seen:
            seen.add(array.shape)
            yield array.shape
    if not 2 <= len(shape) <= 3:
        return
    last, heads = shape[-1], heads_of(evidence)
    numbers = [number for number in range(3, last // 3 + 1) if last % number == 0][:SPLITS]
    for number in [heads] if heads else numbers:
        if last % number == 0:
            yield (*shape[:-1], number, last // number)


def _told(evidence: Evidence, split: Shape, axes: Shape) -> tuple[str, str]:
    shape = evidence.expected.shape
    moved = [axis for axis, other in enumerate(axes) if axis != other]
    is_same = tuple(split[axis] for axis in axes) == shape
    if is_convolution(evidence):
        if is_same and axes[:2] == (0, 1):
            return "conv-flip", "the kernel's spatial axes are exchanged"
        return "conv-layout", f"the kernel's axes are stored in the order {axes}"
    if evidence.site.phase == "weight" and moved == [len(shape) - 2, len(shape) - 1]:
        how = "transposed" if is_same and split == shape else "read as if it were transposed"
        return "transpose", f"{'the' if len(shape) == 2 else 'each'} matrix is {how}"
    if len(split) > len(shape) and split[:-2] == shape[:-1]:
        said = f"the last axis, split into {split[-2]} x {split[-1]}, is merged with its axes in the order {axes}"
        if split[-2] == heads_of(evidence):
            return "head-permutation", f"heads and features are confused: {said}"
        return "axis-order", said
    if split == shape and moved == [len(shape) - 2, len(shape) - 1] and shape[-1] == shape[-2]:
        return "transpose", "the last two axes are exchanged"
    if split == shape and tuple(shape[axis] for axis in axes) == shape:
        return "axis-order", f"the axes are in the order {axes}"
    return "axis-order", f"the numbers of shape {split} are read with the axes in the order {axes}"


HYPOTHESES: tuple[Hypothesis, ...] = (axis_order,)
