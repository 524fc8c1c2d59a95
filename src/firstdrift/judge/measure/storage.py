"""Weights that one side stores with its axes in another order, as transposed linear layers do, or in another shape, as
a convolution of patches is a linear layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from math import prod

from ...core.dtypes import roundoff
from ...core.sites import Site
from ...core.traces import Array, Trace
from ...kernels import measure
from ...pair.pairs import Pair, Transform

MOST_AXES = 4
STORED = ("weight", "grad", "grad_scaled", "optim", "weight_after")  # phases in which a parameter has its axes
TRANSPOSED = Transform("transpose")

Parameter = tuple[str, str]


def as_stored(
    pairs: Sequence[Pair], reference: Trace, candidate: Trace, vouched: Collection[Site] = ()
) -> tuple[Pair, ...]:
    """The pairs, with the steps that undo what is stored along other axes.

    Only what cannot be a mistake is undone: numbers that are equal where the shape says that the axes changed, and
    square matrices beside such. A square matrix alone may have been transposed by a wrong loader, unless it is
    `vouched` that all that is computed with it agrees.
    """
    weights = [pair for pair in pairs if pair.site.phase == "weight" and _is_plain(pair)]
    others = [pair for pair in weights if _shapes(pair)[0] != _shapes(pair)[1]]
    steps = {_parameter(pair.site): _step(pair, reference, candidate) for pair in others}
    squares = [pair for pair in weights if _is_square(pair) and (TRANSPOSED in steps.values() or pair.site in vouched)]
    steps |= {_parameter(pair.site): TRANSPOSED for pair in squares if _is_transposed(pair, reference, candidate)}
    return tuple(_undone(pair, steps.get(_parameter(pair.site))) for pair in pairs)


def _is_plain(pair: Pair) -> bool:
    """Whether nobody said how the two are to be brought together."""
    plain = not pair.reference_steps and not pair.candidate_steps and len(pair.candidate) == 1
    return plain and pair.reference.at is not None and pair.candidate[0].at is not None


def _shapes(pair: Pair) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return pair.reference.shape or (), pair.candidate[0].shape or ()


def _is_square(pair: Pair) -> bool:
    reference, candidate = _shapes(pair)
    return reference == candidate and len(reference) == 2 and reference[0] == reference[1]


def _parameter(site: Site) -> Parameter:
    return site.name, site.port.split(".")[0] if site.phase == "optim" else site.port


def _step(pair: Pair, reference: Trace, candidate: Trace) -> Transform | None:
    """The shape, or the order of axes, in which the candidate's numbers are the reference's."""
    of_reference, of_candidate = _shapes(pair)
    if prod(of_reference) != prod(of_candidate) or not 1 <= len(of_reference) <= MOST_AXES:
        return None
    arrays = reference.array(pair.reference.site), candidate.array(pair.candidate[0])
    return next((step for step in _orders(of_reference, of_candidate) if _are_equal(pair, *arrays, step)), None)


def _orders(reference: tuple[int, ...], candidate: tuple[int, ...]) -> Iterator[Transform]:
    if sorted(reference) != sorted(candidate):
        yield Transform("reshape", shape=reference)
        return
    for axes in permutations(range(len(reference))):
        if tuple(candidate[axis] for axis in axes) == reference:
            yield TRANSPOSED if axes == (1, 0) else Transform("permute", axes=axes)


def _is_transposed(pair: Pair, reference: Trace, candidate: Trace) -> bool:
    arrays = reference.array(pair.reference.site), candidate.array(pair.candidate[0])
    return not _are_equal(pair, *arrays) and _are_equal(pair, *arrays, TRANSPOSED)


def _are_equal(pair: Pair, reference: Array, candidate: Array, step: Transform | None = None) -> bool:
    """Whether the numbers are the same, or rounded to the coarser of two dtypes."""
    found = measure(reference, candidate if step is None else step.apply(candidate), full=False)
    return found.bit_equal or (
        reference.dtype != candidate.dtype
        and found.nonfinite_agree
        and (found.rel_l2 or 0.0) <= roundoff(pair.reference.dtype, pair.candidate[0].dtype)
    )


def _undone(pair: Pair, step: Transform | None) -> Pair:
    """A pair of any phase of a parameter; an optimizer's counters have no axes."""
    if step is None or pair.site.phase not in STORED or len(pair.candidate) > 1:
        return pair
    reference, candidate = _shapes(pair)
    if not reference or prod(reference) != prod(candidate):
        return pair
    notes = (*pair.notes, f"stored differently: {step}")
    return replace(pair, candidate_steps=(step, *pair.candidate_steps), notes=notes, turned=True)
