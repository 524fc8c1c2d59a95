"""Tensors packed into one: concatenations in another order, and gates whose two halves lie in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from ...traces import Array
from ..activations.activation_variants import FUNCTIONS
from ..agreement import Floats, distance, floats, limit
from ..attention.roles import role
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..screening import positions, sampled
from ..slices import slices

MOST_PARTS = 4
TRIED = 1024  # elements by which a part is recognised
FEWEST = 16  # elements that a part is recognised by
ROWS = 64  # rows by which a gate is recognised
GATES: dict[str, Callable[[Floats], Floats]] = {"identity": lambda x: x, **FUNCTIONS}
SPLITS = ("halves", "even and odd places")


def concatenated(evidence: Evidence) -> Iterator[Finding]:
    """expected is a concatenation of what came before, and found the same parts in another order."""
    shape = evidence.expected.shape
    parts = {key: value for key, value in evidence.inputs.items() if value.ndim == len(shape)}
    if (
        evidence.site.phase != "fwd"
        or not 2 <= len(parts) <= MOST_PARTS
        or not parts.keys() <= evidence.candidate_inputs.keys()
    ):
        return
    for axis in range(len(shape)):
        if any(_without(value.shape, axis) != _without(shape, axis) for value in parts.values()):
            continue
        if sum(value.shape[axis] for value in parts.values()) != shape[axis]:
            continue
        orders = [
            order
            for order in permutations(parts)
            if _made_of(evidence, evidence.expected, evidence.inputs, order, axis)
        ]
        if len(orders) != 1:
            continue
        for order in permutations(parts):
            if order != orders[0] and _made_of(evidence, evidence.found, evidence.candidate_inputs, order, axis):
                roles = {role(name) for name in parts}
                label = "qkv-order" if roles == {"q", "k", "v"} else "concat-order"
                said = f"the order is {', '.join(order)} instead of {', '.join(orders[0])}"
                predicted = np.concatenate([evidence.candidate_inputs[name] for name in order], axis)
                yield Finding(label, said, predicted, 0, {"order": list(order), "reference_order": list(orders[0])})


def partly_known(evidence: Evidence) -> Iterator[Finding]:
    """expected holds tensors that came before, as they are or activated, and found the same parts in another order."""
    shape = evidence.expected.shape
    for axis in range(len(shape)) if evidence.site.phase == "fwd" and evidence.expected.size >= FEWEST else ():
        parts = _segments(_known(evidence, axis), shape[axis])
        if not 2 <= len(parts) <= MOST_PARTS or _holds_again(evidence, parts, axis):
            continue
        pieces = [np.take(evidence.expected, range(one.start, one.stop), axis) for one in parts]
        for order in permutations(range(len(parts))):
            predicted = np.concatenate([pieces[one] for one in order], axis)
            if order == tuple(sorted(order)) or distance(predicted, evidence.found) > limit(evidence):
                continue
            if distance(evidence.expected, evidence.found) <= 2 * limit(evidence):
                return
            names = [one.name for one in parts]
            label = "qkv-order" if {role(name) for name in names} == {"q", "k", "v"} else "concat-order"
            ours, theirs = names, [names[one] for one in order]
            said = f"along axis {axis} the order is {', '.join(theirs)} instead of {', '.join(ours)}"
            yield Finding(label, said, predicted, 0, {"order": theirs, "reference_order": ours})
            return


def packed_gate(evidence: Evidence) -> Iterator[Finding]:
    """expected is act(one half) * the other half of its input; found takes the halves otherwise."""
    shape = evidence.expected.shape
    for key, value in evidence.inputs.items():
        other = evidence.candidate_inputs.get(key)
        if evidence.site.phase != "fwd" or other is None or not shape or other.shape != (*shape[:-1], 2 * shape[-1]):
            continue
        x, y = _rows(value), _rows(other)
        e, f = _rows(evidence.expected), _rows(evidence.found)
        ways = list(product(SPLITS, (0, 1), GATES))
        ours = [way for way in ways if distance(_gate(x, *way), e) <= limit(evidence)]
        if not ours or any(way[0] != ours[0][0] for way in ours):
            continue
        for way in ways:
            if _one_apart(way, ours[0]) and way not in ours and distance(_gate(y, *way), f) <= 2 * limit(evidence):
                yield Finding(
                    _label(way, ours[0]), f"found is {_words(way)}, expected {_words(ours[0])}",
                    _gate(floats(other), *way), 0, {"candidate": list(way), "reference": list(ours[0])},
                )  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class _Segment:
    """A part of an axis, and the tensor that it holds."""

    start: int
    stop: int
    name: str
    known: bool = False


def _known(evidence: Evidence, axis: int) -> Iterator[_Segment]:
    """The parts of an axis that hold a tensor from before."""
    shape = evidence.expected.shape
    for key, value in evidence.inputs.items():
        if value.ndim != len(shape) or _without(value.shape, axis) != _without(shape, axis):
            continue
        if value.dtype.kind != "f" or not 0 < value.shape[axis] < shape[axis]:
            continue
        for name, function in GATES.items():
            start = _place(evidence, floats(function(floats(value))), axis)
            if start is not None:
                named = key if name == "identity" else f"{name}({key})"
                yield _Segment(start, start + value.shape[axis], named, True)
                break


def _place(evidence: Evidence, part: Floats, axis: int) -> int | None:
    """Where along an axis a part begins; None where it is nowhere, or has nothing to be recognised by."""
    whole = np.moveaxis(floats(evidence.expected), axis, 0).reshape(evidence.expected.shape[axis], -1)
    wanted = np.moveaxis(part, axis, 0).reshape(part.shape[axis], -1)
    if wanted.size < FEWEST or len(np.unique(wanted)) < FEWEST // 2:
        return None
    room = len(whole) - len(wanted) + 1
    seen = slice(None, ROWS)
    errors = np.linalg.norm(whole[:room, seen] - wanted[0, seen], axis=1)
    for start in np.argsort(errors, kind="stable")[:2].tolist():
        if distance(whole[start : start + len(wanted)], wanted) <= limit(evidence):
            return int(start)
    return None


def _holds_again(evidence: Evidence, parts: list[_Segment], axis: int) -> bool:
    """Whether what lies around a known tensor is made of it too: heads that are repeated, and no concatenation."""
    one = slices(evidence, axis)
    if one is None:
        return True
    known = np.concatenate([one.expected[part.start : part.stop] for part in parts if part.known])
    rest = [one.expected[part.start : part.stop] for part in parts if not part.known]
    if not rest:
        return False
    near = [float(np.linalg.norm(known - row, axis=1).min()) for row in np.concatenate(rest)[:ROWS]]
    return max(near) <= one.tolerance


def _segments(known: Iterator[_Segment], size: int) -> list[_Segment]:
    """Known parts that do not overlap, and what lies between them; none where nothing is known."""
    parts: list[_Segment] = []
    for one in sorted(known):
        start = parts[-1].stop if parts else 0
        if one.start < start:
            continue
        if one.start > start:
            parts.append(_Segment(start, one.start, f"[{start}:{one.start}]"))
        parts.append(one)
    if parts and parts[-1].stop < size:
        parts.append(_Segment(parts[-1].stop, size, f"[{parts[-1].stop}:{size}]"))
    return parts


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _made_of(evidence: Evidence, whole: Array, parts: Mapping[str, Array], order: tuple[str, ...], axis: int) -> bool:
    """Whether the parts in this order make the whole, as far as some elements of each tell."""
    start = 0
    for name in order:
        part = parts[name]
        at = positions(part.size, TRIED)
        where = list(np.unravel_index(at, part.shape))
        where[axis] = where[axis] + start
        if distance(np.asarray(whole[tuple(where)], np.float64), sampled(part, at)) > 2 * limit(evidence):
            return False
        start += part.shape[axis]
    return True


def _rows(array: Array) -> Floats:
    return floats(array.reshape(-1, array.shape[-1])[:ROWS])


def _gate(x: Floats, split: str, first: int, name: str) -> Floats:
    half = x.shape[-1] // 2
    parts = (x[..., :half], x[..., half:]) if split == SPLITS[0] else (x[..., ::2], x[..., 1::2])
    return np.asarray(GATES[name](parts[first]) * parts[1 - first])


def _words(way: tuple[str, int, str]) -> str:
    split, first, name = way
    ordinal = ("first", "second")
    return f"{name} of the {ordinal[first]} times the {ordinal[1 - first]} of its {split}"


def _one_apart(way: tuple[str, int, str], ours: tuple[str, int, str]) -> bool:
    return sum(a != b for a, b in zip(way, ours, strict=True)) == 1


def _label(way: tuple[str, int, str], ours: tuple[str, int, str]) -> str:
    if way[2] != ours[2]:
        return "activation-variant"
    return "swapped-halves" if way[0] == ours[0] else "interleave"


HYPOTHESES: tuple[Hypothesis, ...] = (concatenated, partly_known, packed_gate)
