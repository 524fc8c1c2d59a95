"""Attention settings against what was observed: the error they leave, on all queries or on some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from .formula import (
    FILLS,
    HIDDEN,
    Indices,
    Operands,
    Prefix,
    Settings,
    attended,
    blind,
    divide,
    masked,
    merge,
    probabilities,
)
from .rotary import Floats

WHOLE = 1 << 21  # scores, up to which everything is computed
SCREEN = 1 << 16  # scores, for trying many settings


@dataclass(frozen=True, eq=False, slots=True)
class Problem:
    """Operands of one side, what that side made of them, and what the other side made.

    `reads` says what was observed: the output (batch, queries, width), or probabilities or scores (batch, heads,
    queries, keys). `rows` are the queries that are looked at; `alone` says that there is only the first head. `profile`
    holds the squares of the two sides' difference and of their size for each sample and query.
    """

    operands: Operands
    observed: Floats
    other: Floats
    reads: str
    rows: Indices
    profile: tuple[Floats, Floats]
    scale: float = 1.0
    alone: bool = False

    def error(self, settings: Settings) -> float:
        """The relative L2 error that settings leave on the rows that are looked at."""
        return float(np.sqrt((self.per_row(settings) ** 2).sum()))

    def per_row(self, settings: Settings) -> Floats:
        """The error of each row, in shares of what was observed on all of them."""
        off = self.difference(settings)
        axes = tuple(axis for axis in range(off.ndim) if axis != (1 if self.reads == "out" else 2))
        return np.asarray(np.sqrt((off**2).sum(axis=axes)) / self.scale)

    def difference(self, settings: Settings) -> Floats:
        """Predicted less observed; infinite where only one of them is finite."""
        if self.alone:
            first = None if settings.slopes is None else settings.slopes[:1]
            settings = replace(settings, heads=1, kv_heads=1, slopes=first, groups=None, order=None)
        target = self._target(settings)
        fills = FILLS if self.reads != "scores" and blind(self.operands, settings, self.rows) else FILLS[:1]
        tried = [_off(self._predicted(replace(settings, fill=fill)), target) for fill in fills]
        return min(tried, key=lambda off: float(np.abs(off).sum()))

    def predicted(self, settings: Settings) -> Floats:
        """What would be observed under settings, in the shape of what was."""
        off = self.difference(settings)
        if self.reads == "out" and self.operands.projection is None:
            off = merge(off, settings.merge)
        return self.observed + off

    def _predicted(self, settings: Settings) -> Floats:
        if self.reads == "probabilities":
            return probabilities(self.operands, settings, self.rows)
        if self.reads == "scores":
            return masked(self.operands, settings, self.rows)
        out = attended(self.operands, settings, self.rows)
        if self.operands.projection is None:
            return out
        weight, bias = self.operands.projection
        return np.asarray(merge(out, settings.merge) @ weight.T + bias)

    def _target(self, settings: Settings) -> Floats:
        if self.reads == "scores":
            rows = self.observed[:, :, self.rows]
            return np.where(rows <= HIDDEN, -np.inf, rows)
        if self.reads == "probabilities":
            return self.observed[:, :, self.rows]
        if self.operands.projection is not None:
            return self.observed[:, self.rows]
        return divide(self.observed, settings.heads, settings.merge)[:, self.rows]

    def complete(self, heads: int, budget: int) -> bool:
        """Whether all queries of a sample fit a budget of scores."""
        return heads * self.queries * self.keys <= budget

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return int(self.operands.q.shape[1])

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return int(self.operands.k.shape[1])


def problem(operands: Operands, observed: Floats, other: Floats, profile: tuple[Floats, Floats]) -> Problem:
    """The whole problem."""
    reads = "out"
    if observed.ndim == 4:
        with np.errstate(invalid="ignore"):
            told = [np.abs(one.sum(axis=-1) - 1).max(initial=0.0) < 0.1 for one in (other, observed)]
            shares = any(told) and bool((other >= 0).all() and (observed >= 0).all())  # one may leave out a share
            reads = "probabilities" if shares else "scores"
    return Problem(operands, observed, other, reads, np.arange(operands.q.shape[1]), profile)


def profile(observed: Floats, other: Floats) -> tuple[Floats, Floats]:
    """For each sample and query, the squares of the difference and of the size; what is not finite counts nothing."""
    axes = "btw,btw->bt" if observed.ndim == 3 else "bhtk,bhtk->bt"
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.nan_to_num(observed - other, nan=0.0, posinf=0.0, neginf=0.0)
        size = np.where(np.isfinite(other) & (other > HIDDEN), other, 0.0)
        off = np.where(np.abs(off) < -HIDDEN, off, 0.0) if observed.ndim == 4 else off
    return np.einsum(axes, off, off), np.einsum(axes, size, size)


def sampled(given: Problem, heads: int, budget: int) -> Problem:
    """The samples and queries that differ most between the two sides, and some of all, within a budget of scores."""
    batch, queries, keys = len(given.operands.q), given.queries, given.keys
    if batch * heads * queries * keys <= budget:
        return _scaled(given)
    kept = max(1, budget // (heads * queries * keys))
    chosen = np.sort(np.argsort(-given.profile[0].sum(axis=1), kind="stable")[:kept])
    count = int(np.clip(budget // (len(chosen) * heads * keys), min(6, queries), queries))
    spread = np.linspace(0, queries - 1, max(count // 2, 2)).astype(np.intp)
    most = np.argsort(-given.profile[0][chosen].sum(axis=0), kind="stable")[: count - count // 2]
    rows = np.unique(np.concatenate([spread, most])) if count < queries else np.arange(queries)
    return at_rows(of_samples(given, chosen), rows)


def of_samples(given: Problem, chosen: Indices) -> Problem:
    """The same for some samples."""
    return replace(
        given, operands=given.operands.samples(chosen), observed=given.observed[chosen], other=given.other[chosen]
    )


def first_head(given: Problem, heads: int, kv_heads: int) -> Problem:
    """Only the first head, where the output of each head was observed on its own."""
    if given.operands.projection is not None:
        return given
    o = given.operands
    q, k, v = (x[..., : x.shape[-1] // n] for x, n in ((o.q, heads), (o.k, kv_heads), (o.v, kv_heads)))
    bias, mask = (None if x is None else x[:, :1] for x in (o.bias, o.mask))

    def first(x: Floats) -> Floats:
        return x[..., : x.shape[-1] // heads] if given.reads == "out" else x[:, :1]

    sinks = None if o.sinks is None else o.sinks[:1]
    prefix = o.prefix
    if prefix is not None:
        keys, values = (x[:, : x.shape[-1] // kv_heads] for x in (prefix.k, prefix.v))
        prefix = Prefix(keys, values, prefix.offset)
    operands = replace(o, q=q, k=k, v=v, bias=bias, mask=mask, sinks=sinks, prefix=prefix, memory={})
    observed, other = first(given.observed), first(given.other)
    return _scaled(replace(given, operands=operands, observed=observed, other=other, alone=True))


def beginning(given: Problem, tokens: int, chosen: Indices) -> Problem:
    """The first tokens of some samples; exact where no query looks ahead."""
    operands = given.operands.first(tokens).samples(chosen)

    def first(x: Floats) -> Floats:
        return x[:, :tokens][chosen] if given.reads == "out" else x[:, :, :tokens, :tokens][chosen]

    rows = np.arange(operands.q.shape[1])
    observed, other = first(given.observed), first(given.other)
    return _scaled(replace(given, operands=operands, observed=observed, other=other, rows=rows))


def at_rows(given: Problem, rows: Indices) -> Problem:
    """The same, looking at other queries."""
    return _scaled(replace(given, rows=rows))


def fitted(difference: Callable[[Floats], Floats], start: Iterable[float], rounds: int = 14) -> tuple[Floats, float]:
    """Numbers that make a difference small, by damped least squares, and the norm that remains."""
    x = np.asarray(list(start), np.float64)
    off = difference(x).ravel()
    best, damping = float(np.linalg.norm(off)), 1e-3
    for _ in range(rounds):
        step = 1e-6
        slopes = np.stack([(difference(x + step * unit).ravel() - off) / step for unit in np.eye(len(x))], axis=1)
        if not np.isfinite(best) or not np.isfinite(slopes).all():
            break
        square = slopes.T @ slopes
        size = np.inf
        while damping < 1e6:
            move = np.linalg.lstsq(square + damping * np.diag(np.diag(square)), -slopes.T @ off, rcond=None)[0]
            trial = difference(x + move).ravel()
            size = float(np.linalg.norm(trial))
            if size < best:
                break
            damping *= 10
        if not size < best:
            break
        done = best - size < 1e-4 * best
        x, off, best, damping = x + move, trial, size, max(damping * 0.1, 1e-12)
        if done:
            break
    return x, best


def _off(predicted: Floats, target: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        alike = (predicted == target) | (np.isnan(predicted) & np.isnan(target))
        off = np.where(alike, 0.0, predicted - target)
    return np.where(np.isfinite(off), off, np.inf)


def _scaled(given: Problem) -> Problem:
    def size(x: Floats) -> float:
        rows = x[:, given.rows] if given.reads == "out" else x[:, :, given.rows]
        usual = np.isfinite(rows) if given.reads == "out" else np.isfinite(rows) & (rows > HIDDEN)
        return float(np.linalg.norm(rows[usual]))

    return replace(given, scale=max(size(given.observed), size(given.other)) or 1.0)
