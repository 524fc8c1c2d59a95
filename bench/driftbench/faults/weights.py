"""What loading can do to weights: each function gives a change of a state dict."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..case import Change


def altered(key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """One tensor goes through a function; the shape may change."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        state[key] = change(state[key]).contiguous().clone()

    return apply


def transposed(key: str) -> Change:
    """The last two axes exchanged."""
    return altered(key, lambda w: w.transpose(-2, -1))


def swapped(a: str, b: str) -> Change:
    """Two tensors exchanged."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        state[a], state[b] = state[b], state[a]

    return apply


def copied(source: str, to: str) -> Change:
    """One tensor loaded in place of another."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        state[to] = state[source].clone()

    return apply


def permuted(key: str, order: list[int], axis: int = 0) -> Change:
    """Slices along an axis in another order."""
    return altered(key, lambda w: w.index_select(axis, torch.tensor(order)))


def fresh(key: str, std: float = 0.02) -> Change:
    """Left as it was initialised."""
    return altered(key, lambda w: std * torch.randn(w.shape, generator=torch.Generator().manual_seed(7)))


def zeroed(key: str) -> Change:
    """A shard that was never written."""
    return altered(key, torch.zeros_like)


def denormal(key: str) -> Change:
    """The last quarter of the rows holds what some integer left there."""

    def change(w: torch.Tensor) -> torch.Tensor:
        start = len(w) * 3 // 4
        w = w.clone()
        w[start:] = torch.randint(1, 2000, w[start:].shape, generator=torch.Generator().manual_seed(3)) * 1.4e-45
        return w

    return altered(key, change)


def on_int8_grid(key: str) -> Change:
    """Quantised per output channel to int8, and back."""

    def change(w: torch.Tensor) -> torch.Tensor:
        flat = w.flatten(1)
        step = flat.abs().amax(1, keepdim=True) / 127
        return ((flat / step).round() * step).reshape(w.shape)

    return altered(key, change)


def on_int4_grid(key: str, group: int = 16, shift: int = 0) -> Change:
    """Quantised to 4 bits with zero points per group, and back with the zero point off by `shift`."""

    def change(w: torch.Tensor) -> torch.Tensor:
        parts = w.flatten(1).unflatten(1, (-1, group))
        low, high = parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True)
        step = (high - low) / 15
        zero = (-low / step).round()
        levels = (parts / step + zero).round().clamp(0, 15)
        return ((levels - zero - shift) * step).reshape(w.shape)

    return altered(key, change)


def rounded(key: str, dtype: torch.dtype = torch.bfloat16) -> Change:
    """Stored in a shorter dtype on the way."""
    return altered(key, lambda w: w.to(dtype).to(w.dtype))


def scaled(key: str, factor: float, rows: slice | int = slice(None)) -> Change:
    """Some rows multiplied."""

    def change(w: torch.Tensor) -> torch.Tensor:
        w = w.clone()
        w[rows] *= factor
        return w

    return altered(key, change)


def added(key: str, value: float) -> Change:
    """A constant added everywhere."""
    return altered(key, lambda w: w + value)


def halves_interleaved(key: str, heads: int) -> Change:
    """Rows inside each head, from halves to pairs: 0, n/2, 1, n/2 + 1, ..."""

    def change(w: torch.Tensor) -> torch.Tensor:
        rows = w.unflatten(0, (heads, 2, -1))
        return rows.transpose(1, 2).reshape(w.shape)

    return altered(key, change)


def renamed(pairs: dict[str, str]) -> Change:
    """Keys under other prefixes: {candidate's prefix: reference's prefix}."""

    def apply(state: dict[str, torch.Tensor]) -> None:
        found = dict(state)
        state.clear()
        for key, value in found.items():
            for new, old in pairs.items():
                if key == old or key.startswith(f"{old}."):
                    state[new + key[len(old) :]] = value
                    break
            else:
                state[key] = value

    return apply
