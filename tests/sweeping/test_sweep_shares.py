"""How often, and how sure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstdrift.sweeping.summaries import Share

shares = st.integers(1, 10_000).flatmap(lambda n: st.integers(0, n).map(lambda k: Share(k, n)))


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(0, 10, 0, 0.27753), (1, 10, 0.017876, 0.404150), (5, 10, 0.236593, 0.763407), (10, 10, 0.722467, 1)],
)
def test_the_interval_is_wilsons(count, of, low, high):
    assert Share(count, of).interval == pytest.approx((low, high), abs=1e-5)


@given(shares)
def test_the_interval_holds_the_share_and_stays_within_0_and_1(share):
    low, high = share.interval
    assert 0 <= low <= share.count / share.of <= high <= 1


@given(shares)
def test_more_cases_make_it_narrower(share):
    low, high = share.interval
    closer = Share(4 * share.count, 4 * share.of).interval
    assert closer[1] - closer[0] < high - low


@pytest.mark.parametrize(
    ("count", "of", "pattern"),
    [
        (0, 10, "clean"), (10, 10, "robust"), (4, 4, "robust"), (3, 3, "undecided"), (1, 1, "undecided"),
        (9, 10, "batch-dependent"), (1, 10, "batch-dependent"), (0, 0, "clean"),
    ],
)  # fmt: skip
def test_robust_is_claimed_of_all_of_enough_cases(count, of, pattern):
    assert Share(count, of).pattern == pattern
