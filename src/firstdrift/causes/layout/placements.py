"""How a tensor may lie in a larger one: spread over axes, with its channels elsewhere, or in parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...traces import Array

MOST_CHUNKS = 6  # parts that one projection is cut into: shift, scale and gate of two branches


def spread(value: Array, shape: tuple[int, ...]) -> Array | None:
    """A tensor shaped to broadcast to a shape, by its last axes or else its first ones; None where it does not."""
    return next(spreads(value, shape), None)


def spreads(value: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Every way in which a tensor with as many axes or fewer broadcasts to a shape, the usual one first."""
    missing = len(shape) - value.ndim
    if missing < 0:
        return
    seen: set[tuple[int, ...]] = set()
    for padded in (
        (1,) * missing + value.shape,
        value.shape + (1,) * missing,
        (1, *value.shape, *(1,) * (missing - 1)),
        (*value.shape[:1], *(1,) * missing, *value.shape[1:]),
    ):
        fits = len(padded) == len(shape) and all(one in (1, size) for one, size in zip(padded, shape, strict=True))
        if fits and padded not in seen:
            seen.add(padded)
            yield value.reshape(padded)


def placements(value: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Every way in which a tensor may have been put into a shape: spread, or with its channels moved."""
    yield from spreads(value, shape)
    yield from moved(value, shape)


def moved(value: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """A tensor with its channels first instead of last, or the other way round, where that makes the shape."""
    if value.ndim != len(shape) or value.ndim < 3:
        return
    first, last = np.moveaxis(value, -1, 1), np.moveaxis(value, 1, -1)
    if first.shape == shape:
        yield first
    if value.ndim > 3 and last.shape == shape:
        yield last


def chunks(value: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """The equal parts of a tensor, in words and spread over a shape, where each of them fits it and the whole does not.

    A part is cut off the channels: the last axis, or else the second one.
    """
    for axis in dict.fromkeys((value.ndim - 1, 1)):
        if value.ndim < 2 or axis >= value.ndim:
            continue
        for count in range(2, MOST_CHUNKS + 1):
            if value.shape[axis] % count or value.shape[axis] == count:
                continue
            parts = [spread(one, shape) for one in np.split(value, count, axis)]
            if all(one is not None for one in parts):
                yield from ((f"part {k + 1} of {count} of ", one) for k, one in enumerate(parts) if one is not None)
                return
