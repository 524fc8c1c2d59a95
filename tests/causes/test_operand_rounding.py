"""One side rounds what its operation reads; where it is the reference, the reference is suspected."""

import numpy as np
import pytest
import torch
from blame import FLOAT32, blurred, cause, drift, numbers

from firstdrift.causes.precision.operand_rounding import rounded_operand

X, GAIN, WEIGHT = numbers(4, 6, 64), 1 + 0.1 * numbers(64, seed=1), numbers(48, 64, seed=2) / 8


def short(x):
    return torch.from_numpy(x).bfloat16().double().numpy()


def rms(x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * GAIN


def linear(x):
    return x @ WEIGHT.T


OPERATIONS = {"rms": (rms, {"weight": GAIN}, "RMSNorm"), "linear": (linear, {"weight": WEIGHT}, "Linear")}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_reference_that_rounds_its_input_is_the_suspect(kind):
    formula, weights, op = OPERATIONS[kind]
    said = cause(formula(short(X)), formula(X), FLOAT32, inputs={"in.0": X}, parameters=weights, op=op)
    assert (said.label, said.parameters["dtype"]) == ("reference-suspect", "bf16")


@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_candidate_that_rounds_its_input_is_not_the_reference_s_fault(kind):
    formula, weights, op = OPERATIONS[kind]
    said = cause(formula(X), formula(short(X)), FLOAT32, inputs={"in.0": X}, parameters=weights, op=op)
    assert (said.label, said.parameters["dtype"]) == ("dtype-rounding", "bf16")


@pytest.mark.parametrize("found", [rms(X) * 1.002, rms(X) + 2e-3, blurred(rms(X), 2e-3)])
def test_an_error_of_that_size_with_another_cause_accuses_nobody_of_rounding(found):
    evidence = drift(rms(X), found, FLOAT32, inputs={"in.0": X}, parameters={"weight": GAIN}, op="RMSNorm")
    assert list(rounded_operand(evidence)) == []
