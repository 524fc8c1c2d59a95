"""How the numbers of one tensor lie in another: axes exchanged, merged or cut, halves interleaved, parts joined.

Every arrangement is a list of steps that can stand in a map. It is found by trying those that the shapes allow, and
holds only where the numbers agree after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import gcd, prod

import numpy as np

from ..core.traces import Array
from .pairs import ReconcileError, Transform, apply_all

NEAR = 1e-2  # of the norm: closer than this, two tensors are taken for the same numbers
MOST_AXES = 5
SAMPLE = 1 << 16  # elements that are looked at first

Steps = tuple[Transform, ...]
Shape = tuple[int, ...]


def arrangement(reference: Array, candidate: Array, near: float = NEAR) -> Steps | None:
    """The steps that make their tensor the reference's, if there are such; none where they lie alike."""
    if agrees(reference, candidate, (), near):
        return ()
    if reference.size == candidate.size and not _as_large(reference, candidate, near):
        return None
    return next(
        (steps for steps in _candidates(reference.shape, candidate.shape) if agrees(reference, candidate, steps, near)),
        None,
    )


def agrees(reference: Array, candidate: Array, steps: Steps, near: float = NEAR) -> bool:
    """Whether their numbers are the reference's after these steps, up to noise."""
    try:
        made = apply_all(candidate, steps)
    except ReconcileError:
        return False
    if made.shape != reference.shape:
        if _plain(made.shape) != _plain(reference.shape):
            return False
        made = made.reshape(reference.shape)
    if made.size > SAMPLE:
        stride = tuple(slice(None, None, max(1, dim // 64)) for dim in made.shape[:1])
        if not _near(reference[stride], made[stride], near):
            return False
    return _near(reference, made, near)


def _near(reference: Array, candidate: Array, near: float) -> bool:
    kind = np.complex128 if "c" in (reference.dtype.kind, candidate.dtype.kind) else np.float64
    a, b = np.asarray(reference, kind), np.asarray(candidate, kind)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    norm = float(np.linalg.norm(a[finite]))
    return bool(norm > 0 and float(np.linalg.norm((a - b)[finite])) <= near * norm)


def _as_large(reference: Array, candidate: Array, near: float) -> bool:
    """Whether the two can be one in another arrangement at all."""
    a, b = (
        float(np.linalg.norm(np.where(np.isfinite(array), array, 0).astype(np.complex128)))
        for array in (reference, candidate)
    )
    return abs(a - b) <= near * max(a, b)


def _plain(shape: Shape) -> Shape:
    return tuple(dim for dim in shape if dim != 1)


def _candidates(reference: Shape, candidate: Shape) -> Iterator[Steps]:
    yield from _of_axes(reference, candidate)
    plain = _plain(reference), _plain(candidate)
    if plain != (reference, candidate):  # axes of length one, which engines add and leave out
        ones: Steps = () if plain[1] == candidate else (Transform("reshape", shape=plain[1]),)
        yield from ((*ones, *steps) for steps in _of_axes(*plain))


def _of_axes(reference: Shape, candidate: Shape) -> Iterator[Steps]:
    if prod(reference) != prod(candidate):
        yield from _cut(reference, candidate)
        return
    found: list[Steps] = list(_permuted(reference, candidate))
    if reference != candidate:
        # Another view of the same bytes may be a mistake.
        if _merges(candidate, reference) or _merges(reference, candidate):
            found.append((Transform("reshape", shape=reference),))
        found += _merged(reference, candidate)
    yield from found
    yield from _interleaved(reference)
    for steps in found:
        yield from ((*steps, *more) for more in _interleaved(reference))


def _reordered(shape: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Every other order of axes, with the shape that it gives."""
    for axes in permutations(range(len(shape))) if len(shape) <= MOST_AXES else ():
        if axes != tuple(range(len(shape))):
            yield axes, tuple(shape[axis] for axis in axes)


def _permuted(reference: Shape, candidate: Shape) -> Iterator[Steps]:
    for axes, dims in _reordered(candidate):
        if dims == reference:
            yield (Transform("permute", axes=axes),)


def _merged(reference: Shape, candidate: Shape) -> Iterator[Steps]:
    """Axes that one side keeps apart and the other merges, in another order."""
    if len(candidate) > len(reference):
        for axes, dims in _reordered(candidate):
            if _merges(dims, reference):
                yield Transform("permute", axes=axes), Transform("reshape", shape=reference)
    if len(reference) > len(candidate):
        for axes, split in _reordered(reference):
            if _merges(split, candidate):
                back = tuple(axes.index(axis) for axis in range(len(reference)))
                yield Transform("reshape", shape=split), Transform("permute", axes=back)


def _merges(many: Shape, few: Shape) -> bool:
    """Whether neighbouring axes multiply to these."""
    rest = list(many)
    for dim in few:
        size = 1
        while size < dim and rest:
            size *= rest.pop(0)
        if size != dim:
            return False
    return all(dim == 1 for dim in rest)


def _interleaved(reference: Shape) -> Iterator[Steps]:
    """Pairs of a rotation that lie side by side on one side and a half apart on the other, in heads of any size."""
    for axis, length in enumerate(reference):
        for size in range(4, length + 1, 2) if axis in (0, len(reference) - 1, len(reference) - 2) else ():
            for halves in (False, True) if length % size == 0 else ():
                yield deinterleaved(reference, axis, size, halves=halves)


def deinterleaved(shape: Shape, axis: int, size: int, *, halves: bool) -> Steps:
    """Every head's even elements before its odd ones; with `halves` back again."""
    heads = shape[axis] // size
    inner = (heads, 2, size // 2) if halves else (heads, size // 2, 2)
    split = (*shape[:axis], *inner, *shape[axis + 1 :])
    axes = (*range(axis + 1), axis + 2, axis + 1, *range(axis + 3, len(split)))
    return Transform("reshape", shape=split), Transform("permute", axes=axes), Transform("reshape", shape=shape)


def _cut(reference: Shape, candidate: Shape) -> Iterator[Steps]:
    """Padding behind what the reference has, along one axis, and axes in another order."""
    if len(reference) != len(candidate) or len(reference) > MOST_AXES:
        return
    for axes, dims in (((), candidate), *_reordered(candidate)):
        longer = [axis for axis, (a, b) in enumerate(zip(reference, dims, strict=True)) if a != b]
        if len(longer) == 1 and dims[longer[0]] > reference[longer[0]]:
            cut = Transform("slice", axes=(longer[0],), start=0, stop=reference[longer[0]])
            yield (Transform("permute", axes=axes), cut) if axes else (cut,)


# Parts of one tensor. `groups` says how often they take turns: once where one stands behind the other, once a head
# where every head has its own.


def taken_out(whole: Shape, sizes: Sequence[int], place: int, groups: int, axis: int) -> Steps:
    """The steps that take one part out of a tensor."""
    start = sum(sizes[:place]) // groups
    if groups == 1:
        return (Transform("slice", axes=(axis,), start=start, stop=start + sizes[place]),)
    each = sum(sizes) // groups
    split = (*whole[:axis], groups, each, *whole[axis + 1 :])
    part = (*whole[:axis], sizes[place], *whole[axis + 1 :])
    cut = Transform("slice", axes=(axis + 1,), start=start, stop=start + sizes[place] // groups)
    return Transform("reshape", shape=split), cut, Transform("reshape", shape=part)


def put_together(whole: Shape, count: int, groups: int, axis: int) -> Steps:
    """The steps that make a tensor of equal parts that stand one behind the other."""
    if groups == 1:
        return ()
    length = whole[axis] // count // groups
    split = (*whole[:axis], count, groups, length, *whole[axis + 1 :])
    axes = (*range(axis), axis + 1, axis, *range(axis + 2, len(split)))
    return Transform("reshape", shape=split), Transform("permute", axes=axes), Transform("reshape", shape=whole)


def turns(sizes: Sequence[int]) -> list[int]:
    """How often parts of these lengths can take turns."""
    common = gcd(*sizes)
    return [groups for groups in range(1, common + 1) if common % groups == 0]
