"""A bias of the scores that nobody recorded: read off what the softmax made, where it is the same for all samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .formula import Indices, Settings, divide, masked
from .problem import Problem, at_rows, beginning, of_samples
from .rotary import Floats

TOKENS = 64  # keys, up to which a bias is fitted
SAMPLES = 4
ROUNDS = 30
HOPELESS = 12  # rounds, after which a fit that has not come far is given up
REDUNDANT = 2  # equations for each number of a bias
FARTHEST = 3.0  # that a bias moves in one round
LARGEST = 15.0  # what differs by more hides keys, and is no bias


@dataclass(frozen=True, eq=False, slots=True)
class _Head:
    """What one head is made of: scores (samples, queries, keys), values (samples, keys, channels), and its output."""

    scores: Floats
    values: Floats
    made: Floats

    def weights(self, bias: Floats) -> Floats:
        raw = self.scores + bias
        out = np.exp(raw - raw.max(axis=-1, keepdims=True))
        return np.asarray(out / out.sum(axis=-1, keepdims=True))

    def off(self, bias: Floats) -> Floats:
        return np.asarray(self.made - self.weights(bias) @ self.values)


def small(given: Problem, settings: Settings) -> Problem | None:
    """A part of a problem that is small enough for a bias to be fitted; None where there is none."""
    usual = (
        settings.axes == "thd"
        and settings.over == "keys"
        and not settings.sink
        and not settings.sunk
        and not settings.late
    )
    if given.reads not in ("out", "probabilities") or given.operands.projection is not None or not usual:
        return None
    if given.operands.prefix is not None:
        return None
    few = np.arange(min(len(given.operands.q), SAMPLES))
    if max(given.queries, given.keys) <= TOKENS:
        return at_rows(of_samples(given, few), np.arange(given.queries))
    return beginning(given, TOKENS, few) if settings.diagonal == 0 and given.keys == given.queries else None


def bias_of(settings: Settings, given: Problem, limit: float, by_distance: bool) -> Floats | None:
    """The bias (1, heads, queries, keys) with which settings explain a small problem; None where none does.

    It depends on the distance of query and key only, or is any that all samples share. The latter says something only
    where samples differ, since one sample alone has a bias for whatever was done.
    """
    distance = np.arange(given.queries)[:, None] - np.arange(given.keys) + given.keys - 1
    places = distance if by_distance else np.broadcast_to(np.arange(given.keys), distance.shape)
    found = []
    for head in _heads(settings, given):
        told = len(head.made) * min(head.made.shape[-1], given.keys - 1) * (given.queries if by_distance else 1)
        enough = told >= REDUNDANT * (int(places.max()) + 1) and (by_distance or len(head.made) > 1)
        bias = _fitted(head, places, by_distance, limit) if enough else None
        if bias is None:
            return None
        found.append(bias)
    return np.stack(found)[None] if found else None


def _heads(settings: Settings, given: Problem) -> Iterator[_Head]:
    """Every head on its own; none where a query sees nothing."""
    raw = masked(given.operands, settings, given.rows)
    values = divide(given.operands.v, settings.kv_heads, settings.axes)
    out = None if given.reads != "out" else divide(given.observed, settings.heads, settings.merge)
    target = given.observed if out is None else out
    if np.isneginf(raw).all(axis=-1).any() or not np.isfinite(target).all():
        return
    for head in range(settings.heads):
        group = head % settings.kv_heads if settings.tiled else head // (settings.heads // settings.kv_heads)
        if out is None:
            every = np.broadcast_to(np.eye(given.keys), (len(raw), given.keys, given.keys))
            yield _Head(raw[:, head], every, given.observed[:, head])
        else:
            yield _Head(raw[:, head], values[:, :, group], out[:, :, head])


def _fitted(head: _Head, places: Indices, by_distance: bool, limit: float) -> Floats | None:
    """The bias (queries, keys) of one head, by damped least squares; None where it leaves more than a limit.

    A bias by distance is one fit; of any other each query has its own.
    """

    def errors(bias: Floats) -> Floats:
        squares = (head.off(bias) ** 2).sum(axis=(0, 2))
        return np.asarray(np.sqrt(squares.sum(keepdims=True) if by_distance else squares))

    bias = np.zeros(places.shape)
    enough = limit * (float(np.linalg.norm(head.made)) or 1.0)
    error = errors(bias)
    first, damping = float(np.linalg.norm(error)), np.full(len(error), 0.1)
    for number in range(ROUNDS):
        left = float(np.linalg.norm(error))
        if left <= 1e-3 * enough or (damping > 1e6).all() or (number == HOPELESS and left > 0.3 * first):
            break
        step = _step(head, bias, places, by_distance, damping)
        moved = bias + np.clip(step, -FARTHEST, FARTHEST)
        after = errors(moved)
        better = after < error
        bias = np.where(better[:, None], moved, bias)
        damping = np.where(better, np.maximum(damping * 0.1, 1e-12), damping * 10)
        error = np.where(better, after, error)
        if left <= enough and float(np.linalg.norm(error)) > 0.5 * left:  # only noise remains
            break
    seen = (head.weights(bias) > 1e-9).any(axis=0)
    return bias if float(np.linalg.norm(error)) <= enough and float(np.ptp(bias[seen])) <= LARGEST else None


def _step(head: _Head, bias: Floats, places: Indices, by_distance: bool, damping: Floats) -> Floats:
    """What to add to a bias (queries, keys)."""
    weights, off = head.weights(bias), head.off(bias)
    made = head.made - off
    slopes = weights[..., None] * (head.values[:, None] - made[:, :, None])  # (samples, queries, keys, channels)
    rows = slopes.transpose(1, 2, 0, 3).reshape(*slopes.shape[1:3], -1)
    wanted = off.transpose(1, 0, 2).reshape(len(rows), -1)
    square, along = rows @ rows.swapaxes(1, 2), (rows @ wanted[..., None])[..., 0]
    if not by_distance:
        return _solved(square, along, damping)
    count = int(places.max()) + 1
    cells = (places[:, :, None] * count + places[:, None, :]).ravel()
    total = np.bincount(cells, square.ravel(), count * count).astype(np.float64)
    sums = np.bincount(places.ravel(), along.ravel(), count).astype(np.float64)
    return np.asarray(_solved(total.reshape(1, count, count), sums[None], damping)[0][places])


def _solved(square: Floats, along: Floats, damping: Floats) -> Floats:
    """Least squares for each of some sets of numbers; what hardly shows is held back by the damping of what does."""
    diagonal = np.einsum("nii->ni", square)
    mean = diagonal.mean(axis=1, keepdims=True)
    floor = np.maximum((1e-14 + 1e-2 * damping[:, None]) * mean, 1e-300)
    damped = square + np.eye(square.shape[1]) * (damping[:, None] * diagonal + floor)[:, None, :]
    return np.asarray(np.linalg.solve(damped, along[..., None])[..., 0])
