"""How one cause is chosen: fewest numbers, most specific, and nothing claimed that is not shown."""

import tracemalloc

import numpy as np
import pytest
from tests.explain.blame import FLOAT32, SITE, Run, blurred, cause, drift, numbers

from firstdrift.explain.labels import LABELS
from firstdrift.explain.relations import (
    by_definition,
    elementwise,
    hypotheses,
    integrity,
    permutations,
    wiring,
)
from firstdrift.explain.relations import coarser as rounding
from firstdrift.explain.relations.hypotheses import Finding, explain, relative
from firstdrift.explain.relations.known import TABLE
from firstdrift.explain.relations.screening import LARGE, part_of

X = numbers(8, 16, 32)
GENERIC = next(label for label, one in LABELS.items() if one.specificity == 0 and label == "scale")


def says(label, make=None, free=0, residual=None, sentence="so"):
    def hypothesis(evidence):
        yield Finding(label, sentence, None if make is None else make(evidence), free, {}, residual)

    return hypothesis


def doubled(evidence):
    return 2 * evidence.expected


def off(share):
    def make(evidence):
        return evidence.found + share * np.linalg.norm(evidence.found) * _unit(evidence.found.shape)

    return make


def _unit(shape):
    direction = numbers(*shape, seed=77)
    return direction / np.linalg.norm(direction)


def test_fewer_fitted_numbers_win():
    said = cause(X, 2 * X, table=[says("channel-scale", doubled, 32), says("scale", doubled, 1)])
    assert (said.label, said.runner_up) == ("scale", "channel-scale")


def test_of_equally_many_the_more_specific_wins():
    said = cause(X, 2 * X, table=[says("scale", doubled), says("missing-bias", doubled)])
    assert said.label == "missing-bias"


def test_what_leaves_far_less_wins_over_what_fitted_less():
    said = cause(X, 2 * X, 1e-3, table=[says("missing-bias", off(3e-3)), says("norm-eps", off(1e-4), 1)])
    assert said.label == "norm-eps"


def test_differences_below_float32_do_not_decide():
    said = cause(X, 2 * X, 1e-6, table=[says("missing-bias", off(1e-7)), says("norm-eps", off(0.0), 1)])
    assert said.label == "missing-bias"


@pytest.mark.parametrize(("left", "label"), [(0.02, "norm-eps"), (0.2, "unknown")])
def test_a_specific_cause_that_explains_most_is_given_with_little_confidence(left, label):
    said = cause(X, 2 * X, table=[says("norm-eps", off(left * 0.5))])
    assert said.label == label
    assert said.confidence < 0.5


@pytest.mark.parametrize(("left", "label"), [(0.005, GENERIC), (0.05, "unknown")])
def test_a_generic_cause_must_explain_nearly_everything(left, label):
    assert cause(X, 2 * X, table=[says(GENERIC, off(left * 0.5))]).label == label


def test_where_noise_is_as_large_as_the_difference_what_changes_nothing_explains_nothing():
    found = X + 0.02 * numbers(*X.shape, seed=5)
    assert cause(X, found, 0.02, table=[says("scale", lambda one: 1.001 * one.expected, 1)]).label == "unknown"
    assert cause(X, found, 0.02, table=[says("scale", lambda evidence: evidence.found, 1)]).label == "scale"


def test_two_partial_explanations_that_leave_alike_are_both_not_believed():
    said = cause(X, 2 * X, table=[says("norm-eps", off(0.02)), says("missing-bias", off(0.021))])
    assert said.label == "unknown"
    assert "norm-eps" in said.sentence


def test_an_unknown_cause_says_what_comes_nearest_and_where_the_rest_lies():
    found = 2 * X
    found[:, 3] += 0.3 * numbers(8, 32, seed=4)
    said = cause(X, found)
    assert said.label == "unknown"
    assert said.parameters["nearest"] == "scale"
    assert "position 3 of 16" in said.sentence


def test_nothing_known_says_where_the_difference_lies():
    found = X.copy()
    found[5] = numbers(16, 32, seed=4)
    said = cause(X, found)
    assert (said.label, said.confidence) == ("unknown", 0.0)
    assert "sample 5 of 8" in said.sentence


def test_confidence_grows_with_the_distance_from_noise():
    weak, strong = cause(X, X * (1 + 2e-6), table=TABLE), cause(X, X * 2, table=TABLE)
    assert weak.label == strong.label == "scale"
    assert weak.confidence < strong.confidence <= 1.0


def test_an_equal_rival_halves_the_confidence():
    alone = cause(X, 2 * X, table=[says("missing-bias", doubled)])
    doubted = cause(X, 2 * X, table=[says("missing-bias", doubled), says("double-bias", doubled)])
    assert doubted.confidence == alone.confidence / 2


def test_values_that_are_not_finite_agree_only_with_their_like():
    a, b = np.array([1.0, np.nan, np.inf]), np.array([1.0, np.nan, np.inf])
    evidence = drift(a, lambda _: b)
    assert relative(a, b, evidence) == 0.0
    assert relative(a, np.array([1.0, np.nan, -np.inf]), evidence) == np.inf
    assert relative(a, np.array([1.0, 2.0, np.inf]), evidence) == np.inf
    assert relative(a, np.zeros(4), evidence) == np.inf


def test_masked_values_are_no_scale():
    lowest = float(np.finfo(np.float32).min)
    x = np.where(np.tri(16, dtype=bool), numbers(16, 16), lowest)
    y = np.where(np.tri(16, dtype=bool), numbers(16, 16, seed=1), lowest)
    assert relative(y, x, drift(x, lambda _: y)) > 0.1


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("shape", [(4, 8, 16), (0, 3), (1,), ()])
def test_tensors_without_usable_numbers_are_survived(shape, value):
    plain = np.full(shape, value)
    cause(plain, lambda _: np.ones(shape))
    cause(np.ones(shape), lambda _: plain)
    cause(plain, lambda _: plain, inputs={"in.0": plain, "in.1": plain})


def test_the_numbers_survive_being_looked_at():
    evidence = drift(X, 2 * X, inputs={"in.0": X.copy()})
    before = evidence.expected.copy(), evidence.found.copy()
    explain(evidence, TABLE)
    assert (evidence.expected == before[0]).all()
    assert (evidence.found == before[1]).all()


ANY_OPERATION = tuple(
    hypothesis
    for family in (
        by_definition, integrity, wiring, elementwise, permutations, rounding,
    )
    for hypothesis in family.HYPOTHESES
)  # fmt: skip
LARGE_X = numbers(16, 512, 1280)  # 10 M elements


def large(change, **known):
    found = change(LARGE_X)
    return drift(LARGE_X, lambda _: found, FLOAT32, **known)


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (lambda x: x * 0.125, "scale"),
        (lambda x: np.roll(x, 640, axis=-1), "swapped-halves"),
        (lambda x: numbers(16, 512, 1280, seed=2), "unknown"),
        (lambda x: np.concatenate([x[:15], x[:1]]), "permutation"),  # only the last sample, and taken from the first
    ],
)
def test_ten_million_elements_are_explained_in_less_than_a_gibibyte(change, label):
    around = Run({SITE._replace(name=f"layers.{one}"): LARGE_X[::-1] for one in range(8)} | {SITE: LARGE_X})
    evidence = large(change, around=around, inputs={"in.0": LARGE_X[::-1], "in.1": LARGE_X[:, ::-1]})
    tracemalloc.start()
    said = explain(evidence, ANY_OPERATION)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said.label == label, said
    assert peak < 2**30


def test_a_part_has_whole_samples_of_everything_that_has_as_many():
    x = np.zeros((64, 256, 256))
    evidence = drift(x, lambda _: x, inputs={"in.0": x, "in.1": np.zeros((256, 256))})
    part = part_of(evidence)
    assert part.expected.shape == part.found.shape == part.inputs["in.0"].shape == (8, 256, 256)
    assert part.inputs["in.1"].shape == (256, 256)
    assert part.expected.size <= LARGE


@pytest.mark.parametrize(
    "site", [SITE._replace(phase="grad", port="weight"), SITE._replace(phase="weight", port="weight")]
)
def test_parameters_have_no_samples_to_take_a_part_of(site):
    x = np.zeros((64, 256, 256))
    assert part_of(drift(x, lambda _: x, site=site)) is None


def test_a_part_shows_the_difference():
    x = np.zeros((64, 256, 256))
    found = x.copy()
    found[60, 3] = 1.0
    part = part_of(drift(x, lambda _: found))
    assert part.found.any()
    assert len(part.found) == 8


def test_what_only_the_whole_shows_is_found_where_a_part_shows_nothing(monkeypatch):
    monkeypatch.setattr(hypotheses, "LARGE", 64)
    monkeypatch.setattr("firstdrift.explain.relations.screening.LARGE", 64)
    found = X.copy()
    found[6:] = blurred(X[6:] * 2, 0.0)
    said = cause(
        X, found, table=[says("norm-axis", lambda evidence: found if evidence.found.shape == X.shape else None)]
    )
    assert said.label == "norm-axis"


def test_what_a_part_refutes_is_not_tried_on_the_whole_of_what_is_explained(monkeypatch):
    monkeypatch.setattr(hypotheses, "LARGE", 64)
    monkeypatch.setattr("firstdrift.explain.relations.screening.LARGE", 2 * X[:2].size)
    sizes = []

    def silent(evidence):
        sizes.append(len(evidence.found))
        return ()

    assert cause(X, 2 * X, table=[silent, says("missing-bias", doubled)]).label == "missing-bias"
    assert [size < len(X) for size in sizes] == [True]
