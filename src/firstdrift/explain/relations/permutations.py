"""Slices along an axis in another order: halves exchanged, interleaved, blocks permuted, shifted, or anyhow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import floats, limit
from .hypotheses import Finding, Hypothesis
from .layouts import has_heads, role
from .regions import heads_of
from .screening import LARGE
from .slices import Order, Slices, matched, slices

SHIFTS = (1, -1, 2, -2, 3, -3, 4, -4)
FEWEST = 16  # numbers that make "the same ones in another order" a statement
BLOCKS = 8  # blocks whose order is worth spelling out
RECURRENT = ("RNN", "GRU", "LSTM")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A named order of the slices of an axis."""

    label: str
    name: str
    order: Order


def patterned(evidence: Evidence) -> Iterator[Finding]:
    """found is expected in an order that has a name."""
    for one in _every_axis(evidence):
        for pattern in patterns(one.count, last=one.axis == evidence.expected.ndim - 1):
            if one.fits(pattern.order):
                yield Finding(
                    pattern.label, f"along axis {one.axis} {pattern.name}",
                    np.take(evidence.expected, pattern.order, axis=one.axis), 0, {"axis": one.axis},
                )  # fmt: skip


def permuted(evidence: Evidence) -> Iterator[Finding]:
    """found is expected with slices of one axis moved: which went where is read off the slices."""
    for one in _every_axis(evidence):
        order = matched(one)
        if order is None:
            continue
        label, said, free, details = _told(evidence, one, order)
        yield Finding(
            label, f"along axis {one.axis} {said}", np.take(evidence.expected, order, axis=one.axis), free,
            {"axis": one.axis, **details},
        )  # fmt: skip


def index_shift(evidence: Evidence) -> Iterator[Finding]:
    """found is expected shifted along an axis by a few places."""
    for one in _every_axis(evidence):
        for shift in SHIFTS:
            if one.count <= 2 * abs(shift) + 1:
                continue
            inner = slice(shift, None) if shift > 0 else slice(None, shift)
            outer = slice(None, -shift) if shift > 0 else slice(-shift, None)
            kept = one.count - abs(shift)
            error = float(np.linalg.norm(one.found[inner] - one.expected[outer]))
            if error > one.tolerance * np.sqrt(kept) or not _unlike(one):
                continue
            predicted = np.roll(floats(evidence.expected), shift, axis=one.axis)
            wrapped = slice(None, shift) if shift > 0 else slice(shift, None)
            edge = (slice(None),) * one.axis + (wrapped,)
            fill = _fill(evidence, predicted[edge], evidence.found[edge])
            predicted[edge] = evidence.found[edge]
            yield Finding(
                "index-shift", f"along axis {one.axis} everything is shifted by {shift:+d} ({fill})", predicted, 1,
                {"axis": one.axis, "shift": shift, "fill": fill},
            )  # fmt: skip


def reordered(evidence: Evidence) -> Iterator[Finding]:
    """The same numbers in another order, whatever the order is."""
    a, b = evidence.expected, evidence.found
    if not FEWEST <= a.size <= LARGE or limit(evidence) > 1e-5:  # two samples of one distribution sort alike
        return
    x, y = np.sort(floats(a), axis=None), np.sort(floats(b), axis=None)
    size = float(np.linalg.norm(x))
    if size > 0 and np.isfinite(size) and len(np.unique(x)) * 2 > x.size:
        left = float(np.linalg.norm(x - y)) / size
        yield Finding("permutation", "found has the same numbers in another order", None, a.size, {}, left)


def patterns(count: int, last: bool) -> Iterator[Pattern]:
    """The orders of so many slices that have a name."""
    index = np.arange(count)
    if count % 2 == 0 and (count > 2 or last):
        yield Pattern("swapped-halves", "the two halves are exchanged", np.roll(index, count // 2))
    if count > 2:
        yield Pattern("permutation", "the order is reversed", index[::-1])
    for block in _divisors(count):
        inside = f"of every block of {block} " if block < count else ""
        grid = index.reshape(-1, block)
        if block % 2 == 0 and block >= 4:
            pairs = grid.reshape(len(grid), 2, -1)
            yield Pattern("interleave", f"the halves {inside}are interleaved", pairs.swapaxes(1, 2).reshape(-1))
            pairs = grid.reshape(len(grid), -1, 2)
            said = f"the halves {inside}are taken from even and odd places"
            yield Pattern("interleave", said, pairs.swapaxes(1, 2).reshape(-1))
        if block % 2 == 0 and block < count:
            said = f"the halves {inside}are exchanged" if block > 2 else "neighbours are exchanged"
            yield Pattern("swapped-halves", said, np.roll(grid, block // 2, axis=1).reshape(-1))


def _every_axis(evidence: Evidence) -> Iterator[Slices]:
    if evidence.expected.shape != evidence.found.shape:
        return
    for axis in reversed(range(evidence.expected.ndim)):
        one = slices(evidence, axis)
        if one is not None:
            yield one


def _divisors(count: int) -> list[int]:
    """The divisors above 1, largest first."""
    small = [number for number in range(1, int(count**0.5) + 1) if count % number == 0]
    return sorted({*small, *(count // number for number in small)} - {1}, reverse=True)


def _told(evidence: Evidence, one: Slices, order: Order) -> tuple[str, str, int, dict[str, object]]:
    """The label, the sentence, the fitted numbers and the mapping of an order."""
    count = one.count
    moved = np.flatnonzero(order != np.arange(count))
    if len(np.unique(order)) < count:
        said = f"slice {moved[0]} is taken from {order[moved[0]]}" + (", and more" if len(moved) > 1 else "")
        return "permutation", said, len(moved), {"mapping": _pairs(order, moved)}
    shift = int((order[0] + count // 2) % count - count // 2)
    rotated = bool((order == np.roll(np.arange(count), -shift)).all())
    if rotated and -shift in SHIFTS:
        return "index-shift", f"everything is rotated by {-shift:+d}", 1, {"shift": -shift, "fill": "wrapped round"}
    block = _block(order)
    blocks = order[::block] // block
    label = _label_of_blocks(evidence, one, len(blocks))
    if len(blocks) <= BLOCKS and block > 1:
        said = f"{len(blocks)} blocks of {block} are in the order {', '.join(map(str, blocks))}"
        return label, said, 1, {"block": block, "blocks": blocks.tolist()}
    if rotated:
        return "permutation", f"everything is rotated by {-shift:+d}", 1, {"shift": -shift}
    grid = _grid(order)
    if grid is not None:
        said = f"a grid of {grid[0]} x {grid[1]} is read by columns (tiled instead of repeated, or the reverse)"
        return label, said, 0, {"grid": list(grid)}
    what = f"blocks of {block}" if block > 1 else "slices"
    apart = np.flatnonzero(blocks != np.arange(len(blocks)))
    if len(apart) == 2:
        return label, f"{what} {apart[0]} and {apart[1]} are exchanged", 2, {"block": block, "swap": apart.tolist()}
    return label, f"{len(apart)} {what} are permuted", len(apart), {"block": block, "mapping": _pairs(blocks, apart)}


def _pairs(order: Order, moved: Order) -> list[list[int]]:
    return [[int(to), int(order[to])] for to in moved[:64]]


def _block(order: Order) -> int:
    """The size of the largest blocks that moved as a whole."""
    count = len(order)
    for block in _divisors(count)[1:]:
        grid = order.reshape(-1, block)
        if (grid[:, 0] % block == 0).all() and (np.diff(grid, axis=1) == 1).all():
            return block
    return 1


def _grid(order: Order) -> tuple[int, int] | None:
    """The sides of a grid whose rows were written and whose columns were read."""
    for rows in _divisors(len(order))[1:]:
        if (order.reshape(-1, rows) == np.arange(len(order)).reshape(rows, -1).T).all():
            return rows, len(order) // rows
    return None


def _label_of_blocks(evidence: Evidence, one: Slices, blocks: int) -> str:
    """Whether the blocks are queries, keys and values, or heads."""
    shape = evidence.expected.shape
    heads = heads_of(evidence) if has_heads(evidence) else None
    channels = one.axis == len(shape) - 1 or (evidence.site.phase == "weight" and one.axis == 0)
    if blocks == 3 and channels and not evidence.op.startswith(RECURRENT):
        x = evidence.inputs.get("in.0")
        if role(evidence.site.name) == "qkv" or (x is not None and x.ndim and 3 * x.shape[-1] == one.count):
            return "qkv-order"
    if heads is not None and ((channels and blocks == heads) or (len(shape) == 4 and one.count == heads)):
        return "head-permutation"
    return "permutation"


def _unlike(one: Slices) -> bool:
    """Whether neighbouring slices differ, so that a shift can be seen at all."""
    steps = np.linalg.norm(np.diff(one.expected, axis=0), axis=1)
    return bool((steps > 2 * one.tolerance).mean() > 0.5)


def _fill(evidence: Evidence, wrapped: Array, edge: Array) -> str:
    if not np.any(edge):
        return "filled with zeros"
    error = float(np.linalg.norm(floats(edge) - floats(wrapped)))
    return "wrapped round" if error <= 2 * limit(evidence) * float(np.linalg.norm(wrapped)) else "filled otherwise"


HYPOTHESES: tuple[Hypothesis, ...] = (patterned, index_shift, permuted, reordered)
