"""Sinusoids of times that were computed in float32, where the angle of a large time is rounded before its sine."""

import numpy as np
import pytest
import torch
from blame import FLOAT32, SITE, numbers

from firstdrift.causes.evidence import Evidence
from firstdrift.causes.hypotheses import explain
from firstdrift.causes.table import TABLE

TIMES = torch.tensor([13, 977, 402, 731])
WIDTH = 24


def embedded(times=TIMES, base=1e4, over=WIDTH // 2):
    """Sines and cosines of times, in float32."""
    steps = torch.exp(-np.log(base) * torch.arange(WIDTH // 2, dtype=torch.float32) / over)
    angles = times.float()[:, None] * steps
    return torch.cat((angles.sin(), angles.cos()), 1).double().numpy()


def said(found):
    inputs = {"input times": TIMES.numpy()}
    return explain(Evidence(SITE, embedded(), found, FLOAT32, inputs=inputs, candidate_inputs=inputs), TABLE)


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("frequency-table", embedded(over=WIDTH // 2 - 1)),
        ("frequency-table", embedded(base=1e3)),
        ("position-shift", embedded(TIMES + 1)),
    ],
)
def test_one_change_to_a_table_in_float32_is_named(label, found):
    assert said(found).label == label


@pytest.mark.parametrize("found", [embedded() + 0.3 * numbers(4, WIDTH), embedded(TIMES * 1.037, base=3e4)])
def test_other_numbers_are_no_such_table(found):
    assert said(found).label not in ("frequency-table", "position-shift")
