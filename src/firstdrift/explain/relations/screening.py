"""Looking at a part before the whole: what a part already refutes need not be computed on everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...core.sites import Site
from ...core.traces import Array
from ..evidence import Evidence, Surroundings

LARGE = 1 << 20  # elements: larger tensors are looked at in part first
SAMPLE = 1 << 13  # elements that tell whether a prediction is worth making
SAMPLED_PHASES = frozenset({"input", "fwd", "agrad"})  # whose first axis holds samples that are computed alike

Floats = NDArray[np.float64]


class _Part(Surroundings):
    """Surroundings of which only some samples are seen, of the tensors that have as many as the drift's."""

    def __init__(self, around: Surroundings, count: int, kept: slice) -> None:
        self._around, self._count, self._kept = around, count, kept
        self.facts = around.facts

    def sites(self, phase: str) -> Sequence[Site]:
        return self._around.sites(phase)

    def reference(self, site: Site) -> Array | None:
        return self._cut(self._around.reference(site))

    def candidate(self, site: Site) -> Array | None:
        return self._cut(self._around.candidate(site))

    def recorded(self, site: Site) -> tuple[Array, Array] | None:
        both = self._around.recorded(site)
        if both is None:
            return None
        return _cut(both[0], self._count, self._kept), _cut(both[1], self._count, self._kept)

    def op(self, site: Site) -> str:
        return self._around.op(site)

    def producers(self, site: Site) -> Sequence[Site]:
        return self._around.producers(site)

    def _cut(self, array: Array | None) -> Array | None:
        return None if array is None else _cut(array, self._count, self._kept)


def part_of(evidence: Evidence) -> Evidence | None:
    """The same drift on a few whole samples that show it, half a large tensor; None where there is no such part."""
    shape = evidence.expected.shape
    if evidence.site.phase not in SAMPLED_PHASES or len(shape) < 2 or shape[0] < 2:
        return None
    count = max(1, LARGE // 2 // max(evidence.expected.size // shape[0], 1))
    if 2 * count > shape[0]:
        return None
    start = min(_worst(evidence), shape[0] - count)
    kept = slice(start, start + count)

    def cut(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {key: _cut(array, shape[0], kept) for key, array in arrays.items()}

    return replace(
        evidence,
        expected=evidence.expected[kept],
        found=evidence.found[kept],
        inputs=cut(evidence.inputs),
        candidate_inputs=cut(evidence.candidate_inputs),
        around=_Part(evidence.around, shape[0], kept),
    )


def _worst(evidence: Evidence) -> int:
    """The sample that differs most."""
    pairs = zip(evidence.expected, evidence.found, strict=True)
    errors = [float(np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64))) for a, b in pairs]
    return int(np.argmax(np.nan_to_num(errors, nan=np.inf)))


def _cut(array: Array, count: int, kept: slice) -> Array:
    return array[kept] if array.ndim and array.shape[0] == count else array


def positions(size: int, wanted: int = SAMPLE) -> NDArray[np.intp]:
    """Some element numbers out of so many: all where they are few, else spread without a pattern."""
    if size <= wanted:
        return np.arange(size)
    return np.sort(np.random.default_rng(size).integers(0, size, wanted))


def sampled(array: Array, at: NDArray[np.intp]) -> Floats:
    """Some elements, as float64."""
    chosen = array.reshape(-1)[at] if array.flags.c_contiguous else array[np.unravel_index(at, array.shape)]
    return np.asarray(chosen, np.float64)
