"""Tensors packed into one: concatenations in another order, and gates whose two halves lie in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations, product

import numpy as np

from ..traces import Array
from .activation_variants import FUNCTIONS
from .agreement import Floats, distance, floats, limit
from .attention.roles import role
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis
from .screening import positions, sampled

MOST_PARTS = 4
TRIED = 1024  # elements by which a part is recognised
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


HYPOTHESES: tuple[Hypothesis, ...] = (concatenated, packed_gate)
