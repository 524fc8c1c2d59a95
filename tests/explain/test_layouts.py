"""Axes and slices in another order: the order is named; what is not a reordering is not called one."""

import numpy as np
import pytest
import torch
from tests.explain.blame import BF16, FLOAT32, SITE, cause, drift, numbers

from firstdrift.explain.relations.permutations import axis_order, index_shift, reordered, slices_moved

X = numbers(3, 10, 48)
HEADS = {"heads": 4}


def take(order, axis=-1):
    return lambda x: np.take(x, order, axis=axis)


def blocks(*order, axis=-1):
    def change(x):
        parts = np.split(x, len(order), axis=axis)
        return np.concatenate([parts[one] for one in order], axis=axis)

    return change


def per_head(change, heads=4):
    def changed(x):
        return change(x.reshape(*x.shape[:-1], heads, -1)).reshape(x.shape)

    return changed


def interleaved(x):
    return torch.stack(torch.from_numpy(x).chunk(2, -1), -1).flatten(-2).numpy()


def deinterleaved(x):
    return np.concatenate([x[..., ::2], x[..., 1::2]], -1)


def merged_without_transpose(x):
    """Heads of (batch, head, token, feature) merged as if they lay beside the features."""
    heads = torch.from_numpy(x).reshape(3, 10, 4, 12).transpose(1, 2)
    return heads.reshape(3, 10, 48).numpy()


def shifted(amount, axis, fill):
    def change(x):
        y = np.roll(x, amount, axis)
        edge = [slice(None)] * x.ndim
        edge[axis] = slice(None, amount) if amount > 0 else slice(amount, None)
        if fill != "wrapped round":
            y[tuple(edge)] = 0.0 if fill == "filled with zeros" else 7.0
        return y

    return change


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("change", "attrs", "label"),
    [
        (blocks(1, 0), {}, "swapped-halves"),
        (per_head(blocks(1, 0)), {}, "swapped-halves"),
        (interleaved, {}, "interleave"),
        (deinterleaved, {}, "interleave"),
        (per_head(interleaved), {}, "interleave"),
        (per_head(deinterleaved), {}, "interleave"),
        (blocks(2, 0, 1), {}, "permutation"),
        (blocks(3, 1, 0, 2), HEADS, "head-permutation"),
        (per_head(lambda x: x.swapaxes(-1, -2)), HEADS, "head-permutation"),
        (merged_without_transpose, HEADS, "head-permutation"),
        (take(np.arange(10)[::-1], 1), {}, "permutation"),
        (take(np.array([0, 1, 5, 3, 4, 2, 6, 7, 8, 9]), 1), {}, "permutation"),
        (lambda x: x.transpose(1, 0, 2).reshape(x.shape), {}, "axis-order"),
        (lambda x: x.swapaxes(1, 2).reshape(x.shape), {}, "axis-order"),
        (shifted(1, 1, "filled with zeros"), {}, "index-shift"),
        (shifted(-1, 1, "wrapped round"), {}, "index-shift"),
        (shifted(2, 2, "filled otherwise"), {}, "index-shift"),
    ],
)
def test_another_order_is_named(change, attrs, label, noise):
    said = cause(X, change, noise, attrs=attrs)
    assert said.label == label, said


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_a_square_matrix_that_was_transposed_is_named(noise):
    assert cause(numbers(5, 24, 24), lambda x: x.swapaxes(1, 2), noise).label == "transpose"
    assert cause(numbers(24, 24), lambda x: x.T, noise).label == "transpose"


def test_channels_that_were_flattened_last_are_an_axis_order_of_the_input():
    image = numbers(4, 3, 5, 7)
    said = cause(image.reshape(4, -1), image.transpose(0, 2, 3, 1).reshape(4, -1), op="Flatten", inputs={"in.0": image})
    assert said.label in ("axis-order", "conv-layout")
    assert list(
        axis_order(drift(image.reshape(4, -1), image.transpose(0, 2, 3, 1).reshape(4, -1), inputs={"in.0": image}))
    )


def test_queries_keys_and_values_in_another_order_are_named_as_such():
    x = numbers(2, 6, 16)
    fused = numbers(2, 6, 48, seed=1)
    said = cause(fused, blocks(1, 0, 2), op="Linear", inputs={"in.0": x})
    assert (said.label, said.parameters["numbers"]) == ("qkv-order", [1, 0, 2])


def test_three_gates_of_a_recurrence_are_not_queries_keys_and_values():
    fused = numbers(2, 6, 48, seed=1)
    assert cause(fused, blocks(1, 0, 2), op="GRUCell", inputs={"in.0": numbers(2, 6, 16)}).label != "qkv-order"


def test_tiled_instead_of_repeated_is_told_with_the_grid():
    kv = numbers(2, 3, 5, 8)
    said = cause(np.repeat(kv, 4, axis=1), np.tile(kv, (1, 4, 1, 1)), attrs={"heads": 12})
    assert said.label in ("head-permutation", "gqa-order", "permutation")


def test_a_slice_taken_twice_is_told_with_its_source():
    said = cause(X, take(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 8]), 1))
    assert (said.label, said.parameters["mapping"]) == ("permutation", [[9, 8]])


def test_a_shuffle_of_rows_is_told_with_the_mapping():
    order = np.random.default_rng(0).permutation(3000)
    x = numbers(3000, 5)
    said = cause(x, x[order])
    assert said.label == "permutation"
    assert all(order[to] == source for to, source in said.parameters["mapping"])


def test_the_same_numbers_in_no_order_that_has_a_name_are_still_the_same_numbers():
    order = np.random.default_rng(0).permutation(X.size)
    said = cause(X, X.reshape(-1)[order].reshape(X.shape))
    assert said.label == "permutation"
    assert "same numbers" in said.sentence


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    "found",
    [
        numbers(3, 10, 48, seed=8),
        X * 1.5,
        X + 1,
        np.zeros_like(X),
        np.full_like(X, np.nan),
        np.maximum(X, 0),
        X + np.where(np.arange(10)[:, None] == 3, 1.0, 0.0),
    ],
)
def test_what_is_no_reordering_is_not_called_one(found, noise):
    evidence = drift(X, found, noise)
    for hypothesis in (slices_moved, index_shift, axis_order):
        assert list(hypothesis(evidence)) == []


def test_two_samples_of_one_distribution_are_not_the_same_numbers():
    a, b = numbers(200, 200), numbers(200, 200, seed=1)
    assert list(reordered(drift(a, b, BF16))) == []
    assert cause(a, b).label == "unknown"


@pytest.mark.parametrize("shape", [(2,), (2, 2), (1, 1), (1,), ()])
def test_tiny_tensors_are_survived(shape):
    cause(numbers(*shape) if shape else np.array(1.0), numbers(*shape, seed=1) if shape else np.array(2.0))


def test_a_tensor_that_repeats_along_an_axis_has_no_shift():
    x = np.broadcast_to(numbers(1, 48), (10, 48)).copy()
    found = x.copy()
    found[0] = 0.0
    assert [one for one in index_shift(drift(x, found)) if one.parameters["axis"] == 0] == []


def test_numbers_so_dense_that_each_has_a_neighbour_within_noise_are_not_matched():
    a, b = (np.random.default_rng(seed).uniform(1, 2, 2000) for seed in (1, 2))
    assert list(slices_moved(drift(a, b, BF16))) == []
    a, b = (np.random.default_rng(seed).uniform(1, 2, 9000) for seed in (1, 2))
    assert list(slices_moved(drift(a, b, BF16))) == []


def test_samples_of_a_batch_in_another_order_are_a_permutation():
    x = numbers(6, 40)
    assert cause(x, x[[3, 1, 0, 2, 5, 4]], site=SITE).label == "permutation"
