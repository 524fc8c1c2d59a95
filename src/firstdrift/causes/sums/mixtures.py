"""How a tensor is made of the terms before it: a sum of them with weights, and of products of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from ..activations.activation_variants import FUNCTIONS, Function
from ..agreement import Floats, limit, rounded
from ..hypotheses import MARGIN
from .terms import Glue

DEPENDENT = 1e-5  # terms of which one is nearly a sum of the others cannot be told apart
FEW_TERMS = 3
TRIED = 512  # elements on which a mixture is tried
GATES: dict[str, Function] = {"identity": lambda x: x, **FUNCTIONS}
COMMON_GATES = ("identity", "sigmoid", "tanh", "softplus")


@dataclass(frozen=True, slots=True)
class Part:
    """One summand: a term, or a function of one term times another. `terms` are their numbers."""

    words: str
    terms: tuple[int, ...]
    formula: Callable[[Sequence[Floats]], Floats]
    gate: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it is a term as it is."""
        return not self.gate


@dataclass(frozen=True, slots=True)
class Mixture:
    """The summands of a tensor, each with a weight that is not zero."""

    parts: tuple[Part, ...]
    weights: tuple[float, ...]

    def of(self, terms: Sequence[Floats]) -> Floats:
        """The sum, of these terms."""
        total: Floats = np.zeros(())
        for part, weight in zip(self.parts, self.weights, strict=True):
            total = total + weight * part.formula(terms)
        return np.asarray(total)

    def without(self, index: int) -> Mixture:
        """All summands but one."""
        return Mixture(self.parts[:index] + self.parts[index + 1 :], self.weights[:index] + self.weights[index + 1 :])

    def replacing(self, index: int, part: Part) -> Mixture:
        """Another summand in the place of one."""
        return Mixture((*self.parts[:index], part, *self.parts[index + 1 :]), self.weights)


def plain(made: Glue, index: int) -> Part:
    """A term as a summand."""
    return Part(made.terms[index].name, (index,), lambda terms: terms[index])


def gated(made: Glue, gate: str, a: int, b: int) -> Part:
    """A function of one term, times another."""
    first = made.terms[a].name if gate == "identity" else f"{gate}({made.terms[a].name})"
    return Part(f"{first} * {made.terms[b].name}", (a, b), lambda terms: GATES[gate](terms[a]) * terms[b], gate)


def mixture(made: Glue) -> Mixture | None:
    """The fewest summands that make the reference's tensor of its terms; None where none do."""
    for parts in _sums(made):
        plainly = fitted(made, parts, made.reference, made.expected)
        if plainly is not None:
            return plainly
    gated = (fitted(made, parts, made.reference, made.expected) for parts in _gated_sums(made))
    found = [one for one in gated if one is not None]
    simple = min(((len(one.parts), _fitted_weights(one)) for one in found), default=None)
    best = [(_missed(made, one), one) for one in found if (len(one.parts), _fitted_weights(one)) == simple]
    least = min((missed for missed, _ in best), default=0.0)
    return next((one for missed, one in best if missed <= MARGIN * least), None)  # the simplest gates come first


def _fitted_weights(one: Mixture) -> int:
    """How many weights are numbers of their own: whole numbers stand for counts."""
    return sum(weight != round(weight) for weight in one.weights)


def _missed(made: Glue, one: Mixture) -> float:
    return float(np.linalg.norm(one.of(made.reference) - made.expected))


def fitted(made: Glue, parts: Sequence[Part], terms: Sequence[Floats], wanted: Floats) -> Mixture | None:
    """The weights with which summands add up to a tensor; None where they do not add up, or are not told apart."""
    if not parts:
        return None
    step = max(1, len(wanted) // TRIED)
    some = np.stack([part.formula([one[::step] for one in terms]) for part in parts], axis=1)
    if _weights(made, some, wanted[::step], 4.0) is None:
        return None
    weights = _weights(made, np.stack([part.formula(terms) for part in parts], axis=1), wanted, 2.0)
    if weights is None or not weights.any():
        return None
    used = np.flatnonzero(weights).tolist()
    return Mixture(tuple(parts[one] for one in used), tuple(float(weights[one]) for one in used))


def independent(made: Glue, parts: Sequence[Part], terms: Sequence[Floats]) -> list[Part]:
    """The summands that are no sum of those before them."""
    kept: list[Part] = []
    basis: list[Floats] = []
    for part in parts:
        column = part.formula(terms)
        size = float(np.linalg.norm(column))
        rest = column
        for one in basis:
            rest = rest - float(one @ rest) * one
        left = float(np.linalg.norm(rest))
        if size > 0 and left > DEPENDENT * size:
            kept.append(part)
            basis.append(rest / left)
    return kept


def _sums(made: Glue) -> Iterator[list[Part]]:
    every = [plain(made, index) for index in range(len(made.terms))]
    for count in range(1, FEW_TERMS + 1):
        yield from (list(chosen) for chosen in combinations(every, count))
    rest = independent(made, every, made.reference)
    if len(rest) > FEW_TERMS:
        yield rest


def _gated_sums(made: Glue) -> Iterator[list[Part]]:
    """One product among the terms, or one gate of all of them."""
    every = [plain(made, index) for index in range(len(made.terms))]
    full = [index for index in range(len(every)) if not made.terms[index].is_parameter]
    for gate in GATES:
        for a, b in permutations(range(len(every)), 2):
            if b in full and (a in full or gate in COMMON_GATES) and not (gate == "identity" and a > b and a in full):
                yield independent(made, [gated(made, gate, a, b), *every], made.reference)
    for gate in COMMON_GATES:
        for a in range(len(every)):
            products = [gated(made, gate, a, b) for b in full if b != a]
            yield independent(made, [*products, *every], made.reference)


def _weights(made: Glue, matrix: Floats, wanted: Floats, slack: float) -> Floats | None:
    sizes = np.linalg.norm(matrix, axis=0)
    size = float(np.linalg.norm(wanted))
    if size == 0.0 or not (sizes > 0).all() or not np.isfinite(sizes).all():
        return None
    scaled = matrix / sizes
    weights, _, _, singular = np.linalg.lstsq(scaled, wanted, rcond=None)
    if singular[-1] < DEPENDENT or not made.near(scaled @ weights, wanted, slack):
        return None
    weights, enough = weights / sizes, limit(made.evidence) * size
    for index, value in enumerate(weights):
        near = round(value)
        if abs(value - near) * sizes[index] <= 2 * enough:
            weights[index] = near
        else:
            weights[index] = rounded(float(value), enough / sizes[index] / abs(value))
    return np.asarray(weights) if made.near(matrix @ weights, wanted, slack) else None
