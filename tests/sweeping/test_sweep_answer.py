"""One answer for all cases: verdict and exit code, robust or not, the same cause or not, what is missing, growth."""

import json
import math
import shutil

import numpy as np
import pytest
from tests.sweeping.two_sides import prerecord, record, reference, wrong

import firstdrift as fd
from firstdrift.judge.measure.result import Verdict
from firstdrift.sweeping.answer import SweepResult
from firstdrift.sweeping.case_rows import Finding, Growth, Row, SiteRow, failed_row
from firstdrift.sweeping.growth import compounds, factor, jumps, ratio

CODES = {"same": 0, "noise": 0, "flip": 0, "drift": 1, "inconclusive": 2, "not comparable": 2}


def row(number, verdict="noise", *, place=("agrad", "ln3", "out"), by="relu3's backward", label=None, **more):
    first = Finding(0, *place, 0, number, by, label, "why" if label else "") if verdict == "drift" else None
    counts = {"flip": 1} if verdict == "flip" else {"noise": 3}
    given = {"counts": counts, "first_drift": first} | more
    return Row({"start": number}, verdict, CODES[verdict], f"{verdict}: so it is", **given)


def answer(*rows, cases=None):
    given = cases or [one.case for one in rows]
    return SweepResult(tuple(given), tuple(rows))


@pytest.mark.parametrize(
    ("verdicts", "verdict", "code"),
    [
        (["same", "same"], "same", 0),
        (["same", "noise"], "noise", 0),
        (["noise", "flip"], "flip", 0),
        (["noise", "inconclusive"], "inconclusive", 2),
        (["noise", "not comparable"], "not comparable", 2),
        (["inconclusive", "drift", "noise"], "drift", 1),
    ],
)
def test_drift_wins_over_doubt_over_agreement(verdicts, verdict, code):
    result = answer(*(row(i, one) for i, one in enumerate(verdicts)))
    assert (result.verdict, result.exit_code) == (Verdict(verdict), code)
    assert result.sentence.startswith(f"{verdict}: ")


def test_a_failed_case_keeps_a_sweep_from_being_green_and_a_drift_from_nothing():
    failed = failed_row({"start": 9}, "the candidate was killed by SIGSEGV")
    assert answer(row(0), failed).exit_code == 2
    assert answer(row(0), failed).verdict is Verdict.INCONCLUSIVE
    assert answer(row(0, "drift"), failed).exit_code == 1
    assert "1 of 2 cases failed, first start=9: the candidate was killed" in answer(row(0, "drift"), failed).sentence


def test_nothing_compared_is_never_green():
    assert (answer(cases=[{"a": 1}]).exit_code, answer(cases=[{"a": 1}]).verdict) == (2, Verdict.NOT_COMPARABLE)
    only = answer(failed_row({"start": 0}, "no"))
    assert (only.exit_code, only.verdict) == (2, Verdict.NOT_COMPARABLE)
    with pytest.raises(TypeError, match="not a truth value"):
        bool(only)


def test_cases_that_were_not_run_are_no_agreement():
    result = answer(row(0), cases=[{"start": 0}, {"start": 1}])
    assert (result.exit_code, result.verdict) == (2, Verdict.INCONCLUSIVE)
    assert "1 of 2 cases were not run" in result.sentence


def test_missing_pairs_keep_a_clean_sweep_from_being_green():
    problems = ("2 reference sites have no counterpart",)
    result = answer(row(0), Row({"start": 1}, "noise", 2, "noise: but", counts={"noise": 1}, problems=problems))
    assert result.exit_code == 2
    assert "but in 1 of them 2 reference sites have no counterpart" in result.sentence


def test_a_drift_in_every_case_is_robust_and_its_cause_is_named_once():
    result = answer(*(row(i, "drift", label="relu-mask") for i in range(10)))
    assert "agrad ln3, introduced by relu3's backward, in 10 of 10 (72-100 %): robust" in result.sentence
    assert "relu-mask in every one of them: why" in result.sentence
    (finding,) = result.findings
    assert (finding.cause, finding.share.pattern) == ("relu-mask", "robust")


def test_a_drift_in_some_cases_is_batch_dependent():
    result = answer(*(row(i, "drift" if i < 3 else "noise") for i in range(10)))
    assert "in 3 of 10 (11-60 %): batch-dependent" in result.sentence


def test_a_few_cases_are_too_few_to_call_it_robust():
    result = answer(*(row(i, "drift") for i in range(2)))
    assert "in every case, but 2 are too few to call it robust" in result.sentence


def test_causes_that_differ_are_not_taken_for_one():
    labels = ["norm-eps", "norm-eps", "scale", None]
    result = answer(*(row(i, "drift", label=label) for i, label in enumerate(labels)))
    assert "causes differ: norm-eps in 2, scale in 1 of 4" in result.sentence
    assert result.findings[0].cause is None
    assert result.findings[0].causes == {"norm-eps": 2, "scale": 1, "unknown": 1}


def test_first_drifts_at_several_places_are_told_apart():
    places = [("agrad", "ln3", "out")] * 3 + [("fwd", "conv1", "out")]
    result = answer(*(row(i, "drift", place=place) for i, place in enumerate(places)))
    assert "4 of 4 (51-100 %) cases drift: robust" in result.sentence
    assert "most often the first drift is agrad ln3" in result.sentence
    assert [(one.place[1], one.share.count) for one in result.findings] == [("ln3", 3), ("conv1", 1)]


def test_a_clean_sweep_says_what_it_rules_out():
    assert "a drift in more than 28 % of such cases is ruled out" in answer(*(row(i) for i in range(10))).sentence
    flips = answer(*(row(i, "flip" if i == 2 else "noise") for i in range(10)))
    assert "but for near-ties, in 1 of 10 (2-40 %): batch-dependent" in flips.sentence


def sites(*verdicts_and_errors, phase="grad", name="fc"):
    return [SiteRow(0, phase, name, "weight", verdict, 1, error, error) for verdict, error in verdicts_and_errors]


def summary(rows):
    return answer(*(row(i, sites=tuple(one)) for i, one in enumerate(rows))).sites


def test_numbers_of_a_site_are_normalized_ones_beside_maxima():
    (one,) = summary([[site] for site in sites(("noise", 1e-6), ("noise", 3e-6), ("flip", 8e-6))])
    assert (one.cases, one.error_mean, one.error_max, one.error_usual) == (3, pytest.approx(4e-6), 8e-6, 3e-6)
    assert one.worst == "start=2"
    assert (one.flips.count, one.flips.of, one.pattern) == (1, 3, "batch-dependent")


def test_nan_is_counted_and_poisons_nothing():
    clean, poisoned = (
        SiteRow(0, "fwd", "fc", "out", v, 1, e, e, n, m)
        for v, e, n, m in (("noise", 1e-6, (0, 0), 0), ("drift", math.nan, (0, 5), 5))
    )
    (one,) = summary([[clean], [poisoned]])
    assert (one.nonfinite, one.mismatched, one.error_mean) == (1, 1, 1e-6)
    assert one.counts == {"drift": 1, "noise": 1}


def test_a_site_that_some_cases_lack_is_shown_as_missing():
    place = ("grad", "fc", "weight")
    found = answer(row(0, sites=tuple(sites(("noise", 1e-6)))), row(1, missing=(place,))).sites
    assert [(one.cases, one.missing) for one in found] == [(1, 1)]


def test_inherited_errors_say_nothing_of_the_site_itself():
    (one,) = summary([[site] for site in sites(("inherited", 1.0), ("inherited", 1.0), ("noise", 1e-7))])
    assert (one.drifts.count, one.drifts.of, one.pattern) == (0, 1, "clean")


def test_sites_are_sorted_by_phase_and_then_causally():
    mixed = [*sites(("noise", 1.0), phase="grad", name="b"), *sites(("noise", 1.0), phase="fwd", name="a"),
             *sites(("noise", 1.0), phase="fwd", name="b"), *sites(("noise", 1.0), phase="grad", name="a")]  # fmt: skip
    found = summary([mixed])
    assert [(one.phase, one.name) for one in found] == [("fwd", "a"), ("fwd", "b"), ("grad", "b"), ("grad", "a")]


def test_gradients_are_sorted_with_the_worst_first_and_what_is_lost_above_all():
    rows = [*sites(("noise", 1e-6), name="small"), *sites(("drift", 1.0), name="large"),
            *sites(("drift", 1.0), phase="grad_scaled", name="large"),
            SiteRow(0, "grad", "lost", "weight", "drift", 1, None, None),
            SiteRow(0, "grad", "nan", "weight", "drift", 1, 0.0, 0.0, (0, 1), 1)]  # fmt: skip
    found = answer(row(0, sites=tuple(rows))).parameters
    assert [one.name for one in found][2:] == ["large", "small"]
    assert {one.name for one in found[:2]} == {"lost", "nan"}
    assert found[2].scaled is not None


def test_cases_that_are_fed_the_same_samples_are_no_independent_evidence():
    def fed(start, out):
        record(out, start=start // 2)

    assert "8 samples are in more than one case" in fd.sweep("start=0:3", fed, fed).overlap
    same = fd.sweep("seed=0:3", lambda seed, out: record(out, start=5), lambda out: record(out, start=5))
    assert same.overlap == "every case was fed the same input, so that they say nothing of other inputs"
    assert fd.sweep("start=0:3", reference, reference).overlap is None
    assert same.overlap in same.to_json()["notes"]


def test_a_sweep_is_strict_json_with_every_key():
    said = fd.sweep("start=0:2", reference, wrong).to_json()
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert said["schema"] == "firstdrift-sweep-v1"
    assert list(said) == [
        "schema", "verdict", "sentence", "exit_code", "counts", "drifts", "flips", "findings", "cases", "left", "sites",
        "parameters", "growth", "directory", "notes",
    ]  # fmt: skip


# Growth over steps.


def steps_of(rate):
    def port(start, out):
        record(out, start=start, side="candidate", steps=6, rate=rate)

    return port


def of_reference(start, out):
    record(out, start=start, steps=6)


def test_weights_that_part_over_steps_are_followed(tmp_path):
    result = fd.sweep("start=0:2", of_reference, steps_of(1.01), truth=of_reference)
    growth = result.rows[0].growth
    assert (growth.of, growth.steps, len(growth.apart)) == ("weights", (0, 1, 2, 3, 4, 5), 6)
    assert all(a < b for a, b in zip(growth.apart, growth.apart[1:], strict=False))
    assert growth.reference == (0.0,) * 6
    assert growth.moved[0] > 0
    assert compounds(growth) is True
    assert result.growth["compounds"]["count"] == 2
    assert "it may compound" in result.growth["sentence"]


def test_without_a_float64_run_nobody_is_accused_of_compounding():
    result = fd.sweep("start=0:2", of_reference, steps_of(1.0))
    assert result.growth["compounds"] is None
    assert "a float64 run would tell" in result.growth["sentence"]


def test_one_step_has_no_growth():
    assert fd.sweep("start=0:2", reference, wrong).growth is None


def curve(apart, reference=None, candidate=None):
    return Growth("weights", tuple(range(len(apart))), tuple(apart), None, reference, candidate)


def test_the_factor_of_a_step_and_jumps():
    assert factor(curve([1e-6 * 1.5**i for i in range(10)])) == pytest.approx(1.5)
    assert jumps(curve([1.0, 2.0, 9.0, 10.0])) == [2]
    assert jumps(curve([1.0, math.nan])) == [1]
    assert factor(curve([1.0, 2.0])) is None


def test_distances_from_float64_are_compared():
    assert ratio(curve([1.0], (2.0,), (6.0,))) == 3
    assert compounds(curve([1.0], (2.0,), (6.0,))) is False
    assert compounds(curve([1.0], (2.0,), (math.nan,))) is True
    assert ratio(curve([1.0], (0.0,), (0.0,))) == 1
    assert compounds(curve([1.0])) is None


def test_compounding_in_some_cases_is_put_down_to_the_batch():
    curves = [curve([1.0, 2.0], (1.0, 1.0), (1.0, 9.0 if i == 0 else 1.0)) for i in range(4)]
    result = answer(*(row(i, growth=one) for i, one in enumerate(curves)))
    assert "more than 4 times in 1 of 4 (5-70 %): batch-dependent" in result.growth["sentence"]
    result = answer(*(row(i, growth=curves[0]) for i in range(5)))
    assert result.growth["sentence"].startswith("it compounds: ")


def test_pairs_in_a_directory_are_cases(tmp_path):
    prerecord(tmp_path / "runs", [0, 2, 10], at2={"scale": 1.5})
    result = fd.sweep(tmp_path / "runs")
    assert [one.case["pair"] for one in result.rows] == ["0", "2", "10"]
    assert [one.verdict for one in result.rows] == ["noise", "drift", "noise"]


def test_pairs_by_side_are_cases_too(tmp_path):
    for start in range(2):
        record(tmp_path / "ref" / f"batch{start}", start=start)
        record(tmp_path / "cand" / f"batch{start}", start=start, side="candidate")
    assert len(fd.sweep(tmp_path).rows) == 2
    assert len(fd.sweep(prerecord(tmp_path / "one", [0]) / "0").rows) == 1


def test_a_pair_that_lacks_a_side_is_shown(tmp_path):
    prerecord(tmp_path / "runs", range(3))
    shutil.rmtree(tmp_path / "runs" / "1" / "candidate")
    result = fd.sweep(tmp_path / "runs")
    assert [one.verdict for one in result.rows] == ["noise", "failed", "noise"]
    assert "the pair has no candidate" in result.rows[1].sentence
    assert result.exit_code == 2


def test_a_pair_that_was_recorded_again_is_compared_again(tmp_path):
    runs = prerecord(tmp_path / "runs", range(2))
    assert fd.sweep(runs, out=tmp_path / "out").exit_code == 0
    assert fd.sweep(runs, out=tmp_path / "out").reused == 2
    shutil.rmtree(runs / "1" / "candidate")
    record(runs / "1" / "candidate", start=1, side="candidate", scale=2.0)
    again = fd.sweep(runs, out=tmp_path / "out")
    assert (again.reused, again.exit_code) == (1, 1)
    assert (runs / "1" / "candidate").is_dir()  # what is not ours is never removed


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: None])
def test_a_directory_without_pairs_is_refused(tmp_path, make):
    make(tmp_path / "runs")
    with pytest.raises(fd.FirstdriftError, match="holds no pairs of traces|there is no such directory"):
        fd.sweep(tmp_path / "runs")


def test_of_the_samples_of_a_case_the_gravest_verdict_counts():
    def samples(mistake):
        def run(start, out):
            rng = np.random.default_rng(start)
            with fd.Writer(out) as writer:
                for sample in range(3):
                    x = rng.standard_normal(32).astype(np.float32)
                    wrong = mistake if sample == 1 else 1.0
                    writer.put("relu", "fwd", np.maximum(x, 0) * np.float32(wrong), sample=sample, op="ReLU")

        return run

    (site,) = fd.sweep("start=0", samples(1.0), samples(1.5)).rows[0].sites
    assert (site.verdict, site.pairs) == ("drift", 3)
    assert site.error == pytest.approx(0.5, rel=1e-5)
