"""Numbers in the wrong place: slices or axes in another order, shifted, or the same numbers anyhow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import floats, limit
from .hypotheses import Finding, Hypothesis
from .orders import SHIFTS, Pattern, Slices, every_axis, pattern_of
from .regions import heads_of
from .screening import LARGE, positions, sampled

FEWEST = 8  # numbers that make "the same ones in another order" a statement
TOLD = 64  # slices whose source is told
RECURRENT = ("rnn", "gru", "lstm")
GATES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def slices_moved(evidence: Evidence) -> Iterator[Finding]:
    """found is expected with the slices of an axis in another order: halves, heads, q, k and v, gates, packing."""
    for one in every_axis(evidence):
        if one.axis >= 2 and is_convolution(evidence):
            continue
        pattern = pattern_of(one)
        if pattern is not None:
            label, sentence, parameters = _told(evidence, one, pattern)
            predicted = np.take(evidence.expected, pattern.order, axis=one.axis)
            yield Finding(label, sentence, predicted, pattern.free, parameters)


def index_shift(evidence: Evidence) -> Iterator[Finding]:
    """found is expected shifted along an axis by a few places."""
    for one in every_axis(evidence):
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
            said = f"along axis {one.axis} everything is shifted by {shift:+d} ({fill})"
            yield Finding("index-shift", said, predicted, 1, {"axis": one.axis, "shift": shift, "fill": fill})


def reordered(evidence: Evidence) -> Iterator[Finding]:
    """The same numbers in another order, whatever the order is."""
    a, b = floats(evidence.expected), floats(evidence.found)
    if a.size < FEWEST or (a.size > LARGE and evidence.site.phase != "weight") or limit(evidence) > 1e-5:
        return  # two samples of one distribution sort alike
    size, slack = float(np.linalg.norm(a)), limit(evidence) * float(np.abs(a).sum())
    if not (size > 0 and np.isfinite(size)) or abs(float(a.sum() - b.sum())) > slack:
        return  # sorting is dear
    x, y = np.sort(a, axis=None), np.sort(b, axis=None)
    if len(np.unique(x)) * 2 > x.size:
        left = float(np.linalg.norm(x - y)) / size
        yield Finding("permutation", "found has the same numbers in another order", None, a.size - 1, {}, left)


def _told(evidence: Evidence, one: Slices, pattern: Pattern) -> tuple[str, str, dict[str, object]]:
    """The label, the sentence and the parameters of an order."""
    where, numbers = f"along axis {one.axis}", pattern.numbers
    parameters: dict[str, object] = {"axis": one.axis, "pattern": pattern.kind, "numbers": list(numbers)}
    match pattern.kind:
        case "blocks":
            size, order = one.count // len(numbers), ", ".join(map(str, numbers))
            if len(numbers) == 2:
                return "swapped-halves", f"{where} the two halves are exchanged", parameters
            said = f"{where} {len(numbers)} blocks of {size} are in the order {order}"
            return _label_of_blocks(evidence, one, len(numbers)), said, parameters
        case "interleaved" | "deinterleaved" | "halves":
            return _told_of_halves(evidence, one, pattern), _halves(where, pattern), parameters
        case "transposed":
            outer, inner, rest = numbers
            if _repeats(one, outer, inner):
                said = f"{where} {outer} parts are tiled {inner} times instead of each repeated"
                return "gqa-order", said, {"kv_heads": outer, "repeats": inner}
            said = f"{where} a grid of {outer} x {inner} blocks of {rest} is read by columns"
            return _label_of_grid(evidence, one, numbers), said, parameters
        case "rolled":
            return "index-shift", f"{where} everything is rotated by {numbers[0]:+d}", parameters
        case "reversed":
            return "permutation", f"{where} the order is reversed", parameters
    moved = np.flatnonzero(pattern.order != np.arange(one.count))
    parameters["mapping"] = [[int(to), int(pattern.order[to])] for to in moved[:TOLD]]
    if pattern.kind == "runs":
        said = f"{where} {numbers[0]} blocks of {numbers[1]} are in another order"
        return _label_of_blocks(evidence, one, numbers[0]), said, parameters
    if len(np.unique(pattern.order)) < one.count:
        more = ", and more" if len(moved) > 1 else ""
        return "permutation", f"{where} slice {moved[0]} is taken from {pattern.order[moved[0]]}{more}", parameters
    label = "permutation" if _is_weight(evidence) else _label_of_blocks(evidence, one, one.count)
    return label, f"{where} {len(moved)} slices are permuted", parameters


def _halves(where: str, pattern: Pattern) -> str:
    groups, size = pattern.numbers
    inside = f"of every block of {size} " if groups > 1 else ""
    how = {"interleaved": "interleaved", "deinterleaved": "taken from even and odd places", "halves": "exchanged"}
    return f"{where} the halves {inside}are {how[pattern.kind]}"


def _told_of_halves(evidence: Evidence, one: Slices, pattern: Pattern) -> str:
    if pattern.kind == "halves":
        return "swapped-halves"
    is_of_heads = _is_weight(evidence) and one.axis == 0 and pattern.numbers[0] > 1
    return "rope-interleave" if is_of_heads else "interleave"


def _label_of_grid(evidence: Evidence, one: Slices, numbers: tuple[int, ...]) -> str:
    if not _is_weight(evidence):
        return _label_of_blocks(evidence, one, one.count // numbers[2])
    if one.axis:
        return "axis-order"
    return "qkv-order" if 3 in numbers[:2] and numbers[2] > 1 else "head-permutation"


def _label_of_blocks(evidence: Evidence, one: Slices, blocks: int) -> str:
    """Whether the blocks are gates, queries, keys and values, or heads."""
    shape, op = evidence.expected.shape, evidence.op.lower()
    is_recurrent = any(name in op for name in RECURRENT) or evidence.site.port.startswith(GATES)
    if _is_weight(evidence):
        is_cell = blocks == 4 and len(shape) == 2 and shape[0] == 4 * shape[1]
        if one.axis == 0 and (is_recurrent or is_cell):
            return "gate-order"
        return "qkv-order" if blocks == 3 and one.axis == 0 else "head-permutation"
    if blocks == 3 and one.axis == len(shape) - 1 and not is_recurrent:
        x = evidence.inputs.get("in.0")
        if x is not None and x.ndim and 3 * x.shape[-1] == one.count:
            return "qkv-order"
    heads = heads_of(evidence)
    is_merged = one.axis == len(shape) - 1 and blocks == heads
    return "head-permutation" if heads and (is_merged or (len(shape) == 4 and one.count == heads)) else "permutation"


def _is_weight(evidence: Evidence) -> bool:
    return evidence.site.phase == "weight"


def _repeats(one: Slices, outer: int, inner: int) -> bool:
    """Whether what was expected repeats each of its parts so many times."""
    parts = one.expected.reshape(outer, inner, -1)
    return float(np.linalg.norm(parts - parts[:, :1])) <= one.slack


def _unlike(one: Slices) -> bool:
    """Whether neighbouring slices differ, so that a shift can be seen at all."""
    steps = np.linalg.norm(np.diff(one.expected, axis=0), axis=1)
    return bool((steps > 2 * one.tolerance).mean() > 0.5)


def _fill(evidence: Evidence, wrapped: Array, edge: Array) -> str:
    if not np.any(edge):
        return "filled with zeros"
    error = float(np.linalg.norm(floats(edge) - floats(wrapped)))
    return "wrapped round" if error <= 2 * limit(evidence) * float(np.linalg.norm(wrapped)) else "filled otherwise"


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
            label, sentence = _axes_told(evidence, split, axes)
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


def _axes_told(evidence: Evidence, split: Shape, axes: Shape) -> tuple[str, str]:
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


HYPOTHESES: tuple[Hypothesis, ...] = (axis_order, slices_moved, index_shift, reordered)
