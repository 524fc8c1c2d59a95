"""What is put beyond the ends of a waveform before it is cut into frames is told by the frames there."""

import numpy as np
import pytest
import torch
from blame import FLOAT32, cause, numbers

from firstdrift.sites import Site

BATCH, SAMPLES, LENGTH, HOP = 3, 200, 20, 8
SITE = Site(0, "fwd", "front.dense", "in.0")
X = numbers(BATCH, SAMPLES)
MAP = numbers(LENGTH, 6, seed=3)


def frames(padding, length=LENGTH, hop=HOP, before=None):
    before = length // 2 if before is None else before
    padded = np.pad(X, ((0, 0), (before, before)), padding)
    count = (padded.shape[1] - length) // hop + 1
    return np.stack([padded[:, hop * one : hop * one + length] for one in range(count)], axis=1)


def spectrum(cut, window=None, power=2):
    window = torch.hann_window(cut.shape[-1], dtype=torch.float64).numpy() if window is None else window
    return np.abs(np.fft.rfft(cut * window)) ** power


MADE = {
    "power": spectrum,
    "size": lambda cut: spectrum(cut, power=1),
    "scaled, Hamming": lambda cut: spectrum(cut, np.hamming(LENGTH)) / LENGTH,
    "frames": lambda cut: cut,
    "frames under a window": lambda cut: cut * np.blackman(LENGTH + 2)[1:-1],
    "linear": lambda cut: cut @ MAP,
}


def named(expected, found, noise=FLOAT32, **known):
    known.setdefault("inputs", {"input wave": X})
    return cause(expected, found, noise, SITE, attrs={"n": LENGTH, "hop": HOP}, **known)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize(("ours", "theirs"), [("reflect", "constant"), ("constant", "reflect"), ("reflect", "edge")])
def test_another_padding_is_named(ours, theirs, made, turned):
    expected, found = (made(frames(one)) for one in (ours, theirs))
    if turned:
        expected, found = (one.swapaxes(1, 2).copy() for one in (expected, found))
    said = named(expected, found)
    assert said.label == "padding", said
    assert (said.parameters["padding"], said.parameters["reference_padding"]) == (theirs, ours)


@pytest.mark.parametrize("before", [LENGTH - HOP, (LENGTH - HOP) // 2])
def test_it_is_named_of_less_padding_too(before):
    expected, found = (spectrum(frames(one, before=before)) for one in ("reflect", "constant"))
    assert named(expected, found).label == "padding"


def test_a_channel_of_its_own_does_not_matter():
    expected, found = (spectrum(frames(one)) for one in ("reflect", "constant"))
    assert named(expected, found, inputs={"input wave": X[:, None]}).label == "padding"


CONFUSABLES = {
    "another window": lambda: spectrum(frames("reflect"), np.ones(LENGTH)),
    "other ends": lambda: np.concatenate([numbers(BATCH, 2, LENGTH // 2 + 1, seed=7) ** 2,
                                          spectrum(frames("reflect"))[:, 2:]], axis=1),
    "sizes for squares": lambda: spectrum(frames("reflect"), power=1),
}  # fmt: skip


@pytest.mark.parametrize("found", CONFUSABLES.values(), ids=CONFUSABLES)
def test_what_no_padding_makes_is_not_called_so(found):
    assert "waveform" not in named(spectrum(frames("reflect")), found()).sentence


def test_a_reference_that_is_no_frames_says_nothing():
    expected = numbers(BATCH, 26, LENGTH // 2 + 1, seed=8)
    found = np.concatenate([numbers(BATCH, 2, LENGTH // 2 + 1, seed=9), expected[:, 2:]], axis=1)
    assert "waveform" not in named(expected, found).sentence
