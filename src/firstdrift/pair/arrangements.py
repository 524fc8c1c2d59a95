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


def arrangement(ours: Array, theirs: Array, near: float = NEAR) -> Steps | None:
    """The steps that make their tensor ours, if there are such; none where they lie alike."""
    if agrees(ours, theirs, (), near):
        return ()
    if ours.size == theirs.size and not _as_large(ours, theirs, near):
        return None
    return next((steps for steps in _candidates(ours.shape, theirs.shape) if agrees(ours, theirs, steps, near)), None)


def agrees(ours: Array, theirs: Array, steps: Steps, near: float = NEAR) -> bool:
    """Whether their numbers are ours after these steps, up to noise."""
    try:
        made = apply_all(theirs, steps)
    except ReconcileError:
        return False
    if made.shape != ours.shape:
        if _plain(made.shape) != _plain(ours.shape):
            return False
        made = made.reshape(ours.shape)
    if made.size > SAMPLE:
        stride = tuple(slice(None, None, max(1, dim // 64)) for dim in made.shape[:1])
        if not _near(ours[stride], made[stride], near):
            return False
    return _near(ours, made, near)


def _near(ours: Array, theirs: Array, near: float) -> bool:
    kind = np.complex128 if "c" in (ours.dtype.kind, theirs.dtype.kind) else np.float64
    a, b = np.asarray(ours, kind), np.asarray(theirs, kind)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    norm = float(np.linalg.norm(a[finite]))
    return bool(norm > 0 and float(np.linalg.norm((a - b)[finite])) <= near * norm)


def _as_large(ours: Array, theirs: Array, near: float) -> bool:
    """Whether the two can be one in another arrangement at all."""
    a, b = (float(np.linalg.norm(np.where(np.isfinite(one), one, 0).astype(np.complex128))) for one in (ours, theirs))
    return abs(a - b) <= near * max(a, b)


def _plain(shape: Shape) -> Shape:
    return tuple(dim for dim in shape if dim != 1)


def _candidates(ours: Shape, theirs: Shape) -> Iterator[Steps]:
    yield from _of_axes(ours, theirs)
    plain = _plain(ours), _plain(theirs)
    if plain != (ours, theirs):  # axes of length one, which engines add and leave out
        ones: Steps = () if plain[1] == theirs else (Transform("reshape", shape=plain[1]),)
        yield from ((*ones, *steps) for steps in _of_axes(*plain))


def _of_axes(ours: Shape, theirs: Shape) -> Iterator[Steps]:
    if prod(ours) != prod(theirs):
        yield from _cut(ours, theirs)
        return
    found: list[Steps] = list(_permuted(ours, theirs))
    if ours != theirs:
        if _merges(theirs, ours) or _merges(ours, theirs):  # another view of the same bytes may be a mistake
            found.append((Transform("reshape", shape=ours),))
        found += _merged(ours, theirs)
    yield from found
    yield from _interleaved(ours)
    for steps in found:
        yield from ((*steps, *more) for more in _interleaved(ours))


def _permuted(ours: Shape, theirs: Shape) -> Iterator[Steps]:
    if len(ours) == len(theirs) <= MOST_AXES:
        for axes in permutations(range(len(ours))):
            if axes != tuple(range(len(ours))) and tuple(theirs[axis] for axis in axes) == ours:
                yield (Transform("permute", axes=axes),)


def _merged(ours: Shape, theirs: Shape) -> Iterator[Steps]:
    """Axes that one side keeps apart and the other merges, in another order."""
    if len(theirs) > len(ours) and len(theirs) <= MOST_AXES:
        for axes in permutations(range(len(theirs))):
            if _merges(tuple(theirs[axis] for axis in axes), ours) and axes != tuple(range(len(theirs))):
                yield Transform("permute", axes=axes), Transform("reshape", shape=ours)
    if len(ours) > len(theirs) and len(ours) <= MOST_AXES:
        for axes in permutations(range(len(ours))):
            split = tuple(ours[axis] for axis in axes)
            if _merges(split, theirs) and axes != tuple(range(len(ours))):
                back = tuple(axes.index(axis) for axis in range(len(ours)))
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


def _interleaved(ours: Shape) -> Iterator[Steps]:
    """Pairs of a rotation that lie side by side on one side and a half apart on the other, in heads of any size."""
    for axis in _long_axes(ours):
        for size in _heads(ours[axis]):
            for halves in (False, True):
                yield deinterleaved(ours, axis, size, halves=halves)


def _long_axes(shape: Shape) -> list[int]:
    return [axis for axis in range(len(shape)) if shape[axis] >= 4 and axis in (0, len(shape) - 1, len(shape) - 2)]


def _heads(length: int) -> list[int]:
    return [size for size in range(4, length + 1, 2) if length % size == 0]


def deinterleaved(shape: Shape, axis: int, size: int, *, halves: bool) -> Steps:
    """Every head's even elements before its odd ones; with `halves` back again."""
    heads = shape[axis] // size
    inner = (heads, 2, size // 2) if halves else (heads, size // 2, 2)
    split = (*shape[:axis], *inner, *shape[axis + 1 :])
    axes = (*range(axis + 1), axis + 2, axis + 1, *range(axis + 3, len(split)))
    return Transform("reshape", shape=split), Transform("permute", axes=axes), Transform("reshape", shape=shape)


def _cut(ours: Shape, theirs: Shape) -> Iterator[Steps]:
    """Padding behind what we have, along one axis, and axes in another order."""
    if len(ours) != len(theirs) or len(ours) > MOST_AXES:
        return
    for axes in permutations(range(len(ours))):
        dims = tuple(theirs[axis] for axis in axes)
        longer = [axis for axis, (a, b) in enumerate(zip(ours, dims, strict=True)) if a != b]
        if len(longer) == 1 and dims[longer[0]] > ours[longer[0]]:
            cut = Transform("slice", axes=(longer[0],), start=0, stop=ours[longer[0]])
            yield (cut,) if axes == tuple(range(len(axes))) else (Transform("permute", axes=axes), cut)


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
