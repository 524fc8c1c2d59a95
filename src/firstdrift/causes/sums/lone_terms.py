"""The difference itself is a recorded tensor: a term of a sum of which the rest need not be understood."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..agreement import Floats, floats, rounded
from ..evidence import Evidence
from ..hypotheses import DOMINANT, MARGIN, Finding, Hypothesis
from .branches import goes_around
from .differences import Difference, Recorded, difference_of, earlier, inputs, parameters, unchanged
from .mixtures import COMMON_GATES, GATES

FEW = 16  # channels, and places along every other axis, on which factors are tried
PER_CHANNEL = 8  # elements from which one factor is read off


def lone_term(evidence: Evidence) -> Iterator[Finding]:
    """A term is not added, added once more, or counts otherwise."""
    difference = difference_of(evidence)
    if difference is None:
        return
    found = _lone(difference, list(inputs(difference)))
    if found is None or abs(found[1]) != 1:
        found = _lone(difference, list(earlier(difference)), lost=True) or found
    if found is None:
        return
    term, weight = found
    predicted, told = difference.predicted(weight * floats(term.value)), {"term": term.name, "weight": weight}
    if weight == -1:
        label, said = _lost(difference, term)
        yield Finding(label, said, predicted, 0 if term.is_input else 1, told)
    elif weight == 1:
        yield Finding("missing-term", f"{term.name} is added once more than in the reference", predicted, 1, told)
    elif (base := unchanged(difference, term)) is not None:
        said = f"{term.name}, which counts {-weight:.6g} in the reference, is not added: found is {base} unchanged"
        yield Finding("missing-term", said, predicted, 1, {**told, "base": base})
    else:
        said = f"{term.name} counts {abs(weight):.6g} {'more' if weight > 0 else 'less'} than in the reference"
        yield Finding("scale", said, predicted, 1, told)


def gated_term(evidence: Evidence) -> Iterator[Finding]:
    """A term that a gate or a gain scales is not added, or is added without it."""
    difference = difference_of(evidence)
    if difference is None:
        return
    terms = list(inputs(difference))
    gates = [(one, name, GATES[name](one.some)) for one in (*terms, *parameters(difference)) for name in COMMON_GATES]
    for term in (one for one in terms if one.value.size == evidence.expected.size):
        for gate, name, factor in gates:
            if gate.name != term.name:
                scaled = factor * term.some
                words = gate.name if name == "identity" else f"{name}({gate.name})"
                told = {"term": term.name, "gate": words}
                if difference.leaves(-scaled) <= difference.enough:
                    predicted = difference.predicted(-GATES[name](floats(gate.value)) * floats(term.value))
                    yield Finding("missing-term", f"{words} * {term.name} is not added", predicted, 0, told)
                    return
                if difference.leaves(term.some - scaled) <= difference.enough:
                    predicted = difference.predicted((1 - GATES[name](floats(gate.value))) * floats(term.value))
                    said = f"{term.name} is added without its factor {words}"
                    yield Finding("skipped-op", said, predicted, 0, told)
                    return


def channel_gain(evidence: Evidence) -> Iterator[Finding]:
    """One term of a sum is scaled otherwise in each channel."""
    difference, shape = difference_of(evidence), evidence.expected.shape
    if difference is None or len(shape) < 2:
        return
    wanted = floats(evidence.found) - floats(evidence.expected)
    for term in (one for one in inputs(difference) if one.value.shape == shape):
        for axis in dict.fromkeys((len(shape) - 1, 1)):
            if wanted.size < PER_CHANNEL * shape[axis] or shape[axis] < 2:
                continue
            few = tuple(slice(FEW) if one == axis else slice(None, None, -(-n // FEW)) for one, n in enumerate(shape))
            if _gains(wanted[few], floats(term.value[few]), axis) is None:
                continue
            gains = _gains(wanted, floats(term.value), axis)
            if gains is not None and np.ptp(gains) > DOMINANT * float(np.abs(gains).max()):
                said = f"{term.name}, one term of a sum, has another factor in each channel along axis {axis}"
                predicted = difference.predicted(gains * floats(term.value))
                yield Finding("channel-scale", said, predicted, shape[axis], {"term": term.name, "axis": axis})
                return


def other_term(evidence: Evidence) -> Iterator[Finding]:
    """A sum takes one tensor of the run in the place of another."""
    difference = difference_of(evidence)
    if difference is None:
        return
    terms = [one for one in (*inputs(difference), *earlier(difference)) if one.value.shape == evidence.expected.shape]
    if len(terms) < 2 or _lone(difference, terms) is not None:
        return
    table = np.stack([one.some for one in terms])
    best: tuple[float, Recorded, Recorded] | None = None
    for lost in terms:
        left = np.linalg.norm(table - (difference.wanted + lost.some), axis=1)
        index = int(np.argmin(left))
        gained = terms[index]
        if left[index] > difference.enough or difference.like(gained.some, difference.found):
            continue
        if best is None or MARGIN * left[index] < best[0]:
            best = float(left[index]), lost, gained
    if best is not None:
        _, lost, gained = best
        yield Finding(
            "residual-source", f"{gained.name} is added instead of {lost.name}",
            difference.predicted(floats(gained.value) - floats(lost.value)), 1,
            {"term": gained.name, "reference_term": lost.name},
        )  # fmt: skip


def _gains(wanted: Floats, value: Floats, axis: int) -> Floats | None:
    """The factor of each channel that makes one tensor of another; None where they do not."""
    rest = tuple(one for one in range(wanted.ndim) if one != axis)
    with np.errstate(all="ignore"):
        gains = np.nan_to_num((wanted * value).sum(rest, keepdims=True) / (value * value).sum(rest, keepdims=True))
    left = float(np.linalg.norm(wanted - gains * value))
    return np.asarray(gains) if left <= DOMINANT * float(np.linalg.norm(wanted)) else None


def _lone(difference: Difference, terms: list[Recorded], lost: bool = False) -> tuple[Recorded, float] | None:
    """The tensor of which the difference is a multiple, and the factor: once before a fitted one."""
    found: list[tuple[bool, float, int]] = []
    weights: list[float] = []
    for number, term in enumerate(terms):
        square = float(term.some @ term.some)
        weight = float(term.some @ difference.wanted) / square if square > 0 else 0.0
        slack = 2 * difference.enough / square**0.5 if square > 0 else 0.0
        near = float(round(weight))
        if near and abs(weight - near) <= slack and difference.leaves(near * term.some) <= difference.enough:
            weight = near
        elif weight:
            weight = rounded(weight, difference.leaves(weight * term.some) / square**0.5 / abs(weight))
        weights.append(weight)
        left = difference.leaves(weight * term.some)
        if weight and left <= difference.enough and (not lost or weight == -1):
            found.append((abs(weight) != 1, left, number))
    if not found:
        return None
    whole, least, _ = min(found)
    number = next(one for fitted, left, one in found if fitted == whole and left <= MARGIN * least)
    return terms[number], weights[number]


def _lost(difference: Difference, term: Recorded) -> tuple[str, str]:
    """What to call a term that is not added: a skip goes around what else is added."""
    evidence, said = difference.evidence, f"{term.name} is not added"
    if not term.is_input or term.value.size != evidence.expected.size or term.name not in evidence.inputs:
        return "missing-term", said
    own = evidence.inputs[term.name]
    kept = [
        key
        for key, value in evidence.inputs.items()
        if value.shape == own.shape and key != term.name and not np.array_equal(value, own)
    ]
    if not goes_around(evidence, [term.name], kept):
        return "missing-term", said
    first = [one for one in kept if goes_around(evidence, [one], [term.name])]
    if first:
        return "residual-source", f"the sum goes on from {first[0]}, to which {term.name} has not been added"
    return "missing-residual", said


HYPOTHESES: tuple[Hypothesis, ...] = (lone_term, gated_term, channel_gain, other_term)
