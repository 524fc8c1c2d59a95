"""A table of positions that is resized and added where no module shows it alone."""

import numpy as np
import pytest
import torch
from blame import Run, cause, numbers
from torch.nn import functional as F  # noqa: N812

from firstdrift.sites import Site

CHANNELS, SAMPLES = 12, 3
SITE = Site(0, "fwd", "blocks.0.norm", "in.0")
RAN = Site(0, "fwd", "blocks.0.norm", "out")
PLANES = numbers(1, CHANNELS, 8, 8)
TOKENS = PLANES.reshape(1, CHANNELS, -1).swapaxes(1, 2)
WITH_CLASS = np.concatenate((numbers(1, 1, CHANNELS, seed=3), TOKENS), 1)
PLAIN, SMOOTH = {"mode": "bilinear"}, {"mode": "bilinear", "antialias": True}
CUBIC, ALIGNED, NEAREST = {"mode": "bicubic"}, {"mode": "bilinear", "align_corners": True}, {"mode": "nearest"}


def tokens(size, how, first):
    """What is added to tokens: positions of a grid, with so many tokens before it that get none."""
    made = F.interpolate(torch.tensor(PLANES), size=size, **how).numpy().reshape(CHANNELS, -1).T
    return np.concatenate((np.zeros((first, CHANNELS)), made))


def picture(size, how, first):
    return F.interpolate(torch.tensor(PLANES), size=size, **how).numpy()[0]


def said(expected, found, table=PLANES, holder="", noise=1e-7, other=None, **known):
    site = Site(0, "weight", holder, "pos")
    around = Run({site: table, RAN: expected}, {} if other is None else {site: other})
    return cause(expected, found, noise, SITE, around=around, **known)


@pytest.mark.parametrize("noise", [1e-7, 1e-5])
@pytest.mark.parametrize("size", [(4, 4), (3, 5), (11, 11)])
@pytest.mark.parametrize(("ours", "theirs"), [(SMOOTH, PLAIN), (PLAIN, ALIGNED), (CUBIC, PLAIN), (ALIGNED, NEAREST)])
@pytest.mark.parametrize(
    ("shown", "first", "table"),
    [(tokens, 0, PLANES), (tokens, 1, PLANES), (tokens, 1, WITH_CLASS), (tokens, 5, TOKENS), (picture, 0, PLANES)],
)
def test_positions_that_are_added_after_another_resizing_are_told(shown, first, table, ours, theirs, size, noise):
    if theirs is PLAIN and ours is SMOOTH and size == (11, 11):
        return  # where a grid gets larger, both are the same
    added = [shown(size, how, first) for how in (ours, theirs)]
    rest = numbers(SAMPLES, *added[0].shape, seed=4)
    cause = said(rest + added[0], rest + added[1], table, noise=noise)
    assert cause.label == "interpolation", cause
    assert "the pos that is added is resized by" in cause.sentence or "table of positions is resized" in cause.sentence


@pytest.mark.parametrize("holder", ["", "blocks", "tables"])
def test_the_table_may_be_held_by_any_module_that_does_not_return_it(holder):
    added = [tokens((4, 4), how, 1) for how in (SMOOTH, PLAIN)]
    rest = numbers(SAMPLES, *added[0].shape, seed=4)
    assert said(rest + added[0], rest + added[1], holder=holder).label == "interpolation"


CHANGES = {
    "scaled": lambda rest, added: rest + 2 * added,
    "not added": lambda rest, added: rest,
    "another table": lambda rest, added: rest + tokens((4, 4), SMOOTH, 1)[::-1],
    "offset": lambda rest, added: rest + added + 0.25,
    "another sum": lambda rest, added: rest + added + 0.1 * numbers(*rest.shape, seed=6),
    "the same in every sample": lambda rest, added: rest + added + 0.1 * numbers(*added.shape, seed=7),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_change_of_what_is_added_is_not_called_interpolation(name):
    added = tokens((4, 4), SMOOTH, 1)
    rest = numbers(SAMPLES, *added.shape, seed=4)
    assert said(rest + added, CHANGES[name](rest, added)).label != "interpolation"


def test_resizing_that_differs_in_one_sample_alone_is_not_that_of_a_table():
    added = [tokens((4, 4), how, 1) for how in (SMOOTH, PLAIN)]
    rest = numbers(SAMPLES, *added[0].shape, seed=4)
    found = rest + added[0]
    found[0] = rest[0] + added[1]
    assert said(rest + added[0], found).label != "interpolation"
