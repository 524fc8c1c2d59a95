"""Which row of a parameter makes each channel of an output: a linear map or a convolution that takes other rows.

A module may hold more rows than it uses, as a bank of filters or experts does, and take every second one; a port that
reads the slice in the order of memory takes others. Every channel is then made by a row of the same parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from .. import formulas
from ..agreement import Floats, floats, limit
from ..evidence import Evidence
from ..formulas import Axis
from ..hypotheses import Finding, Hypothesis
from ..variants import ROUNDED, forward
from .points import Points, gathered, points_of
from .settings import LARGEST_DILATION, geometries

Rows = NDArray[np.intp]

POINTS, FEW_POINTS = 64, 16  # at which rows are recognised, and at which readings are refuted
FEWEST = 2  # numbers in a row, and channels
WORK = 1 << 26  # multiplications that trying one reading may cost
COST = 2 * 10**9  # multiplications that the whole may cost
SHOWN = 64  # channels of which the rows are told


@dataclass(frozen=True, slots=True)
class View:
    """A drift with its channels on the second axis, and how to put a tensor back."""

    evidence: Evidence
    back: Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Bank:
    """Rows of a parameter (rows, channels, *kernel), and what they are applied to (samples, channels, *space)."""

    name: str
    rows: Floats
    bias: Floats | None
    depthwise: bool
    x: Floats
    seen: Floats
    axes: tuple[Axis, ...]
    out: tuple[int, ...]

    def made(self, x: Floats, points: Points, channels: int) -> Floats:
        """What every row makes at some points: (channels or 1, points, rows)."""
        windows = gathered(x, self.axes, points)
        flat = self.rows.reshape(len(self.rows), -1)
        if self.depthwise:
            return np.asarray(windows.reshape(len(windows), channels, -1).swapaxes(0, 1) @ flat.T)
        return np.asarray(windows.reshape(1, len(windows), -1) @ flat.T)

    def whole(self, rows: Rows) -> Floats:
        """The candidate's output where its channels are made by these rows."""
        weight = self.rows[rows]
        if not self.axes:
            y = self.seen @ weight.T
            return np.asarray(y if self.bias is None else y + self.bias)
        stride, before, dilation = zip(*((one.stride, one.before, one.dilation) for one in self.axes), strict=True)
        groups = len(weight) if self.depthwise else 1
        return formulas.conv(
            self.seen, weight, self.bias, stride, before, dilation, groups, self.axes[0].mode, self.out
        )


def other_rows(evidence: Evidence) -> Iterator[Finding]:
    """Each channel of found is made by a row of a parameter, and some by another row than in the reference."""
    if not forward(evidence) or evidence.site.port.startswith("in.") or evidence.expected.ndim < 2:
        return
    enough = 2 * max(limit(evidence), ROUNDED)
    for view in _views(evidence):
        points = _some(points_of(view.evidence), POINTS)
        ours, theirs = points.cut(view.evidence.expected), points.cut(view.evidence.found)
        for bank in _banks(view.evidence, len(points.samples)):
            own = _own(bank, points, ours, enough)
            if own is None:
                continue
            used = _matched(bank, bank.made(bank.seen, points, ours.shape[1]), theirs, enough, own)
            if used is not None and (used != own).any() and bank.rows[0].size * evidence.expected.size <= COST:
                yield _told(bank, own, used, view.back(bank.whole(used)))
            return


def _views(evidence: Evidence) -> Iterator[View]:
    """Rows of channels, for a linear map; then channels on the second axis, as they are there or on the last one."""
    shape = evidence.expected.shape
    yield View(_changed(evidence, lambda one: one.reshape(-1, one.shape[-1])), lambda y: y.reshape(shape))
    if len(shape) > 2:
        yield View(evidence, lambda y: y)
        yield View(_changed(evidence, lambda one: np.moveaxis(one, -1, 1)), lambda y: np.moveaxis(y, 1, -1))


def _changed(evidence: Evidence, change: Callable[[Array], Array]) -> Evidence:
    def all_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {key: change(one) for key, one in arrays.items() if one.ndim > 1}

    return replace(
        evidence, expected=change(evidence.expected), found=change(evidence.found),
        inputs=all_of(evidence.inputs), candidate_inputs=all_of(evidence.candidate_inputs),
    )  # fmt: skip


def _banks(evidence: Evidence, points: int) -> Iterator[Bank]:
    """The ways to read a parameter as rows that may have made the output."""
    shape = evidence.expected.shape
    channels, space = shape[1], shape[2:]
    biases = [None, *(floats(one) for one in evidence.parameters.values() if one.shape == (channels,))]
    for key, x in evidence.inputs.items():
        seen = evidence.candidate_inputs.get(key, x)
        if x.ndim != len(shape) or len(x) != shape[0] or seen.shape != x.shape or x.dtype.kind != "f":
            continue
        for name, value in evidence.parameters.items():
            rows = _as_rows(value, x.shape, channels)
            if rows is None or rows[0].size < FEWEST or min(len(rows), channels) < FEWEST:
                continue
            if points * len(rows) * max(rows[0].size, channels) > WORK:
                continue
            depthwise = rows.shape[1] < x.shape[1]
            for axes in _geometries(evidence, rows.shape[2:], x.shape[2:], space):
                for bias in reversed(biases):
                    yield Bank(name, rows, bias, depthwise, floats(x), floats(seen), axes, space)


def _as_rows(value: Array, x: tuple[int, ...], channels: int) -> Floats | None:
    """A parameter as (rows, channels, *kernel): of all channels that come in, or of one for each that goes out."""
    if value.dtype.kind != "f" or value.ndim < 2:
        return None
    one = floats(value)
    if one.ndim == len(x) and one.shape[1] == x[1]:
        return one
    if x[1] != channels or len(x) < 3:
        return None
    if one.ndim == len(x) and one.shape[1] == 1:
        return one
    return one[:, None] if one.ndim == len(x) - 1 else None


def _geometries(
    evidence: Evidence, kernel: tuple[int, ...], sizes: tuple[int, ...], out: tuple[int, ...]
) -> Iterator[tuple[Axis, ...]]:
    """The settings of a convolution, among them those that look at nothing that is to come; none of a linear map."""
    if not kernel:
        yield ()
        return
    if sizes == out:
        for dilation in range(1, LARGEST_DILATION + 1):
            yield tuple(Axis(size, 1, dilation * (size - 1), dilation) for size in kernel)
    yield from (axes for axes in geometries(evidence.attrs, kernel, sizes, out) if axes[0].mode == "zeros")


def _own(bank: Bank, points: Points, ours: Floats, enough: float) -> Rows | None:
    """The rows that make the reference's channels; most readings are refuted by one channel at few points."""
    few, kept = _some(points, FEW_POINTS), _every(len(ours), FEW_POINTS)
    first = replace(bank, bias=None if bank.bias is None else bank.bias[:1])
    x = bank.x[:, :1] if bank.depthwise else bank.x
    if _matched(first, bank.made(x, few, 1), ours[kept, :1], 4 * enough) is None:
        return None
    return _matched(bank, bank.made(bank.x, points, ours.shape[1]), ours, enough)


def _some(points: Points, count: int) -> Points:
    kept = _every(len(points.samples), count)
    return Points(points.samples[kept], tuple(one[kept] for one in points.places))


def _every(size: int, count: int) -> slice:
    return slice(None, None, max(-(-size // count), 1))


def _matched(bank: Bank, made: Floats, wanted: Floats, enough: float, first: Rows | None = None) -> Rows | None:
    """The row that makes each channel, that of the reference where it does; None where a channel is made by none."""
    target = wanted if bank.bias is None else wanted - bank.bias
    slack = enough * float(np.sqrt(np.square(wanted).mean(0).mean()) * np.sqrt(len(wanted)))
    if not np.isfinite(target).all() or slack == 0.0:
        return None
    rows = np.zeros(target.shape[1], np.intp)
    for channel, column in enumerate(target.T):
        left = np.linalg.norm(made[channel if bank.depthwise else 0] - column[:, None], axis=0)
        rows[channel] = np.argmin(left)
        if left[rows[channel]] > slack:
            return None
        if first is not None and left[first[channel]] <= slack:
            rows[channel] = first[channel]
    return rows


def _told(bank: Bank, own: Rows, used: Rows, predicted: Floats) -> Finding:
    moved = np.flatnonzero(own != used)
    ours, theirs = _slice(own), _slice(used)
    if ours and theirs:
        said = f"the channels are made by {bank.name}[{theirs}] instead of {bank.name}[{ours}]"
    else:
        channel = moved[0]
        said = f"channel {channel} is made by row {used[channel]} of {bank.name} instead of row {own[channel]}"
        said += f", and {len(moved) - 1} more by other rows" if len(moved) > 1 else ""
    label = "permutation" if sorted(own) == sorted(used) else "wrong-weight"
    mapping = [[int(one), int(used[one]), int(own[one])] for one in moved[:SHOWN]]
    facts = {"parameter": bank.name, "mapping": mapping}
    return Finding(label, said, predicted, 1 if ours and theirs else len(moved), facts)


def _slice(rows: Rows) -> str:
    """Rows at equal distances, as one would write them."""
    steps = np.unique(np.diff(rows))
    if len(steps) != 1 or steps[0] == 0:
        return ""
    stop = int(rows[-1]) + (1 if steps[0] > 0 else -1)
    return f"{rows[0]}:{stop if stop >= 0 else ''}" + (f":{steps[0]}" if steps[0] != 1 else "")


HYPOTHESES: tuple[Hypothesis, ...] = (other_rows,)
