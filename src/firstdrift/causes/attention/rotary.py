"""Rotary positions: how queries and keys are turned, as numbers that can be fitted and varied."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LOW = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
STAGES = ("positions", "frequencies", "angles", "tables")  # what may have been held in a coarse dtype
PAIRINGS = ("half", "interleaved")  # channel i turns with i + n/2, or with its neighbour


@dataclass(frozen=True, eq=False, slots=True)
class Rotary:
    """Rotation of the first `2 * len(frequencies)` channels of each head.

    `frequencies` are radians per position, `shift` moves the queries' positions against the keys', `factor` is the
    amplitude (YaRN), `rounding` a coarse dtype and the stage that was held in it. Of `sides` only these are turned, and
    of the heads the first ones, where there is a number of them. `key_pairing` is that of the keys where it is not the
    queries'.
    """

    frequencies: Floats
    pairing: str = "half"
    shift: float = 0.0
    factor: float = 1.0
    rounding: tuple[str, str] | None = None
    sides: str = "qk"
    heads: int | None = None
    key_pairing: str = ""

    @property
    def channels(self) -> int:
        """How many channels of a head are rotated."""
        return 2 * len(self.frequencies)


def geometric(theta: float, channels: int, over: int | None = None) -> Floats:
    """The usual frequencies `theta ** (-2 i / channels)`, or with another divisor in the exponent."""
    return np.asarray(theta ** (-2.0 * np.arange(channels // 2) / (over or channels)), np.float64)


def first_pairs(frequencies: Floats, count: int) -> Floats:
    """The frequencies of the first pairs; the others stand still."""
    return np.where(np.arange(len(frequencies)) < count, frequencies, 0.0)


def llama3(frequencies: Floats, factor: float, low: float = 1.0, high: float = 4.0, original: float = 8192.0) -> Floats:
    """Llama 3.1's scaling: long waves are slowed down by a factor, short ones kept, those between are mixed."""
    turns = original * frequencies / (2 * np.pi)
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(frequencies * (share + (1.0 - share) / factor), np.float64)


def yarn(frequencies: Floats, factor: float, original: float, theta: float) -> Floats:
    """YaRN's scaling: a ramp over the channels between 32 turns and one turn of the original length."""
    channels = 2 * len(frequencies)

    def channel(turns: float) -> float:
        return float(channels * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(theta)))

    low, high = max(np.floor(channel(32.0)), 0.0), min(np.ceil(channel(1.0)), channels - 1.0)
    ramp = np.clip((np.arange(channels // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    return np.asarray(frequencies * (1.0 - ramp + ramp / factor), np.float64)


def base_of(frequencies: Floats, within: float = 1e-6) -> float | None:
    """The theta of geometric frequencies that begin with one; None for others."""
    if len(frequencies) < 2 or not (frequencies > 0).all():
        return None
    channels = 2 * len(frequencies)
    slope = np.log(frequencies[-1]) / (len(frequencies) - 1)
    theta = float(np.exp(-slope * channels / 2))
    if theta <= 1.0 or not np.isfinite(theta):
        return None
    close = np.allclose(np.log(geometric(theta, channels)), np.log(frequencies), rtol=0, atol=within)
    return theta if close else None


def rounded(values: Floats, dtype: str) -> Floats:
    """Values as a coarse dtype would hold them."""
    return np.asarray(values, np.float32).astype(LOW[dtype]).astype(np.float64)


def tables(rotary: Rotary, positions: Floats) -> tuple[Floats, Floats]:
    """Cosines and sines, (..., positions, pairs)."""
    dtype, stage = rotary.rounding or ("", "")
    frequencies = rotary.frequencies
    where = np.asarray(positions, np.float64)
    if stage in ("frequencies", "angles"):
        frequencies = rounded(frequencies, dtype)
    if stage in ("positions", "angles"):
        where = rounded(where, dtype)
    angles = where[..., None] * frequencies
    if stage == "angles":
        angles = rounded(angles, dtype)
    cos, sin = np.cos(angles), np.sin(angles)
    if stage in ("tables", "angles"):
        cos, sin = rounded(cos, dtype), rounded(sin, dtype)
    return rotary.factor * cos, rotary.factor * sin


def rotate(x: Floats, cos: Floats, sin: Floats, pairing: str) -> Floats:
    """Turn the pairs of x (..., positions, heads, channels) by tables (..., positions, pairs)."""
    pairs = cos.shape[-1]
    cos, sin = cos[..., None, :], sin[..., None, :]
    out = x.copy()
    a, b = _pairs(x, pairs, pairing)
    to_a, to_b = _pairs(out, pairs, pairing)
    to_a[...] = a * cos - b * sin
    to_b[...] = b * cos + a * sin
    return out


def turned(x: Floats, rotary: Rotary, positions: Floats, side: str = "q") -> Floats:
    """x (..., positions, heads, channels) as a rotation turns it."""
    pairing = rotary.key_pairing if side == "k" and rotary.key_pairing else rotary.pairing
    out = rotate(x, *tables(rotary, positions), pairing)
    return out if rotary.heads is None else np.concatenate([out[..., : rotary.heads, :], x[..., rotary.heads :, :]], -2)


def complex_pairs(x: Floats, pairs: int, pairing: str) -> Floats:
    """The pairs of the last axis as complex numbers."""
    a, b = _pairs(x, pairs, pairing)
    return np.asarray(a + 1j * b)


def frequencies_of(cos: Floats, sin: Floats) -> tuple[Floats, float] | None:
    """Frequencies and amplitude of given tables (positions, columns); None where angles do not grow steadily."""
    if cos.shape != sin.shape or cos.ndim != 2 or len(cos) < 2:
        return None
    columns = cos.shape[1]
    if columns % 2 == 0 and np.array_equal(cos[:, : columns // 2], cos[:, columns // 2 :]):
        cos, sin = cos[:, : columns // 2], sin[:, : columns // 2]
    elif columns % 2 == 0 and np.array_equal(cos[:, 0::2], cos[:, 1::2]):
        cos, sin = cos[:, 0::2], sin[:, 0::2]
    amplitude = np.hypot(cos, sin)
    factor = float(amplitude.mean())
    if not factor > 0 or np.abs(amplitude - factor).max() > 1e-2 * factor:
        return None
    angles = np.unwrap(np.arctan2(sin, cos), axis=0)
    steps = np.arange(len(cos)) - (len(cos) - 1) / 2
    slopes = steps @ (angles - angles.mean(axis=0)) / (steps @ steps)
    off = angles - angles.mean(axis=0) - steps[:, None] * slopes
    return (np.asarray(slopes), factor) if np.abs(off).max() < 5e-2 else None


def _pairs(x: Floats, pairs: int, pairing: str) -> tuple[Floats, Floats]:
    if pairing == "half":
        return x[..., :pairs], x[..., pairs : 2 * pairs]
    return x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
