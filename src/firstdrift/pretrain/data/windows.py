"""Which tokens are trained on, which are held out, and in which order they come.

Tokens are cut into windows of `seq_length` that share none; within a window every token predicts the next. Every k-th
window is held out. What is held out depends on the data, the batch and the length, and not on the
seed. The order of the others is a permutation for each pass, made from seed and pass alone: a position is all there is
to remember.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...core.strict_json import Json
from ...errors import FormatError
from ...kernels.checksums import crc32
from ..run_settings import Settings
from .corpora import Tokens

HELD_OUT_BATCHES = 16
HELD_OUT_AT_MOST = 10  # one window in so many
_CHUNK = 1 << 22
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """The windows of all segments by number, and the numbers of those to train on and of those held out."""

    segments: tuple[Tokens, ...]
    length: int
    training: Numbers
    held_out: Numbers
    fingerprint: str  # of the tokens themselves

    @property
    def tokens(self) -> int:
        """How many tokens there are, those left over included."""
        return sum(len(segment) for segment in self.segments)

    def take(self, numbers: Numbers) -> NDArray[np.int64]:
        """Windows as rows."""
        return np.stack([self._window(int(number)) for number in numbers])

    def to_json(self) -> dict[str, Json]:
        """How many there are of everything."""
        return {
            "tokens": self.tokens, "window": self.length, "training_windows": len(self.training),
            "held_out_windows": len(self.held_out), "fingerprint": self.fingerprint,
        }  # fmt: skip

    def _window(self, number: int) -> NDArray[np.int64]:
        for segment in self.segments:
            whole = len(segment) // self.length
            if number < whole:
                return segment[number * self.length : (number + 1) * self.length].astype(np.int64)
            number -= whole
        raise AssertionError(number)


def cut(segments: tuple[Tokens, ...], settings: Settings, place: object) -> Windows:
    """Cut tokens into windows, and hold some of them out; too few tokens are refused."""
    length = settings.seq_length
    count = sum(len(segment) // length for segment in segments)
    tokens = sum(map(len, segments))
    if count < 2:
        raise FormatError(
            f"{place}: {tokens} tokens are {count} windows of --seq-length {length}, and at least 2 are needed, one to "
            "train on and one to hold out; give more data or a smaller --seq-length"
        )
    wanted = max(1, min(HELD_OUT_BATCHES * settings.batch, count // HELD_OUT_AT_MOST))
    held_out = np.arange(wanted, dtype=np.int64) * count // wanted + (count // wanted) // 2
    training = np.setdiff1d(np.arange(count, dtype=np.int64), held_out)
    return Windows(segments, length, training, held_out, _fingerprint(segments))


def batch_at(windows: Windows, seed: int, position: int, size: int) -> NDArray[np.int64]:
    """The windows of the training order from a position on; another pass begins where one ends."""
    count = len(windows.training)
    places = range(position, position + size)
    numbers = [_order(count, seed, place // count)[place % count] for place in places]
    return windows.take(windows.training[numbers])


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Numbers:
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)


def _fingerprint(segments: tuple[Tokens, ...]) -> str:
    """A checksum of the numbers, whatever dtype they are stored in."""
    value = 0
    for segment in segments:
        for start in range(0, len(segment), _CHUNK):
            part = np.ascontiguousarray(segment[start : start + _CHUNK], "<u4")
            value = crc32(part.view(np.uint8), value)
    return f"{value:08x}"
