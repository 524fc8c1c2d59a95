"""Wrong changes: of elements, rows, channels, heads, samples, regions, weights, constants, updates, dtypes, parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import firstdrift as fd

from .network import Network
from .operations.op import Op, Wrong, lowered
from .optimizers import Optimizer
from .running import Change
from .truth import Noise, numbers

PLACES = ("element", "row", "channel", "head", "sample", "region", "all")


@dataclass(frozen=True)
class Edit(Change):
    """Part of one tensor is another than was computed."""

    site: fd.Site
    part: tuple[slice, ...]
    mode: str  # add, scale, zero, negate, shift
    amount: np.ndarray

    def edit(self, site, tensor: Tensor) -> Tensor:
        if site != self.site:
            return tensor
        values = np.array(numbers(tensor)).reshape(tuple(tensor.shape) or (1,))
        part = values[self.part]
        change = {
            "add": lambda: part + self.amount,
            "scale": lambda: part * (1 + self.amount),
            "zero": lambda: part * 0,
            "negate": lambda: -part,
            "shift": lambda: np.roll(values, 1, -1)[self.part],
        }
        values[self.part] = change[self.mode]()
        return torch.from_numpy(values).reshape(tensor.shape).to(tensor.dtype)


@dataclass(frozen=True)
class OtherOp(Change):
    """One operation is another, in both passes or in the backward pass alone."""

    node: str
    other: Op
    backward_only: bool = False

    def op(self, step, node, op):
        return self.other if node == self.node and not self.backward_only else op

    def backward_op(self, step, node, op):
        return self.other if node == self.node and self.backward_only else None


@dataclass(frozen=True)
class OtherUpdate(Change):
    """The optimizer has another setting from some step on: for all parameters, or for one."""

    other: Optimizer
    only: tuple[str, str] | None = None

    def optimizer(self, step, key, optimizer):
        return self.other if self.only in (None, key) else optimizer


@dataclass(frozen=True)
class LostBranch(Change):
    """A gradient misses one of its addends."""

    site: fd.Site
    which: int

    def parts(self, site, parts):
        return parts if site != self.site else [one for i, one in enumerate(parts) if i != self.which]


@dataclass(frozen=True)
class Drawn:
    """A change with its kind, and in words."""

    kind: str
    label: str
    change: Change
    attrs: tuple[str, Mapping[str, float]] | None = None  # what the candidate states of a node


def part_of(shape: tuple[int, ...], place: str, rng: np.random.Generator) -> tuple[slice, ...]:
    """A random part of a tensor of this shape."""

    def one(n: int) -> slice:
        i = int(rng.integers(n))
        return slice(i, i + 1)

    everything = [slice(None)] * len(shape)
    if place == "element":
        return tuple(one(n) for n in shape)
    if place == "row":
        return (*(one(n) for n in shape[:-1]), slice(None))
    if place == "channel":
        axis = 1 if len(shape) == 4 else -1
        everything[axis] = one(shape[axis])
    elif place == "head":
        size = max(1, shape[-1] // 4)
        start = int(rng.integers(shape[-1] // size)) * size
        everything[-1] = slice(start, start + size)
    elif place == "sample":
        everything[0] = one(shape[0])
    elif place == "region":
        for axis, n in enumerate(shape):
            a, b = sorted(rng.integers(0, n + 1, 2))
            everything[axis] = slice(int(min(a, n - 1)), int(max(b, a + 1)))
    return tuple(everything)


def draw_edit(site: fd.Site, value: Tensor, noise: Noise, rng: np.random.Generator) -> Drawn:
    """A part of a tensor changed by a multiple of the noise there, or beyond recognition."""
    shape = tuple(value.shape) or (1,)
    place = PLACES[rng.integers(len(PLACES))] if len(shape) > 1 else ("element", "row", "head")[rng.integers(3)]
    part = part_of(shape, place, rng)
    times = float(10 ** rng.uniform(1, 4.5))
    usual = np.broadcast_to(noise.element if place == "element" else noise.row, shape)[part]
    mode = ("add", "add", "offset", "scale", "zero", "negate", "shift")[rng.integers(7)]
    amount = np.zeros(1)
    if mode == "offset":
        mode, amount = "add", np.full(1, times * float(np.median(usual)) * rng.choice([-1, 1]))
    elif mode == "add":
        amount = times * usual * rng.standard_normal(usual.shape) if place != "element" else times * usual
    elif mode == "scale":
        size = float(np.sqrt(np.mean(numbers(value).reshape(shape)[part] ** 2))) or 1.0
        amount = np.full(1, times * float(np.median(usual)) / size)
    where = "weight" if site.phase == "weight" else place
    return Drawn(where, f"{mode} at {place} of {site}", Edit(site, part, mode, amount))


def draw_wrong_op(network: Network, store: torch.dtype, rng: np.random.Generator) -> Drawn | None:
    """One operation with another constant, a missing part, or in a lower precision."""
    nodes = [(node.name, node.op) for node in network.nodes]
    nodes += [("loss", network.loss)] if network.loss is not None else []
    name, op = nodes[rng.integers(len(nodes))]
    choices: list[Wrong] = [*op.wrong(rng), *lowered(op, store)]
    if not choices:
        return None
    wrong = choices[rng.integers(len(choices))]
    back = network.loss is not None and name != "loss" and bool(rng.random() < 0.25)
    label = f"{wrong.label} at {name}" + (", backward only" if back else "")
    stated = (name, wrong.attrs) if wrong.attrs and not back and rng.random() < 0.3 else None
    return Drawn(wrong.kind, label, OtherOp(name, wrong.op, back), stated)


def draw_wrong_update(network: Network, rng: np.random.Generator) -> Drawn:
    label, other = (found := network.optimizer.wrong(rng))[rng.integers(len(found))]
    keys = network.trainable()
    only = keys[rng.integers(len(keys))] if rng.random() < 0.4 else None
    return Drawn("update", f"{label} of {only or 'all'}", OtherUpdate(other, only))
