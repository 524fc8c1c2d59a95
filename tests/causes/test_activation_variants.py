"""Another activation function: both sides' function is found, also under noise, and never guessed."""

import numpy as np
import pytest
import torch
from blame import BF16, FLOAT32, cause, drift, numbers
from torch.nn import functional as F  # noqa: N812

from firstdrift.causes.activations.activation_variants import HYPOTHESES, extra, missing, variant
from firstdrift.sites import Site

X = numbers(8, 12, 32) * 2

TORCH = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish,
    "softplus": F.softplus,
    "mish": F.mish,
    "tanh": torch.tanh,
    "hard_tanh": F.hardtanh,
    "relu_squared": lambda x: F.relu(x) ** 2,
    "relu6": F.relu6,
    "softsign": F.softsign,
    "log_sigmoid": F.logsigmoid,
}


def applied(name, x=X):
    return TORCH[name](torch.from_numpy(x)).numpy()


NAMES = list(TORCH)


@pytest.mark.parametrize(("reference", "candidate"), list(zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)))
def test_both_functions_are_named(reference, candidate):
    x = X * 3
    said = cause(applied(reference, x), applied(candidate, x), inputs={"in.0": x})
    assert said.label == "activation-variant", said
    assert said.parameters["activation"] == candidate
    assert said.parameters["reference_activation"] == reference


@pytest.mark.parametrize(("reference", "candidate"), [("silu", "gelu"), ("relu", "elu"), ("tanh", "hard_tanh")])
def test_both_functions_are_named_under_coarse_noise(reference, candidate):
    said = cause(applied(reference), applied(candidate), BF16, inputs={"in.0": X})
    assert (said.label, said.parameters["activation"]) == ("activation-variant", candidate)


def test_another_slope_is_fitted():
    said = cause(applied("leaky_relu"), np.where(X > 0, X, 0.3 * X), inputs={"in.0": X})
    assert (said.label, said.parameters["negative_slope"]) == ("activation-variant", 0.3)


@pytest.mark.parametrize(("ours", "theirs"), [(0.25, 0.125), (0.3, 0.05)])
def test_both_slopes_are_fitted_whatever_they_are(ours, theirs):
    before, after = (np.where(X < 0, slope * X, X) for slope in (ours, theirs))
    found = cause(before, after, inputs={"in.0": X})
    assert (found.label, found.parameters["negative_slope"]) == ("activation-variant", theirs)
    assert found.parameters["reference_activation"] == f"a leaky ReLU of slope {ours:.6g}"


def test_a_formula_of_no_name_is_another_function_of_the_same_input():
    wrong = 0.5 * X * (1 + np.tanh(0.7978845608 * (X + 0.06 * X**3)))
    said = cause(applied("gelu_tanh"), wrong, 1e-9, inputs={"in.0": X})
    assert said.label == "activation-variant"
    assert "another function" in said.sentence


def test_an_activation_too_many_is_named_without_knowing_the_input():
    said = cause(X, applied("relu"))
    assert (said.label, said.parameters["activation"]) == ("activation-variant", "relu")


def test_an_activation_that_was_not_applied_is_a_skipped_operation():
    assert cause(applied("relu"), X, inputs={"in.0": X}, op="ReLU").label == "skipped-op"
    assert cause(applied("tanh"), X).label == "skipped-op"


def test_a_leaky_relu_is_not_a_missing_relu():
    assert cause(applied("relu"), applied("leaky_relu")).label == "unknown"  # nor a missing clamp at zero


@pytest.mark.parametrize(("axis", "other"), [(-1, 1), (1, -1), (1, 0)])
def test_a_softmax_over_another_axis_is_named(axis, other):
    x = torch.from_numpy(X)
    said = cause(x.softmax(axis).numpy(), x.softmax(other).numpy(), inputs={"in.0": X})
    assert said.label == "activation-variant", said
    assert said.parameters["axis"] == other % 3


def test_a_logarithm_of_a_softmax_and_a_sigmoid_are_told_from_a_softmax():
    x = torch.from_numpy(X)
    said = cause(x.softmax(-1).numpy(), x.log_softmax(-1).numpy(), inputs={"in.0": X})
    assert said.parameters["activation"] == "log_softmax"
    said = cause(x.softmax(-1).numpy(), x.sigmoid().numpy(), inputs={"in.0": X})
    assert said.label == "activation-variant"
    assert "sigmoid" in said.parameters.values()


@pytest.mark.parametrize("noise", [FLOAT32, BF16])
@pytest.mark.parametrize(
    "found",
    [
        applied("gelu") * 0.5,
        applied("gelu") + 1,
        numbers(8, 12, 32, seed=4),
        np.full_like(X, np.nan),
        applied("gelu")[::-1],
    ],
)
def test_other_causes_are_not_called_an_activation(found, noise):
    said = cause(applied("gelu"), found, noise, inputs={"in.0": X})
    assert said.label != "activation-variant", said


def test_nothing_is_said_where_the_reference_is_no_known_function_of_its_input():
    evidence = drift(numbers(8, 12, 32, seed=4), applied("relu"), inputs={"in.0": X})
    assert list(variant(evidence)) == []
    assert list(extra(evidence)) == []
    assert list(missing(evidence)) == []


@pytest.mark.parametrize("key", ["in.0", "fc"])
def test_a_softmax_to_another_base_has_another_temperature(key):
    x = X.reshape(-1)[:60].reshape(5, 12)
    expected, found = (np.exp(t * x) / np.exp(t * x).sum(-1, keepdims=True) for t in (1.0, np.log(2)))
    said = cause(expected, found, 1e-8, inputs={key: x})
    assert said.label == "attention-scale", said
    assert said.parameters["factor"] == pytest.approx(np.log(2), rel=1e-5)


@pytest.mark.parametrize("phase", ["weight", "weight_after", "agrad", "grad", "optim", "input"])
@pytest.mark.parametrize("name", ["relu", "hard_tanh", "tanh"])
def test_only_what_the_forward_pass_computes_is_activated(name, phase):
    site = Site(0, phase, "layers.1.part", "weight")
    said = cause(X, applied(name), BF16, site, HYPOTHESES)
    assert said.label == "unknown", said


@pytest.mark.parametrize("noise", [BF16, 0.03])
def test_a_difference_as_small_as_the_noise_is_explained_by_no_activation(noise):
    positive = 1 + 0.2 * numbers(64)  # of which a ReLU changes nothing, and a clamp at one half
    found = positive + noise * numbers(64, seed=3)
    said = cause(positive, found, noise, table=HYPOTHESES)
    assert said.label == "unknown", said


def test_a_few_elements_decided_otherwise_are_no_activation():
    expected = 0.3 * np.tanh(numbers(40, 50))
    at = np.arange(0, 2000, 97)
    expected.flat[at] = 1.6
    found = expected.copy()
    found.flat[at] = 1.0
    assert list(extra(drift(expected, found, 0.02))) == []
