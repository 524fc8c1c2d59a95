"""A table of positions that a module resizes by itself."""

import numpy as np
import pytest
import torch
from blame import cause, numbers
from torch.nn import functional as F  # noqa: N812

from firstdrift.causes.table import TABLE


def resized(table, size, **how):
    """Planes (1, channels, *space) resized."""
    return F.interpolate(torch.tensor(table), size=size, **how).numpy()


PLANES = numbers(1, 20, 4, 4)
TOKENS = PLANES.reshape(1, 20, 16).swapaxes(1, 2)
CLASS = numbers(1, 1, 20, seed=3)
BILINEAR, BICUBIC = {"mode": "bilinear"}, {"mode": "bicubic"}
ALIGNED = {"mode": "bilinear", "align_corners": True}


def planes(made, lead):
    return made


def tokens(made, lead):
    rows = made.reshape(1, 20, -1).swapaxes(1, 2)
    return np.concatenate((CLASS, rows), 1) if lead else rows


def repeated(made, lead):
    return np.repeat(tokens(made, lead), 3, 0)


def image(made, lead):
    return np.moveaxis(made[0], 0, -1)


@pytest.mark.parametrize("size", [(6, 6), (3, 7), (2, 2)])
@pytest.mark.parametrize(("ours", "theirs"), [(BILINEAR, ALIGNED), (BICUBIC, BILINEAR), (ALIGNED, {"mode": "nearest"})])
@pytest.mark.parametrize(
    ("table", "shown", "lead"),
    [
        (PLANES, planes, False),
        (PLANES, tokens, False),
        (TOKENS, tokens, False),
        (TOKENS[0], repeated, False),
        (np.moveaxis(PLANES[0], 0, -1), image, False),
        (np.concatenate((CLASS, TOKENS), 1), tokens, True),
        (np.concatenate((CLASS, TOKENS), 1)[0], repeated, True),
    ],
)
def test_a_table_resized_in_another_way_is_told(table, shown, lead, ours, theirs, size):
    expected, found = (shown(resized(PLANES, size, **how), lead) for how in (ours, theirs))
    said = cause(expected, found, parameters={"table": table})
    assert said.label == "interpolation", said
    assert "table is resized by" in said.sentence


def test_a_line_of_positions_resized_in_another_way_is_told():
    line = numbers(1, 20, 12)
    made = [np.moveaxis(F.interpolate(torch.tensor(line), 17, mode="linear", align_corners=one).numpy(), 1, 2)
            for one in (False, True)]  # fmt: skip
    assert cause(*made, parameters={"table": line[0].T}).label == "interpolation"


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (lambda y: 2 * y, "scale"),
        (lambda y: y + 0.25, "offset"),
        (lambda y: tokens(np.swapaxes(y.swapaxes(1, 2).reshape(1, 20, 6, 6), 2, 3), False), "axis-order"),
        (lambda y: numbers(*y.shape, seed=5), "unknown"),
    ],
)
def test_another_change_of_a_resized_table_is_not_called_interpolation(change, label):
    expected = tokens(resized(PLANES, (6, 6), **BILINEAR), False)
    assert cause(expected, change(expected), parameters={"table": PLANES}, table=TABLE).label == label
