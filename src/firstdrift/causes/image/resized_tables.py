"""Tables of positions that are a parameter, resized to another grid: by another kind of interpolation, or corners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from ...traces import Array
from ..evidence import Evidence
from ..formulas.resize import Floats
from ..hypotheses import DOMINANT, Finding, Hypothesis
from ..variants import forward, misfit, reproduces
from .pooling import WAYS, Way

LARGEST = 1 << 22  # elements of a table, or of what is made of it
NO_TABLES = ("Linear", "Conv", "MatMul", "Gemm", "Embedding")  # whose weights are known for something else
ALIKE = 1e-9  # how near to each other two ways come that are the same where a grid gets larger
FEW = 8  # channels on which ways are tried


@dataclass(frozen=True, slots=True)
class Table:
    """A table (channels, *space), and rows before its grid that are not resized, such as a class token's."""

    grid: Floats
    first: Floats

    def resized(self, out: tuple[int, ...], way: Way, turned: bool = False) -> Floats:
        """Rows (places, channels) of a grid of another size."""
        made = way(self.grid, out)
        made = made.swapaxes(1, 2) if turned else made
        return np.concatenate((self.first, made.reshape(len(made), -1).T))

    def some(self, kept: slice) -> Table:
        """A few of its channels."""
        return Table(self.grid[kept], self.first[:, kept])


@dataclass(frozen=True, slots=True)
class Reading:
    """How places and channels lie in a tensor: `space` are the axes of places, before or after the channels."""

    shape: tuple[int, ...]
    channels: int
    space: tuple[int, ...]
    last: bool
    samples: int

    def rows(self, array: Array) -> Floats:
        """The first sample's rows (places, channels)."""
        count = int(np.prod(self.space))
        parts = (self.samples, count, self.channels) if self.last else (self.samples, self.channels, count)
        first = np.asarray(array, np.float64).reshape(parts)[0]
        return np.asarray(first if self.last else first.T)

    def whole(self, rows: Floats) -> Floats:
        """The tensor of which every sample has these rows."""
        one = rows if self.last else rows.T
        return np.broadcast_to(one, (self.samples, *one.shape)).reshape(self.shape)


def resized_table(evidence: Evidence) -> Iterator[Finding]:
    """What comes out is a parameter, resized; in the candidate, resized in another way."""
    if not forward(evidence) or evidence.expected.size > LARGEST or evidence.op.startswith(NO_TABLES):
        return
    for name, value in evidence.parameters.items():
        own = evidence.candidate_parameters.get(name, value)
        if value.dtype.kind != "f" or own.shape != value.shape or not 1 < value.size <= LARGEST:
            continue
        for ours, theirs in zip(tables(value), tables(own), strict=True):
            said = list(_explained(evidence, ours, theirs, name))
            yield from said
            if said:
                return


def _explained(evidence: Evidence, ours: Table, theirs: Table, name: str) -> Iterator[Finding]:
    few = slice(0, FEW)
    for reading in readings(evidence.expected.shape, len(ours.grid)):
        rows, found = (reading.rows(one) for one in (evidence.expected, evidence.found))
        for out in grids(reading.space, len(ours.first), ours.grid.ndim - 1):
            own = _way(ours, out, rows, evidence.noise) if out != ours.grid.shape[1:] else None
            if own is None:
                continue
            difference = misfit(rows[:, few], found[:, few])
            same = theirs.some(few).resized(out, own)
            others = (way for way in WAYS if not np.allclose(theirs.some(few).resized(out, way), same, ALIKE, ALIKE))
            for way in (own, *others):
                for turned in (False, True) if len(out) > 1 else (False,):
                    made = theirs.some(few).resized(out, way, turned)
                    if (way, turned) != (own, False) and misfit(made, found[:, few]) <= DOMINANT * difference:
                        yield _finding(reading.whole(theirs.resized(out, way, turned)), way, own, turned, name)
            return


def _way(table: Table, out: tuple[int, ...], rows: Floats, noise: float) -> Way | None:
    """The way of resizing that gives the reference's rows: seen on a few channels, then on all."""
    few = slice(0, FEW)
    some = table.some(few)
    own = next((way for way in WAYS if reproduces(some.resized(out, way), rows[:, few], noise)), None)
    return own if own is not None and reproduces(table.resized(out, own), rows, noise) else None


def _finding(predicted: Floats, way: Way, own: Way, turned: bool, name: str) -> Finding:
    if turned and way == own:
        return Finding("axis-order", f"rows and columns of the resized {name} are exchanged", predicted)
    more = ", its rows and columns exchanged" if turned else ""
    said = f"the {name} is resized by {way} instead of {own}{more}"
    return Finding("interpolation", said, predicted, 0, asdict(way))


def tables(value: Array) -> list[Table]:
    """A parameter as a grid of rows: channels first or last, in space or in one line, with a row or two before it."""
    x = np.asarray(value, np.float64)
    x = x[0] if x.ndim > 2 and len(x) == 1 else x
    if x.ndim == 3:
        first, last = np.zeros((0, x.shape[0])), np.zeros((0, x.shape[-1]))
        return [Table(x, first), Table(np.moveaxis(x, -1, 0), last)]
    if x.ndim != 2:
        return []
    tables = []
    for rows in (x, x.T):
        for lead in (0, 1, 2):
            side = round(np.sqrt(max(len(rows) - lead, 0)))
            if side > 1 and side * side == len(rows) - lead:
                tables.append(Table(np.moveaxis(rows[lead:].reshape(side, side, -1), -1, 0), rows[:lead]))
            if lead < 2 and len(rows) - lead > 1:
                tables.append(Table(rows[lead:].T, rows[:lead]))
    return tables


def readings(shape: tuple[int, ...], channels: int) -> Iterator[Reading]:
    """A tensor as rows of places: channels last or first, places in a line or in space, perhaps of many samples."""
    size = int(np.prod(shape))
    for axes in (1, 2):
        if len(shape) <= axes:
            continue
        if shape[-1] == channels:
            space = shape[-1 - axes : -1]
            yield Reading(shape, channels, space, True, size // (channels * int(np.prod(space))))
        if shape[-1 - axes] == channels:
            space = shape[-axes:]
            yield Reading(shape, channels, space, False, size // (channels * int(np.prod(space))))


def grids(space: tuple[int, ...], lead: int, axes: int) -> Iterator[tuple[int, ...]]:
    """The sizes that a grid of so many axes may have: as they show, or those that so many places allow."""
    if len(space) == axes and not lead:
        yield space
    if len(space) != 1 or axes != 2:
        if len(space) == axes == 1:
            yield (space[0] - lead,)
        return
    count = space[0] - lead
    pairs = [(high, count // high) for high in range(2, count // 2 + 1) if count % high == 0]
    yield from sorted(pairs, key=lambda pair: abs(pair[0] - pair[1]))


HYPOTHESES: tuple[Hypothesis, ...] = (resized_table,)
