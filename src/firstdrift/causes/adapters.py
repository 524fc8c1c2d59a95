"""Low-rank terms inside a linear map, x W + bias + s x A B: multiplied by another number, left out, or added."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from ..traces import Array
from .agreement import Floats, distance, factor, floats, limit
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis
from .variants import ROUNDED, forward, telling

ROWS = 64  # of the output, to try parameters on
MOST = 8  # matrices of a module
COST = 2 * 10**9  # multiplications that the whole may cost
POWERS = {0.5: "the root of the rank", 1.0: "the rank"}


@dataclass(frozen=True, slots=True)
class Adapted:
    """A linear map with a low-rank term: `down` is (inputs, rank) and `up` (rank, outputs), of parameters `names`."""

    names: tuple[str, str]
    base: Floats
    bias: Floats | None
    down: Floats
    up: Floats

    def plain(self, x: Floats) -> Floats:
        """What the map gives without the term."""
        y = x @ self.base
        return np.asarray(y if self.bias is None else y + self.bias)

    def term(self, x: Floats) -> Floats:
        """The term without its factor."""
        return np.asarray(x @ self.down @ self.up)

    def scaled(self, x: Floats, by: float) -> Floats:
        """What the map gives with the term times a factor."""
        return self.plain(x) + by * self.term(x)

    def scale(self, x: Floats, y: Floats, enough: float) -> float | None:
        """The factor of the term in `y`; None where the map does not give `y` with any."""
        rest, term = y - self.plain(x), self.term(x)
        found = factor(term, rest)
        slack = enough * float(np.linalg.norm(y))
        if not math.isfinite(found) or float(np.linalg.norm(rest - found * term)) > slack:
            return None
        return found if abs(found) * float(np.linalg.norm(term)) > slack else 0.0


def adapter_scale(evidence: Evidence) -> Iterator[Finding]:
    """Both sides are x W with a multiple of x A B, for three parameters of the module; not with the same multiple."""
    if not forward(evidence) or evidence.site.port.startswith("in.") or evidence.expected.ndim < 2:
        return
    enough = 2 * max(limit(evidence), ROUNDED)
    for key, value in evidence.inputs.items():
        own = evidence.candidate_inputs.get(key, value)
        if value.dtype.kind != "f" or own.shape != value.shape or value.shape[:-1] != evidence.expected.shape[:-1]:
            continue
        x, seen, expected, found = (
            floats(one).reshape(-1, one.shape[-1]) for one in (value, own, evidence.expected, evidence.found)
        )
        rows = telling(expected, found, ROWS)
        for one in _maps(evidence.parameters, x.shape[1], expected.shape[1]):
            ours, theirs = one.scale(x[rows], expected[rows], enough), one.scale(seen[rows], found[rows], enough)
            if ours is None or theirs is None or abs(theirs - ours) <= enough * max(abs(ours), abs(theirs)):
                continue
            label, said = _told(one, ours, theirs)
            facts = {"factor": theirs, "reference_factor": ours, "rank": len(one.up), "parameters": list(one.names)}
            if len(x) * one.base.size > COST:
                left = distance(one.scaled(seen[rows], theirs), found[rows])
                yield Finding(label, said, None, 1, facts, left)
            else:
                yield Finding(label, said, one.scaled(seen, theirs).reshape(evidence.found.shape), 1, facts)
            return


def _maps(parameters: Mapping[str, Array], width: int, out: int) -> Iterator[Adapted]:
    """The ways to read a module's parameters as such a map."""
    real = {name: floats(one) for name, one in parameters.items() if one.dtype.kind == "f"}
    matrices = [name for name, one in real.items() if one.ndim == 2 and min(one.shape) > 0]
    if not 3 <= len(matrices) <= MOST:
        return
    biases = [None, *(one for one in real.values() if one.shape == (out,))]
    for base, down, up in permutations(matrices, 3):
        ways = product(_turned(real[base]), _turned(real[down]), _turned(real[up]), reversed(biases))
        for weight, first, second, bias in ways:
            fits = weight.shape == (width, out) and (len(first), second.shape[1]) == (width, out)
            if fits and first.shape[1] == len(second) < min(width, out):
                yield Adapted((down, up), weight, bias, first, second)


def _turned(matrix: Floats) -> tuple[Floats, ...]:
    return matrix.T, matrix


def _told(one: Adapted, ours: float, theirs: float) -> tuple[str, str]:
    """The label and the sentence of two factors of a term."""
    term = f"the low-rank term of {one.names[0]} and {one.names[1]}"
    if theirs == 0.0:
        return "missing-term", f"{term} is left out; the reference multiplies it by {ours:.6g}"
    if ours == 0.0:
        return "missing-term", f"{term} is added {theirs:.6g} times, which the reference does not do"
    ratio, rank = theirs / ours, len(one.up)
    known = (f"{sign} {name}" for power, name in POWERS.items() for sign, by in (("times", power), ("over", -power))
             if rank > 1 and abs(ratio / rank**by - 1) < 1e-3)  # fmt: skip
    more = next((f" ({said}, {rank})" for said in known), "")
    return "scale", f"{term} is multiplied by {theirs:.6g} instead of {ours:.6g}, a factor of {ratio:.6g}{more}"


HYPOTHESES: tuple[Hypothesis, ...] = (adapter_scale,)
