"""What a report says, against golden files, and what it must never do: lie, cut a number, pass 80 columns.

The files in tests/golden are rewritten by `FIRSTDRIFT_WRITE_GOLDEN=1 pytest tests/compare/test_report.py`; read the
change before you keep it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.json_schema import objections, objects_of, schema_of

from firstdrift.aprt import WHOLE_MODEL_LAYER, write_stage_file
from firstdrift.core.records import Record
from firstdrift.core.sites import PHASES, Site
from firstdrift.judge.measure.result import Cause, Coverage, FirstDrift, PairResult, Result, Verdict
from firstdrift.judge.stage_values import diff_stage_files
from firstdrift.kernels import measure
from firstdrift.pair.pairs import Pair, Transform, Unmatched
from firstdrift.report import head, render
from firstdrift.report.words import columns, concentration, exact, fit, number, position, printable

GOLDEN = Path(__file__).parent.parent / "golden"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def pair_of(site, shape=(4, 8), dtype="f32", candidate=None, **options):
    record = Record(site, dtype, shape, (0, 0, 4 * int(np.prod(shape))))
    theirs = (record,) if candidate is None else candidate
    return Pair(site, record, theirs, options.pop("matched", "name"), **options)


def judged(
    phase, name, verdict, reason="", *, change=None, shape=(4, 8), port=None, step=0, call=0, sample=None, **options
):
    """A pair whose measurement is real: `change` edits the candidate's copy of the reference's tensor."""
    port = port or ("weight" if phase in ("weight", "grad", "grad_scaled", "weight_after") else "out")
    site = Site(step, phase, name, port, call, sample)
    reference = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    candidate = reference.copy()
    if change is not None:
        change(candidate)
    measurement = measure(reference, candidate)
    return PairResult(
        options.pop("pair", None) or pair_of(site, shape),
        verdict,
        reason,
        measurement,
        error=options.pop("error", measurement.rel_l2),
        **options,
    )


def nudge(array):
    array *= np.float32(1 + 2**-23)


def double_row(array):
    array[1] *= 2


def same(phase, name, **options):
    return judged(phase, name, Verdict.SAME, "bit-equal", **options)


def noisy(phase, name, **options):
    return judged(phase, name, Verdict.NOISE, "within noise", change=nudge, limit=1.5e-6, **options)


def result_of(pairs, verdict, sentence, *, first=None, reference_only=(), candidate_only=(), **options):
    compared = [p for p in pairs if p.measurement is not None and p.measurement.compared]
    phases = {phase: n for phase in PHASES if (n := sum(p.site.phase == phase for p in compared))}
    defaults = {
        "cause": None,
        "flips": tuple(p for p in pairs if p.verdict is Verdict.FLIP),
        "ignored": (),
        "graph": "recorded",
        "notes": (),
        "problems": (),
        "exit_code": {Verdict.DRIFT: 1, Verdict.SAME: 0, Verdict.NOISE: 0, Verdict.FLIP: 0}.get(verdict, 2),
    }
    coverage = Coverage(
        reference_sites=len(pairs) + len(reference_only),
        candidate_sites=len(pairs) + len(candidate_only),
        pairs=len(pairs),
        compared=len(compared),
        elements=sum(p.measurement.compared for p in compared),
        phases=phases,
    )
    return Result(
        verdict=verdict, sentence=sentence, pairs=tuple(pairs), first_drift=first, coverage=coverage,
        reference_only=tuple(reference_only), candidate_only=tuple(candidate_only), **(defaults | options),
    )  # fmt: skip


def first_of(pair, introduced_by, cause=None, sentence=""):
    return FirstDrift(*pair.site, introduced_by, cause, sentence)


LAYERS = [f"layers.{i}.{part}" for i in range(4) for part in ("attn", "mlp")]
WEIGHTS = [same("weight", name) for name in LAYERS]


def all_same():
    pairs = [same("input", "input", port="x"), *WEIGHTS, *(same("fwd", name) for name in LAYERS)]
    cause = Cause("none", "bitwise equal", 1.0)
    return result_of(pairs, Verdict.SAME, "same: all 17 pairs are bit-equal", cause=cause)


def noise_only():
    pairs = [same("input", "input", port="x"), *WEIGHTS, *(noisy("fwd", name) for name in LAYERS)]
    cause = Cause("float-noise", "every difference is what rounding explains", 0.9)
    sentence = "noise: all 17 pairs are the same up to float noise"
    return result_of(pairs, Verdict.NOISE, sentence, cause=cause, graph="assumed chain")


def forward_drift():
    cause = Cause(
        "norm-eps", "the candidate normalises with eps 1e-3 where the reference has 1e-5", 0.94,
        "set eps of layers.1.attn to 1e-5 and record the candidate again", {"eps": 1e-3},
    )  # fmt: skip
    drift = judged(
        "fwd", "layers.1.attn", Verdict.DRIFT, "error 2.9e-01, noise limit 1.5e-06",
        change=double_row, limit=1.5e-6, inherited=1.2e-7, introduced_by="layers.1.attn",
    )  # fmt: skip
    before = [noisy("fwd", name) for name in LAYERS[:2]]
    after = [
        judged("fwd", name, Verdict.INHERITED, "follows from its inputs", change=double_row, limit=2.2, inherited=0.7)
        for name in LAYERS[3:]
    ]
    pairs = [same("input", "input", port="x"), *WEIGHTS, *before, drift, *after]
    sentence = f"drift: the first drift is fwd layers.1.attn, introduced by layers.1.attn: {drift.reason}"
    return result_of(pairs, Verdict.DRIFT, sentence, first=first_of(drift, "layers.1.attn", cause))


def gradient_drift():
    drift = judged(
        "agrad", "fc1", Verdict.DRIFT, "error 2.9e-01, noise limit 1.5e-06", change=double_row, limit=1.5e-6,
        step=3, introduced_by="relu1's backward", sample=2,
    )  # fmt: skip
    follows = judged(
        "grad", "fc1", Verdict.INHERITED, "follows", change=double_row, shape=(8, 8), limit=1.1, inherited=0.7, step=3
    )
    forward = [noisy("fwd", name, step=step) for step in (2, 3) for name in ("fc1", "relu1", "fc2")]
    backward = [noisy("agrad", name, step=3, sample=2) for name in ("fc2", "relu1")]
    sentence = f"drift: the first drift is agrad fc1 (step 3), introduced by relu1's backward: {drift.reason}"
    return result_of(
        [*forward, *backward, drift, follows], Verdict.DRIFT, sentence, first=first_of(drift, "relu1's backward"),
        notes=["the reference's gradients are of a mean over 4 samples, the candidate's of a sum: scaled by 4"],
    )  # fmt: skip


def missing_sites():
    def left(phase, names, reason):
        port = "weight" if phase == "weight" else "out"
        return [Unmatched(Site(0, phase, name, port), reason) for name in names]

    absent = left("fwd", [f"layers.{i}.mlp" for i in range(12)], "the candidate has no site of this name")
    absent += left("grad", ["head"], "the candidate recorded no grad at all")
    extra = left("fwd", ["debug.tap"], "the reference has no site of this name")
    return result_of(
        [same("fwd", "embed"), noisy("fwd", "head")], Verdict.NOISE,
        "noise: all 2 pairs are the same up to float noise, but 13 reference sites have no counterpart",
        reference_only=absent, candidate_only=extra, problems=["13 reference sites have no counterpart"], exit_code=2,
        ignored=left("weight", ["rope"], "--ignore rope"), graph="assumed chain",
    )  # fmt: skip


def not_a_number():
    def spoil(array):
        array[2, 3:6] = np.nan
        array[3, 0] = np.inf

    reason = "the reference has 0 NaN and 0 Inf, the candidate 3 NaN and 1 Inf, not at the same places"
    drift = judged("fwd", "softmax", Verdict.DRIFT, reason, change=spoil, limit=1.5e-6, introduced_by="softmax")
    cause = Cause("nan-origin", "NaN or Inf appears here on one side only", 1.0, "look at the elements")
    sentence = f"drift: the first drift is fwd softmax, introduced by softmax: {reason}"
    pairs = [same("fwd", "scores"), drift]
    return result_of(pairs, Verdict.DRIFT, sentence, first=first_of(drift, "softmax", cause))


def other_shapes():
    reason = "shape [4, 8] in the reference, [8, 4] in the candidate, as many elements: transposed or reshaped?"
    site = Site(0, "fwd", "head", "out")
    apart = PairResult(pair_of(site), Verdict.NOT_COMPARABLE, reason)
    sentence = f"not comparable: {reason}"
    return result_of([same("fwd", "embed"), apart], Verdict.NOT_COMPARABLE, sentence)


def undecided():
    reason = "the update is smaller than the rounding of the weights it is added to (3.1e+00 of it)"
    open_ = judged("weight_after", "head", Verdict.INCONCLUSIVE, reason, change=nudge, limit=4.0e0, error=3.1)
    pairs = [same("weight", "head"), noisy("grad", "head"), open_]
    return result_of(pairs, Verdict.INCONCLUSIVE, f"inconclusive: {reason}")


CASES = {
    "same": all_same,
    "noise": noise_only,
    "forward-drift": forward_drift,
    "gradient-drift": gradient_drift,
    "missing-sites": missing_sites,
    "not-a-number": not_a_number,
    "other-shapes": other_shapes,
    "undecided": undecided,
}
every_case = pytest.mark.parametrize("case", CASES)


@every_case
def test_the_report_reads_as_its_golden_file(case):
    text = render(CASES[case]()) + "\n"
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("FIRSTDRIFT_WRITE_GOLDEN"):
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


@every_case
@pytest.mark.parametrize("ranked", [False, True])
@pytest.mark.parametrize("limit", [None, 0, 2])
def test_no_line_is_wider_than_80_columns_and_all_is_ascii(case, ranked, limit):
    text = render(CASES[case](), ranked=ranked, limit=limit)
    assert max(map(len, text.split("\n"))) <= 80
    assert text.isascii()


@every_case
def test_colour_changes_nothing_but_colour(case):
    result = CASES[case]()
    coloured = render(result, colour=True)
    assert ESCAPE.search(coloured)
    assert ESCAPE.sub("", coloured) == render(result)


@every_case
def test_quiet_is_the_sentence_on_one_line_and_the_head_begins_the_report(case):
    result = CASES[case]()
    assert render(result, quiet=True) == result.sentence
    assert render(result).startswith(head(result))
    assert "verdicts:" not in head(result)


@pytest.mark.parametrize(("case", "code"), [("noise", "32"), ("missing-sites", "35"), ("forward-drift", "31")])
def test_a_verdict_that_could_not_be_told_is_not_green(case, code):
    assert render(CASES[case](), quiet=True, colour=True).startswith(f"\x1b[{code}m")


def test_an_error_beside_nans_does_not_read_as_small():
    assert re.search(r"softmax:out drift +nan/inf ", render(not_a_number()))


def test_who_introduced_a_later_drift_is_said_under_it():
    first = judged("agrad", "fc1", Verdict.DRIFT, "beyond", change=double_row, introduced_by="relu1's backward")
    later = judged("agrad", "fc0", Verdict.DRIFT, "beyond", change=double_row, introduced_by="relu0's backward")
    text = render(result_of([first, later], Verdict.DRIFT, "drift: x", first=first_of(first, "relu1's backward")))
    assert text.count("introduced by  relu1's backward") == 1
    assert text.count("      introduced by relu0's backward") == 1


def test_a_sentence_without_its_verdict_gets_it():
    result = replace(all_same(), sentence="all is well")
    assert render(result, quiet=True) == "same: all is well"


def test_every_verdict_is_counted_and_unmatched_reference_sites_are_missing():
    assert render(missing_sites()).endswith("\nverdicts: 1 same, 1 noise, 13 missing")


def test_runs_of_same_are_folded_with_how_many_and_where_and_short_runs_are_not():
    assert "\n  ... 9 same in input to weight\n" in render(noise_only())
    short = result_of([same("fwd", "a"), same("fwd", "b"), noisy("fwd", "c")], Verdict.NOISE, "noise: ok")
    assert "..." not in render(short)
    long = result_of([same("fwd", name) for name in "abc"], Verdict.SAME, "same: ok")
    assert "  ... 3 same in fwd\n" in render(long)


def test_the_first_drift_is_marked_and_no_other_row():
    marked = [line for line in render(forward_drift()).split("\n") if line.startswith(">")]
    assert len(marked) == 1
    assert re.match(r"> fwd   layers\.1\.attn:out +drift ", marked[0])


def test_a_limit_keeps_the_drift_and_counts_the_rest():
    pairs = [noisy("fwd", f"early.{i}") for i in range(50)]
    drift = judged("fwd", "late", Verdict.DRIFT, "beyond noise", change=double_row, limit=1e-6)
    result = result_of([*pairs, drift], Verdict.DRIFT, "drift: late", first=first_of(drift, "late"))
    text = render(result, limit=1)
    assert "  ... 50 noise in fwd\n> fwd   late:out" in text
    assert "50 pairs that differ are not shown; --limit 51 shows all" in text
    assert "not shown" not in render(result, limit=51)


def test_the_table_of_a_huge_result_is_bounded_by_itself():
    result = result_of([noisy("fwd", f"m{i}") for i in range(300)], Verdict.NOISE, "noise: ok")
    assert len(render(result).split("\n")) < 120
    assert "200 pairs that differ are not shown; --limit 300 shows all" in render(result)


def test_ranked_orders_by_the_error_made_at_the_site_not_by_the_error_it_has():
    carried = judged("fwd", "carried", Verdict.INHERITED, change=double_row, error=0.9, inherited=0.89, limit=1.0)
    made = judged("fwd", "made", Verdict.DRIFT, "beyond", change=double_row, error=0.5, inherited=0.1, limit=0.2)
    spoiled = not_a_number().pairs[1]
    result = result_of(
        [carried, made, spoiled, same("fwd", "equal")], Verdict.DRIFT, "drift: x", first=first_of(made, "m")
    )
    rows = [line for line in render(result, ranked=True).split("\n") if re.match(r"[> ] fwd ", line)]
    assert [row[2:].split()[1] for row in rows] == ["softmax:out", "made:out", "carried:out", "equal:out"]
    assert "made here" in render(result, ranked=True)
    assert re.search(r"made:out +drift +5.0e-01 +4.0e-01 +2.0e-01", rows[1])
    causal = [line for line in render(result).split("\n") if re.match(r"[> ] fwd ", line)]
    assert [row[2:].split()[1] for row in causal] == ["carried:out", "made:out", "softmax:out", "equal:out"]


def test_what_a_ranked_table_leaves_out_has_no_place_in_causal_order():
    text = render(forward_drift(), ranked=True, limit=1)
    assert "\n  ... 9 same, 2 noise, 5 inherited\n  7 pairs that differ are not shown; --limit 17 shows all\n" in text


def test_the_step_has_a_column_only_where_there_are_several():
    assert "  step phase " in render(gradient_drift())
    assert "step" not in render(forward_drift()).split("\n\n")[1]


def test_a_call_and_a_sample_are_part_of_the_place():
    again = noisy("fwd", "rnn", call=4, sample=1)
    assert "rnn:out call 4 sample 1" in render(result_of([again], Verdict.NOISE, "noise: ok"))


def test_names_are_shortened_in_the_middle_and_numbers_never():
    name = "model.decoder.layers.11.self_attention.out_projection.dense.very_long_indeed"
    pair = noisy("fwd", name, shape=(2, 3, 4, 5))
    line = next(x for x in render(result_of([pair], Verdict.NOISE, "noise: ok")).split("\n") if "model" in x)
    assert re.search(r"model\.\S*\.\.\.\S*indeed:out noise ", line)
    assert re.search(r" 1\.\de-07 1\.5e-06 \d\.\de-07 \d\.\de-07 \d,\d,\d,\d$", line)


def test_an_index_that_does_not_fit_gets_its_own_line_uncut():
    shape = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
    pair = noisy("fwd", "layers.3.attention.wide_name_of_a_module", shape=shape)
    text = render(result_of([pair], Verdict.NOISE, "noise: ok"))
    assert re.search(r"\n      largest difference at \[(0,){12}\d,\d\]\n", text)


def test_a_name_cannot_move_the_cursor_or_break_a_line():
    pair = noisy("fwd", "bad\x1b[31m\nname\r")
    left = Unmatched(Site(0, "fwd", "worse\x1b[2J", "out"), "why\nnot")
    text = render(result_of([pair], Verdict.NOISE, "noise: ok", reference_only=[left]))
    assert "\x1b" not in text
    assert "\r" not in text
    assert r"bad\x1b[31m\nname\r:out" in text
    assert "why not" in text


def test_wide_characters_are_counted_as_a_terminal_draws_them():
    assert columns("层n") == 3
    assert fit("层" * 40, 20) == "层" * 2 + "..." + "层" * 6
    pair = noisy("fwd", "层" * 40)
    lines = render(result_of([pair], Verdict.NOISE, "noise: ok")).split("\n")
    assert max(map(columns, lines)) <= 80
    assert any("层" in line for line in lines)


def test_unmatched_sites_are_listed_by_reason_and_what_is_folded_is_counted():
    text = render(missing_sites())
    assert "only in the reference: 13 sites" in text
    assert "the candidate has no site of this name (12)" in text
    assert "fwd layers.{}.mlp:out (12 sites)" in text
    assert "next: firstdrift diff REF CAND --write-map map.yml" in text
    assert "more; --limit" not in render(missing_sites(), limit=12)
    assert render(missing_sites(), limit=12).count("fwd layers.") == 12
    assert "only in the candidate (does not change the verdict): 1 site\n" in text
    assert "ignored: 1 site\n  --ignore rope\n    weight rope:weight" in text


def test_flips_are_listed():
    flip = judged("fwd", "router", Verdict.FLIP, "a near-tie went the other way", change=nudge, limit=0.0)
    text = render(result_of([flip], Verdict.FLIP, "flip: ok"))
    assert "flips, decisions at a near-tie that noise turned: 1 site\n    fwd router:out" in text


def test_values_at_the_worst_element_are_told_apart_to_the_last_bit():
    def last_bit(array):
        array[3, 7] = np.nextafter(array[3, 7], np.float32(9))

    drift = judged("fwd", "x", Verdict.DRIFT, "beyond", change=last_bit, limit=0.0)
    text = render(result_of([drift], Verdict.DRIFT, "drift: x"))
    left, right = re.search(r"at \[3, 7\] reference (\S+), candidate (\S+?);", text).groups()
    assert left != right
    assert np.float32(left) == np.float32(drift.measurement.reference_at_max)


def test_how_a_pair_was_matched_and_reconciled_is_said_where_it_was_not_by_name():
    site, other = Site(0, "fwd", "a.b", "out"), Site(0, "fwd", "x.b", "out")
    theirs = Record(other, "f32", (8, 4), (0, 0, 128))
    pair = pair_of(site, candidate=(theirs,), matched="prefix", candidate_steps=(Transform("transpose"),))
    drift = judged("fwd", "a.b", Verdict.DRIFT, "beyond", change=double_row, pair=pair)
    text = render(result_of([drift], Verdict.DRIFT, "drift: x"))
    assert "matched by prefix: candidate's x.b:out; candidate transposed" in text
    assert "\nmatched        1 by prefix\n" in text
    assert "\nreconciled     candidate transposed in 1 pair\n" in text


def test_a_missing_gradient_has_neither_numbers_nor_a_counterpart():
    site = Site(0, "grad", "fc", "weight")
    reason = "the reference has this gradient, the candidate has not"
    gone = PairResult(pair_of(site, candidate=(), matched="missing"), Verdict.DRIFT, reason)
    text = render(result_of([gone], Verdict.DRIFT, "drift: x", first=first_of(gone, "fc's backward")))
    assert f"\n> grad  fc:weight drift\n      {reason}\n" in text
    assert "matched" not in text


def test_nothing_compared_is_said():
    empty = result_of(
        [], Verdict.NOT_COMPARABLE, "not comparable: nothing was compared", problems=["nothing was compared"]
    )
    text = render(empty)
    assert "compared       0 of 0 pairs, from 0 reference and 0 candidate sites; 0 elements" in text
    assert text.endswith("\n\nnothing was compared")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0, "0"),
        (3.2e-7, "3.2e-07"),
        (12, "12"),
        (10**9, "1.0e+09"),
        (np.inf, "inf"),
        (1.5, "1.5e+00"),
    ],
)
def test_numbers_are_of_one_form(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("dtype", "text"), [("f32", "0.333333343"), ("f64", "0.3333333432674408"), ("c128", "0.3333333432674408")]
)
def test_exact_values_have_the_digits_of_their_dtype(dtype, text):
    assert exact(float(np.float32(1 / 3)), [dtype, "f32"]) == text


@pytest.mark.parametrize(
    ("index", "shape", "text"),
    [(7, (2, 4), "[1, 3]"), (7, None, "[7]"), (0, (), "[]"), (None, (2,), ""), (5, (1, 2, 3), "[0, 1, 2]")],
)
def test_positions_are_indices_of_the_tensor(index, shape, text):
    assert position(index, shape) == text


@pytest.mark.parametrize("width", [4, 7, 12, 13])
def test_fitting_keeps_both_ends_and_the_width(width):
    assert columns(fit("alpha.beta.gamma", width)) == width
    assert fit("short", 5) == "short"
    assert printable("a\tb") == r"a\tb"


def spread(array):
    array *= 1.01


def one_column(array):
    array[..., 5] += 1


def one_block(array):
    array[64:128, 64:128] += 1


@pytest.mark.parametrize(
    ("shape", "change", "said"),
    [
        ((8, 64), double_row, "100% of the squared error is in row [1, :]"),
        ((2, 4, 64), lambda a: a[1].__setitem__(2, 9), "100% of the squared error is in row [1, 2, :]"),
        ((8, 64), one_column, "100% of the squared error is in column [:, 5]"),
        ((256, 256), one_block, "100% of the squared error is in the 64x64 block at [64, 64]"),
        ((8, 64), spread, ""),
        ((2, 64), double_row, ""),
    ],
    ids=["row", "row of a cube", "column", "block", "spread", "half of the tensor is no place"],
)
def test_error_that_sits_in_one_place_is_located(shape, change, said):
    pair = judged("fwd", "x", Verdict.DRIFT, change=change, shape=shape)
    assert concentration(pair.pair, pair.measurement) == said


def test_a_place_in_a_reconciled_tensor_is_not_given_in_the_reference_s_axes():
    site = Site(0, "fwd", "x", "out")
    turned = pair_of(site, (64, 8), reference_steps=(Transform("transpose"),))
    pair = judged("fwd", "x", Verdict.DRIFT, change=double_row, shape=(8, 64), pair=turned)
    assert concentration(turned, pair.measurement) == "100% of the squared error is in row 1 of 8"


SCHEMA = schema_of("firstdrift-diff-v1")
STAGE_SCHEMA = schema_of("apr-stage-diff-v1")


@every_case
def test_the_json_of_a_result_is_what_the_schema_says(case):
    said = CASES[case]().to_json()
    assert objections(said, SCHEMA) == []
    assert json.loads(json.dumps(said, allow_nan=False)) == said


@pytest.mark.parametrize(
    ("spoil", "objection"),
    [
        (lambda said: said.pop("graph"), "$: required"),
        (lambda said: said.update(extra=1), "$.extra: enum"),
        (lambda said: said.update(verdict="fine"), "$.verdict: enum"),
        (lambda said: said["pairs"][0].update(step=-1), "$.pairs[0].step: minimum"),
        (lambda said: said["pairs"][0]["measurement"].update(rms="NaN"), "$.pairs[0].measurement: anyOf"),
        (lambda said: said["counts"].update(fine=1), "$.counts key fine: enum"),
        (lambda said: said["coverage"]["phases"].update(fwd="x"), "$.coverage.phases.fwd: type"),
        (lambda said: said["first_drift"].update(call=True), "$.first_drift: anyOf"),
    ],
    ids=["missing", "extra", "enum", "minimum", "nested", "key", "mapping", "bool is no integer"],
)
def test_the_schema_refuses_what_no_result_says(spoil, objection):
    said = forward_drift().to_json()
    spoil(said)
    assert objections(said, SCHEMA) == [objection]


@pytest.mark.parametrize(
    ("stage", "a", "b"),
    [
        ("ffn_out", [1, 2], [1, 2]),
        ("ffn_out", [1, np.nan], [1, np.inf]),
        ("ffn_out", [0, 3e38], [1, -3e38]),
        ("ffn_out", [], []),
        ("moe_router_indices", [3, 7.5], [4, np.nan]),
    ],
)
@pytest.mark.parametrize("layer", [2, WHOLE_MODEL_LAYER])
def test_the_json_of_two_stage_files_is_what_its_schema_says(tmp_path, stage, a, b, layer):
    files = [write_stage_file(tmp_path / side, layer, stage, values) for side, values in (("a", a), ("b", b))]
    said = diff_stage_files(*files).to_json()
    assert objections(said, STAGE_SCHEMA) == []
    json.dumps(said, allow_nan=False)


@pytest.mark.parametrize("schema", [SCHEMA, STAGE_SCHEMA], ids=lambda schema: schema["$id"])
def test_every_key_is_described_required_and_closed(schema):
    for part in objects_of(schema):
        assert all(item.get("description") for item in part["properties"].values())
        assert part["required"] == list(part["properties"])
        assert part["additionalProperties"] is False


def test_the_schema_s_vocabulary_is_the_code_s():
    assert SCHEMA["$defs"]["verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert SCHEMA["$defs"]["site"]["properties"]["phase"]["enum"] == list(PHASES)
