"""What a query attended, read off its output: it lies among the values of the keys it saw, whatever the scores."""

from __future__ import annotations

import numpy as np

from .formula import divide
from .problem import Problem
from .rotary import Floats
from .structure import Structure

ROWS = 4  # queries that are looked at
SAMPLES = 2


def window_seen(structure: Structure, given: Problem, limit: float) -> int | None:
    """The width of a sliding window that hides the first keys from later queries; None where none can be seen.

    As many keys as a head has channels can be told apart. The window is the least width within whose values the outputs
    of all heads lie.
    """
    if given.reads != "out" or given.operands.projection is not None or given.keys != given.queries:
        return None
    values = divide(given.operands.v[:SAMPLES], structure.kv_heads, "thd")
    made = divide(given.observed[:SAMPLES], structure.heads, "thd")
    if structure.tiled:
        values = np.tile(values, (1, 1, structure.heads // structure.kv_heads, 1))
    else:
        values = np.repeat(values, structure.heads // structure.kv_heads, axis=2)
    last = min(values.shape[-1], given.queries) - 1
    if last < 2 or not np.isfinite(made).all():
        return None
    outside, size = np.zeros(last + 1), 0.0
    outside_of = _outside if given.operands.sinks is None else _outside_sums
    for row in range(max(last - ROWS + 1, 2), last + 1):
        for head in np.ndindex(len(values), structure.heads):
            sample, number = head
            left = outside_of(values[sample, : row + 1, number], made[sample, row, number])
            outside[: row + 1] += left
            size += float(made[sample, row, number] @ made[sample, row, number])
    enough = outside <= limit**2 * size
    width = int(np.argmax(enough)) + 1
    return width if enough.any() and width <= last else None


def _outside(values: Floats, made: Floats) -> Floats:
    """For each width from one on, the square of what mixtures of so many last values (keys, channels) do not reach."""
    own = values[-1]
    basis = np.linalg.qr((values[-2::-1] - own).T)[0]
    target = made - own
    along = basis.T @ target
    rest = target - basis @ along
    return np.concatenate([np.cumsum((along**2)[::-1])[::-1], [0.0]]) + float(rest @ rest)


def _outside_sums(values: Floats, made: Floats) -> Floats:
    """The same where the shares of the keys need not sum to one, as where a sink takes some."""
    basis = np.linalg.qr(values[::-1].T)[0]
    along = basis.T @ made
    rest = made - basis @ along
    return np.concatenate([np.cumsum((along**2)[::-1])[::-1][1:], [0.0]]) + float(rest @ rest)
