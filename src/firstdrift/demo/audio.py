"""The clips of audio.c, in numpy: integer arithmetic throughout, so that both sides make the same bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import SelectionError

LENGTH, CLIPS, CLASSES = 16000, 320, 6
SILENCE, NOISE, LOW, HIGH, RISING, FALLING = range(CLASSES)
_HERTZ = 268435  # 2^32 / 16000
_MASK = 0xFFFFFFFF


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 32 bits, held in 64 so that nothing overflows."""
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x7FEB352D)) & np.uint64(_MASK)
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(0x846CA68B)) & np.uint64(_MASK)
    return x ^ (x >> np.uint64(16))


def _hash(x: int) -> int:
    return int(_mixed(np.array([x & _MASK], np.uint64))[0])


def _key(seed: int, clip: int) -> int:
    return _hash(_hash(seed + 0x9E3779B9) + clip)


def clip_label(seed: int, clip: int) -> int:
    """The class of a clip."""
    return _key(seed, clip) % CLASSES


def make_clip(seed: int, clip: int) -> NDArray[np.float32]:
    """One second at 16 kHz: silence, noise, a low, high, rising or falling tone."""
    key, label = _key(seed, clip), clip_label(seed, clip)
    t = np.arange(LENGTH, dtype=np.uint64)
    pitch = (80 + _hash(key + 1) % 120) * _HERTZ
    loudness = 0 if label in (SILENCE, NOISE) else 64 + _hash(key + 2) % 128
    slope = 3 * pitch // LENGTH if label in (RISING, FALLING) else 0
    first = 4 * pitch if label in (HIGH, FALLING) else pitch
    speed = np.uint64(first) + t * np.uint64((-slope if label == FALLING else slope) & _MASK)
    phase = (np.cumsum(speed & np.uint64(_MASK)) - (speed & np.uint64(_MASK))) & np.uint64(_MASK)
    x = (phase >> np.uint64(16)).astype(np.int64) - 32768
    wave = np.sign(x) * (np.abs(x) * (32768 - np.abs(x)) // 8192)
    noise = (_mixed((np.uint64(key + 0x10000) + t) & np.uint64(_MASK)) >> np.uint64(16)).astype(np.int64) - 32768
    hiss = {SILENCE: 2, NOISE: 128}.get(label, 4)
    mixed: NDArray[np.float32] = (loudness * wave + hiss * noise).astype(np.float32)
    return mixed / np.float32(8388608)


def make_batch(seed: int, start: int, batch: int) -> tuple[NDArray[np.float32], NDArray[np.int64], str | None]:
    """Clips and labels from `start` on, as many as there are, and what is to be said if there are fewer."""
    if not 0 <= start < CLIPS:
        raise SelectionError(f"--start {start}: there are {CLIPS} clips; give a number from 0 to {CLIPS - 1}")
    found = min(batch, CLIPS - start)
    note = f"{found} clips are left from {start} on, so the batch is {found}, not {batch}" if found < batch else None
    clips = range(start, start + found)
    labels = np.array([clip_label(seed, clip) for clip in clips], np.int64)
    return np.stack([make_clip(seed, clip) for clip in clips])[:, None, :], labels, note
