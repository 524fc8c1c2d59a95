"""What found has over expected, and the tensors of the candidate's run that it may be made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ...judge.apriori.kinds import kind_of
from ...sites import Site
from ...traces import Array
from ..activations.activation_variants import FUNCTIONS
from ..agreement import Floats, floats, limit
from ..evidence import Evidence
from ..hypotheses import DOMINANT
from ..layout.placements import chunks, placements, spread
from ..screening import positions, sampled

SAMPLE = 1024  # elements by which a tensor is tried
MOST_INPUTS = 64  # tensors that the drift was computed from
MOST_EARLIER = 256  # tensors before the drift that are tried
FEWEST = 16  # elements that a tensor is recognised by


@dataclass(frozen=True, slots=True)
class Recorded:
    """A tensor that the candidate had before the drift, as it lies in the drift's shape."""

    name: str
    value: Array
    some: Floats
    is_input: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """What found has over expected, at some places. `enough` is what an explanation of it may leave."""

    evidence: Evidence
    at: NDArray[np.intp]
    expected: Floats
    found: Floats
    wanted: Floats
    enough: float

    def leaves(self, term: Floats) -> float:
        """What a term leaves of it."""
        return float(np.linalg.norm(self.wanted - term))

    def like(self, a: Floats, b: Floats) -> bool:
        """Whether one tensor is the other times a number, up to noise."""
        square, size = float(a @ a), float(np.linalg.norm(b))
        return square > 0 and float(np.linalg.norm(b - float(a @ b) / square * a)) <= 2 * limit(self.evidence) * size

    def predicted(self, term: Array) -> Floats:
        """expected with a term added."""
        return floats(self.evidence.expected) + floats(np.broadcast_to(term, self.evidence.expected.shape))

    def recorded(self, name: str, value: Array, is_input: bool) -> Recorded | None:
        """A tensor of the right shape that is no multiple of what was expected, and not activated to make it."""
        some = sampled(np.broadcast_to(value, self.evidence.expected.shape), self.at)
        if not np.isfinite(some).all() or len(np.unique(some)) < 4 or self.like(some, self.expected):
            return None
        near = 2 * limit(self.evidence) * float(np.linalg.norm(self.expected))
        if any(float(np.linalg.norm(one(some) - self.expected)) <= near for one in FUNCTIONS.values()):
            return None
        return Recorded(name, value, some, is_input)


def difference_of(evidence: Evidence) -> Difference | None:
    """What found has over expected; None where there is nothing to recognise. Norms are no sums of what they read."""
    if evidence.site.phase != "fwd" or evidence.expected.size < FEWEST or kind_of(evidence.op) == "norm":
        return None
    at = positions(evidence.expected.size, SAMPLE)
    a, b = sampled(evidence.expected, at), sampled(evidence.found, at)
    wanted = b - a
    size = float(np.linalg.norm(wanted))
    if not np.isfinite(size) or size == 0 or not np.isfinite(a).all():
        return None
    scale = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return Difference(evidence, at, a, b, wanted, min(2 * limit(evidence) * scale, DOMINANT * size))


def inputs(difference: Difference) -> Iterator[Recorded]:
    """What the drift was computed from, in every way in which it fits, and the parts of what was cut up; each once."""
    shape = difference.evidence.expected.shape
    seen: set[bytes] = set()
    for key, value in difference.evidence.candidate_inputs.items():
        if value.dtype.kind != "f" or value.size < 2:
            continue
        ways = [(key, one) for one in placements(value, shape)]
        if spread(value, shape) is None:
            ways += [(f"{words}{key}", one) for words, one in chunks(value, shape)]
        for name, one in ways:
            made = difference.recorded(name, one, True)
            if made is not None and made.some.tobytes() not in seen and len(seen) < MOST_INPUTS:
                seen.add(made.some.tobytes())
                yield made


def parameters(difference: Difference) -> Iterator[Recorded]:
    """The parameters of the module, and those that went into the drift directly."""
    evidence, shape = difference.evidence, difference.evidence.expected.shape
    known = dict(evidence.candidate_parameters)
    for site in evidence.around.producers(evidence.site):
        value = evidence.around.candidate(site) if site.phase == "weight" and site.name != evidence.site.name else None
        if value is not None:
            known.setdefault(f"{site.name}.{site.port}".lstrip("."), value)
    for key, value in known.items():
        if value.dtype.kind == "f" and value.size > 1:
            for one in placements(value, shape):
                if (made := difference.recorded(key, one, True)) is not None:
                    yield made


def earlier(difference: Difference) -> Iterator[Recorded]:
    """The parameters that went into the drift, and the tensors of the forward pass before it, latest first."""
    evidence = difference.evidence
    yield from parameters(difference)
    sites = list(evidence.around.sites("fwd"))
    place = sites.index(evidence.site) if evidence.site in sites else 0
    tried = [one for one in sites[:place] if _is_other(one, evidence.site)][::-1][:MOST_EARLIER]
    for site in tried:
        value = evidence.around.candidate(site)
        if value is None or value.dtype.kind != "f" or value.shape != evidence.expected.shape:
            continue
        made = difference.recorded(_words(site), value, False)
        if made is not None and not difference.like(made.some, difference.found):
            yield made


def unchanged(difference: Difference, term: Recorded) -> str | None:
    """The tensor of the candidate's run, no multiple of a term, that found is: a sum to which nothing was added."""
    evidence = difference.evidence
    sites = list(evidence.around.sites("fwd"))
    place = sites.index(evidence.site) if evidence.site in sites else 0
    before = [one for one in sites[:place] if _is_other(one, evidence.site)][::-1][:MOST_EARLIER]
    run = ((_words(one), evidence.around.candidate(one)) for one in (*before, *evidence.around.sites("input")))
    for name, value in chain(evidence.candidate_inputs.items(), run):
        if value is None or value.dtype.kind != "f" or value.shape != evidence.expected.shape:
            continue
        some = sampled(value, difference.at)
        if float(np.linalg.norm(some - difference.found)) <= difference.enough and not difference.like(term.some, some):
            return name
    return None


def _is_other(site: Site, own: Site) -> bool:
    return site.step == own.step and (site.name, site.port) != (own.name, own.port)


def _words(site: Site) -> str:
    return site.name or "the model" if site.port == "out" else f"{site.name or 'the model'}:{site.port}"
