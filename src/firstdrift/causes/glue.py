"""What is computed between modules: sums, products, gates and concatenations of the tensors before.

How the reference makes its tensor of these is found first. Only what then makes the candidate's, with one thing
changed, is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from ..traces import Array
from .activation_variants import FUNCTIONS, Function
from .agreement import Floats, floats, limit, rounded
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis
from .screening import positions
from .wiring import another_source

MOST_TERMS = 6
SAMPLE = 4096
DEPENDENT = 1e-5  # terms of which one is nearly a sum of the others cannot be told apart
WITH_IDENTITY: dict[str, Function] = {"identity": lambda x: x, **FUNCTIONS}
SUMS: dict[str, Callable[[Function, Floats, Floats], Floats]] = {
    "{f}({a} + {b})": lambda f, a, b: f(a + b),
    "{f}({a}) + {b}": lambda f, a, b: f(a) + b,
    "{a} + {f}({b})": lambda f, a, b: a + f(b),
    "{f}({a}) + {f}({b})": lambda f, a, b: f(a) + f(b),
}


@dataclass(frozen=True, slots=True)
class Term:
    """One of the tensors that the glue may have used, as the reference and as the candidate had it."""

    name: str
    reference: Array
    candidate: Array


@dataclass(frozen=True, slots=True)
class Glue:
    """The terms of a drift, and the same at some places."""

    evidence: Evidence
    terms: tuple[Term, ...]
    at: NDArray[np.intp]
    expected: Floats
    found: Floats
    reference: tuple[Floats, ...]
    candidate: tuple[Floats, ...]

    def near(self, a: Floats, b: Floats, slack: float = 2.0) -> bool:
        """Whether noise explains the difference of two tensors at these places."""
        size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
        return bool(float(np.linalg.norm(a - b)) <= slack * limit(self.evidence) * size)

    def whole(self, index: int) -> Floats:
        """A term of the candidate, everywhere."""
        return floats(np.broadcast_to(self.terms[index].candidate, self.evidence.expected.shape))


def glue(evidence: Evidence) -> Glue | None:
    """What a drift may have been put together from; None where nothing of the right shape is known."""
    if evidence.site.phase != "fwd" or evidence.expected.size < 4:
        return None
    shape = evidence.expected.shape
    terms = tuple(
        Term(key, value, evidence.candidate_inputs[key])
        for key, value in evidence.inputs.items()
        if key in evidence.candidate_inputs and _broadcasts(value, shape) and value.size > 1
        and evidence.candidate_inputs[key].shape == value.shape
    )[:MOST_TERMS]  # fmt: skip
    if len(terms) < 1:
        return None
    at = positions(evidence.expected.size, SAMPLE)
    where = np.unravel_index(at, shape)

    def some(array: Array) -> Floats:
        return np.asarray(np.broadcast_to(array, shape)[where], np.float64)

    made = Glue(
        evidence, terms, at, some(evidence.expected), some(evidence.found),
        tuple(some(term.reference) for term in terms), tuple(some(term.candidate) for term in terms),
    )  # fmt: skip
    every = (made.expected, made.found, *made.reference, *made.candidate)
    return made if all(np.isfinite(one).all() for one in every) else None


def sums(evidence: Evidence) -> Iterator[Finding]:
    """A term of a sum is missing, counted otherwise, or taken from elsewhere."""
    made = glue(evidence)
    weights = None if made is None else _weights(made, made.reference, made.expected)
    if made is None or weights is None:
        return
    used = np.flatnonzero(weights)
    theirs = _weights(made, made.candidate, made.found)
    if theirs is not None and (theirs != weights).any():
        yield from _other_weights(made, weights, theirs)
    for index in used if len(used) > 1 else ():
        rest = sum((weights[one] * made.candidate[one] for one in used if one != index), np.zeros(len(made.at)))
        yield from _other_source(made, weights, int(index), (made.found - rest) / weights[index])


def products(evidence: Evidence) -> Iterator[Finding]:
    """A gate on the wrong operand, with another activation, or not applied."""
    made = glue(evidence)
    if made is None or len(made.terms) < 2:
        return
    for a, b in permutations(range(len(made.terms)), 2):
        gate = next((one for one in WITH_IDENTITY if made.near(_gated(one, made.reference, a, b), made.expected)), None)
        if gate is None or (gate == "identity" and a > b):
            continue
        names = made.terms[a].name, made.terms[b].name
        reference = f"{gate}({names[0]}) * {names[1]}"
        for label, said, formula in _other_gates(gate, a, b):
            if made.near(formula(made.candidate), made.found):
                whole = [
                    made.whole(index) if index in (a, b) else made.candidate[0] for index in range(len(made.terms))
                ]
                yield Finding(
                    label, f"{said.format(*names)} instead of {reference}", formula(whole),
                    parameters={"reference": reference, "candidate": said.format(*names)},
                )  # fmt: skip
        return


def activated_sums(evidence: Evidence) -> Iterator[Finding]:
    """An activation is applied before a sum instead of after it, or the other way round."""
    made = glue(evidence)
    if made is None:
        return
    for a, b in combinations(range(len(made.terms)), 2):
        for name, function in FUNCTIONS.items():
            ours = [
                text
                for text, one in SUMS.items()
                if made.near(one(function, *_two(made.reference, a, b)), made.expected)
            ]
            if len(ours) != 1:
                continue
            words = {"f": name, "a": made.terms[a].name, "b": made.terms[b].name}
            for text, one in SUMS.items():
                if text != ours[0] and made.near(one(function, *_two(made.candidate, a, b)), made.found):
                    said = f"{text.format(**words)} instead of {ours[0].format(**words)}"
                    yield Finding("op-order", said, one(function, made.whole(a), made.whole(b)))
            return


def _two(terms: Sequence[Floats], a: int, b: int) -> tuple[Floats, Floats]:
    return terms[a], terms[b]


def _broadcasts(value: Array, shape: tuple[int, ...]) -> bool:
    padded = (1,) * (len(shape) - value.ndim) + value.shape
    return len(padded) == len(shape) and all(one in (1, size) for one, size in zip(padded, shape, strict=True))


def _weights(made: Glue, terms: Sequence[Floats], wanted: Floats) -> Floats | None:
    """The numbers with which the terms add up to a tensor: 0 for those not used; None where they do not add up."""
    matrix = np.stack(terms, axis=1)
    sizes = np.linalg.norm(matrix, axis=0)
    size = float(np.linalg.norm(wanted))
    kept = np.flatnonzero(sizes > 0)
    if size == 0.0 or not len(kept) or np.linalg.svd(matrix[:, kept] / sizes[kept], compute_uv=False)[-1] < DEPENDENT:
        return None
    weights = np.zeros(len(terms))
    weights[kept] = np.linalg.lstsq(matrix[:, kept] / sizes[kept], wanted, rcond=None)[0] / sizes[kept]
    enough = limit(made.evidence) * size
    for index in kept:
        near = round(weights[index])
        if abs(weights[index] - near) * sizes[index] <= 2 * enough:
            weights[index] = near
        else:
            weights[index] = rounded(float(weights[index]), enough / sizes[index] / abs(weights[index]))
    return weights if made.near(matrix @ weights, wanted) else None


def _other_weights(made: Glue, ours: Floats, theirs: Floats) -> Iterator[Finding]:
    changed = np.flatnonzero(ours != theirs)
    predicted = sum((theirs[one] * made.whole(one) for one in np.flatnonzero(theirs).tolist()), np.zeros(()))
    predicted = np.broadcast_to(predicted, made.evidence.expected.shape)
    names = [made.terms[one].name for one in changed]
    parameters = {"weights": dict(zip(names, theirs[changed].tolist(), strict=True)),
                  "reference_weights": dict(zip(names, ours[changed].tolist(), strict=True))}  # fmt: skip
    used = np.flatnonzero(ours)
    lost = [int(one) for one in changed if ours[one] and not theirs[one]]
    gained = [int(one) for one in changed if theirs[one] and not ours[one]]
    if len(used) > 1 and len(changed) == 1 and lost:
        label = "missing-residual" if _is_skip(made, lost[0], used) else "missing-term"
        yield Finding(label, f"{names[0]} is not added", predicted, 0, parameters)
    elif len(used) > 1 and len(changed) == 2 and len(lost) == len(gained) == 1 and ours[lost[0]] == theirs[gained[0]]:
        said = f"{made.terms[gained[0]].name} is added instead of {made.terms[lost[0]].name}"
        yield Finding("residual-source", said, predicted, 0, parameters)
    elif len(changed) == 2 and not lost and not gained and (ours[changed] == theirs[changed[::-1]]).all():
        yield Finding("swapped-operands", f"{names[0]} and {names[1]} are exchanged", predicted, 0, parameters)
    elif len(used) > 1 and not lost and not gained and len(changed) < len(used):
        if len(set(ours[used])) == 1 and (theirs[changed] == 1).all():
            said = f"the factor {ours[used[0]]:.6g} is not applied to {' and '.join(names)}, as if before the sum"
            yield Finding("op-order", said, predicted, 0, parameters)
        else:
            said = ", ".join(f"{name} counts {theirs[one]:.6g} times instead of {ours[one]:.6g}"
                             for name, one in zip(names, changed, strict=True))  # fmt: skip
            yield Finding("scale", said, predicted, len(changed), parameters)


def _is_skip(made: Glue, index: int, used: NDArray[np.intp]) -> bool:
    """Whether a term is what goes around the others: the earliest, where none of them looks up an embedding."""
    sites = list(made.evidence.around.sites("fwd"))
    rank = {site.name: place for place, site in reversed(list(enumerate(sites)))}
    ops = {site.name: made.evidence.around.op(site) for site in sites}
    names = [made.terms[one].name for one in used]
    if any("embedding" in ops.get(name, "").lower() for name in names if name != made.terms[index].name):
        return False
    known = all(name in rank for name in names)
    first = min(names, key=lambda name: rank[name]) if known else names[0]
    return bool(first == made.terms[index].name)


def _other_source(made: Glue, weights: Floats, index: int, wanted: Floats) -> Iterator[Finding]:
    """The term is another tensor of the run."""
    if made.near(wanted, made.candidate[index], 4.0):
        return
    for site, value in another_source(made.evidence, wanted, made.at):
        if site.name == made.terms[index].name:
            continue
        predicted = weights[index] * floats(value)
        for one in np.flatnonzero(weights):
            if one != index:
                predicted = predicted + weights[one] * made.whole(int(one))
        yield Finding(
            "residual-source", f"{site.name or 'the model'} ({site.port}) is added instead of {made.terms[index].name}",
            predicted, 0, {"site": list(site), "reference_term": made.terms[index].name},
        )  # fmt: skip
        return


def _gated(name: str, terms: Sequence[Floats], a: int, b: int) -> Floats:
    return np.asarray(WITH_IDENTITY[name](terms[a]) * terms[b])


def _other_gates(gate: str, a: int, b: int) -> Iterator[tuple[str, str, Callable[[Sequence[Floats]], Floats]]]:
    """What else could have been computed of a gate and what it gates: a label, the words and the formula."""
    if gate != "identity":
        yield "swapped-operands", f"{gate}({{1}}) * {{0}}", lambda terms: _gated(gate, terms, b, a)
        yield "skipped-op", "{0} * {1}", lambda terms: terms[a] * terms[b]
    for other in FUNCTIONS:
        if other != gate:
            yield "activation-variant", f"{other}({{0}}) * {{1}}", partial(_gated, other, a=a, b=b)
    yield "skipped-op", f"{gate}({{0}})", lambda terms: WITH_IDENTITY[gate](terms[a])
    yield "skipped-op", "{1}", lambda terms: terms[b]


HYPOTHESES: tuple[Hypothesis, ...] = (sums, products, activated_sums)
