"""Windows whose insides are not known, and which differ only where they reach beyond a border: other padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from ..agreement import floats, limit
from ..evidence import Evidence
from ..hypotheses import FEW, Finding, Hypothesis
from ..variants import forward

Mask = NDArray[np.bool_]

WINDOWS = ("conv", "pool", "unfold", "stft", "spectrogram", "window", "patch", "blur", "filter")
INSIDE = 0.5  # of the places along an axis, at least, reach beyond no border
FEWEST = 6  # places along an axis, which has two borders and something between them
MOST = 0.8  # of the windows at a border that see something else there


def borders_only(evidence: Evidence) -> Iterator[Finding]:
    """Only the first and last few places along one axis or two differ, of a module that slides windows along them."""
    if not forward(evidence) or evidence.site.port.startswith("in.") or evidence.expected.ndim < 2:
        return
    off = _off(evidence)
    for axes in _spaces(evidence):
        widths = _widths(off, axes)
        if widths is None or np.ptp(evidence.found[off]) == 0:  # borders of one number are blank, whatever stood beyond
            continue
        (before, after), shape = widths, off.shape
        where = " and ".join(str(axis) for axis in axes)
        said = (
            f"only the first {before} and the last {after} places along axis {where} differ (of {shape[axes[0]]}), "
            "where windows reach beyond the border"
        )
        predicted = np.where(off, evidence.found, evidence.expected)
        yield Finding("padding", said, predicted, FEW + before + after, {"before": before, "after": after})
        return


def _off(evidence: Evidence) -> Mask:
    """The elements that noise does not explain."""
    expected, found = floats(evidence.expected), floats(evidence.found)
    enough = 2 * limit(evidence) * np.maximum(np.abs(expected), np.sqrt(np.mean(np.square(expected))))
    return np.asarray(~(np.abs(found - expected) <= enough))


def _spaces(evidence: Evidence) -> Iterator[tuple[int, ...]]:
    """The axes along which windows may slide: no table or matrix has a row for each place, and the module's one input
    is longer, or the module is known for its windows."""
    shape, known = evidence.expected.shape, list(evidence.parameters.values())
    read = [one for one in evidence.inputs.values() if one.dtype.kind == "f" and one.size > 1]
    if len(read) != 1:
        return
    slides = any(name in evidence.op.lower() for name in WINDOWS) or any(one.ndim > 2 for one in known)
    sizes = [size for one in known if one.ndim > 1 for size in one.shape]
    axes = [
        axis
        for axis in range(1, len(shape))
        if shape[axis] >= FEWEST and shape[axis] not in sizes and (slides or _is_longer(read[0], shape, axis))
    ]
    yield from ((axis,) for axis in axes)
    yield from ((a, a + 1) for a in axes if a + 1 in axes)


def _is_longer(x: Array, shape: tuple[int, ...], axis: int) -> bool:
    """Whether the same axis of the input, or the only one that is none of the output's, has many more places."""
    if x.ndim == len(shape):
        return bool(x.shape[axis] >= 2 * shape[axis])
    rest, left = [size for one, size in enumerate(shape) if one != axis], []
    for size in x.shape:
        if size in rest:
            rest.remove(size)
        else:
            left.append(size)
    return len(left) == 1 and left[0] >= 2 * shape[axis]


def _widths(off: Mask, axes: tuple[int, ...]) -> tuple[int, int] | None:
    """How many places at the beginning and at the end differ, nearly all of them, and nothing between."""
    others = tuple(one for one in range(off.ndim) if one not in axes)
    some: Mask = np.asarray(off.any(axis=others))
    share = np.asarray(off.mean(axis=others))
    lines = [some] if len(axes) == 1 else [_middle(some, 0), _middle(some, 1)]
    ends: set[tuple[int, int]] = set()
    for line in lines:
        inside = np.flatnonzero(~line)
        if len(inside) < INSIDE * len(line) or inside[-1] - inside[0] + 1 != len(inside):
            return None
        ends.add((int(inside[0]), int(len(line) - 1 - inside[-1])))
    before, after = next(iter(ends))
    if len(ends) > 1 or min(before, after) == 0 or abs(before - after) > 1:
        return None
    inner = np.zeros(some.shape, np.bool_)
    inner[tuple(slice(before, size - after) for size in some.shape)] = True
    return (before, after) if not some[inner].any() and share[~inner].mean() >= MOST else None


def _middle(some: Mask, axis: int) -> Mask:
    """Along one axis, the places of the line through the middle of the other."""
    return np.asarray(np.take(some, some.shape[1 - axis] // 2, axis=1 - axis))


HYPOTHESES: tuple[Hypothesis, ...] = (borders_only,)
