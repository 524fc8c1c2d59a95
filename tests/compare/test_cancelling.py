"""A sum that cancels to nothing but rounding is held against the rounding of its own terms, or not called right."""

import numpy as np
import pytest
from tests.compare.making import noisy, normal, record

import firstdrift as fd
from firstdrift.judge.measure.result import Why

X, WEIGHT, BIAS = normal(512, 16, seed=3), normal(8, 16, seed=4), normal(8, seed=5)
READS = [fd.Site(0, "input", "", "x")]


def terms():
    """The gradient of what a norm reads: over the batch it sums up to zero but for rounding."""
    flow = normal(512, 8)
    return flow - flow.mean(0, dtype=np.float64).astype(np.float32)


def run(path, flow, bias_gradient, op="Linear"):
    """A layer before a norm, as an engine records it that knows the names of its operations, or none."""
    details = {} if op is None else {"op": op, "producers": READS}
    record(path, {
        "input :x": X, "weight fc": WEIGHT, "weight fc:bias": BIAS, "fwd fc": (X @ WEIGHT.T + BIAS, details),
        "agrad fc": flow, "grad fc:bias": bias_gradient,
    })  # fmt: skip
    return path


def diffed(tmp_path, theirs, op="Linear", flow=None):
    ours = terms()
    flow = ours if flow is None else flow
    result = fd.diff(run(tmp_path / "r", ours, ours.sum(0), op), run(tmp_path / "c", flow, theirs, op))
    return result, next(pair for pair in result.pairs if pair.site.phase == "grad")


def serial(flow):
    """The same sum, one term after the other from the end."""
    return flow[::-1].cumsum(0, dtype=np.float32)[-1]


def test_a_sum_in_another_order_may_be_all_rounding(tmp_path):
    result, pair = diffed(tmp_path, serial(terms()))
    assert pair.measurement.rel_l2 > 0.5  # nothing of the sum itself is left
    assert (result.exit_code, pair.why) == (0, Why.WITHIN_DRAWS), result.sentence


def test_a_sum_of_terms_that_are_one_rounding_off_is_judged_by_its_own_terms(tmp_path):
    flow = noisy(terms(), 3e-8)
    result, pair = diffed(tmp_path, serial(flow), flow=flow)
    assert pair.measurement.rel_l2 > 0.5
    assert result.exit_code == 0, result.sentence


@pytest.mark.parametrize("size", [1e-3, 0.1])
def test_one_element_that_is_no_sum_is_seen(tmp_path, size):
    wrong = serial(terms())
    wrong[3] += size
    result, pair = diffed(tmp_path, wrong)
    assert (result.exit_code, pair.verdict) == (1, "drift"), result.sentence


def test_the_sum_of_half_of_the_terms_is_seen(tmp_path):
    result, _ = diffed(tmp_path, terms()[:256].sum(0))
    assert result.exit_code == 1, result.sentence


def test_where_nobody_says_that_it_is_a_sum_nothing_is_called_right(tmp_path):
    def lone(path, gradient):
        return record(path, {"fwd fc": X @ WEIGHT.T, "grad fc:bias": gradient})

    ours = terms()
    result = fd.diff(lone(tmp_path / "r", ours.sum(0)), lone(tmp_path / "c", serial(ours)))
    assert result.exit_code != 0, result.sentence
