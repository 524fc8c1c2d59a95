"""Activations of sums and products, and terms that lie in parts of a tensor or with their channels elsewhere."""

import numpy as np
import pytest
from blame import BF16, FLOAT32, SITE, Run, blurred, cause, drift, numbers

from firstdrift.causes.activations.activated import activated_product, missing_summand
from firstdrift.causes.layout.packing import partly_known
from firstdrift.causes.sums.glue import sums
from firstdrift.sites import Site

IN = SITE._replace(name="layers.1.out", port="in.0")
A, B, C, D = (numbers(3, 8, 24, seed=seed) for seed in range(4))
IMAGE = numbers(2, 6, 5, 5, seed=5)
PACKED = numbers(3, 16, 24, seed=6)  # two halves along its second axis
TIME = numbers(2, 12, seed=7)  # a scale and a shift for every channel of an image
SCALE, SHIFT = TIME[:, :6, None, None], TIME[:, 6:, None, None]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


def named(expected, formula, inputs, noise=FLOAT32, **known):
    """The cause where the candidate's own inputs carry noise, and so does what it makes of them."""
    theirs = {key: blurred(value, noise, seed) for seed, (key, value) in enumerate(inputs.items())}
    return cause(expected, formula(*theirs.values()), noise, IN, inputs=inputs, candidate_inputs=theirs, **known)


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("formula", "label"),
    [
        (lambda a, b: np.tanh(b) * sigmoid(a), "swapped-operands"),
        (lambda a, b: a * sigmoid(b), "skipped-op"),
        (lambda a, b: relu(a) * sigmoid(b), "activation-variant"),
    ],
)
def test_a_product_of_two_activated_tensors_that_is_wrong_is_named(formula, label, noise):
    said = named(np.tanh(A) * sigmoid(B), formula, {"filter": A, "gate": B}, noise)
    assert said.label == label, said


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
def test_an_activated_product_of_exchanged_halves_is_named_along_any_axis(noise):
    for x, axis in ((PACKED, 1), (np.moveaxis(PACKED, 1, 2), 2)):
        first, second = np.split(x, 2, axis)

        def exchanged(y, axis=axis):
            a, b = np.split(y, 2, axis)
            return np.tanh(b) * sigmoid(a)

        assert named(np.tanh(first) * sigmoid(second), exchanged, {"in.0": x}, noise).label == "swapped-halves"


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    ("formula", "label"),
    [
        (lambda x, s, b: x * (1 + b) + s, "swapped-halves"),
        (lambda x, s, b: x * s + b, "missing-term"),
        (lambda x, s, b: x * (1 + s), "missing-term"),
        (lambda x, s, b: x + b, "missing-term"),
    ],
)
def test_a_modulation_by_two_halves_of_one_projection_is_told(formula, label, noise):
    def found(x, t):
        return formula(x, t[:, :6, None, None], t[:, 6:, None, None])

    said = named(IMAGE * (1 + SCALE) + SHIFT, found, {"norm": IMAGE, "time": TIME}, noise)
    assert said.label == label, said


def test_a_modulation_of_tokens_by_many_parts_of_one_projection_is_told():
    parts = numbers(3, 6 * 24, seed=8)
    shift, scale = parts[:, None, :24], parts[:, None, 24:48]
    said = named(
        A * (1 + scale) + shift, lambda x, c: x * (1 + c[:, None, :24]) + c[:, None, 24:48], {"norm": A, "ada": parts}
    )
    assert said.label == "swapped-halves", said


def test_two_tensors_that_took_each_others_place_are_exchanged():
    inputs = {"x": A, "scale": B, "shift": C}
    assert named(A * B + C, lambda x, s, b: x * b + s, inputs).label == "swapped-operands"
    assert list(sums(drift(A * B + C, A * D + B, FLOAT32, IN, inputs=inputs))) == []


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("size", [6, 5])
def test_a_branch_with_its_channels_last_lacks_its_gain(size, noise):
    """Where all sides are equal, the axes are told by what fits."""
    x, branch = numbers(2, 5, size, size, seed=9), numbers(2, size, size, 5, seed=10)
    gamma = numbers(5, seed=11) * 0.2 + 0.5

    def turned(y):
        return np.moveaxis(y, -1, 1)

    expected = x + turned(gamma * branch)
    inputs = {"layers.0": x, "layers.1.pw": branch}
    said = named(expected, lambda a, b: a + turned(b), inputs, noise, parameters={"gamma": gamma})
    assert said.label == "skipped-op", said


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("function", [relu, np.tanh])
def test_a_term_missing_in_an_activated_sum_of_many_is_named(function, noise):
    inputs = {"a": A, "b": B, "c": C, "d": D}
    said = named(function(A + B + C + D), lambda a, b, c, d: function(b + c + d), inputs, noise)
    assert said.parameters.get("term") == "a", said
    assert said.label in ("missing-term", "missing-residual")


def test_what_is_known_but_not_added_hides_no_missing_term():
    inputs = {"a": A, "b": B, "c": C, "d": D}
    said = named(relu(A + B + C), lambda a, b, c, d: relu(b + c), inputs)
    assert said.parameters.get("term") == "a", said


def test_taps_of_one_chain_are_terms_and_no_skips():
    def at(name):
        return Site(0, "fwd", name, "out")

    chain = {at("a.gate"): A, at("a.skip"): A, at("b.gate"): B, at("b.skip"): B, at("c.gate"): C, at("c.skip"): C}
    producers = {
        at("a.skip"): [at("a.gate")], at("b.gate"): [at("a.gate")], at("b.skip"): [at("b.gate")],
        at("c.gate"): [at("b.gate")], at("c.skip"): [at("c.gate")],
    }  # fmt: skip
    inputs = {"c.skip": C, "b.skip": B, "a.skip": A}
    run = Run({**chain, IN: A}, producers=producers)
    assert named(relu(A + B + C), lambda c, b, a: relu(b + c), inputs, around=run).label == "missing-term"
    assert named(A + B + C, lambda c, b, a: b + c, inputs, around=run).label == "missing-term"


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    "found", [numbers(3, 8, 24, seed=30), relu(A) * B, np.tanh(A * B), np.zeros_like(A), relu(-A - B)]
)
@pytest.mark.parametrize("expected", [relu(A + B + C), np.tanh(A) * sigmoid(B)])
def test_what_no_single_change_makes_is_not_explained(expected, found, noise):
    evidence = drift(expected, found, noise, IN, inputs={"a": A, "b": B, "c": C})
    for hypothesis in (missing_summand, activated_product, partly_known):
        assert list(hypothesis(evidence)) == []


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize("known", [lambda x: x, relu])
def test_a_known_part_beside_unknown_ones_in_another_order_is_a_concatenation(known, noise):
    unknown = numbers(3, 8, 7, seed=12)
    inputs = {"dense": A, "other": numbers(3, 4, seed=13)}
    parts = [known(A), unknown]
    said = named(np.concatenate(parts, -1), lambda a, _: np.concatenate([unknown, known(a)], -1), inputs, noise)
    assert said.label == "concat-order", said
    assert said.parameters["order"][0] == "[24:31]"


@pytest.mark.parametrize(
    "order",
    [
        np.r_[24:31, 23::-1],  # the known part is turned round
        np.r_[3:31, 0:3],  # rotated, but not at the end of a part
        np.r_[0:24, 30:23:-1],  # the unknown part has another order
    ],
)
def test_another_order_than_that_of_the_parts_is_no_concatenation(order):
    whole = np.concatenate([A, numbers(3, 8, 7, seed=12)], -1)
    evidence = drift(whole, whole[..., order], FLOAT32, IN, inputs={"dense": A})
    assert list(partly_known(evidence)) == []
