"""Rows scaled by the size of what went in: a division that is lost, or made twice."""

import numpy as np
import pytest
from blame import BF16, FLOAT32, cause, numbers

from firstdrift.causes.norm.row_factors import SIZES

X = numbers(4, 12, 24) * np.linspace(0.5, 3, 48).reshape(4, 12, 1)
Y = np.tanh(numbers(4, 12, 40, seed=1)) + 2  # of the same rows, but of no formula that is known


def size(name, eps):
    return SIZES[name](X.reshape(48, -1), eps).reshape(4, 12, 1)


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("power", [1, -1])
@pytest.mark.parametrize("name", SIZES)
def test_rows_scaled_by_the_size_of_their_input_are_told(name, power, eps, noise):
    said = cause(Y, Y * size(name, eps) ** power, noise, inputs={"in.0": X}, op="Inverse")
    assert (said.label, said.parameters["size"], said.parameters["power"]) == ("norm-missing", name, power), said


@pytest.mark.parametrize(
    "found",
    [
        Y * np.linspace(0.5, 2, 48).reshape(4, 12, 1),
        2 * Y,
        Y * X.std(),
        Y * X.mean(-1, keepdims=True),
        Y + size("standard deviation", 0.0),
    ],
)
def test_rows_with_other_factors_lack_no_norm(found):
    assert cause(Y, found, inputs={"in.0": X}, op="Inverse").label != "norm-missing"
