"""Weights that are not the reference's: another tensor's, not loaded, flipped, lacking a term, in another layout."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps

import numpy as np

from ...core.sites import Site
from ..evidence import Evidence
from ..one_program.agreement import Floats, agree, distance, floats, limit
from .coarser import quantised, stored_coarser, zero_point
from .elementwise import scale
from .hypotheses import Finding, Hypothesis
from .integrity import uninitialised
from .permutations import axis_order, index_shift, is_convolution, reordered, slices_moved

MOST_READ = 200_000_000  # elements of other weights that are looked at
SCREEN = 4096  # elements compared before a whole array is
LEAST = 64  # numbers, below which being uncorrelated means little
LARGEST_RANK = 64


def is_weight(evidence: Evidence) -> bool:
    """Whether a drift is in floating-point weights that can be compared element by element."""
    is_float = evidence.site.phase == "weight" and evidence.expected.dtype.kind == "f"
    return is_float and evidence.expected.shape == evidence.found.shape and evidence.found.size > 1


def of_weights(hypothesis: Hypothesis) -> Hypothesis:
    """A hypothesis about any tensor, asked of weights alone."""

    @wraps(hypothesis)
    def asked(evidence: Evidence) -> Iterator[Finding]:
        yield from hypothesis(evidence) if is_weight(evidence) else ()

    return asked


def of_another(evidence: Evidence) -> Iterator[Finding]:
    """The numbers of another weight of the reference: exchanged with it, or copied over."""
    if not is_weight(evidence) or len(np.unique(evidence.found.ravel()[:SCREEN])) < 2:
        return
    for site in _others(evidence):
        candidate = evidence.around.reference(site)
        if candidate is None or not agree(evidence, candidate, evidence.found):
            continue
        back = evidence.around.candidate(site)
        if back is not None and agree(evidence, back, evidence.expected):
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
        if candidate is not None and agree(evidence, candidate, evidence.expected):
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


def _name(site: Site) -> str:
    return f"{site.name}.{site.port}" if site.name else site.port


def kernel_flipped(evidence: Evidence) -> Iterator[Finding]:
    """A convolution's kernel applied from its end."""
    if not is_weight(evidence) or not is_convolution(evidence):
        return
    expected = floats(evidence.expected)
    spatial = tuple(range(2, expected.ndim))
    for axes in dict.fromkeys([spatial, *((axis,) for axis in spatial)]):
        yield Finding("conv-flip", "the kernel is flipped", np.flip(expected, axes), 0, {"axes": list(axes)})


def one_off(evidence: Evidence) -> Iterator[Finding]:
    """A norm's weight stored as w on one side and as 1 + w on the other, or left at one."""
    if not is_weight(evidence):
        return
    if np.all(evidence.found == 1):
        yield Finding("uninitialised", "every weight is 1", floats(evidence.found), 0, {"value": 1.0})
    for sign, word in ((1.0, "more"), (-1.0, "less")) if evidence.expected.ndim == 1 else ():
        sentence = f"every weight is one {word} than it should be: 1 + w on one side, w on the other"
        yield Finding("norm-plus-one", sentence, floats(evidence.expected) + sign, 0, {"offset": sign})


def low_rank(evidence: Evidence) -> Iterator[Finding]:
    """A difference of low rank: an adapter that was merged on one side only, or with another factor."""
    if not is_weight(evidence) or evidence.expected.ndim < 2:
        return
    difference = (floats(evidence.found) - floats(evidence.expected)).reshape(len(evidence.found), -1)
    rows, columns = difference.shape
    most = min(LARGEST_RANK, rows // 4, columns // 4)
    if most < 1 or not np.isfinite(difference).all() or _is_sparse(difference):
        return
    directions = np.random.default_rng(11).standard_normal((columns, most + 8))
    basis, sizes, _ = np.linalg.svd(difference @ directions, full_matrices=False)
    size = float(np.linalg.norm(floats(evidence.expected)))
    floor = max(limit(evidence) * size * np.sqrt(most), sizes[0] * 1e-6)  # what noise adds in every direction
    rank = int(np.count_nonzero(sizes > floor))
    if 1 <= rank <= most:
        term = basis[:, :rank] @ (basis[:, :rank].T @ difference)
        if distance(term, difference) <= 0.1:
            sentence = f"a term of rank {rank} is missing, extra or scaled otherwise, as of an adapter not merged"
            predicted = floats(evidence.expected) + term.reshape(evidence.found.shape)
            yield Finding("missing-term", sentence, predicted, rank * (rows + columns), {"rank": rank})


def _is_sparse(difference: Floats) -> bool:
    """Whether some rows or columns do not differ at all: what differs in a few rows has a low rank for nothing."""
    return bool(np.mean(difference.any(0)) < 0.9 or np.mean(difference.any(1)) < 0.9)


LAYOUTS: tuple[Hypothesis, ...] = (
    kernel_flipped, *(of_weights(one) for one in (axis_order, slices_moved, index_shift)),
)  # fmt: skip
ALONE: tuple[Hypothesis, ...] = (
    not_loaded, *LAYOUTS, one_off, low_rank,
    *(of_weights(one) for one in (reordered, scale, stored_coarser, quantised, zero_point, uninitialised)),
)  # fmt: skip
HYPOTHESES: tuple[Hypothesis, ...] = (of_another, untied, *ALONE)
