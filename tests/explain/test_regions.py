"""Where what is left lies is said in words."""

import numpy as np
import pytest
from tests.explain.blame import drift, numbers

from firstdrift.explain.relations.regions import shape_of_difference

X = numbers(4, 20, 32)
SQUARE = numbers(2, 4, 16, 16)


def wrong(x, index, seed=3):
    y = x.copy()
    y[index] += numbers(*x.shape, seed=seed)[index]
    return y


def every(step):
    return np.s_[:, ::step]


@pytest.mark.parametrize(
    ("found", "attrs", "words"),
    [
        (wrong(X, np.s_[:, 7]), {}, "position 7 of 20"),
        (wrong(X, np.s_[:, 16:]), {}, "positions 16 to 19 of 20"),
        (wrong(X, np.s_[2]), {}, "sample 2 of 4"),
        (wrong(X, np.s_[:, :, 5]), {}, "channel 5 of 32"),
        (wrong(X, every(5)), {}, "positions 0, 5, ... (every 5th) of 20"),
        (wrong(X, np.s_[:, :, 8:16]), {"heads": 4}, "head 1 of 4 and channels 8 to 15 of 32"),
        (wrong(X, np.s_[1, 3, 4]), {}, "sample 1 of 4 and position 3 of 20 and channel 4 of 32"),
        (X + numbers(32, seed=1), {}, "the same vector in every row"),
        (np.where(np.abs(numbers(4, 20, 32, seed=8)) > 2.4, X + 5, X), {}, "scattered"),
        (wrong(X, np.s_[...]), {}, "the difference is everywhere; found and expected correlate by 0.7"),
        (-X, {}, "every row is scaled by a factor of its own, from -1 to -1"),
        (
            X * np.linspace(0.5, 2, 80).reshape(4, 20, 1),
            {},
            "every row is scaled by a factor of its own, from 0.5 to 2",
        ),
        (X * np.linspace(0.5, 2, 32), {}, "every channel is scaled by a factor of its own, from 0.5 to 2"),
        (X + np.linspace(1, 2, 80).reshape(4, 20, 1), {}, "every row is off by a number of its own, from 1 to 2"),
        (wrong(X, np.s_[:, 5:]), {}, "nothing differs in positions 0 to 4 of 20"),
        (wrong(X, np.s_[:, :, 8:]), {}, "nothing differs in channels 0 to 7 of 32"),
        (wrong(X, np.s_[1:]), {}, "nothing differs in sample 0 of 4"),
        (wrong(X, ([0, 1, 2, 3, 0, 1, 2, 3], [3, 8, 2, 19, 5, 1, 7, 11])), {}, "8 of 80 rows, the first at [0, 3]"),
        (X, {}, ""),
        (np.where(np.arange(20)[:, None] == 3, np.nan, X), {}, "position 3 of 20"),
        (SQUARE + np.triu(numbers(2, 4, 16, 16, seed=4), 1), {}, "above the diagonal"),
        (SQUARE + np.tril(numbers(2, 4, 16, 16, seed=4), -1), {}, "below the diagonal"),
        (SQUARE + np.eye(16), {}, "the diagonal"),
    ],
)
def test_the_region_of_a_difference_is_named(found, attrs, words):
    expected = X if found.shape == X.shape else SQUARE
    said = shape_of_difference(drift(expected, lambda _: found, attrs=attrs), expected)
    assert words in said if words else said == ""
