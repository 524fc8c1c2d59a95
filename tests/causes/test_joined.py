"""Parts joined along another axis and read in the wanted shape are told with the axes; other orders are not."""

import numpy as np
import pytest
from blame import cause, drift, numbers

from firstdrift.causes.layout.joined import joined, joined_flat


def parts(shape, count, axis):
    shape = tuple(size // count if one == axis else size for one, size in enumerate(shape))
    return [numbers(*shape, seed=seed) for seed in range(count)]


SHAPES = [
    ((3, 7, 16), 2, 2, 1), ((3, 7, 16), 2, 2, 0), ((3, 7, 24), 3, 2, 1), ((3, 8, 5, 6), 2, 1, 3),
    ((3, 8, 5, 6), 2, 1, 0), ((3, 4, 5, 16), 4, 3, 1), ((3, 4, 5, 16), 2, 3, 2), ((12, 16), 2, 1, 0),
]  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("shape", "count", "axis", "other"), SHAPES)
@pytest.mark.parametrize("back", [False, True])
def test_a_concatenation_along_another_axis_is_told(shape, count, axis, other, back, known):
    given = parts(shape, count, axis)
    right, wrong = np.concatenate(given, axis), np.concatenate(given, other).reshape(shape)
    inputs = {f"part{number}": one for number, one in enumerate(given)} if known else {}
    said = cause(wrong, right, inputs=inputs) if back else cause(right, wrong, inputs=inputs)
    assert said.label == "axis-order", said


def test_the_sentence_names_what_is_joined_and_how():
    a, b = parts((3, 7, 16), 2, 2)
    said = cause(np.concatenate((a, b), 2), np.concatenate((a, b), 1).reshape(3, 7, 16), inputs={"right": b, "left": a})
    assert "left, right are joined along axis 1 instead of axis 2" in said.sentence


def test_two_heads_that_are_merged_with_the_tokens_between_them_are_heads():
    heads = numbers(3, 2, 7, 8)
    right, wrong = heads.swapaxes(1, 2).reshape(3, 7, 16), heads.reshape(3, 7, 16)
    given = {"inputs": {f"layers.0.attn.{one}_proj": numbers(3, 7, 16, seed=5) for one in "qkv"}}
    assert cause(right, wrong, **given).label == "head-permutation"


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("known", [0, 1])
def test_parts_of_other_sizes_that_are_written_one_after_the_other_are_told(known, kept):
    given = [numbers(3, 7, 5), numbers(3, 7, 8, seed=1)]
    flat = np.concatenate([one.reshape(*one.shape[:kept], -1) for one in given], kept).reshape(3, 7, 13)
    said = cause(np.concatenate(given, 2), flat, inputs={"one": given[known]})
    assert (said.label, said.parameters["parts"]) == ("axis-order", [5, 8]), said


X = numbers(3, 8, 16)


@pytest.mark.parametrize(
    ("found", "label"),
    [
        (np.concatenate((X[..., 8:], X[..., :8]), 2), "swapped-halves"),
        (np.stack((X[..., :8], X[..., 8:]), -1).reshape(X.shape), "interleave"),
        (X[:, ::-1].copy(), "permutation"),
        (np.roll(X, 1, 1), "index-shift"),
    ],
)
def test_orders_of_one_axis_keep_their_names(found, label):
    assert cause(X, found).label == label
    assert list(joined(drift(X, found))) == []


@pytest.mark.parametrize(
    "found",
    [np.random.default_rng(0).permutation(X.ravel()).reshape(X.shape), X + 0.1 * numbers(*X.shape, seed=4), 2 * X],
)
def test_what_is_no_join_is_not_called_one(found):
    evidence = drift(X, found, inputs={"one": X[..., :5], "other": X[..., 5:]})
    assert [*joined(evidence), *joined_flat(evidence)] == []
