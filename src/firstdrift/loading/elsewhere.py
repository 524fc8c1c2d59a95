"""Tensors that only one of two checkpoints has by name: the same numbers under other names, whole or in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoints.checkpoint import Array

MOST_PARTS = 8  # of one tensor
AXES = 2  # along which tensors are joined in practice: rows and columns

Read = Callable[[str], Array]


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor that is others joined along an axis, in this order; `turned` when it is transposed before that."""

    name: str
    parts: tuple[str, ...]
    axis: int
    turned: bool = False

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return f"is {self.parts[0]}, transposed" if self.turned else f"is {self.parts[0]}"
        how = ", transposed" if self.turned else ""
        return f"is {', '.join(self.parts)} joined along axis {self.axis}{how}"


def find_whole(name: str, array: Array, parts: Sequence[str], read: Read) -> Whole | None:
    """The parts, each used once, that make up a tensor bit for bit; a single one is the same under another name."""
    if not array.size or one_number(array):  # zeros and ones are everywhere, and say nothing
        return None
    for turned in (False, True) if array.ndim == 2 else (False,):
        view = array.T if turned else array
        for axis in range(min(view.ndim, AXES)):
            found = _cover(view, axis, parts, read)
            if found is not None:
                return Whole(name, tuple(found), axis, turned)
    return None


def _cover(view: Array, axis: int, parts: Sequence[str], read: Read) -> list[str] | None:
    found: list[str] = []
    position = 0
    while position < view.shape[axis]:
        if len(found) == MOST_PARTS:
            return None
        rest = view[(slice(None),) * axis + (slice(position, None),)]
        name = next((part for part in _fitting(rest, axis, parts, read) if part not in found), None)
        if name is None:
            return None
        found.append(name)
        position += read(name).shape[axis]
    return found


def _fitting(rest: Array, axis: int, parts: Sequence[str], read: Read) -> Iterator[str]:
    """The tensors that the rest begins with."""
    for name in parts:
        part = read(name)
        if part.dtype != rest.dtype or part.ndim != rest.ndim or part.shape[axis] > rest.shape[axis] or not part.size:
            continue
        if part.shape[:axis] + part.shape[axis + 1 :] == rest.shape[:axis] + rest.shape[axis + 1 :]:
            start = rest[(slice(None),) * axis + (slice(0, part.shape[axis]),)]
            if same_bits(start, part):
                yield name


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays of one dtype and shape are equal, bit for bit; a first look is at one slice alone."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.ndim and len(a) > 1 and not np.array_equal(_bits(a[:1]), _bits(b[:1])):
        return False
    return bool(np.array_equal(_bits(a), _bits(b)))


def _bits(array: Array) -> Array:
    """Numbers as what they are stored as, so that NaN is equal to itself and 0 not to -0."""
    if array.dtype.kind in "iub":
        return array
    kind = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(array.dtype.itemsize)
    return np.ascontiguousarray(array).view(kind if kind is not None else "u8")


def one_number(array: Array) -> bool:
    """Whether all elements are the same number."""
    return bool((array == array.reshape(-1)[0]).all())
