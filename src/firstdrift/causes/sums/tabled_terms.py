"""Terms that are a recorded tensor with its axes in another order, cut, or shared by all samples: tables of biases.

Where keys are hidden, a term does not show; of the other places it is the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from ...sites import Site
from ..agreement import Floats, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..screening import positions

LOW = -1e4  # at or below this a number hides a key
MOST_SITES = 256  # outputs before the drift that are looked at, the nearest
LARGEST = 1 << 20  # elements of one
TRIED = 512  # places by which a term is recognised
FIRST = 8  # of them, by which most are ruled out
DISTINCT = 8  # numbers that a table must have to be recognised by them


@dataclass(frozen=True, eq=False, slots=True)
class _Difference:
    """What was added at some places where neither side hides anything, and the norm that noise leaves of it."""

    at: tuple[NDArray[np.intp], ...]
    added: Floats
    enough: float
    hides: bool


def tabled_term(evidence: Evidence) -> Iterator[Finding]:
    """found less expected, or the other way round, is a table that a module gave."""
    if evidence.site.phase != "fwd" or evidence.expected.ndim < 2 or evidence.expected.dtype.kind != "f":
        return
    difference = _difference(evidence)
    if difference is None:
        return
    for site, value in _outputs(evidence):
        for sign in (1.0, -1.0):
            if sign > 0 and site.name in evidence.inputs:  # what is a term already is counted otherwise
                continue
            for wide in _placed(value, evidence.expected.shape):
                same = wide.strides == value.strides and wide.shape == evidence.expected.shape
                if _is(difference, wide, sign) and (difference.hides or not same):  # which is seen as it is
                    yield _told(evidence, site, wide, sign)
                    return


def _difference(evidence: Evidence) -> _Difference | None:
    ours, theirs = floats(evidence.expected), floats(evidence.found)
    with np.errstate(invalid="ignore"):
        shown = np.flatnonzero((ours.reshape(-1) > LOW) & (theirs.reshape(-1) > LOW))
    if shown.size < DISTINCT:
        return None
    at = np.unravel_index(shown[positions(shown.size, TRIED)], ours.shape)
    a, b = ours[at], theirs[at]
    added = b - a
    enough = 2 * limit(evidence) * max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    if not np.isfinite(added).all() or float(np.linalg.norm(added)) <= enough:
        return None
    if len(np.unique(np.round(added / np.abs(added).max(), 6))) < DISTINCT:
        return None
    return _Difference(at, added, enough, shown.size < ours.size)


def _outputs(evidence: Evidence) -> Iterator[tuple[Site, Floats]]:
    """What modules gave before the drift, the nearest first: tables of more than one axis."""
    sites = list(evidence.around.sites("fwd"))
    place = sites.index(evidence.site) if evidence.site in sites else len(sites)
    before = [one for one in sites[:place] if one.step == evidence.site.step and not one.port.startswith("in.")]
    for site in before[::-1][:MOST_SITES]:
        value = evidence.around.candidate(site) if site.name != evidence.site.name else None
        if value is not None and value.dtype.kind == "f" and 2 <= value.ndim <= 4 and 0 < value.size <= LARGEST:
            yield site, floats(value)


def _placed(value: Floats, shape: tuple[int, ...]) -> Iterator[Floats]:
    """A tensor in every order of its axes and cut at either end so that it fits the last axes of a shape."""
    value = value[0] if value.ndim > 2 and len(value) == 1 else value
    if value.ndim > len(shape):
        return
    last = shape[len(shape) - value.ndim :]
    for axes in permutations(range(value.ndim)):
        turned = value.transpose(axes)
        for cut in product(*map(_cuts, turned.shape, last)):
            yield turned[cut]


def _cuts(size: int, wanted: int) -> list[slice]:
    """The parts of an axis that fit another: all of it, its beginning or its end; none where it is too short."""
    if size in (1, wanted):
        return [slice(None)]
    return [slice(wanted), slice(size - wanted, None)] if size > wanted else []


def _is(difference: _Difference, wide: Floats, sign: float) -> bool:
    last = difference.at[len(difference.at) - wide.ndim :]
    for count in (FIRST, len(difference.added)):
        index = tuple(np.minimum(one[:count], size - 1) for one, size in zip(last, wide.shape, strict=True))
        if not float(np.linalg.norm(difference.added[:count] - sign * wide[index])) <= difference.enough:
            return False
    return True


def _told(evidence: Evidence, site: Site, wide: Floats, sign: float) -> Finding:
    expected, found = floats(evidence.expected), floats(evidence.found)
    with np.errstate(invalid="ignore"):
        hidden = (expected <= LOW) & (found <= LOW)  # by what number is free to choose
        predicted = np.where(hidden, found, expected + sign * wide)
    name = site.name or "the model"
    if sign < 0:
        return Finding("missing-term", f"what {name} gave is not added", predicted, 0, {"term": site.name})
    said = f"what {name} gave is added as well, which the reference does not do"
    return Finding("missing-term", said, predicted, 1, {"term": site.name})


HYPOTHESES: tuple[Hypothesis, ...] = (tabled_term,)
