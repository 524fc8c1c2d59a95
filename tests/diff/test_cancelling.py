"""A sum that cancels is proven on both sides' own terms, or not at all."""

import numpy as np
import pytest
from making import normal

from firstdrift.verdict.cancelling import is_sum_of_own_terms

LIMIT = 1e-5


def terms(seed=0):
    flow = normal(512, 8, seed=seed)
    return flow - flow.mean(0, dtype=np.float64).astype(np.float32)


@pytest.mark.parametrize("scale", [1, 1 / 512])
def test_both_sides_add_up_their_own_terms(scale):
    ours, theirs = terms(), terms(1)
    sums = ours.sum(0) * np.float32(scale), theirs[::-1].cumsum(0, dtype=np.float32)[-1] * np.float32(scale)
    assert is_sum_of_own_terms(sums, (ours, theirs), LIMIT)


def test_one_element_that_is_no_sum_is_seen():
    ours, theirs = terms(), terms(1)
    wrong = theirs.sum(0)
    wrong[3] += 0.1
    assert not is_sum_of_own_terms((ours.sum(0), wrong), (ours, theirs), LIMIT)


def test_what_the_reference_did_not_add_up_proves_nothing():
    ours, theirs = terms(), terms(1)
    assert not is_sum_of_own_terms((ours.max(0), theirs.sum(0)), (ours, theirs), LIMIT)
    assert not is_sum_of_own_terms((ours[0, :7], theirs[0, :7]), (ours, theirs), LIMIT)
