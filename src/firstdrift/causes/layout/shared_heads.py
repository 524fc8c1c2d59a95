"""Key and value heads written out for every query head: each repeated, or all of them tiled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np

from ..agreement import distance, limit
from ..attention.expansions import AXES, READINGS, expanded
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..regions import heads_of
from ..slices import Order, Slices, slices
from .merged_axes import has_heads

LEAST_WIDTH = 2  # channels of a head
USUAL = {("hrt", "heads first"), ("thr", "tokens first"), ("rht", "heads first"), ("trh", "tokens first")}


def tiled_heads(evidence: Evidence) -> Iterator[Finding]:
    """expected holds every head several times in a row, and found all of them over and over; or the other way round."""
    if evidence.site.phase != "fwd" or evidence.expected.shape != evidence.found.shape or not has_heads(evidence):
        return
    for axis, is_merged in _head_axes(evidence):
        one = slices(evidence, axis)
        for heads, times in _groupings(one.count, is_merged) if one is not None else ():
            assert one is not None
            numbers = np.arange(one.count)
            to_tiled = numbers.reshape(heads, times, -1).swapaxes(0, 1).ravel()
            to_repeated = numbers.reshape(times, heads, -1).swapaxes(0, 1).ravel()
            for order, is_tiled in ((to_tiled, True), (to_repeated, False)):
                if _is_shared(one, heads, times, is_tiled) and one.fits(order):
                    yield _told(evidence, axis, order, heads, times, is_tiled)
                    return


def misread_heads(evidence: Evidence) -> Iterator[Finding]:
    """expected holds every head several times in a row; found has them repeated along, or read by, another axis."""
    if evidence.site.phase != "fwd" or evidence.expected.ndim != 4 or not has_heads(evidence):
        return
    for axis in (1, 2):
        one = slices(evidence, axis)
        groupings = _groupings(one.count, False) if one is not None else ()
        shared = next(
            ((heads, times) for heads, times in groupings if one is not None and _is_shared(one, heads, times, True)),
            None,
        )
        if shared is None:
            continue
        heads, times = shared
        tokens = np.moveaxis(evidence.expected, axis, 2)
        few = np.asarray(tokens[:, :, ::times].reshape(*tokens.shape[:2], -1), np.float64)
        for memory, reading in product(map("".join, permutations(AXES)), READINGS):
            made = expanded(few, heads, heads * times, memory, reading).reshape(tokens.shape)
            predicted = np.moveaxis(made, 2, axis)
            if (memory, reading) not in USUAL and distance(predicted, evidence.found) <= limit(evidence):
                order = ", ".join(AXES[one] for one in memory)
                said = f"key and value heads are written out in the order of {order}, and read {reading}"
                yield Finding("axis-order", said, predicted, 0, {"order": memory, "read": reading})
                return


def _head_axes(evidence: Evidence) -> Iterator[tuple[int, bool]]:
    """The axes that may hold heads, and whether their channels are merged into them.

    The first axis holds samples, which beams repeat; so does that of tokens, where each has several frames.
    """
    shape = evidence.expected.shape
    if len(shape) >= 4:
        yield len(shape) - 3, False
        yield len(shape) - 2, False
    elif len(shape) == 3 and shape[1] == heads_of(evidence):
        yield 1, False
    if len(shape) in (2, 3):
        yield len(shape) - 1, True


def _groupings(count: int, is_merged: bool) -> Iterator[tuple[int, int]]:
    """Numbers of heads, and how many times each may be there."""
    least = LEAST_WIDTH if is_merged else 1
    for all_heads in range(count // least, 3, -1):
        if count % all_heads or (not is_merged and all_heads < count):
            continue
        for heads in range(2, all_heads // 2 + 1):
            if all_heads % heads == 0:
                yield heads, all_heads // heads


def _is_shared(one: Slices, heads: int, times: int, are_repeated: bool) -> bool:
    """Whether the reference holds so many heads so many times, each in a row or one after the other."""
    shape = (heads, times, -1) if are_repeated else (times, heads, -1)
    numbers = np.arange(one.count).reshape(shape)
    first = numbers[:, :1] if are_repeated else numbers[:1]
    alike = np.broadcast_to(first, numbers.shape).ravel()
    return bool(np.linalg.norm(one.expected - one.expected[alike]) <= one.tolerance * np.sqrt(one.count))


def _told(evidence: Evidence, axis: int, order: Order, heads: int, times: int, is_tiled: bool) -> Finding:
    now, then = ("tiled", "repeated") if is_tiled else ("repeated", "tiled")
    said = f"along axis {axis} the {heads} key and value heads are {now} {times} times instead of {then}"
    details = {"axis": axis, "kv_heads": heads, "repeats": times, "order": now}
    return Finding("gqa-order", said, np.take(evidence.expected, order, axis=axis), 0, details)


HYPOTHESES: tuple[Hypothesis, ...] = (tiled_heads, misread_heads)
