"""Factors of two axes together are told with their axes, and with the gain they come from."""

import numpy as np
import pytest
from blame import cause, drift, numbers

from firstdrift.causes.two_axes import pair_scale

X = numbers(3, 4, 10, 6)  # samples, heads, tokens, channels
GAIN = 1 + 0.3 * numbers(4, 6, seed=1)
FEW = np.where(np.arange(24).reshape(4, 6) % 5, 1.0, 1.7)


def applied(x, gain, heads=1):
    return x * (gain[:, None, :] if heads == 1 else gain)


@pytest.mark.parametrize("noise", [1e-7, 1e-5])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("factors", [GAIN, FEW])
def test_a_factor_for_every_channel_of_every_head_is_told(factors, heads, noise):
    x = X if heads == 1 else X.swapaxes(1, 2)
    said = cause(x, applied(x, factors, heads), noise)
    assert (said.label, said.parameters["axes"]) == ("channel-scale", [heads, 3]), said


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("shown", [lambda gain: gain, lambda gain: gain - 1, lambda gain: gain[None, :, None]])
def test_the_gain_of_one_head_that_is_used_for_all_is_told(shown, heads, place):
    x = X if heads == 1 else X.swapaxes(1, 2)
    expected, found = applied(x, GAIN, heads), x * GAIN[place]
    said = cause(expected, found, parameters={"gamma": shown(GAIN)}, inputs={"in.0": x}, op="HeadNorm")
    assert said.label == "channel-scale", said
    assert f"gamma[{place}] is applied" in said.sentence


def test_a_factor_of_an_axis_between_is_told():
    said = cause(X, X * (1 + 0.3 * numbers(10, 1, seed=2)))
    assert (said.label, said.parameters["axes"]) == ("channel-scale", [2]), said


def test_channels_that_come_first_are_told_by_the_parameter_that_they_have():
    x, factors = numbers(4, 6, 20), 1 + 0.3 * numbers(6, 1, seed=2)
    said = cause(x, x * factors, parameters={"weight": numbers(6, seed=3)})
    assert (said.label, said.parameters["axes"]) == ("channel-scale", [1]), said


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        pytest.param(X, X * (1 + 0.3 * numbers(*X.shape, seed=2)), id="a factor for each element"),
        pytest.param(X, X * (1 + 0.3 * numbers(3, 1, 10, 1, seed=2)), id="a factor for each token of each sample"),
        pytest.param(X, 1.5 * X, id="one factor"),
        pytest.param(X, X * (1 + 0.3 * numbers(6, seed=2)), id="a factor for each channel"),
        pytest.param(X, X + 0.3 * numbers(4, 1, 6, seed=2), id="a term for each channel of each head"),
        pytest.param(X, X.swapaxes(0, 0)[:, ::-1], id="other heads"),
        pytest.param(X[:1, :, :4], applied(X[:1, :, :4], GAIN), id="too few rows"),
        pytest.param(numbers(9, 10, 6), numbers(9, 10, 6) * numbers(10, 6, seed=2), id="tokens and channels"),
        pytest.param(numbers(9, 10, 6), numbers(9, 10, 6) * numbers(10, 1, seed=2), id="tokens"),
    ],
)
def test_other_factors_are_not_called_so(expected, found):
    assert list(pair_scale(drift(expected, found))) == []
