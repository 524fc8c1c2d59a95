"""A waveform cut into frames, whose first and last reach beyond its ends: what is put there.

What is made of a frame is told by the frames inside: a spectrum, the frame under a window, or any linear map. With it
the reference's padding is found, and then the candidate's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis

Operator = Callable[[Floats], Floats]  # of frames (batch, frames, samples)
Padding = tuple[str, str]

PADDINGS: tuple[Padding, ...] = (
    ("constant", "by zeros"), ("reflect", "by reflection"), ("edge", "by its first and last sample"),
    ("symmetric", "by reflection with the end repeated"), ("wrap", "by its other end"),
)  # fmt: skip
FEWEST = 4  # frames inside
LONGEST = 512  # samples of a frame, of which any linear map is told
TOLD = 2  # times as many frames as samples, by which it is
TRIED = 64  # frames by which an operator is tried


@dataclass(frozen=True, eq=False, slots=True)
class _Cut:
    """How a waveform (batch, samples) is cut: frames of a length, so far apart, the first so far before its start."""

    x: Floats
    length: int
    hop: int
    before: int
    count: int

    def frames(self, padding: str) -> Floats:
        """All frames, with something beyond the ends."""
        after = max((self.count - 1) * self.hop + self.length - self.before - self.x.shape[1], 0)
        padded = np.pad(self.x, ((0, 0), (self.before, after)), padding)  # type: ignore[call-overload]
        return self._taken(padded, 0, self.count)

    def inside(self) -> tuple[slice, Floats]:
        """The frames that reach beyond no end, and which these are."""
        first = -(-self.before // self.hop)
        last = min((self.x.shape[1] + self.before - self.length) // self.hop + 1, self.count)
        start = first * self.hop - self.before
        return slice(first, last), self._taken(self.x[:, start:], 0, max(last - first, 0))

    def _taken(self, x: Floats, first: int, count: int) -> Floats:
        if x.shape[1] < self.length:
            return np.zeros((len(x), 0, self.length))
        return sliding_window_view(x, self.length, axis=1)[:, first :: self.hop][:, :count]


def framed(evidence: Evidence) -> Iterator[Finding]:
    """Frames of which only those that reach beyond the ends differ, as another padding makes them."""
    read = [one for one in evidence.inputs.values() if one.dtype.kind == "f" and one.size > 1]
    if evidence.site.phase != "fwd" or len(read) != 1 or evidence.expected.ndim != 3:
        return
    x = _waveform(floats(read[0]), evidence.expected.shape)
    if x is None or not any(distance(read[0], one) <= limit(evidence) for one in evidence.candidate_inputs.values()):
        return
    for turned in (False, True):  # channels last, or the frames
        ours, theirs = (_turned(floats(one), turned) for one in (evidence.expected, evidence.found))
        for cut in _cuts(evidence, x, ours.shape):
            where, inner = cut.inside()
            if inner.shape[1] < FEWEST or distance(ours[:, where], theirs[:, where]) > limit(evidence):
                continue
            for operator in _operators(evidence, inner, ours[:, where]):
                own = next((one for one in PADDINGS if _makes(evidence, cut, one, operator, ours)), None)
                other = None if own is None else _other(evidence, cut, own, operator, theirs)
                if own is not None and other is not None:
                    predicted = _turned(operator(cut.frames(other[0])), turned)
                    said = f"the waveform is padded {other[1]} instead of {own[1]} before it is cut into frames"
                    facts = {"padding": other[0], "reference_padding": own[0], "length": cut.length, "hop": cut.hop}
                    yield Finding("padding", said, predicted, 0, facts)
                    return


def _waveform(x: Floats, shape: tuple[int, ...]) -> Floats | None:
    """An input as (batch, samples), where it is that of one channel and much longer than there are frames."""
    x = x[:, 0] if x.ndim == 3 and x.shape[1] == 1 else x
    return x if x.ndim == 2 and len(x) == shape[0] and x.shape[1] >= 2 * min(shape[1:]) else None


def _turned(x: Floats, turned: bool) -> Floats:
    return x.swapaxes(1, 2) if turned else x


def _cuts(evidence: Evidence, x: Floats, shape: tuple[int, ...]) -> Iterator[_Cut]:
    """The ways to cut that give so many frames with something beyond the ends, of lengths that are told."""
    _, count, channels = shape
    stated = [value for value in evidence.attrs.values() if isinstance(value, int) and not isinstance(value, bool)]
    samples = x.shape[1]
    for length in dict.fromkeys((channels, 2 * (channels - 1), *stated)):
        if not 2 <= length <= samples or count < 2:
            continue
        for hop in range(max((samples - length) // count, 1), min((samples + 2 * length) // (count - 1), length) + 1):
            for before in dict.fromkeys((length // 2, (length - hop) // 2, length - hop, length - 1)):
                for after in dict.fromkeys((before, 0)):
                    made = (samples + before + after - length) // hop + 1
                    if 0 < before < samples and made == count:
                        yield _Cut(x, length, hop, before, count)
                        break


def _operators(evidence: Evidence, inner: Floats, made: Floats) -> Iterator[Operator]:
    """What may be made of a frame, as the frames inside tell."""
    some = np.linspace(0, inner.shape[1] - 1, min(inner.shape[1], TRIED)).astype(np.intp)
    few, wanted = inner[:, some], made[:, some]
    length, channels = inner.shape[-1], made.shape[-1]
    for operator in _spectra(evidence, length, channels):
        plain = operator(few)
        size = float((plain * plain).sum())
        factor = float((plain * wanted).sum()) / size if size > 0 else 0.0
        if distance(factor * plain, wanted) <= limit(evidence):
            yield lambda frames, operator=operator, factor=factor: factor * operator(frames)  # type: ignore[misc]
    flat, target = inner.reshape(-1, length), made.reshape(-1, channels)
    if channels == length:
        window = (flat * target).sum(axis=0) / np.maximum((flat * flat).sum(axis=0), 1e-300)
        if distance(flat * window, target) <= limit(evidence):
            yield lambda frames: frames * window
    elif length <= LONGEST and len(flat) >= TOLD * length:
        told, _, rank, _ = np.linalg.lstsq(flat[: 2 * TOLD * length], target[: 2 * TOLD * length], rcond=None)
        if rank == length and distance(flat @ told, target) <= limit(evidence):
            yield lambda frames: frames @ told


def _spectra(evidence: Evidence, length: int, channels: int) -> Iterator[Operator]:
    """Squares or sizes of the frequencies of a frame under a usual window, or one that is recorded."""
    if channels != length // 2 + 1:
        return
    for window in _windows(evidence, length):

        def power(frames: Floats, window: Floats = window) -> Floats:
            return np.asarray(np.abs(np.fft.rfft(frames * window)) ** 2)

        def size(frames: Floats, window: Floats = window) -> Floats:
            return np.asarray(np.abs(np.fft.rfft(frames * window)))

        yield power
        yield size


def _windows(evidence: Evidence, length: int) -> Iterator[NDArray[np.float64]]:
    for value in evidence.parameters.values():
        if value.shape == (length,) and value.dtype.kind == "f":
            yield floats(value)
    for kind in (np.hanning, np.hamming, np.blackman):
        yield kind(length + 1)[:-1]
        yield kind(length)
    yield np.ones(length)


def _makes(evidence: Evidence, cut: _Cut, padding: Padding, operator: Operator, made: Floats) -> bool:
    """Whether frames beyond the ends, padded in some way, give what was made; the ends are looked at first."""
    frames, where = cut.frames(padding[0]), cut.inside()[0]
    ends = np.r_[0 : where.start, where.stop : cut.count]
    if len(ends) and distance(operator(frames[:, ends]), made[:, ends]) > 2 * limit(evidence):
        return False
    return distance(operator(frames), made) <= limit(evidence)


def _other(evidence: Evidence, cut: _Cut, own: Padding, operator: Operator, found: Floats) -> Padding | None:
    others = (one for one in PADDINGS if one != own)
    return next((one for one in others if _makes(evidence, cut, one, operator, found)), None)


HYPOTHESES: tuple[Hypothesis, ...] = (framed,)
