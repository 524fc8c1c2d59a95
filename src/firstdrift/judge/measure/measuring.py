"""Pairs into measurements: load both tensors, bring them together, measure. No judgement."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...core.arrays import wide
from ...core.dtypes import roundoff
from ...core.records import NOT_COMPARABLE, NOT_REQUIRED, Record
from ...core.scratch import concatenated, mapped_rows
from ...core.stages import INDEX_PAYLOAD
from ...core.traces import Array, Trace
from ...kernels import Measurement, measure, stats
from ...pair.pairs import Pair, ReconcileError, apply_all
from ...store.formats import WITHOUT_SHAPES
from .result import Verdict, Why
from .scales import Parts, parts_of
from .updates import Update, update_of

THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Absent:
    """A pair of which a side says that it has no tensor, in its own words, and what follows."""

    verdict: Verdict
    why: Why
    said: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A pair and its numbers, or why there are none.

    `update` is of weights after a step what was added to them; `rounded_equal` says that the reference, rounded to the
    candidate's dtype, is the candidate.
    """

    pair: Pair
    measurement: Measurement | None = None
    problem: str | None = None
    absent: Absent | None = None  # of a pair without numbers: who has none
    update: Update | None = None
    rounded_equal: bool = False
    is_integer: bool = False
    is_constant: bool = False  # one value everywhere, on both sides
    parts: Parts | None = None  # of a pair that differs, the errors of rows, columns and elements for their own size
    zeros_agree: bool = True  # whether what is 0 on one side is 0 on the other

    @property
    def count(self) -> int:
        """Elements compared."""
        return 0 if self.measurement is None else self.measurement.compared


def measure_pairs(
    pairs: Iterable[Pair], reference: Trace, candidate: Trace, advance: Callable[[int], None] = lambda nbytes: None
) -> Iterator[Measured]:
    """Measure every pair, in order. At no time is more than one tensor of each side in memory."""
    befores = _Befores(reference, candidate)
    for pair in pairs:
        yield _measure(pair, reference, candidate, befores)
        advance(pair.reference.nbytes + sum(record.nbytes for record in pair.candidate))


def unit_of(pair: Pair) -> float:
    """The coarser roundoff of what both sides store."""
    return roundoff(pair.reference.dtype, *(record.dtype for record in pair.candidate))


def load_recorded(pair: Pair, reference: Trace, candidate: Trace) -> tuple[Array, Array]:
    """Both tensors of a pair, reconciled; `reference` may be any trace that has the reference's site."""
    of_reference = apply_all(reference.array(pair.reference.site), pair.reference_steps)
    of_candidate = _candidate(pair, candidate)
    if WITHOUT_SHAPES in (reference.format, candidate.format) and of_reference.size == of_candidate.size:
        of_candidate = of_candidate.reshape(of_reference.shape)
    return _same_shape(of_reference, of_candidate)


def _measure(pair: Pair, reference: Trace, candidate: Trace, befores: _Befores) -> Measured:
    silent = _without_values(pair)
    if silent is not None:
        return silent
    try:
        of_reference, of_candidate = load_recorded(pair, reference, candidate)
    except ReconcileError as error:
        return Measured(pair, problem=str(error))
    if pair.reference.details.get("stage") in INDEX_PAYLOAD:
        of_reference, of_candidate = map(_as_indices, (of_reference, of_candidate))
    if pair.site.phase == "optim" and {_kind(of_reference), _kind(of_candidate)} == {"float", "integer"}:
        of_reference, of_candidate = _counted(of_reference), _counted(of_candidate)
    if _kind(of_reference) != _kind(of_candidate):
        kinds = f"{pair.reference.dtype} and {pair.candidate[0].dtype}"
        return Measured(pair, problem=f"dtypes {kinds} are not of one kind (float, integer, complex, bool)")
    rounded = _rounded_equal(pair, of_reference, of_candidate)
    update = None
    if pair.site.phase == "weight_after":
        of_reference, of_candidate, update = befores.updates(pair, of_reference, of_candidate)
    found = measure(of_reference, of_candidate, threads=THREADS)
    if found.bit_equal and of_reference.dtype == of_candidate.dtype:
        of_candidate = of_reference  # what is asked from here on of one side holds of both
    constant = _is_constant(of_reference) and (of_candidate is of_reference or _is_constant(of_candidate))
    whole = _kind(of_reference) == "integer"
    parts = None
    if not (found.bit_equal or whole or update is not None):
        parts = parts_of(of_reference, of_candidate, least=unit_of(pair))
    zeros = parts is None or np.array_equal(of_reference == 0, of_candidate == 0)
    return Measured(pair, found, None, None, update, rounded, whole, constant, parts, zeros)


def _is_constant(array: Array) -> bool:
    """Whether every element is the same; decided by a few of them nearly always."""
    if array.size < 2 or array.dtype.kind == "c":
        return False
    first, *others = array[(slice(0, 2),) * array.ndim].reshape(-1).tolist()
    if any(other != first for other in others):
        return False
    numbers = stats(array)
    return numbers.finite_count == numbers.count and numbers.min == numbers.max


def _without_values(pair: Pair) -> Measured | None:
    """Pairs of which a side has no tensor: absent on purpose, or statistics only."""
    reference, candidate = pair.reference, pair.candidate[0]
    for record in (reference, candidate):
        if record.absent is not None and record.absent.startswith(NOT_COMPARABLE):
            return Measured(pair, problem=record.absent.removeprefix(NOT_COMPARABLE))
    if reference.absent is not None and candidate.absent is not None:
        return Measured(pair, absent=Absent(Verdict.SAME, Why.ABSENT_ON_BOTH, reference.absent))
    if candidate.absent is not None:
        return Measured(pair, absent=Absent(Verdict.DRIFT, Why.NO_GRADIENT, candidate.absent))
    if reference.absent is not None:
        verdict = Verdict.SAME if reference.absent == NOT_REQUIRED else Verdict.DRIFT
        return Measured(pair, absent=Absent(verdict, Why.EXTRA_GRADIENT, reference.absent))
    if reference.at is None or any(record.at is None for record in pair.candidate):
        return Measured(pair, problem="a side recorded statistics only; record the tensor to compare it")
    return None


def _candidate(pair: Pair, candidate: Trace) -> Array:
    arrays = [candidate.array(record) for record in pair.candidate]
    if pair.concatenate is not None:
        try:
            arrays = [concatenated(arrays, pair.concatenate)]
        except ValueError as error:
            raise ReconcileError(f"the parts do not join along axis {pair.concatenate} ({error})") from None
    return apply_all(arrays[0], pair.candidate_steps)


def _same_shape(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Equal shapes, or shapes that differ in axes of length one alone."""
    squeezed = [[dim for dim in array.shape if dim != 1] for array in (reference, candidate)]
    if squeezed[0] == squeezed[1]:
        return reference, candidate.reshape(reference.shape)
    hint = ""
    if reference.size == candidate.size:
        hint = ", as many elements: transposed or reshaped? a map can say so"
    raise ReconcileError(
        f"shape {list(reference.shape)} in the reference, {list(candidate.shape)} in the candidate{hint}"
    )


def _kind(array: Array) -> str:
    return {"c": "complex", "b": "integer", "i": "integer", "u": "integer"}.get(array.dtype.kind, "float")


def _as_indices(array: Array) -> Array:
    """Expert ids as integers; a float that is no id keeps its bits, so that it differs from every id."""
    if array.dtype.kind in "iu":
        return array
    with np.errstate(invalid="ignore"):
        rounded = array.astype(np.int64)
    return np.where(rounded == array, rounded, -1 - array.view(np.uint32).astype(np.int64))


def _counted(array: Array) -> Array:
    """What an optimizer counts, which one stores as a float and the next as an integer."""
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    return whole if np.array_equal(whole, array) else array


def _rounded_equal(pair: Pair, reference: Array, candidate: Array) -> bool:
    """Whether inputs or weights of two dtypes are equal once the reference is rounded to the candidate's."""
    if pair.site.phase not in ("input", "weight") or reference.dtype == candidate.dtype or _kind(reference) != "float":
        return False
    if roundoff(pair.candidate[0].dtype) < roundoff(pair.reference.dtype):
        reference, candidate = candidate, reference  # the finer side is rounded to the coarser
    with np.errstate(over="ignore"):
        rounded = mapped_rows(lambda rows: rows.astype(candidate.dtype), reference)
    return measure(rounded, candidate, full=False).bit_equal


class _Befores:
    """The weights before a step, so that what is compared after it is the update."""

    def __init__(self, reference: Trace, candidate: Trace) -> None:
        self._reference, self._candidate = reference, candidate

    def updates(self, pair: Pair, reference: Array, candidate: Array) -> tuple[Array, Array, Update | None]:
        """What both sides added to their weights, and how far that is apart; the weights themselves, and None, if there
        is no before.

        An optimizer that divides by the gradient's own size, as Adam does, turns the noise of a gradient next to zero
        into a full step: element by element, an update is no more certain than its gradient.
        """
        before = self._both(pair, ("weight",), reference.shape)
        if before is None:
            return reference, candidate, None
        same = _are_same(reference, candidate) and _are_same(*before)
        gradients = None if same else self._both(pair, ("grad_scaled", "grad"), reference.shape)
        found = update_of(before, (reference, candidate), unit_of(pair), gradients)
        added = mapped_rows(_difference, reference, before[0])
        return added, added if same else mapped_rows(_difference, candidate, before[1]), found

    def _both(self, pair: Pair, phases: tuple[str, ...], shape: tuple[int, ...]) -> tuple[Array, Array] | None:
        """Both sides' tensors of the same parameter in the first of these phases that both have."""
        for phase in phases if len(pair.candidate) == 1 else ():
            reference = self._load(self._reference, pair.reference, phase)
            candidate = self._load(self._candidate, pair.candidate[0], phase)
            if reference is None or candidate is None:
                continue
            try:
                found = apply_all(candidate, pair.candidate_steps).reshape(shape)
                return apply_all(reference, pair.reference_steps), found
            except (ReconcileError, ValueError):
                continue
        return None

    def _load(self, trace: Trace, record: Record, phase: str) -> Array | None:
        site = record.site._replace(phase=phase)
        if site not in trace or trace[site].at is None or trace[site].shape != record.shape:
            return None
        return trace.array(site)


def _are_same(reference: Array, candidate: Array) -> bool:
    """Whether two tensors are the same bits, which one pass over them tells."""
    return reference.dtype == candidate.dtype and measure(reference, candidate, full=False, threads=THREADS).bit_equal


def _difference(after: Array, before: Array) -> Array:
    with np.errstate(invalid="ignore"):
        difference: Array = wide(after) - wide(before)
        return difference
