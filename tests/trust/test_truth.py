"""The adversary's own truth: right runs are within the noise it measures, changes have the size they were given."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from adversary.cases import open_batch  # noqa: E402
from adversary.changes import Edit  # noqa: E402
from adversary.running import run  # noqa: E402
from adversary.truth import GREEN_FROM  # noqa: E402

BATCHES = range(10)


@pytest.fixture(scope="module")
def batches(scratch):
    return [open_batch(5, number, scratch / f"batch{number}") for number in BATCHES]


@pytest.mark.parametrize("number", BATCHES)
def test_the_recorded_reference_is_within_the_noise(batches, number):
    batch = batches[number]
    if batch.dtype == "f32/bf16":
        pytest.skip("the reference is in another dtype than the noise")
    assert max(batch.truth.local_sizes(batch.reference).values()) < GREEN_FROM
    assert max(batch.truth.free_sizes(batch.reference).values()) < GREEN_FROM


@pytest.mark.parametrize("number", BATCHES)
def test_further_legal_rewrites_are_within_the_noise(batches, number):
    batch = batches[number]
    for seed in range(70_000, 70_006):
        values = run(batch.network, batch.store, seed)
        assert max(batch.truth.local_sizes(values).values()) < GREEN_FROM


@pytest.mark.parametrize("number", BATCHES)
def test_a_change_has_its_size_at_its_own_site_alone(batches, number):
    batch = batches[number]
    site = next(site for site in batch.recording.order if site.phase == "fwd")
    row = batch.truth.local[site].row
    part = (slice(0, 1),) * row.ndim
    amount = np.full(1, 1000 * batch.truth.local[site].element[part].item())
    values = run(batch.network, batch.store, 1, Edit(site, part, "add", amount))
    sizes = batch.truth.local_sizes(values)
    assert sizes[site] == pytest.approx(1000, rel=0.6)
    assert [one for one, size in sizes.items() if size >= GREEN_FROM and one.phase == "fwd"] == [site]


def test_a_case_is_repeated_by_its_id(scratch):
    from adversary.__main__ import repeated
    from adversary.crowd import outcomes

    first = next(iter(outcomes(6, 1, scratch)))
    assert repeated(first.id, scratch) == first


def test_the_cases_are_the_same_however_many_work(scratch):
    from adversary.crowd import outcomes

    def ids(workers):
        return [(one.id, one.exit_code, one.size) for one in outcomes(6, 45, scratch / "crowd", workers=workers)]

    assert ids(1) == ids(2)
