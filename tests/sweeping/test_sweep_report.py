"""The report as people read it: golden files, which `FIRSTDRIFT_REWRITE_GOLDEN=1` writes again."""

import json
import os
from pathlib import Path

import pytest
from tests.json_schema import objections, objects_of, schema_of
from tests.sweeping.two_sides import candidate, record, reference

import firstdrift as fd
from firstdrift.core.sites import PHASES
from firstdrift.judge.measure.result import Verdict
from firstdrift.sweeping.answer import SweepResult
from firstdrift.sweeping.case_rows import Finding, Growth, Loss, Row, SiteRow, failed_row
from firstdrift.sweeping.sweep_text import WIDTH, render

GOLDEN = Path(__file__).parent / "golden"
PLACES = [("input", "input", "x"), ("fwd", "conv1", "out"), ("fwd", "relu1", "out"), ("loss", "loss", "out"),
          ("agrad", "relu1", "out"), ("agrad", "conv1", "out"), ("grad", "conv1", "weight"), ("grad", "conv1", "bias"),
          ("grad_scaled", "conv1", "weight"), ("weight_after", "conv1", "weight")]  # fmt: skip


def case(number, *, drift=False, flip=False, nan=False, lacks=False, steps=1):
    """A case with numbers that are all different."""
    sites = []
    for step in range(steps):
        for i, (phase, name, port) in enumerate(PLACES):
            verdict = "same" if phase == "input" else "noise"
            late = i >= PLACES.index(("agrad", "conv1", "out"))
            verdict = "flip" if flip and (phase, name) == ("agrad", "relu1") else verdict
            verdict = "drift" if drift and i == 5 else "inherited" if drift and late else verdict
            error = 0.0 if verdict == "same" else (i + 1) * 1e-7 * (number + 1)
            error *= 1e6 if drift and late else 1e3 if flip and i >= 4 else 1
            odd = nan and name == "relu1"
            if not (lacks and (phase, port) == ("grad", "bias")):
                sites.append(
                    SiteRow(step, phase, name, port, verdict, 4, error, error * 3, (0, 2 * odd), 2 * odd, error * 7)
                )
    first = Finding(0, "agrad", "conv1", "out", 0, number, "relu1's backward", "relu-mask", "it forgets its mask")
    curves = (tuple(size * 1.3**step for step in range(steps)) for size in (1e-6, 1e-2, 2e-6, 3e-6))
    growth = Growth("weights", tuple(range(steps)), *curves)
    verdict = "drift" if drift else "flip" if flip else "noise"
    return Row(
        {"start": 32 * number}, verdict, int(drift), f"{verdict}: all of them", first if drift else None,
        {"noise": 30, **({"flip": 1} if flip else {}), **({"drift": 1} if drift else {})},
        (Loss(0, 1.5 + number / 8, 1.5 + number / 8 + 1e-7),), tuple(sites),
        (("grad", "conv1", "bias"),) if lacks else (), (), (), (), growth if steps > 1 else None,
        traces=f"out/cases/start={32 * number}" if number < 2 and (drift or flip) else None,
    )  # fmt: skip


def result_of(*rows, left=0, **more):
    cases = [row.case for row in rows] + [{"start": 9000 + i} for i in range(left)]
    return SweepResult(tuple(cases), tuple(rows), "out", **more)


RESULTS = {
    "clean": result_of(*(case(i) for i in range(10))),
    "flip": result_of(*(case(i, flip=i == 2) for i in range(10))),
    "robust": result_of(*(case(i, drift=True) for i in range(10))),
    "dependent": result_of(*(case(i, drift=i % 3 == 0, flip=i == 1) for i in range(10))),
    "troubled": result_of(
        case(0, nan=True), case(1, lacks=True), failed_row({"start": 64}, "the candidate was killed by SIGSEGV"),
        left=2, reused=1, notes=("interrupted; what is done is kept, and the same command goes on from there",),
    ),
    "steps": result_of(*(case(i, steps=12) for i in range(4))),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_the_report_is_as_it_was(name):
    text, file = render(RESULTS[name]) + "\n", GOLDEN / f"{name}.txt"
    if "FIRSTDRIFT_REWRITE_GOLDEN" in os.environ:
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", RESULTS)
def test_no_line_is_wider_than_asked_for(name):
    for line in render(RESULTS[name]).splitlines():
        assert len(line) <= WIDTH or "firstdrift diff" in line


def test_a_limit_keeps_what_matters():
    text = render(RESULTS["dependent"], limit=2)
    assert "start=0 " in text
    assert "start=64" not in text
    assert "--limit 10 shows all" in text
    assert "agrad         conv1" in text or "agrad  conv1" in text


def focused(*layers):
    """A sweep of two cases over gradients of these layers: name, relative error, largest and largest relative one."""
    rows = [
        Row({"start": i}, "noise", 0, "noise: x", sites=tuple(
            SiteRow(0, phase, name, "weight", "noise", 1, error, size * (1 + i), max_rel=relative * (1 + i))
            for name, error, size, relative in layers for phase in ("grad", "grad_scaled")
        ))
        for i in range(2)
    ]  # fmt: skip
    return result_of(*rows)


def test_gradients_can_be_sorted_by_the_mean_of_their_largest_difference():
    """The original's order, in which large layers lead; ours is by relative error."""
    result = focused(("small", 1e-3, 1e-6, 0.5), ("large", 1e-6, 1e-2, 0.25), ("middle", 1e-4, 1e-4, 0.125))
    assert [one.name for one in result.parameters] == ["small", "middle", "large"]
    assert [one.name for one in result.parameters_by("abs")] == ["large", "middle", "small"]
    assert [one["name"] for one in result.to_json("abs")["parameters"]] == ["large", "middle", "small"]
    table = render(result, sort="abs").split("\n\n")[-1].splitlines()
    assert [line.split()[0] for line in table[1:]] == ["large", "middle", "small"]
    with pytest.raises(fd.SelectionError, match="cannot be sorted by 'size'; choose error or abs"):
        result.parameters_by("size")


def test_both_tables_show_the_mean_of_the_largest_relative_difference():
    result = focused(("fc", 1e-3, 1e-6, 0.5))
    assert [one.rel_mean for one in result.sites] == [0.75, 0.75]
    *_, sites, gradients = render(result).split("\n\n")
    for table in (sites, gradients):
        head, line = table.splitlines()[:2]
        at = head.index("mean rel") + len("mean rel")
        assert line[:at].split()[-1] == "7.5e-01"


def test_lost_gradients_lead_in_either_order():
    rows = [case(0), case(1, lacks=True)]
    for order in ("error", "abs"):
        assert result_of(*rows).parameters_by(order)[0].port == "bias"


def test_sites_that_are_equal_to_the_bit_are_folded_unless_asked_for():
    folded, unfolded = render(RESULTS["clean"]), render(RESULTS["clean"], unfold=True)
    assert "... 1 more site the same to the bit in every case; --unfold shows them" in folded
    assert "10 same" not in folded
    assert "the same to the bit in every case" not in unfolded
    assert "10 same" in next(line for line in unfolded.splitlines() if line.startswith("input"))


def test_results_of_before_relative_differences_were_kept_are_read(tmp_path):
    line = case(0).to_json()
    for site in line["sites"]:
        del site["max_rel"]
    kept = Row.from_json(line)
    assert {site.max_rel for site in kept.sites} == {None}
    assert result_of(kept).sites[0].rel_mean is None


def test_quiet_is_the_sentence_alone():
    assert render(RESULTS["flip"], quiet=True) == RESULTS["flip"].sentence


def test_names_cannot_act_on_a_terminal():
    evil = SiteRow(0, "fwd", "\x1b[31mred", "out", "noise", 1, 1e-6, 1e-6)
    text = render(result_of(Row({"start": "\x1b[2J"}, "noise", 0, "noise: x", sites=(evil,))))
    assert "\x1b" not in text


SCHEMA = schema_of("firstdrift-sweep-v1")


@pytest.mark.parametrize("name", [*RESULTS, "nothing done"])
def test_the_json_of_a_sweep_is_what_the_schema_says(name):
    said = RESULTS.get(name, result_of(left=2)).to_json()
    assert objections(said, SCHEMA) == []
    assert json.loads(json.dumps(said, allow_nan=False)) == said


def test_the_json_of_a_sweep_that_ran_is_what_the_schema_says(tmp_path):
    """Steps, a float64 side, a drift, a spoilt value, a missing phase and a crash, all in one."""

    def port(start, out):
        more = ({}, {"scale": 1.5}, {"spoil": True}, {"without": ("grad",)})
        record(out, start=start, side="candidate", steps=3, **more[start])

    def exact(start, out):
        record(out, start=start, steps=3)

    result = fd.sweep("start=0:5", exact, port, truth=exact, out=tmp_path / "out")
    said = result.to_json()
    assert objections(said, SCHEMA) == []
    assert [row.verdict for row in result.rows][1:3] == ["drift", "drift"]
    assert result.rows[4].failed
    assert said["growth"]["compounds"] is not None
    assert said["cases"][3]["missing"]
    assert any(site["rel_mean"] for site in said["sites"])
    assert objections(fd.sweep("start=0:2", reference, candidate).to_json(), SCHEMA) == []


@pytest.mark.parametrize(
    ("spoil", "objection"),
    [
        (lambda said: said.pop("left"), "$: required"),
        (lambda said: said.update(extra=1), "$.extra: enum"),
        (lambda said: said.update(exit_code=4), "$.exit_code: enum"),
        (lambda said: said["cases"][0].update(verdict="fine"), "$.cases[0].verdict: enum"),
        (lambda said: said["drifts"].update(interval=[0.5]), "$.drifts.interval: minItems"),
        (lambda said: said["drifts"].update(interval=[0.5, 1.5]), "$.drifts.interval[1]: maximum"),
        (lambda said: said["sites"][0].update(error_mean="NaN"), "$.sites[0].error_mean: anyOf"),
        (lambda said: said["cases"][0]["seconds"].update(lunch=1.0), "$.cases[0].seconds key lunch: enum"),
        (lambda said: said["growth"]["jumps"].update({"3": 0}), "$.growth: anyOf"),
    ],
    ids=["missing", "extra", "code", "verdict", "short", "share", "number", "key", "nested"],
)
def test_the_schema_refuses_what_no_sweep_says(spoil, objection):
    said = RESULTS["steps"].to_json()
    spoil(said)
    assert objections(said, SCHEMA) == [objection]


def test_every_key_is_described_required_and_closed():
    for part in objects_of(SCHEMA):
        assert all(item.get("description") for item in part["properties"].values())
        assert part["required"] == list(part["properties"])
        assert part["additionalProperties"] is False


def test_the_schema_s_vocabulary_is_the_code_s():
    assert SCHEMA["$defs"]["verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert SCHEMA["$defs"]["site"]["properties"]["phase"]["enum"] == list(PHASES)
