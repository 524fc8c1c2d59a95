"""The benchmark's cases are what they say: bugs change the function, at a place that exists; rewrites do not."""

import math
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from driftbench.asking import Answer, run_side  # noqa: E402
from driftbench.c_port import is_port  # noqa: E402
from driftbench.case import Place, in_precisions  # noqa: E402
from driftbench.cases import all_cases, chosen_cases  # noqa: E402
from driftbench.cases.c_port import BUGS  # noqa: E402
from driftbench.networks import NAMES  # noqa: E402
from driftbench.running import one_thread, run_case  # noqa: E402
from driftbench.scoring import score  # noqa: E402
from driftbench.sides import build  # noqa: E402
from driftbench.tables import list_cases, render  # noqa: E402
from driftbench.verifying import float64_differences  # noqa: E402

import firstdrift as fd  # noqa: E402
from firstdrift.demo.port import find_compiler, known_bugs  # noqa: E402
from firstdrift.explain.labels import LABELS  # noqa: E402

CASES = all_cases()
LIVE = [case for case in CASES if not is_port(case)]
CLEAR = 1e-5  # what a bug changes at least, relative
SAMPLE = 12  # one case of so many is tried in `make test`


def sampled(cases):
    """All cases, most of them marked slow."""
    return [
        pytest.param(case, id=case.name, marks=() if number % SAMPLE == 0 else pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


@pytest.fixture(autouse=True)
def _small_networks():
    with one_thread():
        yield


def test_there_are_enough_cases():
    kinds = Counter(case.benign for case in CASES)
    assert kinds[False] >= 150
    assert kinds[True] >= 40


def test_every_precision_reach_and_network_is_there():
    bugs = [case for case in CASES if not case.benign]
    assert {case.precision for case in bugs} == {"fp32", "bf16", "mixed"}
    assert {case.scope for case in bugs} == {"single layer", "all layers", "weights only", "outside the model"}
    assert {case.network for case in CASES} == {*NAMES, "c-port"}


def test_every_section_of_the_catalogue_and_every_negative_control_is_there():
    ids = {number for case in CASES for number in case.catalogue}
    assert {number[0] for number in ids} == set("RANMWLPQGTZ")
    controls = {number for case in CASES if case.benign for number in case.catalogue if number.startswith("Z")}
    assert controls == {f"Z{number}" for number in range(1, 12)}


def test_every_trap_is_there():
    traps = {case.truth.labels[0] for case in CASES if case.trap and case.truth}
    assert traps >= {"channel-scale", "scale", "different-input", "nan-origin", "stale-buffer", "rounding-mode"}
    assert any(case.trap and case.benign and "one-ulp" in case.name for case in CASES)


def test_every_label_is_one_of_the_vocabulary():
    assert {label for case in CASES if case.truth for label in case.truth.labels} <= LABELS.keys()


def test_every_bug_of_the_c_port_is_a_case():
    assert BUGS.keys() == known_bugs().keys() - {"none"}


def test_most_labels_of_the_vocabulary_are_asked_for():
    benign = {"none", "float-noise", "ill-conditioned", "decision-flip", "layout-equivalent", "unknown"}
    several = {"replica-divergence", "missing-reduce"}  # need several ranks
    stated = {"other-setting", "changed-call"}  # what has no name of its own
    asked = {label for case in CASES if case.truth for label in case.truth.labels}
    assert LABELS.keys() - benign - several - stated == asked - benign


@pytest.mark.parametrize("case", sampled(case for case in LIVE if not case.benign))
def test_a_bug_changes_the_function(case):
    assert max(float64_differences(case).values()) > CLEAR


@pytest.mark.parametrize("case", sampled(case for case in LIVE if case.benign))
def test_a_rewrite_does_not(case):
    difference = max(float64_differences(case).values())
    assert difference <= case.bound
    assert case.legal or case.bound < 1e-8
    assert not math.isnan(difference)


@pytest.mark.parametrize("case", sampled(case for case in LIVE if not case.benign))
def test_the_place_of_a_bug_is_a_site_of_the_reference(case, tmp_path):
    sides = build(case)
    trace = fd.open_trace(run_side(sides.reference, tmp_path / "reference", sides, "reference"))
    sites = {(record.site.step, record.site.call, Place(*record.site[1:4])) for record in trace}
    aliases = {Place(r.site.phase, *name.rpartition(".")[::2]) for r in trace for name in r.details.get("aliases", ())}
    for place in case.truth.places:
        assert (case.truth.step, case.truth.call, place) in sites or place in aliases


def test_a_case_gives_the_same_numbers_every_time():
    case = chosen_cases("moe/router-renormalised")[0]
    one, other = build(case), build(case)
    assert torch.equal(one.inputs[0], other.inputs[0])
    for a, b in zip(one.candidate.parameters(), other.candidate.parameters(), strict=True):
        assert torch.equal(a, b)


def test_building_a_case_leaves_the_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build(CASES[0])
    assert torch.equal(torch.rand(3), expected)


RIGHT = Place("fwd", "layers.1.attn.o_proj", "in.0")


@pytest.mark.parametrize(
    ("answer", "outcome", "label", "parameters"),
    [
        (Answer("drift", RIGHT, label="attention-scale", parameters={"scale": 0.1251}), "right", True, True),
        (Answer("drift", RIGHT, label="attention-scale", parameters={"scale": 0.2}), "right", True, False),
        (Answer("drift", RIGHT, label="scale", parameters={"scale": 0.125}), "right", False, False),
        (Answer("drift", RIGHT, step=1, label="attention-scale"), "wrong site", True, False),
        (Answer("drift", RIGHT, call=1), "wrong site", False, False),
        (Answer("drift", Place("fwd", "norm", "out")), "wrong site", False, False),
        (Answer("noise"), "missed", False, False),
        (Answer("inconclusive"), "undecided", False, False),
    ],
)
def test_answers_about_a_bug_are_scored(answer, outcome, label, parameters):
    (case,) = chosen_cases("llama/attention-scale-width/fp32")
    found = score(case, "check", answer)
    assert (found.outcome, found.label, bool(found.parameters)) == (outcome, label, parameters)


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [("same", "clean"), ("flip", "clean"), ("drift", "false alarm"), ("inconclusive", "undecided")],
)
def test_answers_about_a_benign_case_are_scored(verdict, outcome):
    (case,) = chosen_cases("llama/clean/fp32")
    assert score(case, "traces", Answer(verdict)).outcome == outcome


def test_a_clean_verdict_that_ci_refuses_is_not_clean():
    (case,) = chosen_cases("llama/clean/fp32")
    assert score(case, "traces", Answer("noise", exit_code=2)).outcome == "undecided"


def test_precisions_make_cases_of_their_own_name():
    (case,) = chosen_cases("llama/clean/fp32")
    assert [one.name for one in in_precisions(case, "bf16", "mixed")] == [f"{case.name}/bf16", f"{case.name}/mixed"]


def test_a_case_is_put_to_everybody_and_the_table_names_misses():
    (case,) = chosen_cases("mlp/loss-halved")
    scores = run_case(case, ["traces"], with_baselines=True)
    assert [one.by for one in scores] == ["traces", "allclose", "jump", "cosine", "same"]
    assert all(one.outcome != "failed" for one in scores), [one.said for one in scores]
    assert "exact first site, by family" in render(scores)
    assert case.name in list_cases([case])


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
def test_the_c_port_is_put_to_everybody():
    (case,) = chosen_cases("c-port/relu-mask")
    scores = run_case(case, ["check", "traces"], with_baselines=True)
    assert [one.by for one in scores] == ["traces", "allclose", "jump", "cosine", "same"]
    assert scores[0].outcome == "right"
