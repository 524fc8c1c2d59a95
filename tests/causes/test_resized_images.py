"""An earlier tensor that is resized between modules, alone, in a concatenation or in a sum, is told with its way."""

import numpy as np
import pytest
import torch
from blame import Run, cause, drift, numbers
from torch.nn import functional as F  # noqa: N812

from firstdrift.causes.image.resized_images import resized_image
from firstdrift.sites import Site

SITE = Site(0, "fwd", "up.conv", "in.0")
GIVEN, EARLIER, SKIP = Site(0, "input", "input", "x"), Site(0, "fwd", "mid", "out"), Site(0, "fwd", "down", "out")
SMALL = numbers(2, 5, 6, 9)
PLAIN, SMOOTH, NEAREST = {"mode": "bilinear"}, {"mode": "bilinear", "antialias": True}, {"mode": "nearest"}
ALIGNED, CUBIC, AREA = {"mode": "bilinear", "align_corners": True}, {"mode": "bicubic"}, {"mode": "area"}
SHRINKING = [(SMOOTH, PLAIN), (PLAIN, SMOOTH), (AREA, NEAREST), (CUBIC, SMOOTH)]
GROWING = [(NEAREST, PLAIN), (PLAIN, ALIGNED), (CUBIC, PLAIN)]


def resized(how, out=(12, 18)):
    return F.interpolate(torch.tensor(SMALL), out, **how).numpy()


def said(expected, found, last=False, source=EARLIER, noise=1e-6, known=True):
    order = (lambda one: np.moveaxis(one, 1, -1)) if last else (lambda one: one)
    run = {GIVEN: numbers(2, 3, 4, 4, seed=5), SKIP: order(numbers(2, 7, *expected.shape[2:], seed=6))}
    run |= {source: order(SMALL)} if known else {}
    around = Run({**run, SITE: order(expected)}, {SITE: order(found)})
    return cause(order(expected), order(found), noise, SITE, around=around, parameters={"scale": numbers(3)})


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("out", "ours", "theirs"),
    [*(((3, 4), *pair) for pair in SHRINKING), *(((12, 18), *pair) for pair in GROWING)],
)
@pytest.mark.parametrize("source", [EARLIER, Site(0, "input", "input", "image")])
def test_another_way_of_resizing_an_earlier_tensor_is_told(source, out, ours, theirs, last):
    cause = said(resized(ours, out), resized(theirs, out), last, source)
    assert cause.label == "interpolation", cause
    assert ("image" if source.phase == "input" else "mid") in cause.sentence


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("ours", "theirs"), GROWING)
def test_channels_of_a_concatenation_that_are_resized_otherwise_are_told(ours, theirs, first, last):
    beside = numbers(2, 7, 12, 18, seed=6)
    joined = [np.concatenate((one, beside) if first else (beside, one), 1) for one in (resized(ours), resized(theirs))]
    cause = said(*joined, last)
    assert cause.label == "interpolation", cause


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), GROWING)
def test_a_term_that_is_resized_otherwise_is_told_whatever_it_is_added_to(ours, theirs, last):
    beside = numbers(2, 5, 12, 18, seed=8)
    cause = said(beside + resized(ours), beside + resized(theirs), last)
    assert cause.label == "interpolation", cause
    assert "mid is resized by" in cause.sentence


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(resized(PLAIN)[..., ::-1].copy(), id="mirrored"),
        pytest.param(1.5 * resized(PLAIN), id="scaled"),
        pytest.param(resized(PLAIN) + 0.1 * numbers(2, 5, 12, 18, seed=7), id="something added"),
        pytest.param(resized(PLAIN) + 0.3, id="offset"),
        pytest.param(np.roll(resized(PLAIN), 1, 2), id="shifted"),
        pytest.param(F.interpolate(torch.tensor(numbers(2, 5, 6, 9, seed=9)), (12, 18), **NEAREST).numpy(),
                     id="another tensor"),
    ],
)  # fmt: skip
def test_other_changes_of_a_resized_tensor_are_not_called_so(found):
    assert said(resized(PLAIN), found).label != "interpolation"


def test_nothing_is_said_where_no_tensor_came_before_that_could_be_resized():
    assert said(resized(NEAREST), resized(PLAIN), known=False).label != "interpolation"


def test_a_sum_is_not_explained_by_what_noise_would_do():
    beside = 1e4 * numbers(2, 5, 12, 18, seed=8)
    around = Run({EARLIER: 1e-3 * SMALL})
    expected, found = (beside + 1e-3 * resized(one) for one in (NEAREST, PLAIN))
    assert list(resized_image(drift(expected, lambda _: found, 1e-6, SITE, around=around))) == []
