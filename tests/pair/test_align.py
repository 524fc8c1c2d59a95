"""Pairs: how each was matched, and why what is left over was not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compare.making import normal, record

import firstdrift as fd
from firstdrift.compare.comparison import align_traces
from firstdrift.pair.prefixes import rename_by_prefix

A = normal(4, 3)


def aligned(tmp_path, ours, theirs, headers=({}, {}), **options):
    record(tmp_path / "r", ours, **headers[0])
    record(tmp_path / "c", theirs, **headers[1])
    return align_traces(tmp_path / "r", tmp_path / "c", **options).alignment


def matched(alignment):
    return {(str(p.site), p.candidate[0].site.name): p.matched for p in alignment.pairs}


def test_equal_sites_are_paired_by_name(tmp_path):
    alignment = aligned(tmp_path, {"fwd a": A, "fwd b": A}, {"fwd b": A, "fwd a": A})
    assert [(p.site.name, p.matched) for p in alignment.pairs] == [("a", "name"), ("b", "name")]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["model.fc", "model.head", "model"], ["fc", "head", ""]),
        (["fc", "head"], ["net.module.fc", "net.module.head"]),
        (["model.layers.0.fc", "model.norm", "lm_head"], ["layers.0.fc", "norm", "lm_head"]),
        (["ref.fc", "ref.norm"], ["port.fc", "port.norm"]),
    ],
)
def test_names_under_another_prefix_are_paired(tmp_path, ours, theirs):
    alignment = aligned(tmp_path, {f"fwd {n}": A for n in ours}, {f"fwd {n}": A for n in theirs})
    assert [(p.site.name, p.candidate[0].site.name) for p in alignment.pairs] == list(zip(ours, theirs, strict=True))
    assert {p.matched for p in alignment.pairs} <= {"prefix", "name"}
    assert not alignment.reference_only
    assert not alignment.candidate_only


def test_a_coincidence_is_not_a_prefix():
    assert rename_by_prefix({"layers.0.fc", "layers.1.fc"}, {"fc"}) == {}
    assert rename_by_prefix({"a.x", "b", "c", "d", "e"}, {"x", "q", "r", "s", "t"}) == {}


@given(
    st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(".".join), min_size=2),
    st.lists(st.sampled_from("xyz"), min_size=1, max_size=2).map(".".join),
)
def test_a_prefix_is_found_on_either_side(names, prefix):
    longer = {f"{prefix}.{name}" for name in names}
    assert rename_by_prefix(longer, names) == {f"{prefix}.{name}": name for name in names}
    assert rename_by_prefix(names, longer) == {name: f"{prefix}.{name}" for name in names}


def test_every_name_of_a_tied_tensor_is_a_site(tmp_path):
    tied = (A, {"aliases": ["head.weight"]})
    alignment = aligned(tmp_path, {"weight emb": tied}, {"weight emb": A, "weight head": A})
    assert matched(alignment) == {
        ("weight emb:weight step 0", "emb"): "name", ("weight head:weight step 0", "head"): "alias",
    }  # fmt: skip
    assert not alignment.candidate_only


def test_one_output_called_differently_is_paired_by_port(tmp_path):
    alignment = aligned(tmp_path, {"fwd a:out.0": A, "fwd a:in.0": A}, {"fwd a:out": A})
    assert [(p.site.port, p.matched) for p in alignment.pairs] == [("out.0", "port")]


def test_a_candidate_that_records_outputs_only_lacks_nothing(tmp_path):
    ours = {"fwd a:in.0": A, "fwd a:out": A, "fwd b:in.0": A, "fwd b:out": A}
    alignment = aligned(tmp_path, ours, {"fwd a:out": A, "fwd b:out": A})
    assert not alignment.reference_only
    assert alignment.notes == ("the candidate recorded no inputs of modules; 2 of the reference were not compared",)


def test_what_the_reference_says_it_has_not_is_not_missing(tmp_path):
    for path in (tmp_path / "r", tmp_path / "c"):
        with fd.Writer(path) as writer:
            writer.put("a", "agrad", A)
            if path.name == "r":
                writer.put_absent("softmax", "agrad", "no gradient")
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert (result.exit_code, result.verdict) == (0, "same")


def test_an_input_is_missing_where_the_candidate_records_inputs(tmp_path):
    ours = {"fwd a:in.0": A, "fwd a:out": A, "fwd b:in.0": A, "fwd b:out": A}
    alignment = aligned(tmp_path, ours, {"fwd a:in.0": A, "fwd a:out": A, "fwd b:out": A})
    assert [str(item.site) for item in alignment.reference_only] == ["fwd b:in.0 step 0"]


def test_samples_are_cut_out_of_a_batch_on_either_side(tmp_path):
    whole, single = {"fwd a": A}, {f"fwd a@{s}": A[s : s + 1] for s in (0, 2)}
    alignment = aligned(tmp_path, whole, single)
    assert [(p.site.sample, p.matched, str(p.reference_steps[0])) for p in alignment.pairs] == [
        (0, "sample", "axis 0 cut to [0:1]"), (2, "sample", "axis 0 cut to [2:3]"),
    ]  # fmt: skip
    other = aligned(tmp_path / "other", single, whole)
    assert [(p.site.sample, str(p.candidate_steps[0])) for p in other.pairs] == [
        (0, "axis 0 cut to [0:1]"), (2, "axis 0 cut to [2:3]"),
    ]  # fmt: skip
    assert fd.diff(tmp_path / "r", tmp_path / "c").verdict == "same"


def test_a_sample_beyond_the_batch_has_no_counterpart(tmp_path):
    alignment = aligned(tmp_path, {"fwd a": A}, {"fwd a@0": A[:1], "fwd a@9": A[:1]})
    assert [str(item.site) for item in alignment.candidate_only] == ["fwd a:out step 0 sample 9"]


MEAN, SUM = {"gradient_of": {"reduction": "mean", "batch": 4}}, {"gradient_of": {"reduction": "sum", "batch": 4}}


@pytest.mark.parametrize("flipped", [False, True])
def test_gradients_of_a_mean_and_of_a_sum_are_reconciled(tmp_path, flipped):
    mean = {"lossgrad loss": A / 4, "agrad a": A / 4, "grad a": A / 4, "grad_scaled a": A, "fwd a": A}
    summed = {"lossgrad loss@1": A[1:2], "agrad a@1": A[1:2], "grad a": A, "grad_scaled a": A, "fwd a@1": A[1:2]}
    sides = [(mean, MEAN), (summed, SUM)][:: -1 if flipped else 1]
    for name, (sites, header) in zip("rc", sides, strict=True):
        record(tmp_path / name, sites, **header)
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert (result.verdict, len(result.pairs), result.exit_code) == ("same", 5, 0)
    assert any("were reconciled" in note for note in result.notes)


def test_a_clamped_batch_is_scaled_by_its_own_size(tmp_path):
    header = {"gradient_of": {"reduction": "mean", "batch": 3}}
    alignment = aligned(tmp_path, {"grad a": A}, {"grad a": A}, (header, SUM))
    assert str(alignment.pairs[0].reference_steps[0]) == "times 3"


def test_reductions_can_be_declared_where_a_format_cannot_carry_them(tmp_path):
    for side, scale in (("r", 1 / 32), ("c", 1)):
        directory = tmp_path / side / "step000"
        directory.mkdir(parents=True)
        np.save(directory / "fc.grad_raw.weight.npy", (A * 32).astype(np.float32) * np.float32(scale))
    plain = fd.diff(tmp_path / "r", tmp_path / "c")
    assert plain.exit_code == 1
    told = fd.diff(tmp_path / "r", tmp_path / "c", reference_reduction="mean", batch=32)
    assert (told.verdict, told.exit_code) == ("same", 0)
    with pytest.raises(fd.SelectionError, match="over None samples cannot be reconciled"):
        fd.diff(tmp_path / "r", tmp_path / "c", reference_reduction="mean")


def test_one_side_that_does_not_say_its_reduction_is_noted(tmp_path):
    alignment = aligned(tmp_path, {"grad a": A}, {"grad a": A}, (MEAN, {}))
    assert alignment.notes == (
        "the candidate does not say what its gradients are of; give --candidate-reduction if they differ",
    )


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        ("loss loss", "the candidate recorded no 'loss' at all"),
        ("1/fwd a", "the candidate did not record step 1"),
        ("fwd zz", "the candidate has nothing named 'zz'"),
        ("grad a", "the candidate has 'a', but not its grad"),
        ("fwd a:out.1", "the candidate has only the ports out of it"),
        ("fwd a#3", "the candidate ran it 1 times"),
        ("fwd s@3", "the candidate recorded sample 0 of it"),
    ],
)
def test_what_is_left_over_says_why(tmp_path, site, reason):
    there = {"fwd a": A, "fwd s@0": A[:1], "grad b": A}
    alignment = aligned(tmp_path, {**there, site: A}, {**there, "fwd extra": -A, "fwd extra2": A * A})
    assert [item.reason for item in alignment.reference_only] == [reason]
    assert [item.reason for item in alignment.candidate_only] == [
        "the reference has nothing named 'extra'", "the reference has nothing named 'extra2'",
    ]  # fmt: skip


def test_optimizer_state_is_never_missing(tmp_path):
    alignment = aligned(tmp_path, {"fwd a": A, "optim a:weight.exp_avg": A}, {"fwd a": A})
    assert not alignment.reference_only


def test_selection_applies_to_both_sides_by_the_references_names(tmp_path):
    ours = {"fwd model.a": A, "fwd model.b": A, "grad model.a": A, "fwd model.c": A}
    theirs = {"fwd a": A, "fwd b": A, "grad a": A, "fwd c": A, "fwd d": A}
    alignment = aligned(tmp_path, ours, theirs, only=["model.*"], phases=["fwd"], ignore=["*.b"])
    assert [p.site.name for p in alignment.pairs] == ["model.a", "model.c"]
    assert [(item.site.name, item.reason) for item in alignment.ignored] == [("model.b", "--ignore *.b")]
    assert not alignment.candidate_only


@pytest.mark.parametrize("option", ["only", "phases", "ignore"])
def test_a_pattern_that_matches_nothing_is_an_error(tmp_path, option):
    with pytest.raises(fd.SelectionError, match=r"zz\*: matches nothing"):
        aligned(tmp_path, {"fwd a": A}, {"fwd a": A}, **{option: ["zz*"]})


def test_probe_lists_must_agree(tmp_path):
    for side, names in (("r", "fc1 fc2"), ("c", "fc1 fc3")):
        (tmp_path / side).mkdir()
        for name in names.split():
            np.save(tmp_path / side / f"{name}.fwd.s000.npy", A)
        (tmp_path / side / "probes.txt").write_text("\n".join(names.split()))
    with pytest.raises(fd.FormatError, match="the probe lists differ"):
        fd.diff(tmp_path / "r", tmp_path / "c")


def test_what_a_map_gave_away_is_not_paired_by_name_too(tmp_path):
    (tmp_path / "map.yaml").write_text("a: b\n")
    alignment = aligned(tmp_path, {"fwd a": A, "fwd b": A}, {"fwd a": A, "fwd b": A}, map=tmp_path / "map.yaml")
    assert [(p.site.name, p.candidate[0].site.name, p.matched) for p in alignment.pairs] == [("a", "b", "map")]
    assert [item.site.name for item in alignment.reference_only] == ["b"]
    assert [item.site.name for item in alignment.candidate_only] == ["a"]


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("a: {candidate: b, transpose: true}", lambda x: x.T),
        ("a: {candidate: b, permute: [1, 0]}", lambda x: x.T),
        ("a: {candidate: b, reshape: [4, 3]}", lambda x: x.reshape(-1)),
        ("a: {candidate: b, scale: 1/2}", lambda x: x * 2),
        ("a: {candidate: b, slice: {axis: 0, start: 2, stop: 6}}", lambda x: np.concatenate([x[:2], x, x[:1]])),
    ],
)
def test_a_map_reconciles_layouts(tmp_path, line, change):
    (tmp_path / "map.yaml").write_text(line)
    record(tmp_path / "r", {"fwd a": A})
    record(tmp_path / "c", {"fwd b": np.ascontiguousarray(change(A))})
    result = fd.diff(tmp_path / "r", tmp_path / "c", map=tmp_path / "map.yaml")
    assert (result.verdict, result.exit_code) == ("same", 0)


def test_a_map_may_be_a_table(tmp_path):
    record(tmp_path / "r", {"fwd a": A, "fwd c": A})
    record(tmp_path / "c", {"fwd b": np.ascontiguousarray(A.T), "fwd c": A})
    result = fd.diff(tmp_path / "r", tmp_path / "c", map={"a": {"candidate": "b", "permute": [1, 0]}, "*": "*"})
    assert (result.verdict, result.coverage.compared) == ("same", 2)
    with pytest.raises(fd.FormatError, match="nowhere"):
        fd.diff(tmp_path / "r", tmp_path / "c", map={"a": {"candidate": "b", "nowhere": 1}})


def test_a_map_joins_what_the_candidate_keeps_apart(tmp_path):
    (tmp_path / "map.yaml").write_text("qkv: {candidate: [q, k, v], concatenate: 0}\n")
    record(tmp_path / "r", {"weight qkv": normal(12, 3)})
    record(tmp_path / "c", {f"weight {n}": normal(12, 3)[i * 4 : i * 4 + 4] for i, n in enumerate("qkv")})
    assert fd.diff(tmp_path / "r", tmp_path / "c", map=tmp_path / "map.yaml").verdict == "same"


def test_a_map_can_set_a_tolerance_and_ignore_with_a_reason(tmp_path):
    (tmp_path / "map.yaml").write_text("a: {tolerance: 0.2}\nb: {ignore: random numbers}\n")
    record(tmp_path / "r", {"fwd a": A, "fwd b": A})
    record(tmp_path / "c", {"fwd a": A * np.float32(1.1), "fwd b": -A})
    result = fd.diff(tmp_path / "r", tmp_path / "c", map=tmp_path / "map.yaml")
    assert (result.exit_code, result.pairs[0].limit) == (0, 0.2)
    assert [(item.site.name, item.reason) for item in result.ignored] == [("b", "random numbers")]
    assert fd.diff(tmp_path / "r", tmp_path / "c").exit_code == 1


def test_a_reconciliation_that_does_not_fit_is_not_comparable(tmp_path):
    (tmp_path / "map.yaml").write_text("a: {reshape: [5, 5]}\n")
    record(tmp_path / "r", {"fwd a": A})
    record(tmp_path / "c", {"fwd a": A})
    result = fd.diff(tmp_path / "r", tmp_path / "c", map=tmp_path / "map.yaml")
    assert result.exit_code == 2
    assert "reshaped to [5, 5] does not fit shape [4, 3]" in result.pairs[0].reason
