"""Modules that slide windows in a way of their own: what differs at the borders alone is padding."""

from __future__ import annotations

import numpy as np
import pytest
from blame import BF16, FLOAT32, cause, drift, numbers

from firstdrift.causes.image.borders import borders_only

SIGNAL, IMAGE = numbers(3, 120, seed=1), numbers(2, 3, 24, 20, seed=2)
WINDOW = 0.5 + np.abs(numbers(12, seed=3))
BANK = np.abs(numbers(7, 5, seed=4))


def spectra(x, mode, width=12, hop=6, reach=6):
    """Logarithms of spectra of windows: (samples, bands, places)."""
    padded = np.pad(x, ((0, 0), (reach, reach)), mode=mode)
    places = (padded.shape[1] - width) // hop + 1
    frames = np.stack([padded[:, hop * n : hop * n + width] for n in range(places)], 1) * WINDOW
    return np.log(np.abs(np.fft.rfft(frames)) ** 2 @ BANK + 1e-3).swapaxes(1, 2)


def medians(x, mode, width=3, hop=1):
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode=mode)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (width, width), (2, 3))[:, :, ::hop, ::hop]
    return np.median(windows, axis=(-2, -1))


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("ours", "theirs"), [("reflect", "constant"), ("constant", "reflect"), ("reflect", "edge"), ("edge", "wrap")]
)
def test_spectra_of_windows_beyond_the_ends_are_padded_otherwise(ours, theirs, noise):
    held = {"window": WINDOW, "bank": BANK}
    said = cause(spectra(SIGNAL, ours), spectra(SIGNAL, theirs), noise, inputs={"in.0": SIGNAL}, parameters=held)
    assert (said.label, said.parameters["before"], said.parameters["after"]) == ("padding", 1, 1), said
    assert said.confidence < 0.9  # what stood beyond the ends is not recomputed


@pytest.mark.parametrize("given", [{"op": "MedianFilter"}, {}])
def test_a_frame_around_an_image_is_padding_where_windows_slide(given):
    hop = 1 if given else 2
    expected, found = (medians(IMAGE, mode, hop=hop) for mode in ("edge", "constant"))
    said = list(borders_only(drift(expected, found, inputs={"in.0": IMAGE}, **given)))
    # windows that are two apart reach beyond the first border alone: no frame
    assert [one.label for one in said] == (["padding"] if given else [])


RIGHT = spectra(SIGNAL, "reflect")
PLACES = RIGHT.shape[-1]


def changed(places, by):
    found = RIGHT.copy()
    found[:, :, places] += by
    return found


OTHERS = {
    "the first places only": changed([0, 1], numbers(3, 5, 2, seed=6)),
    "places within": changed([0, 4, PLACES - 1], numbers(3, 5, 3, seed=6)),
    "everything": spectra(1.01 * SIGNAL, "reflect"),
    "half of all": changed(np.r_[0:6, PLACES - 6 : PLACES], numbers(3, 5, 12, seed=6)),
    "unlike ends": changed([0, PLACES - 4, PLACES - 3, PLACES - 2, PLACES - 1], numbers(3, 5, 5, seed=6)),
    "one band of both ends": RIGHT + np.outer([0, 1, 0, 0, 0], np.isin(np.arange(PLACES), [0, PLACES - 1])),
    "blank ends": np.where(np.isin(np.arange(PLACES), [0, PLACES - 1]), 0.0, RIGHT),
}


@pytest.mark.parametrize("found", OTHERS.values(), ids=OTHERS)
def test_other_places_are_not_called_a_border(found):
    given = {"inputs": {"in.0": SIGNAL}, "parameters": {"window": WINDOW}}
    assert list(borders_only(drift(RIGHT, found, **given))) == []


@pytest.mark.parametrize(
    "given",
    [
        {"inputs": {"in.0": RIGHT}},  # nothing says that windows slide here
        {"inputs": {"in.0": SIGNAL, "in.1": SIGNAL}},
        {"inputs": {"in.0": SIGNAL}, "parameters": {"weight": numbers(PLACES, 120)}},  # a row for each place
        {"inputs": {"in.0": np.arange(360).reshape(3, 120)}},
    ],
)
def test_ends_of_what_slides_no_windows_are_no_borders(given):
    assert list(borders_only(drift(RIGHT, spectra(SIGNAL, "constant"), **given))) == []
