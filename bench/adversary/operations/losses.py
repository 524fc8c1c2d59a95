"""Losses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch.nn import functional

from .op import Formula, Op, Wrong


def cross_entropy(op, xs, w, rng):
    target = torch.tensor(op.targets)
    return functional.cross_entropy(xs[0].flatten(0, -2), target, label_smoothing=op.smoothing) * op.factor


def cross_entropy_unfused(op, xs, w, rng):
    target, logits = torch.tensor(op.targets), xs[0].flatten(0, -2)
    order = torch.from_numpy(rng.permutation(len(target)))
    logs = (logits - torch.logsumexp(logits, -1, keepdim=True))[order]
    hit = logs[torch.arange(len(order)), target[order]]
    return -((1 - op.smoothing) * hit + op.smoothing * logs.mean(-1)).sum() / len(order) * op.factor


@dataclass(frozen=True)
class CrossEntropy(Op):
    targets: tuple[int, ...] = ()
    smoothing: float = 0.0
    factor: float = 1.0
    formulas: ClassVar = (Formula("fused", cross_entropy), Formula("unfused", cross_entropy_unfused, wide=True))

    def wrong(self, rng):
        smoothing = float(10 ** rng.uniform(-5, -1))
        return [
            Wrong("constant", "label smoothing", replace(self, smoothing=smoothing)),
            Wrong("constant", "loss scaled", replace(self, factor=1 + float(10 ** rng.uniform(-5, 0)))),
            Wrong("missing", "last target another", replace(self, targets=(*self.targets[:-1], self.targets[0]))),
        ]


def squares(op, xs, w, rng):
    target = torch.tensor(op.targets, dtype=xs[0].dtype).reshape(xs[0].shape)
    return functional.mse_loss(xs[0], target) * op.factor


def squares_by_rows(op, xs, w, rng):
    target = torch.tensor(op.targets, dtype=xs[0].dtype).reshape(xs[0].shape)
    order = torch.from_numpy(rng.permutation(xs[0].shape[0]))
    rows = ((xs[0] - target) ** 2).flatten(1).sum(1)
    return rows[order].sum() / xs[0].numel() * op.factor


@dataclass(frozen=True)
class MeanSquares(Op):
    targets: tuple[float, ...] = ()  # numbers that every dtype holds
    factor: float = 1.0
    formulas: ClassVar = (Formula("fused", squares), Formula("by rows", squares_by_rows, wide=True))

    def wrong(self, rng):
        return [Wrong("constant", "loss scaled", replace(self, factor=1 + float(10 ** rng.uniform(-5, 0))))]
