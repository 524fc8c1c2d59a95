"""Weights in another layout, seen through: their outputs are put back into the reference's layout, and everything
behind them is judged again.

Permuted rows, rows with other scales, a shift that was folded in: such a module returns the reference's channels in
another order or unit. Whether that is meant, or is itself what is wrong, is tried out: a candidate that becomes right
when it is given the reference's weights had the wrong ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ..capture.torch.names import parameters_of
from ..sites import Site
from ..traces import Array, Trace
from ..verdict.introduced import introduced
from .examining import FLOAT32, IN_FLOAT64, Examination, compared, replays
from .forcing import Plan, replay
from .precise import dtype_of
from .sides import Side, record

ROUNDS = 4  # of layouts that show only once those before them are seen through
CLOSER = 0.1  # of the distance before, what is left of it
CONSTANT = 1e-12  # of the channel that varies most, what a channel varies by that does not
COLUMNS = 4096  # of every channel, which are enough to recognise it


@dataclass(frozen=True, slots=True)
class Layout:
    """Channel j of the candidate is channel `order[j]` of the reference, times `scale[j]`, plus `shift[j]`."""

    axis: int
    order: NDArray[np.intp]
    scale: NDArray[np.float64]
    shift: NDArray[np.float64]

    def undone(self, array: Array) -> Array:
        """A tensor of the candidate in the reference's layout."""
        rows = np.moveaxis(np.asarray(array, np.float64), self.axis, -1)
        found = np.empty_like(rows)
        found[..., self.order] = (rows - self.shift) / self.scale
        return np.moveaxis(found, -1, self.axis)

    def gradient_undone(self, array: Array) -> Array:
        """The gradient of such a tensor."""
        rows = np.moveaxis(np.asarray(array, np.float64), self.axis, -1)
        found = np.empty_like(rows)
        found[..., self.order] = rows * self.scale
        return np.moveaxis(found, -1, self.axis)

    @property
    def is_order(self) -> bool:
        """Whether it is nothing but another order."""
        return bool(np.allclose(self.scale, 1) and np.allclose(self.shift, 0))

    def explains(self, expected: Array, found: Array) -> bool:
        """Whether a tensor is next to what was expected once it is put back, and was far from it before."""
        if found.ndim <= max(self.axis, 0) or found.shape[self.axis] != len(self.order):
            return False
        a, before, after = (np.asarray(one, np.float64) for one in (expected, found, self.undone(found)))
        return bool(np.linalg.norm(after - a) <= CLOSER * np.linalg.norm(before - a))


def find_layout(expected: Array, found: Array, channels: int, rounding: float = FLOAT32) -> Layout | None:
    """The layout that turns one tensor into the other, up to the rounding of weights; None if there is none."""
    if channels < 2 or "c" in (expected.dtype.kind, found.dtype.kind):
        return None
    axes = (-1, 1) if expected.ndim > 2 else (-1,)
    fitted = (_along(expected, found, axis, rounding) for axis in axes if expected.shape[axis] == channels)
    return next((layout for layout in fitted if layout is not None), None)


def _along(expected: Array, found: Array, axis: int, rounding: float) -> Layout | None:
    """The layout of the channels along one axis. A channel that is constant on both sides is taken to be in place."""
    channels = expected.shape[axis]
    a, c = (np.moveaxis(np.asarray(one, np.float64), axis, 0).reshape(channels, -1) for one in (expected, found))
    few = slice(None, None, max(1, a.shape[1] // COLUMNS))
    x, y = a[:, few], c[:, few]
    if x.shape[1] < 3:
        return None
    x, y = (one - one.mean(1, keepdims=True) for one in (x, y))
    sizes = [np.linalg.norm(one, axis=1, keepdims=True) for one in (x, y)]
    sizes = [np.where(size > CONSTANT * size.max(), size, 0.0) for size in sizes]
    dead = sizes[0][:, 0] == 0
    if dead.all() or not np.array_equal(dead, sizes[1][:, 0] == 0):
        return None
    safe = [np.where(size > 0, size, 1.0) for size in sizes]
    alike = np.abs((y / safe[1]) @ (x / safe[0]).T)
    order = np.where(dead, np.arange(channels), alike.argmax(1))
    if len(set(order.tolist())) != channels:
        return None
    scale = np.where(dead, 1.0, np.sum(y * x[order], 1) / safe[0][order, 0] ** 2)
    shift = c.mean(1) - scale * a[order].mean(1)
    left = np.linalg.norm(c - (scale[:, None] * a[order] + shift[:, None]))
    if left > rounding * np.linalg.norm(c):
        return None
    return Layout(axis, order, scale, shift)


def seen_through(
    examination: Examination, suspects: Sequence[Site], outputs: Mapping[str, Sequence[Site]]
) -> Examination | None:
    """The examination with the layouts of differing weights undone; None where the weights are what is wrong."""
    base, ours = examination.precise, examination.precise_reference
    if base is None or ours is None or _is_right_with(examination, suspects):
        return None
    plan = Plan(own_weight=lambda site: site.step > 0 or site not in suspects)
    layouts: dict[str, Layout] = {}
    carried: dict[Site, Layout] = {}
    trace = base.candidate
    for number in range(ROUNDS):
        trace = _undone(base.candidate, ours, layouts, carried, outputs)
        now = replay(examination.reference.as_precise(), trace, examination.folder / f"undone-{number}", plan)
        found = _layouts(suspects, outputs, now, base.candidate, examination.stored_floor)
        further = _carried(found, outputs, now, base.candidate) if set(found) == set(layouts) else {}
        if set(found) == set(layouts) and set(further) == set(carried):
            break
        layouts, carried = found, further  # what only followed from a layout before it is gone
    if not layouts:
        return None
    folder = examination.folder / "seen through"
    folder.mkdir()
    precise = replays(examination.reference, torch.float32, trace, folder, base.how, plan)
    undone = _undone(examination.as_run.candidate, ours, layouts, carried, outputs)
    dtype = dtype_of(examination.candidate.model)
    as_run = replays(examination.reference, dtype, undone, folder, examination.as_run.how, plan)
    return replace(examination, precise=precise, as_run=as_run, plan=plan, layouts=tuple(layouts))


def _layouts(
    suspects: Sequence[Site], outputs: Mapping[str, Sequence[Site]], now: Trace, candidate: Trace, rounding: float
) -> dict[str, Layout]:
    found = {}
    for name in dict.fromkeys(site.name for site in suspects):
        site = next(iter(outputs.get(name, ())), None)
        if site is None or any(_is_same(candidate, site, end) for end in outputs.get("", ())):
            continue  # behind the model's own output nothing is left that could undo a layout
        both = compared(now, candidate, site)
        channels = _channels(name, suspects, now)
        if both is not None and introduced(*both, FLOAT32, (), IN_FLOAT64).beyond_noise:
            layout = find_layout(*both, channels, rounding)
            if layout is not None:
                found[name] = layout
    return found


def _carried(
    layouts: Mapping[str, Layout], outputs: Mapping[str, Sequence[Site]], now: Trace, candidate: Trace
) -> dict[Site, Layout]:
    """Where what follows from a layout is in the same order: behind an activation, until weights undo it.

    What is wrong with these tensors remains, so that they need not be equal; nothing but the order brings them close.
    """
    orders = [layout for layout in layouts.values() if layout.is_order]
    ends = {site for name in ("", *layouts) for site in outputs.get(name, ())}
    found: dict[Site, Layout] = {}
    for line in candidate.records if orders else ():
        both = compared(now, candidate, line.site) if line.site.phase == "fwd" else None
        if both is None or both[0].dtype.kind != "f" or any(_is_same(candidate, line.site, end) for end in ends):
            continue
        fitting = [one for one in orders if one.explains(*both)]
        found |= {line.site: fitting[0]} if fitting else {}
    return found


def _channels(name: str, suspects: Sequence[Site], now: Trace) -> int:
    shapes = [now[site].shape for site in suspects if site.name == name and site in now]
    return max((shape[0] for shape in shapes if shape), default=0)


def _undone(
    trace: Trace, ours: Trace, layouts: Mapping[str, Layout], carried: Mapping[Site, Layout],
    outputs: Mapping[str, Sequence[Site]],
) -> Trace:  # fmt: skip
    """A trace of the candidate with what modules return, and hand on as the reference does, in its layout."""
    arrays: dict[Site, Callable[[], Array]] = {
        site: partial(_later, trace, site, layout.undone) for site, layout in carried.items() if site in trace
    }
    for name, layout in layouts.items():
        for site in outputs[name]:
            if site not in trace:
                continue
            same = [
                one.site for one in trace.records if _is_same(trace, one.site, site) and _is_same(ours, one.site, site)
            ]
            for other in same:
                arrays[other] = partial(_later, trace, other, layout.undone)
            gradient = site._replace(phase="agrad")
            if gradient in trace and trace[gradient].at is not None:
                arrays[gradient] = partial(_later, trace, gradient, layout.gradient_undone)
    return trace.with_arrays(arrays)


def _is_same(trace: Trace, one: Site, other: Site) -> bool:
    return one in trace and other in trace and trace[one].at is not None and trace[one].at == trace[other].at


def _later(trace: Trace, site: Site, change: Callable[[Array], Array]) -> Array:
    return change(trace.array(site))


def _is_right_with(examination: Examination, suspects: Sequence[Site]) -> bool:
    """Whether the candidate becomes right once it has the reference's weights."""
    side = _with_weights(examination, suspects)
    folder = examination.folder / "right weights"
    folder.mkdir()
    try:
        theirs = examination.names.renamed(record(side.as_precise(), folder / "candidate"))
    except (RuntimeError, TypeError):
        return False
    found = replays(examination.reference, torch.float32, theirs, folder, "in float64")
    forward = [one.site for one in theirs.records if (one.site.step, one.site.phase) == (0, "fwd")]
    seen = [found.introduced_at(site, FLOAT32) for site in forward]
    return all(one is None or not one.beyond_noise for one in seen)


def _with_weights(examination: Examination, suspects: Sequence[Site]) -> Side:
    model = copy.deepcopy(examination.candidate.model)
    ours = {
        Site(0, "weight", item.module, item.port): item.tensor for item in parameters_of(examination.reference.model)
    }
    with torch.no_grad():
        for item in parameters_of(model):
            site = examination.names.site(Site(0, "weight", item.module, item.port))
            if site in suspects and site in ours and ours[site].shape == item.tensor.shape:
                item.tensor.copy_(ours[site])
    return replace(examination.candidate, model=model)
