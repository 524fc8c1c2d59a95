"""Weights that belong to another tensor, or to none: swapped, untied, not loaded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import agree, distance, floats
from ..relations.hypotheses import Finding, Hypothesis
from . import weight_grids, weight_layouts, weight_values
from .weight_layouts import SCREEN, is_weight

MOST_READ = 200_000_000  # elements of other weights that are looked at
LEAST = 64  # numbers, below which being uncorrelated means little


def of_another(evidence: Evidence) -> Iterator[Finding]:
    """The numbers of another weight of the reference: exchanged with it, or copied over."""
    if not is_weight(evidence) or len(np.unique(evidence.found.ravel()[:SCREEN])) < 2:
        return
    for site in _others(evidence):
        candidate = evidence.around.reference(site)
        if candidate is None or not _equal(evidence, candidate, evidence.found):
            continue
        back = evidence.around.candidate(site)
        if back is not None and _equal(evidence, back, evidence.expected):
            sentence = f"these weights and those of {_name(site)} are exchanged"
            yield Finding("weight-swap", sentence, floats(candidate), 0, {"with": _name(site)})
        else:
            yield Finding(
                "wrong-weight", f"these are the weights of {_name(site)}", floats(candidate), 0, {"of": _name(site)}
            )
        return


def untied(evidence: Evidence) -> Iterator[Finding]:
    """A weight that the reference shares with another module and the candidate does not."""
    if not is_weight(evidence) or evidence.expected.ndim < 2:
        return
    for site in _others(evidence):
        reference = evidence.around.reference(site)
        if reference is None or not np.array_equal(reference, evidence.expected):
            continue
        candidate = evidence.around.candidate(site)
        if candidate is not None and _equal(evidence, candidate, evidence.expected):
            sentence = f"the reference shares this weight with {_name(site)}, and the candidate has another"
            parameters = {"tied_to": _name(site)}
            yield Finding("untied-head", sentence, None, evidence.found.size - 1, parameters, residual=0.0)
            return


def not_loaded(evidence: Evidence) -> Iterator[Finding]:
    """Numbers that have nothing to do with the reference's: what the module was initialised with."""
    if not is_weight(evidence) or evidence.found.size < LEAST or not np.isfinite(evidence.found).all():
        return
    reference, candidate = floats(evidence.expected), floats(evidence.found)
    a, b = reference - reference.mean(), candidate - candidate.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    if size == 0 or abs(float(np.vdot(a, b))) / size > min(0.25, 5 / np.sqrt(a.size)) or _turned(evidence):
        return
    sentence = (
        f"the weights have nothing in common with the reference's (standard deviation {candidate.std():.3g}, there "
        f"{reference.std():.3g}): not loaded, or another tensor's"
    )
    parameters = {"std": float(candidate.std()), "reference_std": float(reference.std())}
    yield Finding("wrong-weight", sentence, None, evidence.found.size, parameters, residual=0.0)


def _turned(evidence: Evidence) -> bool:
    """Whether rows or columns have kept their lengths: then the weights may be the same, rotated."""
    if evidence.found.ndim < 2:
        return False
    reference, candidate = (floats(array).reshape(len(array), -1) for array in (evidence.expected, evidence.found))
    lengths = [(np.linalg.norm(reference, axis=axis), np.linalg.norm(candidate, axis=axis)) for axis in (0, 1)]
    return any(agree(evidence, np.sort(a), np.sort(b)) for a, b in lengths)


def _others(evidence: Evidence) -> Iterator[Site]:
    """Other weights of the same shape, those with the likest names first."""
    site, read = evidence.site, 0
    others = [other for other in evidence.around.sites("weight") if other != site and other.step == site.step]
    for other in sorted(others, key=lambda other: -_shared(site, other)):
        tensor = evidence.around.reference(other)
        read += 0 if tensor is None else tensor.size
        if read > MOST_READ:
            return
        if tensor is not None and tensor.shape == evidence.found.shape:
            yield other


def _shared(site: Site, other: Site) -> int:
    """How many parts of two names are the same from the start on, or from the end on."""
    a, b = ([*one.name.split("."), one.port] for one in (site, other))
    start = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    end = next((n for n, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), min(len(a), len(b)))
    return start + end


def _equal(evidence: Evidence, a: Array, b: Array) -> bool:
    if a.shape != b.shape or distance(a.ravel()[:SCREEN], b.ravel()[:SCREEN]) > 1e-2:
        return False
    return agree(evidence, a, b)


def _name(site: Site) -> str:
    return f"{site.name}.{site.port}" if site.name else site.port


HYPOTHESES: tuple[Hypothesis, ...] = (
    of_another,
    untied,
    not_loaded,
    *weight_layouts.HYPOTHESES,
    *weight_values.HYPOTHESES,
    *weight_grids.HYPOTHESES,
)
