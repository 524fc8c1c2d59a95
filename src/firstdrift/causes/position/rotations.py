"""The rotation that makes one tensor of another, found from the numbers, whatever the layout of its heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from ...traces import Array
from ..attention.positions import BASES
from ..attention.rotary import PAIRINGS, Floats, Rotary, base_of, complex_pairs, geometric, rotate, tables

FARTHEST = 1e7  # a first position beyond this is none


def layouts(rank: int) -> list[tuple[int, int]]:
    """Which axes hold tokens and heads: (token axis, head axis), -1 where a head is all there is."""
    return [(rank - 2, rank - 3), (rank - 3, rank - 2)] if rank >= 4 else [(1, -1)]


def as_tokens(x: Array, axes: tuple[int, int]) -> Floats:
    """(batch, tokens, heads, channels), whatever the layout."""
    values = np.asarray(x, np.float64)
    if axes[1] == -1:
        return values[:, :, None, :]
    values = values.reshape(-1, *values.shape[-3:])
    return values if axes[0] < axes[1] else values.transpose(0, 2, 1, 3)


def back(x: Floats, axes: tuple[int, int], like: Array) -> Floats:
    """Tokens in the layout that they came in."""
    return (x if axes[1] == -1 or axes[0] < axes[1] else x.transpose(0, 2, 1, 3)).reshape(like.shape)


def fitted(before: Floats, after: Floats, limit: float) -> Rotary | None:
    """The rotation that makes one tensor of another, or None; found on one sample, proven on all."""
    width = before.shape[-1]
    if width % 2 or before.shape[1] < 2 or _is_multiple(before, after, limit):
        return None
    for part, pairing in product(dict.fromkeys((width, width // 2, width // 4, 3 * width // 4)), PAIRINGS):
        if part < 2 or part % 2:
            continue
        for rotary in _proposed(before[:1], after[:1], part, pairing, limit):
            parts = ((slice(1), slice(1)), (slice(None), slice(None)))
            if all(_error(before[n, :, h], after[n, :, h], rotary) <= limit for n, h in parts):
                return rotary
    return None


def _is_multiple(before: Floats, after: Floats, limit: float) -> bool:
    """Whether nothing turns: one tensor is a factor times the other."""
    factor = float(np.vdot(before, after)) / max(float(np.vdot(before, before)), 1e-300)
    return float(np.linalg.norm(factor * before - after)) <= limit * float(np.linalg.norm(after))


def _proposed(before: Floats, after: Floats, channels: int, pairing: str, limit: float) -> Iterator[Rotary]:
    """Rotations of usual numbers first, then as they are measured."""
    if not _keeps_sizes(before, after, channels // 2, pairing, limit):
        return
    frequencies, factor, first = phases(before, after, channels // 2, pairing)
    measured = Rotary(frequencies, pairing, factor=factor, shift=first)
    for base, start, size in product(BASES, dict.fromkeys((0.0, first)), (1.0, factor)):
        yield replace(measured, frequencies=geometric(base, channels), shift=start, factor=size)
    theta = base_of(frequencies, 1e-3)
    if theta is not None:
        for size in (1.0, factor):
            rounded = geometric(float(f"{theta:.4g}"), channels)
            yield replace(measured, frequencies=rounded, factor=size)
    for start, size in product(dict.fromkeys((0.0, first)), (1.0, factor)):
        yield replace(measured, shift=start, factor=size)


def _keeps_sizes(before: Floats, after: Floats, pairs: int, pairing: str, limit: float) -> bool:
    """Whether every pair is as long as before, up to one factor, as it is under any rotation."""
    a, b = (np.abs(complex_pairs(x, pairs, pairing)) for x in (before, after))
    factor = float(np.linalg.norm(b)) / max(float(np.linalg.norm(a)), 1e-300)
    return float(np.linalg.norm(b - factor * a)) <= 2 * limit * float(np.linalg.norm(after))


def _error(before: Floats, after: Floats, rotary: Rotary) -> float:
    size = max(float(np.linalg.norm(after)), 1e-300)
    return float(np.linalg.norm(applied(before, rotary) - after)) / size


def phases(before: Floats, after: Floats, pairs: int, pairing: str) -> tuple[Floats, float, float]:
    """The angle that each pair turns by from one position to the next, the amplitude, and the first position."""
    a, b = complex_pairs(before, pairs, pairing), complex_pairs(after, pairs, pairing)
    turn = np.einsum("bthp,bthp->tp", b, a.conj())
    energy = np.einsum("bthp,bthp->tp", a, a.conj()).real
    factor = float(np.median(np.abs(turn) / np.maximum(energy, 1e-300)))
    angles = np.unwrap(np.angle(turn), axis=0)
    steps = np.arange(len(angles)) - (len(angles) - 1) / 2
    rates = np.asarray(steps @ (angles - angles.mean(axis=0)) / (steps @ steps))
    slowest = int(np.argmin(np.abs(rates)))
    first = np.angle(turn[0, slowest]) / rates[slowest] if rates[slowest] else 0.0
    return rates, factor, float(np.rint(first)) if abs(first) < FARTHEST else 0.0


def applied(before: Floats, rotary: Rotary | None) -> Floats:
    """A tensor of tokens as a rotation turns it; as it is where there is none."""
    if rotary is None:
        return before
    positions = np.arange(before.shape[1], dtype=np.float64) + rotary.shift
    return rotate(before, *tables(rotary, positions), rotary.pairing)
