"""Activations of sums and of products: where they are applied, what they are applied to, and of how many terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product

import numpy as np

from ..agreement import Floats, distance, limit
from ..evidence import Evidence
from ..hypotheses import MARGIN, Finding, Hypothesis
from ..sums.branches import goes_around
from ..sums.mixtures import GATES
from ..sums.terms import Glue, glue
from .activation_variants import FUNCTIONS, Function

PER_TERM = 8  # places at which a sum must show to tell its terms
PAIRED = ("sigmoid", "tanh", "softplus", "silu", "relu")  # activations of both factors of a product

SUMS: dict[str, Callable[[Function, Floats, Floats], Floats]] = {
    "{f}({a} + {b})": lambda f, a, b: f(a + b),
    "{f}({a}) + {b}": lambda f, a, b: f(a) + b,
    "{a} + {f}({b})": lambda f, a, b: a + f(b),
    "{f}({a}) + {f}({b})": lambda f, a, b: f(a) + f(b),
}


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


def missing_summand(evidence: Evidence) -> Iterator[Finding]:
    """expected is an activation of a sum, and found of the same sum with a term missing."""
    made = glue(evidence)
    for name, function in FUNCTIONS.items() if made is not None and len(made.terms) > 1 else ():
        assert made is not None
        terms = _summed(made, name)
        for lost in terms:
            kept = [one for one in terms if one != lost]
            if not made.near(function(_sum(made.candidate, kept)), made.found):
                continue
            word, others = made.terms[lost].name, [made.terms[one].name for one in kept if made.is_full(one)]
            skip = made.is_full(lost) and goes_around(evidence, [word], others)
            whole = function(np.asarray(sum(made.whole(one) for one in kept)))
            yield Finding(
                "missing-residual" if skip else "missing-term", f"{word} is not added", whole, 0, {"term": word}
            )
        if terms:
            return


def activated_product(evidence: Evidence) -> Iterator[Finding]:
    """expected is an activation of one term times an activation of another; found has one thing about it changed."""
    made = glue(evidence)
    ours = None if made is None else _factors(made)
    if made is None or ours is None:
        return
    one, other = made.terms[ours[1]], made.terms[ours[3]]
    ways = [("swapped-halves" if one.whole and one.whole == other.whole else "swapped-operands", _exchanged(ours))]
    for name in GATES:
        label = "skipped-op" if name == "identity" else "activation-variant"
        ways += [(label, (name, *ours[1:])), (label, (*ours[:2], name, ours[3]))]
    tried = [(distance(_product(made.candidate, way), made.found), n) for n, (_, way) in enumerate(ways) if way != ours]
    left, number = min(tried)
    label, way = ways[number]
    if left <= 2 * limit(evidence) and MARGIN * left < distance(_product(made.candidate, ours), made.found):
        said = f"found is {_words(made, way)} instead of {_words(made, ours)}"
        terms = [made.whole(index) for index in range(len(made.terms))]
        yield Finding(label, said, _product(terms, way), 0, {"candidate": list(way), "reference": list(ours)})


Factors = tuple[str, int, str, int]  # an activation, the term it is of, and the same of the other factor


def _factors(made: Glue) -> Factors | None:
    """The two activated terms whose product is the reference's tensor, as far as they are told apart from others."""
    best: tuple[float, Factors] | None = None
    some = {(f, a): GATES[f](term) for f in PAIRED for a, term in enumerate(made.reference)}
    for a, b in combinations(range(len(made.terms)), 2):
        for f, g in product(PAIRED, repeat=2):
            left = distance(np.asarray(some[f, a] * some[g, b]), made.expected)
            if left <= limit(made.evidence) and (best is None or left < best[0]):
                best = left, (f, a, g, b)
    return None if best is None else best[1]


def _product(terms: Sequence[Floats], way: Factors) -> Floats:
    f, a, g, b = way
    with np.errstate(all="ignore"):
        return np.asarray(GATES[f](terms[a]) * GATES[g](terms[b]))


def _exchanged(way: Factors) -> Factors:
    f, a, g, b = way
    return f, b, g, a


def _words(made: Glue, way: Factors) -> str:
    f, a, g, b = way
    first, second = (
        made.terms[term].name if name == "identity" else f"{name}({made.terms[term].name})"
        for name, term in ((f, a), (g, b))
    )
    return f"{first} * {second}"


def _summed(made: Glue, name: str) -> list[int]:
    """The terms, each counted once, of whose sum the reference's tensor is an activation; none where there are none."""
    every = list(range(len(made.terms)))
    for terms in (every, [one for one in every if not made.terms[one].whole], _shown(made, name)):
        if len(terms) > 1 and made.near(FUNCTIONS[name](_sum(made.reference, terms)), made.expected):
            return terms
    return []


def _shown(made: Glue, name: str) -> list[int]:
    """The terms that a ReLU lets show where it is open."""
    is_open = made.expected > 0
    if name != "relu" or is_open.sum() < PER_TERM * len(made.terms):
        return []
    weights = np.linalg.lstsq(np.stack(made.reference, axis=1)[is_open], made.expected[is_open], rcond=None)[0]
    return np.flatnonzero(np.round(weights) == 1).tolist()


def _sum(terms: Sequence[Floats], chosen: Sequence[int]) -> Floats:
    return np.asarray(sum(terms[one] for one in chosen))


def _two(terms: Sequence[Floats], a: int, b: int) -> tuple[Floats, Floats]:
    return terms[a], terms[b]


HYPOTHESES: tuple[Hypothesis, ...] = (activated_sums, missing_summand, activated_product)
