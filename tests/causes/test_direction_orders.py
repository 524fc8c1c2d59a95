"""A step whose direction is applied in another order of axes, while the weight decays where it lies, is named."""

import numpy as np
import pytest
from test_optimizers import ADAM, ADAMW, evidence_of, stepped

from firstdrift.causes.hypotheses import explain
from firstdrift.causes.table import TABLE


def moved(settings, shape, move):
    """AdamW's update with the direction moved."""
    inputs, update, _, group = stepped("AdamW", settings, shape=shape)
    decay = -group["lr"] * group["weight_decay"] * inputs["weight"]
    return decay + move(update - decay)


@pytest.mark.parametrize("noise", [1e-9, 1e-6])
@pytest.mark.parametrize("shape", [(12, 12), (40, 40), (12, 30)])
def test_a_direction_that_is_transposed_is_named(shape, noise):
    found = moved(ADAMW, shape, lambda x: x.T.reshape(shape))
    cause = explain(evidence_of("AdamW", ADAMW, found, shape=shape, noise=noise), TABLE)
    assert cause.label == "transpose", cause
    assert "decay" in cause.sentence


def test_a_direction_that_is_written_in_the_order_of_the_columns_is_named():
    found = moved(ADAMW, (12, 30), lambda x: x.reshape(30, 12).T)
    assert explain(evidence_of("AdamW", ADAMW, found, shape=(12, 30)), TABLE).label == "transpose"


def test_channels_of_a_kernel_in_another_order_are_axes():
    shape = (6, 4, 3, 3)
    found = moved(ADAMW, shape, lambda x: x.transpose(0, 2, 3, 1).reshape(shape))
    assert explain(evidence_of("AdamW", ADAMW, found, shape=shape), TABLE).label == "axis-order"


@pytest.mark.parametrize("settings", [ADAM | {"weight_decay": 0.0}, ADAM])
def test_without_decoupled_decay_the_whole_update_is_transposed(settings):
    cause = explain(evidence_of("Adam", settings, lambda x: x.T, shape=(12, 12)), TABLE)
    assert cause.label == "transpose"
    assert "decay" not in cause.sentence


def test_a_decay_that_is_missing_is_not_taken_for_an_order():
    assert explain(evidence_of("AdamW", ADAMW, shape=(12, 12), weight_decay=0.0), TABLE).label == "missing-term"


def test_other_numbers_are_no_order():
    found = moved(ADAMW, (12, 12), lambda x: np.random.default_rng(3).permuted(x, axis=1))
    assert explain(evidence_of("AdamW", ADAMW, found, shape=(12, 12)), TABLE).label not in ("transpose", "axis-order")
