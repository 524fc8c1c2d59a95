"""Weights that arrived in another order: transposed, permuted, interleaved, flipped, shifted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..one_program.agreement import Floats, distance, floats, limit
from ..relations.hypotheses import Finding, Hypothesis

Map = NDArray[np.intp]  # slice i of the candidate is slice map[i] of the reference

LONGEST = 1 << 18  # slices along an axis, above which patterns are not sought


@dataclass(frozen=True, slots=True)
class Pattern:
    """A map of slices that has a name. `kind` is one of the keys below, `numbers` describe it."""

    kind: str
    indices: Map
    numbers: tuple[int, ...] = ()


def signatures(array: Floats, axis: int) -> Floats:
    """One number for every slice along an axis: its projection on a fixed random direction."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    direction = np.random.default_rng(7).standard_normal(rows.shape[1])
    return np.asarray(rows @ direction, np.float64)


def find_pattern(reference: Floats, candidate: Floats, tolerance: float) -> Pattern | None:
    """The simplest pattern that turns one list of signatures into the other, or None.

    The same signatures must be there in some order; then patterns are tried from the plainest on, and what has no
    name is a `permutation`.
    """
    count = len(reference)
    if not 2 <= count <= LONGEST or not (np.isfinite(reference).all() and np.isfinite(candidate).all()):
        return None
    order, other = np.argsort(reference, kind="stable"), np.argsort(candidate, kind="stable")
    if distance(reference[order], candidate[other]) > tolerance or distance(reference, candidate) <= tolerance:
        return None
    for pattern in named_patterns(count):
        if distance(reference[pattern.indices], candidate) <= tolerance:
            return pattern
    found = np.empty(count, np.intp)
    found[other] = order
    return _runs(found)


def named_patterns(count: int) -> Iterator[Pattern]:
    """Every pattern with a name for so many slices, plain ones first."""
    numbers = np.arange(count)
    divisors = [n for n in range(2, count + 1) if count % n == 0]
    yield from _exchanged_blocks(numbers)
    yield from _interleaved(numbers, divisors)
    yield from _transposed(numbers, divisors)
    yield Pattern("reversed", numbers[::-1].copy())
    yield Pattern("rolled", np.roll(numbers, 1), (1,))
    yield Pattern("rolled", np.roll(numbers, -1), (-1,))


def _exchanged_blocks(numbers: Map) -> Iterator[Pattern]:
    for parts in (2, 3, 4):
        if len(numbers) % parts == 0 and len(numbers) > parts:
            blocks = numbers.reshape(parts, -1)
            for order in list(permutations(range(parts)))[1:]:
                yield Pattern("blocks", blocks[list(order)].ravel(), order)


def _interleaved(numbers: Map, divisors: list[int]) -> Iterator[Pattern]:
    """Halves against alternating slices: on the whole axis first, then in each group of a size, as of a head."""
    for size in reversed(divisors):
        if size % 2 == 0 and size > 2:
            heads = (len(numbers) // size, size)
            yield Pattern("interleaved", numbers.reshape(-1, 2, size // 2).swapaxes(1, 2).ravel(), heads)
            yield Pattern("deinterleaved", numbers.reshape(-1, size // 2, 2).swapaxes(1, 2).ravel(), heads)


def _transposed(numbers: Map, divisors: list[int]) -> Iterator[Pattern]:
    """Two axes that were merged in the other order, above blocks of slices that stay together."""
    for outer in divisors:
        for inner in divisors:
            if len(numbers) % (outer * inner) == 0:
                rest = len(numbers) // (outer * inner)
                moved = numbers.reshape(outer, inner, rest).swapaxes(0, 1).ravel()
                yield Pattern("transposed", moved, (outer, inner, rest))


def _runs(found: Map) -> Pattern:
    """A permutation, as exchanged blocks where slices move in equal runs."""
    breaks = np.flatnonzero(np.diff(found) != 1) + 1
    sizes = np.diff(np.concatenate([[0], breaks, [len(found)]]))
    common = int(np.gcd.reduce(sizes))
    if common > 1:
        return Pattern("runs", found, (len(found) // common, common))
    return Pattern("permutation", found, (int(np.count_nonzero(found != np.arange(len(found)))),))


SCREEN = 4096  # elements compared before a whole array is moved
RECURRENT = ("lstm", "gru", "rnn")


def is_weight(evidence: Evidence) -> bool:
    """Whether a drift is in floating-point weights that can be compared element by element."""
    return (
        evidence.site.phase == "weight"
        and evidence.expected.dtype.kind == "f"
        and evidence.expected.shape == evidence.found.shape
        and evidence.found.size > 1
    )


def axes_exchanged(evidence: Evidence) -> Iterator[Finding]:
    """Transposed in memory: the axes exchanged, or the numbers of another axis order read in this shape."""
    if not is_weight(evidence) or not 2 <= evidence.expected.ndim <= 5:
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    shape = expected.shape
    for axes in list(permutations(range(expected.ndim)))[1:]:
        inverse = tuple(int(axis) for axis in np.argsort(axes))
        moved = expected.transpose(axes)
        read = expected.reshape([shape[axis] for axis in axes]).transpose(inverse)
        for view in (moved,) if moved.shape == shape else (moved, read):
            if _alike(evidence, view, found):
                label, sentence = _axes_words(evidence, axes, moved.shape == shape)
                yield Finding(label, sentence, view.reshape(shape), 0, {"axes": list(axes)})


def kernel_flipped(evidence: Evidence) -> Iterator[Finding]:
    """A convolution's kernel applied from its end."""
    if not is_weight(evidence) or not _is_convolution(evidence):
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    spatial = tuple(range(2, expected.ndim))
    for axes in dict.fromkeys([spatial, *((axis,) for axis in spatial)]):
        view = np.flip(expected, axes)
        if _alike(evidence, view, found):
            yield Finding("conv-flip", "the kernel is flipped", view, 0, {"axes": list(axes)})


def slices_moved(evidence: Evidence) -> Iterator[Finding]:
    """Rows or columns in another order: heads, q, k and v, gates, halves, interleaved packing."""
    if not is_weight(evidence):
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    for axis in range(expected.ndim):
        tolerance = 3 * limit(evidence)
        pattern = find_pattern(signatures(expected, axis), signatures(found, axis), tolerance)
        if pattern is not None and not (_is_convolution(evidence) and axis >= 2):
            label, sentence = _slice_words(evidence, pattern, axis)
            free = pattern.numbers[0] if pattern.kind in ("permutation", "runs") else 0
            parameters = {"axis": axis, "pattern": pattern.kind, "numbers": list(pattern.numbers)}
            if len(pattern.indices) <= 64:
                parameters["map"] = pattern.indices.tolist()
            predicted = np.take(expected, pattern.indices, axis)
            yield Finding(label, sentence, predicted, free, parameters)


def rows_shifted(evidence: Evidence) -> Iterator[Finding]:
    """A table whose rows begin one too early or too late."""
    if not is_weight(evidence) or evidence.expected.shape[0] < 4:
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    for shift in (1, -1):
        predicted = np.roll(expected, shift, 0)
        edge = slice(0, 1) if shift > 0 else slice(-1, None)
        predicted[edge] = found[edge]
        if distance(predicted[:64], found[:64]) <= 2 * limit(evidence):
            where = "one row too late" if shift > 0 else "one row too early"
            yield Finding("index-shift", f"every row is stored {where}", predicted, 0, {"shift": shift})


def rows_tiled(evidence: Evidence) -> Iterator[Finding]:
    """Key and value heads written out for every query head, tiled where the reference repeats them, or otherwise."""
    if not is_weight(evidence):
        return
    expected, found = floats(evidence.expected), floats(evidence.found)
    count = len(expected)
    reference, candidate = signatures(expected, 0), signatures(found, 0)
    for repeats in (n for n in range(2, count + 1) if count % n == 0):
        for heads in (n for n in range(2, count // repeats + 1) if (count // repeats) % n == 0):
            size = count // (repeats * heads)
            numbers = np.arange(count).reshape(heads, repeats, size)
            tiled = numbers.swapaxes(0, 1).ravel()
            alike = distance(reference.reshape(heads, repeats, size)[:, :1].repeat(repeats, 1).ravel(), reference)
            if alike <= 2 * limit(evidence) and distance(reference[tiled], candidate) <= 2 * limit(evidence):
                sentence = f"the {heads} key/value heads are tiled {repeats} times instead of each repeated"
                parameters = {"kv_heads": heads, "repeats": repeats}
                yield Finding("gqa-order", sentence, expected[tiled], 0, parameters)
                return


def _alike(evidence: Evidence, view: Floats, found: Floats) -> bool:
    """Whether a part that costs little to look at agrees."""
    return distance(np.asarray(view.flat[:SCREEN]), np.asarray(found.flat[:SCREEN])) <= 3 * limit(evidence)


def _is_convolution(evidence: Evidence) -> bool:
    dimensions = evidence.expected.ndim
    return dimensions >= 3 and ("conv" in evidence.op.lower() or (not evidence.op and dimensions >= 4))


def _is_recurrent(evidence: Evidence) -> bool:
    op, port = evidence.op.lower(), evidence.site.port
    return any(name in op for name in RECURRENT) or port.startswith(("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


def _axes_words(evidence: Evidence, axes: tuple[int, ...], same_shape: bool) -> tuple[str, str]:
    order = ", ".join(map(str, axes))
    if evidence.expected.ndim == 2:
        how = (
            "the matrix is transposed" if same_shape else "the numbers of the transposed matrix are read in this shape"
        )
        return "transpose", how
    if _is_convolution(evidence):
        if axes[:2] == (0, 1) and same_shape:
            return "conv-flip", "the kernel's spatial axes are exchanged"
        return "conv-layout", f"the kernel's axes are stored in the order {order}"
    if axes[:-2] == tuple(range(len(axes) - 2)):
        return "transpose", "each matrix is transposed"
    return "axis-order", f"the axes are stored in the order {order}"


def _slice_words(evidence: Evidence, pattern: Pattern, axis: int) -> tuple[str, str]:
    """The label of a pattern, and what it says of these weights."""
    what = "rows" if axis == 0 else "columns" if axis == 1 else f"slices of axis {axis}"
    numbers = pattern.numbers
    match pattern.kind:
        case "blocks" if len(numbers) == 2:
            return "swapped-halves", f"the two halves of the {what} are exchanged"
        case "blocks":
            order = ", ".join(map(str, numbers))
            return _block_label(
                evidence, len(numbers), axis
            ), f"the {len(numbers)} blocks of {what} stand in the order {order}"
        case "interleaved" | "deinterleaved":
            heads, size = numbers
            how = (
                "interleaved instead of in halves"
                if pattern.kind == "interleaved"
                else "in halves instead of interleaved"
            )
            if heads == 1 or axis > 0:
                return "interleave", f"the {what} are {how}, in groups of {size}"
            return "rope-interleave", f"the {what} of each of {heads} heads of {size} are {how}"
        case "transposed":
            outer, inner, rest = numbers
            sentence = f"the {what} run over {outer} x {inner} blocks of {rest} in the other order"
            if 3 in (outer, inner) and axis == 0 and rest > 1:
                return "qkv-order", sentence
            return ("head-permutation" if axis == 0 else "axis-order"), sentence
        case "rolled":
            return "index-shift", f"the {what} are rolled by {numbers[0]}"
        case "runs":
            return "head-permutation", f"the {numbers[0]} blocks of {numbers[1]} {what} stand in another order"
        case "reversed":
            return "permutation", f"the {what} are in reverse order"
        case _:
            return "permutation", f"{numbers[0]} {what} are exchanged among themselves"


def _block_label(evidence: Evidence, blocks: int, axis: int) -> str:
    """Three blocks are q, k and v and four are heads, unless the weights are a recurrent cell's."""
    shape = evidence.expected.shape
    if axis == 0 and (_is_recurrent(evidence) or (blocks == 4 and len(shape) == 2 and shape[0] == 4 * shape[1])):
        return "gate-order"
    return "qkv-order" if blocks == 3 and axis == 0 else "head-permutation"


HYPOTHESES: tuple[Hypothesis, ...] = (axes_exchanged, kernel_flipped, slices_moved, rows_shifted, rows_tiled)
