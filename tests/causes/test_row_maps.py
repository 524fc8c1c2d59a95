"""Channels that other rows of a parameter make are told with the rows; other weights, layouts and noise are not."""

import numpy as np
import pytest
import torch
from blame import cause, drift, numbers
from torch.nn import functional as F  # noqa: N812

from firstdrift.causes.image.row_maps import other_rows

CHANNELS = 8
EVERY_SECOND, FIRST, LAST = slice(0, 16, 2), slice(0, 8), slice(8, 16)
SHUFFLED = np.array([3, 0, 2, 1, 7, 4, 6, 5])
BIAS = 0.5 * numbers(CHANNELS, seed=5)
BANKS = {
    "linear": (numbers(16, 12, seed=1), numbers(3, 10, 12)),
    "depthwise": (numbers(16, 4, seed=1), numbers(3, 20, CHANNELS)),
    "channels first": (numbers(16, 1, 3, seed=1), numbers(3, CHANNELS, 20)),
    "image": (numbers(16, 5, 3, 3, seed=1), numbers(3, 5, 9, 8)),
}


def made(kind, rows, bias=True, weight=None, x=None):
    """What some rows of a bank make."""
    held, given = BANKS[kind]
    weight = torch.tensor(held if weight is None else weight)[rows].double()
    x = torch.tensor(given if x is None else x)
    bias = torch.tensor(BIAS) if bias else None
    if kind == "linear":
        return F.linear(x, weight, bias).numpy()
    if kind == "depthwise":
        padded = F.pad(x.transpose(1, 2), (3, 0))
        return F.conv1d(padded, weight[:, None], bias, groups=CHANNELS).transpose(1, 2).numpy()
    if kind == "channels first":
        return F.conv1d(x, weight, bias, padding=1, groups=CHANNELS).numpy()
    return F.conv2d(x, weight, bias, stride=2, padding=1).numpy()


def known(kind, bias=True):
    weight, x = BANKS[kind]
    return {"inputs": {"in.0": x}, "parameters": {"filters": weight} | ({"bias": BIAS} if bias else {}), "op": "Bank"}


@pytest.mark.parametrize("kind", BANKS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("ours", "theirs"), [(EVERY_SECOND, FIRST), (FIRST, EVERY_SECOND), (FIRST, LAST)])
def test_other_rows_of_a_bank_are_told(ours, theirs, bias, kind):
    said = cause(made(kind, ours, bias), made(kind, theirs, bias), 1e-6, **known(kind, bias))
    assert said.label == "wrong-weight", said
    rows = np.arange(16)
    assert [1, rows[theirs][1], rows[ours][1]] in said.parameters["mapping"]


def test_rows_at_equal_distances_are_told_as_one_would_write_them():
    said = cause(made("linear", EVERY_SECOND), made("linear", FIRST), 1e-6, **known("linear"))
    assert "filters[0:8] instead of filters[0:15:2]" in said.sentence


@pytest.mark.parametrize("kind", BANKS)
def test_the_same_rows_in_another_order_are_a_permutation(kind):
    said = cause(made(kind, FIRST), made(kind, SHUFFLED), 1e-6, **known(kind))
    assert said.label == "permutation", said
    assert [0, 3, 0] in said.parameters["mapping"]


def test_one_row_that_is_another_is_told_with_its_channel():
    rows = np.array([0, 1, 2, 9, 4, 5, 6, 7])
    said = cause(made("image", FIRST), made("image", rows), 1e-6, **known("image"))
    assert said.label == "wrong-weight", said
    assert "channel 3 is made by row 9 of filters instead of row 3" in said.sentence


@pytest.mark.parametrize("kind", BANKS)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda kind: made(kind, FIRST, weight=BANKS[kind][0][..., ::-1].copy()), id="flipped"),
        pytest.param(lambda kind: made(kind, FIRST, weight=1.1 * BANKS[kind][0]), id="scaled"),
        pytest.param(lambda kind: made(kind, FIRST, bias=False), id="no bias"),
        pytest.param(lambda kind: made(kind, FIRST, x=np.tanh(BANKS[kind][1])), id="another input"),
        pytest.param(lambda kind: made(kind, FIRST, weight=numbers(*BANKS[kind][0].shape, seed=7)), id="other weights"),
        pytest.param(lambda kind: made(kind, FIRST) + 0.1 * numbers(*made(kind, FIRST).shape, seed=8), id="anything"),
    ],
)
def test_other_changes_are_not_called_so(change, kind):
    assert list(other_rows(drift(made(kind, FIRST), change(kind), 1e-6, **known(kind)))) == []


def test_equal_rows_are_not_told_apart():
    twice = np.concatenate((BANKS["linear"][0][:8], BANKS["linear"][0][:8]))
    expected, found = (made("linear", rows, weight=twice) for rows in (FIRST, LAST))
    given = known("linear") | {"parameters": {"filters": twice, "bias": BIAS}}
    assert list(other_rows(drift(expected, found, 1e-6, **given))) == []
