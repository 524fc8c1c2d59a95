"""Different inputs are always called that, with the way they differ where it can be told."""

import numpy as np
import pytest
from tests.explain.blame import BF16, FLOAT32, cause, numbers

from firstdrift.core.sites import Site

INPUT = Site(0, "input", "input", "x")
IMAGE = np.abs(numbers(4, 3, 12, 12))
TOKENS = np.random.default_rng(0).integers(0, 500, (4, 16))


def normalised(x):
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return (x - mean[:, None, None]) / deviation[:, None, None]


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda x: x / 255, "scale"),
        (lambda x: 2 * x - 1, "offset"),
        (lambda x: x[:, ::-1], "permutation"),
        (lambda x: np.roll(x, 1, axis=2), "index-shift"),
        (lambda x: x.swapaxes(2, 3), "transpose"),
        (lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape), "axis-order"),
        (normalised, "channel-scale"),
        (lambda x: numbers(4, 3, 12, 12, seed=5), "unknown"),
    ],
)
def test_different_inputs_are_told_with_how_they_differ(change, how, noise):
    said = cause(IMAGE, change, noise, INPUT)
    assert (said.label, said.parameters["how"]) == ("different-input", how), said


def test_shifted_tokens_are_told():
    said = cause(TOKENS, np.roll(TOKENS, 1, axis=1), site=INPUT)
    assert (said.label, said.parameters["how"]) == ("different-input", "index-shift")


def test_a_few_other_tokens_are_told_by_their_share():
    other = TOKENS.copy()
    other[0, 0] += 7
    said = cause(TOKENS, other, site=INPUT)
    assert (said.label, said.parameters["share"]) == ("different-input", 1 / 64)


def test_tensors_of_other_phases_are_not_inputs():
    assert cause(IMAGE, IMAGE / 255).label == "scale"
