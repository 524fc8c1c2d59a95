"""Pairs: a reference site with its candidate counterpart, how it was matched, and what makes the two comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ..core.records import Record
from ..core.scratch import mapped_rows
from ..core.sites import Site
from ..core.traces import Array


class ReconcileError(ValueError):
    """A transform that does not fit the tensor it is applied to; the pair is then not comparable."""


@dataclass(frozen=True, slots=True)
class Transform:
    """One step that brings a tensor into the layout or the unit of its counterpart."""

    kind: str  # transpose, permute, reshape, slice, scale
    axes: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    start: int = 0
    stop: int | None = None
    factor: float = 1.0

    def __str__(self) -> str:
        match self.kind:
            case "permute":
                return f"axes permuted to {list(self.axes)}"
            case "reshape":
                return f"reshaped to {list(self.shape)}"
            case "slice":
                return f"axis {self.axes[0]} cut to [{self.start}:{'' if self.stop is None else self.stop}]"
            case "scale":
                return f"times {self.factor:g}"
        return "transposed"

    def apply(self, array: Array) -> Array:
        """The tensor after this step; a view wherever numpy can make one."""
        try:
            match self.kind:
                case "transpose":
                    return array.swapaxes(-1, -2)
                case "permute":
                    return array.transpose(self.axes)
                case "reshape":
                    return array.reshape(self.shape)
                case "slice":
                    index = [slice(None)] * array.ndim
                    index[self.axes[0]] = slice(self.start, self.stop)
                    return array[tuple(index)]
        except (ValueError, IndexError, np.exceptions.AxisError) as error:
            raise ReconcileError(f"{self} does not fit shape {list(array.shape)} ({error})") from None
        return _scaled(array, self.factor)


def _scaled(array: Array, factor: float) -> Array:
    if factor == 1.0:
        return array
    if array.dtype.kind in "iub":
        raise ReconcileError(f"integers cannot be scaled by {factor:g}")
    return mapped_rows(lambda rows: (rows * np.asarray(factor, rows.dtype)).astype(rows.dtype, copy=False), array)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A limit on the relative L2 error that somebody set by hand, instead of the noise that would be expected."""

    relative: float
    source: str  # where it was set


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference site with its counterpart.

    `candidate` holds several records when the counterpart is their concatenation. Names in results are always the
    reference's. `matched` says how the two were found: `name`, `prefix`, `map`, `alias`, `port`, `sample`, `unscaled`,
    `call`, or, whatever the names, `weights` (the same numbers in its weights), `numbers` (in what it returns),
    `structure` (what is around it) or `parts` (joined of several, or part of one). `sure` is by how many bits every
    other counterpart is worse, and None where names or a map say it.
    """

    site: Site
    reference: Record
    candidate: tuple[Record, ...]
    matched: str
    reference_steps: tuple[Transform, ...] = ()
    candidate_steps: tuple[Transform, ...] = ()
    concatenate: int | None = None
    tolerance: Tolerance | None = None
    notes: tuple[str, ...] = field(default=())
    turned: bool = False  # whether the candidate stores it along other axes
    sure: float | None = None

    @property
    def count(self) -> int:
        """Elements of the reference tensor."""
        return prod(self.reference.shape or ())


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A site that only one side has, and why it has no counterpart."""

    site: Site
    reason: str


@dataclass(frozen=True, slots=True)
class Alignment:
    """Two traces, aligned: the pairs in the reference's causal order, and everything left over on either side."""

    pairs: tuple[Pair, ...]
    reference_only: tuple[Unmatched, ...]
    candidate_only: tuple[Unmatched, ...]
    ignored: tuple[Unmatched, ...] = ()
    notes: tuple[str, ...] = ()
    absorbed: tuple[Unmatched, ...] = ()  # explained, and never counted as covered

    @property
    def unpaired(self) -> dict[str, tuple[Site, ...]]:
        """The sites that one side alone has, for the search for causes."""
        return {
            "reference_only": tuple(unmatched.site for unmatched in (*self.reference_only, *self.absorbed)),
            "candidate_only": tuple(unmatched.site for unmatched in self.candidate_only),
        }


def apply_all(array: Array, steps: Sequence[Transform]) -> Array:
    """The tensor after all steps."""
    for step in steps:
        array = step.apply(array)
    return array
