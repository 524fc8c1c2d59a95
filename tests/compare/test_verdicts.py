"""What the diff says, and the exit code that CI trusts."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from tests.compare.making import noisy, normal, record

import firstdrift as fd
from firstdrift.compare import planted_errors
from firstdrift.compare.outcome import _verdict

A = normal(8, 16)
B = normal(8, 16, seed=5)


def diffed(tmp_path, ours, theirs, headers=({}, {}), **options):
    record(tmp_path / "r", ours, **headers[0])
    record(tmp_path / "c", theirs, **headers[1])
    return fd.diff(tmp_path / "r", tmp_path / "c", **options)


def verdicts(result):
    return {f"{p.site.phase} {p.site.name}": str(p.verdict) for p in result.pairs}


@pytest.mark.parametrize("plant", planted_errors.PLANTS, ids=lambda plant: plant.name)
def test_every_planted_error_is_found_where_it_was_planted(tmp_path, plant):
    result = fd.diff(*planted_errors.record_pair(plant, tmp_path))
    assert planted_errors.found(plant, result), result.sentence
    if plant.phase is not None:
        first = next(pair for pair in result.pairs if pair.verdict == "drift")
        before = result.pairs[: result.pairs.index(first)]
        assert {str(pair.verdict) for pair in before} <= {"same", "noise"}


def test_the_same_trace_is_the_same(tmp_path):
    result = diffed(tmp_path, {"fwd a": A, "fwd b": B}, {"fwd a": A, "fwd b": B})
    assert (result.verdict, result.exit_code, result.cause.label, result.first_drift) == ("same", 0, "none", None)


def test_a_verdict_and_a_result_are_not_truth_values(tmp_path):
    result = diffed(tmp_path, {"fwd a": A}, {"fwd a": A})
    with pytest.raises(TypeError, match="not a truth value"):
        bool(result)
    with pytest.raises(TypeError, match="'same' is not a truth value"):
        bool(result.verdict)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_value_that_is_not_finite_on_one_side_is_a_drift(tmp_path, value, side):
    broken = A.copy()
    broken[3, 4] = value
    result = diffed(tmp_path, {"fwd a": (A, broken)[side]}, {"fwd a": (broken, A)[side]})
    assert (result.verdict, result.exit_code) == ("drift", 1)
    assert result.first_drift.cause.label == "nan-origin"


def test_nan_everywhere_is_never_green(tmp_path):
    result = diffed(tmp_path, {"fwd a": A * np.nan}, {"fwd a": -A * np.nan})
    assert result.exit_code == 2
    result = diffed(tmp_path / "2", {"fwd a": A, "fwd b": A}, {"fwd a": A, "fwd b": A * np.nan})
    assert (result.exit_code, result.first_drift.name) == (1, "b")


def test_nothing_in_common_is_never_green(tmp_path):
    other = np.ones((3, 5), np.float32)
    result = diffed(tmp_path, {"fwd a": A}, {"fwd zz": other, "fwd yy": -other})
    assert (result.verdict, result.exit_code) == ("not comparable", 2)
    assert "nothing was compared" in result.problems


def test_empty_tensors_are_equal_and_no_coverage(tmp_path):
    empty = np.zeros((0, 3), np.float32)
    result = diffed(tmp_path, {"fwd a": empty}, {"fwd a": empty})
    assert verdicts(result) == {"fwd a": "same"}
    assert (result.coverage.compared, result.exit_code) == (0, 2)


def test_reference_sites_without_counterpart_are_exit_2_unless_allowed(tmp_path):
    ours, theirs = {"fwd a": A, "fwd b": A}, {"fwd a": A}
    result = diffed(tmp_path, ours, theirs)
    assert (result.verdict, result.exit_code, result.counts) == ("same", 2, {"same": 1, "missing": 1})
    allowed = fd.diff(tmp_path / "r", tmp_path / "c", allow_missing=["b"])
    assert (allowed.exit_code, len(allowed.reference_only)) == (0, 1)


def test_candidate_only_sites_are_listed_and_harmless(tmp_path):
    result = diffed(tmp_path, {"fwd a": A}, {"fwd a": A, "fwd b": A})
    assert (result.exit_code, [item.site.name for item in result.candidate_only]) == (0, ["b"])


def test_drift_wins_over_could_not_tell(tmp_path):
    assert diffed(tmp_path, {"fwd a": A, "fwd b": A}, {"fwd a": B}).exit_code == 1


def test_an_unfinished_trace_is_exit_2(tmp_path):
    record(tmp_path / "r", {"fwd a": A})
    writer = fd.Writer(tmp_path / "c")
    writer.put("a", "fwd", A)
    writer.abort()
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert (result.verdict, result.exit_code) == ("same", 2)
    assert "no end line" in result.problems[0]


def test_damaged_bytes_are_seen_with_verify(tmp_path):
    for side in "rc":
        with fd.Writer(tmp_path / side, checksum=True) as writer:
            writer.put("a", "fwd", A)
    for side in "rc":
        data = bytearray((tmp_path / side / "data-00000.bin").read_bytes())
        data[7] ^= 64
        (tmp_path / side / "data-00000.bin").write_bytes(data)
    assert fd.diff(tmp_path / "r", tmp_path / "c").exit_code == 0
    assert fd.diff(tmp_path / "r", tmp_path / "c", verify=True).exit_code == 2


def test_shapes_that_differ_are_not_comparable_and_both_are_said(tmp_path):
    result = diffed(tmp_path, {"fwd a": A}, {"fwd a": A.T})
    assert (result.verdict, result.exit_code) == ("not comparable", 2)
    assert "shape [8, 16] in the reference, [16, 8] in the candidate" in result.pairs[0].reason


def test_unit_axes_make_no_difference(tmp_path):
    assert diffed(tmp_path, {"fwd a": A}, {"fwd a": A[None, :, None, :]}).verdict == "same"


def test_dtypes_of_another_kind_are_not_comparable(tmp_path):
    assert diffed(tmp_path, {"fwd a": A}, {"fwd a": A.astype(np.int32)}).verdict == "not comparable"


def test_integers_are_equal_or_not(tmp_path):
    ids = np.arange(10)
    other = ids.copy()
    other[4] = 5
    assert diffed(tmp_path, {"fwd ids": ids}, {"fwd ids": ids.astype(np.int32)}).verdict == "same"
    result = diffed(tmp_path / "2", {"fwd ids": ids}, {"fwd ids": other})
    assert (result.verdict, result.exit_code) == ("drift", 1)
    assert "1 of 10 integers differ" in result.first_drift.sentence


def test_expert_ids_stored_as_floats_are_integers(tmp_path):
    for side, last in (("r", 3.0), ("c", 4.0)):
        fd.write_stage_file(tmp_path / side, 0, "ffn_norm", A.reshape(-1))
        fd.write_stage_file(tmp_path / side, 0, "moe_router_indices", [1.0, last])
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert (result.first_drift.name, result.graph) == ("layer-0.moe_router_indices", "stage table")


def test_expert_ids_that_are_nearly_equal_as_floats_are_not_equal(tmp_path):
    for side, last in (("r", 16_000_000.0), ("c", 16_000_001.0)):
        fd.write_stage_file(tmp_path / side, 0, "moe_router_indices", [1.0, last])
    assert fd.diff(tmp_path / "r", tmp_path / "c").exit_code == 1


def test_what_a_nan_spreads_to_is_inherited(tmp_path):
    one, row = A.copy(), A.copy()
    one[2, 3], row[2] = np.nan, np.nan
    result = diffed(tmp_path, {"fwd a": A, "fwd b": A}, {"fwd a": one, "fwd b": row})
    assert verdicts(result) == {"fwd a": "drift", "fwd b": "inherited"}


def test_a_choice_between_near_ties_is_not_called_a_bug(tmp_path):
    ours = {"fwd a": A, "fwd ids": np.arange(4)}
    theirs = {"fwd a": noisy(A), "fwd ids": np.array([0, 1, 3, 2])}
    assert diffed(tmp_path, ours, theirs).verdict == "inconclusive"


@pytest.mark.parametrize("handed", [[0, 2, 1, 3], [2, 0, 1, 3]])
def test_a_choice_that_nothing_replays_is_no_proof_of_a_flip(tmp_path, handed):
    x = normal(4, 4)
    x[np.arange(4), [0, 1, 1, 3]] = 9.0
    x[1, 2] = np.nextafter(np.float32(9.0), np.float32(0))
    z = x.copy()
    z[1, [1, 2]] = z[1, [2, 1]]
    chosen, other = np.array([0, 1, 1, 3]), np.array([0, 2, 1, 3])
    steps = {"producers": [fd.Site(0, "fwd", "gate", "out")]}, {"producers": [fd.Site(0, "fwd", "top", "out")]}
    ours = {"fwd gate": x, "fwd top": (chosen, steps[0]), "fwd experts:in.1": (chosen, steps[1])}
    theirs = {"fwd gate": z, "fwd top": (other, steps[0]), "fwd experts:in.1": (np.array(handed), steps[1])}
    result = diffed(tmp_path, ours, theirs)
    assert verdicts(result)["fwd top"] == "inconclusive"
    assert (result.verdict, result.exit_code) == ("inconclusive", 2)


def test_different_inputs_are_the_first_drift(tmp_path):
    result = diffed(tmp_path, {"input input:x": A, "fwd a": A}, {"input input:x": B, "fwd a": B})
    assert (result.first_drift.phase, result.first_drift.cause.label) == ("input", "different-input")
    assert verdicts(result)["fwd a"] == "inherited"


def test_weights_that_differ_are_a_drift_whatever_agrees_behind_them(tmp_path):
    ours = {"weight a": A, "fwd a": A, "fwd b": A}
    result = diffed(tmp_path, ours, {"weight a": B, "fwd a": B, "fwd b": B})
    assert (result.first_drift.phase, result.first_drift.introduced_by) == ("weight", "the loading of weights")
    assert verdicts(result)["fwd a"] == "inherited"
    other = diffed(tmp_path / "2", ours, {"weight a": A.T.reshape(A.shape), "fwd a": noisy(A), "fwd b": noisy(A)})
    assert (other.exit_code, other.first_drift.phase) == (1, "weight")


def test_weights_alone_that_differ_are_a_drift(tmp_path):
    assert diffed(tmp_path, {"weight a": A}, {"weight a": B}).exit_code == 1


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn])
def test_weights_rounded_to_the_candidates_dtype_are_no_drift(tmp_path, dtype):
    result = diffed(
        tmp_path, {"weight a": A, "input input:x": B}, {"weight a": A.astype(dtype), "input input:x": B.astype(dtype)}
    )
    assert (result.verdict, result.exit_code) == ("noise", 0)
    assert {pair.reason for pair in result.pairs} == {"equal after rounding"}
    wrong = A.copy()
    wrong[0, 0] += 1
    assert diffed(tmp_path / "2", {"weight a": A}, {"weight a": wrong.astype(dtype)}).exit_code == 1


def test_an_outlier_channel_cannot_hide_a_wrong_one(tmp_path):
    hidden = A.copy()
    hidden[:, 3] *= 1000
    wrong = noisy(hidden)
    wrong[:, 7] *= -1
    result = diffed(tmp_path, {"fwd a": hidden}, {"fwd a": wrong})
    assert result.exit_code == 1
    large = normal(64, 4096)
    large[:, 3] *= 1e3
    wrong = noisy(large)
    wrong[:, 7] *= 1.01  # as little beside channel 3 as noise may be where nothing says what was summed
    assert diffed(tmp_path / "2", {"fwd a": large}, {"fwd a": wrong}).exit_code == 2


def test_an_error_that_grows_layer_by_layer_is_not_vouched_for_without_operations(tmp_path):
    ours = {f"fwd layer{i}": normal(8, 16, seed=i) for i in range(40)}
    theirs = {key: noisy(value, 1e-7 * 1.15**i) for i, (key, value) in enumerate(ours.items())}
    result = diffed(tmp_path, ours, theirs)
    assert (result.verdict, result.exit_code) == ("inconclusive", 2)


def test_a_container_inherits_from_what_drifted_inside_it(tmp_path):
    ours = {"fwd block.fc": A, "fwd other": B, "fwd block": A}
    result = diffed(tmp_path, ours, {"fwd block.fc": B, "fwd other": B, "fwd block": B})
    assert verdicts(result) == {"fwd block.fc": "drift", "fwd other": "same", "fwd block": "inherited"}


def test_a_tensor_that_changes_on_an_edge_is_blamed_on_the_module_that_passes_it_on(tmp_path):
    ours = {
        "fwd net.a": A, "fwd net.block:in.0": (A, {"producers": ["net.a"]}),
        "fwd net.block.fc:in.0": (A, {"producers": ["net.a"]}),
        "fwd net.block.fc": (B, {"producers": [fd.Site(0, "fwd", "net.block.fc", "in.0")]}),
    }  # fmt: skip
    theirs = {key: -B if "in.0" in key else A if key == "fwd net.a" else -A for key in ours}
    result = diffed(tmp_path, ours, theirs)
    first = result.first_drift
    assert (first.name, first.port, first.introduced_by) == ("net.block.fc", "in.0", "net.block")
    assert [str(pair.verdict) for pair in result.pairs] == ["same", "inherited", "drift", "inherited"]


def test_recorded_producers_keep_branches_apart(tmp_path):
    ours = {
        "fwd stem": A, "fwd left": (A, {"producers": ["stem"]}), "fwd right": (B, {"producers": ["stem"]}),
        "fwd join": (A, {"producers": ["left", "right"]}),
    }  # fmt: skip
    theirs = {"fwd stem": A, "fwd left": B, "fwd right": -B, "fwd join": B}
    result = diffed(tmp_path, ours, theirs)
    assert result.graph == "recorded"
    assert verdicts(result) == {"fwd stem": "same", "fwd left": "drift", "fwd right": "drift", "fwd join": "inherited"}
    assert result.first_drift.name == "left"


def test_what_was_not_compared_is_seen_through(tmp_path):
    ours = {
        "fwd a": A, "fwd side": B, "fwd mid": (A, {"producers": ["a"]}), "fwd other": (B, {"producers": ["side"]}),
        "fwd c": (A, {"producers": ["mid"]}),
    }  # fmt: skip
    result = diffed(tmp_path, ours, {"fwd a": B, "fwd side": B, "fwd other": B, "fwd c": B}, allow_missing=["mid"])
    assert verdicts(result) == {"fwd a": "drift", "fwd side": "same", "fwd other": "same", "fwd c": "inherited"}


def test_one_pair_that_is_not_comparable_is_not_green(tmp_path):
    result = diffed(tmp_path, {"fwd a": A, "fwd b": A}, {"fwd a": A, "fwd b": A[:3]})
    assert (result.verdict, result.exit_code) == ("not comparable", 2)


def test_a_gradient_error_is_blamed_on_the_backward_that_made_it(tmp_path):
    ours = {"fwd fc1": A, "fwd relu": A, "fwd fc2": A, "agrad fc2": A, "agrad relu": A, "agrad fc1": A}
    result = diffed(tmp_path, ours, ours | {"agrad fc1": B})
    assert (result.first_drift.name, result.first_drift.introduced_by) == ("fc1", "relu's backward")
    result = diffed(tmp_path / "2", ours, ours | {"agrad relu": B, "agrad fc1": B})
    assert (result.first_drift.name, result.first_drift.introduced_by) == ("relu", "fc2's backward")


def test_a_gradient_that_the_candidate_lacks_is_a_drift(tmp_path):
    ours = {"fwd a": A, "fwd b": A, "grad a": A, "grad b": A}
    for theirs in ({"fwd a": A, "fwd b": A, "grad b": A}, ours | {"grad a": None}):
        result = diffed(tmp_path / str(len(theirs)), ours, theirs)
        assert (result.exit_code, result.first_drift.name) == (1, "a")
        assert result.first_drift.cause.label == "gradient-missing"


def test_a_phase_that_is_wholly_absent_is_missing(tmp_path):
    result = diffed(tmp_path, {"fwd a": A, "grad a": A}, {"fwd a": A})
    assert (result.verdict, result.exit_code, result.counts["missing"]) == ("same", 2, 1)


def test_what_both_say_is_absent_agrees(tmp_path):
    result = diffed(tmp_path, {"fwd a": A, "grad a": None}, {"fwd a": A, "grad a": None})
    assert (result.verdict, result.exit_code) == ("same", 0)


def test_updates_are_compared_not_weights(tmp_path):
    weight, update = normal(32, 32) * 10, normal(32, 32, seed=2) * np.float32(1e-3)
    before = {"weight a": weight}
    ours = before | {"weight_after a": weight + update}
    assert diffed(tmp_path, ours, before | {"weight_after a": weight + noisy(update)}).exit_code == 0
    assert diffed(tmp_path / "2", ours, before | {"weight_after a": weight}).exit_code == 1
    assert diffed(tmp_path / "3", ours, before | {"weight_after a": weight + update * np.float32(1.05)}).exit_code == 1


def test_an_update_of_one_rounding_shows_in_many_weights_and_is_lost_in_few(tmp_path):
    weight = normal(32, 32) * np.float32(1e4)
    for few, said in ((32, ("drift", 1)), (2, ("inconclusive", 2))):
        some = weight[:few, :few]
        ours = {"weight a": some, "weight_after a": np.nextafter(some, np.float32(np.inf))}
        result = diffed(tmp_path / str(few), ours, {"weight a": some, "weight_after a": some})
        assert (result.verdict, result.exit_code) == said


def test_a_bias_gradient_that_cancels_is_no_drift(tmp_path):
    flow = normal(4096, 8)
    flow -= flow.mean(0, dtype=np.float64).astype(np.float32)
    ours = {"fwd k": flow, "agrad k": flow, "grad k:bias": flow.sum(0)}
    theirs = {"fwd k": flow, "agrad k": noisy(flow), "grad k:bias": flow[::-1].cumsum(0, dtype=np.float32)[-1]}
    assert diffed(tmp_path, ours, theirs).exit_code == 2
    told = {"fwd k": (flow, {"op": "BiasAdd"}), "weight k:bias": np.zeros(8, np.float32), "input input:x": flow}
    assert diffed(tmp_path / "2", told | {k: v for k, v in ours.items() if k != "fwd k"}, told | {
        key: value for key, value in theirs.items() if key != "fwd k"}).exit_code == 0  # fmt: skip


def test_a_truth_decides_who_is_off(tmp_path):
    exact = normal(64, 64, dtype=np.float64)
    rough = (exact + 3e-4 * normal(64, 64, seed=3)).astype(np.float32)
    record(tmp_path / "t", {"fwd a": exact})
    for case, (ours, theirs) in enumerate([(exact.astype(np.float32), rough), (rough, exact.astype(np.float32))]):
        record(tmp_path / f"r{case}", {"fwd a": ours})
        record(tmp_path / f"c{case}", {"fwd a": theirs})
        assert fd.diff(tmp_path / f"r{case}", tmp_path / f"c{case}").exit_code == 1
    judged = [fd.diff(tmp_path / f"r{case}", tmp_path / f"c{case}", truth=tmp_path / "t") for case in (0, 1)]
    assert [result.exit_code for result in judged] == [1, 0]
    assert judged[1].pairs[0].facts["suspect"]


def test_the_jump_rule_sees_nan_marks_every_drift_and_sets_the_exit_code(tmp_path):
    ours = {"fwd a": A, "fwd b": A, "agrad b": A, "agrad a": A}
    assert diffed(tmp_path, ours, {k: noisy(v) for k, v in ours.items()}, rule="jump").exit_code == 0
    result = diffed(tmp_path / "2", ours, ours | {"agrad b": B, "agrad a": B}, rule="jump")
    assert (result.exit_code, result.first_drift.name) == (1, "b")
    assert [str(p.verdict) for p in result.pairs] == ["same", "same", "drift", "inherited"]
    assert diffed(tmp_path / "3", ours, ours | {"fwd a": A * np.nan}, rule="jump").exit_code == 1
    near = {"fwd a": A * np.float32(1.0005), "fwd b": A, "agrad b": A * np.float32(1.01), "agrad a": A}
    raised = diffed(tmp_path / "5", ours, near, rule="jump", abs_floor=1e-3)
    assert raised.first_drift.phase == "agrad"  # the floor that the forward pass raised is forgotten
    assert diffed(tmp_path / "4", ours, ours | {"fwd a": A + 0.01}, rule="jump", abs_floor=0.1).exit_code == 0
    with pytest.raises(fd.SelectionError, match="there is no rule 'guess'"):
        fd.diff(tmp_path / "r", tmp_path / "c", rule="guess")


def test_assert_same_raises_with_the_report(tmp_path):
    record(tmp_path / "r", {"fwd a": A})
    record(tmp_path / "c", {"fwd a": B})
    with pytest.raises(AssertionError, match="the first drift is fwd a"):
        fd.assert_same(tmp_path / "r", tmp_path / "c")
    assert fd.assert_same(tmp_path / "r", tmp_path / "r").verdict == "same"


def test_captures_that_prove_little_are_said(tmp_path):
    result = diffed(tmp_path, {"fwd a": A * 0, "fwd b": B}, {"fwd a": A * 0, "fwd b": B})
    assert any("all zero on both sides" in note for note in result.notes)


def test_traces_of_two_formats_can_be_compared(tmp_path):
    record(tmp_path / "r", {"fwd a": A, "weight a": B})
    np.savez(tmp_path / "c.npz", **{"a": A, "a.weight": B})
    result = fd.diff(tmp_path / "r", tmp_path / "c.npz")
    assert (result.verdict, result.exit_code, len(result.pairs)) == ("same", 0, 2)


def test_a_site_stands_out_among_its_peers(tmp_path):
    ours = {f"fwd fc{i}": (normal(64, 64, seed=i + 20), {"op": "Linear"}) for i in range(8)}
    errors = [1.2e-6, 1.3e-6, 1.4e-6, 1.5e-6, 7.4e-6, 7.5e-6, 7.6e-6, 7.7e-6]  # fc4 amplifies by 5, the others by 1.1
    theirs = {key: noisy(value[0], size) for (key, value), size in zip(ours.items(), errors, strict=True)}
    result = diffed(tmp_path, ours, theirs)
    assert (result.exit_code, result.first_drift.name) == (1, "fc4")
    alone = {key: (value[0], {"op": f"Linear{key}"}) for key, value in ours.items()}
    assert diffed(tmp_path / "2", alone, theirs).exit_code == 2


def test_constant_captures_are_said(tmp_path):
    ones = np.ones((8, 8), np.float32)
    result = diffed(tmp_path, {"fwd a": ones, "fwd b": B}, {"fwd a": ones, "fwd b": B})
    assert result.notes == ("1 pair is constant on both sides, which proves little: first fwd a",)


@pytest.mark.parametrize(("dtype", "word"), [(ml_dtypes.bfloat16, "bfloat16"), (np.float16, "float16 or TF32")])
def test_numbers_rounded_to_a_shorter_format_are_named(tmp_path, dtype, word):
    ours = {"fwd a": A, "fwd b": normal(64, 64)}
    theirs = {"fwd a": noisy(A), "fwd b": normal(64, 64).astype(dtype).astype(np.float32)}
    result = diffed(tmp_path, ours, theirs)
    assert (result.verdict, result.exit_code, result.first_drift.name) == ("drift", 1, "b")
    assert verdicts(result)["fwd b"] == "precision"
    assert result.first_drift.cause.label == "dtype-rounding"
    assert f"rounded to {word}, though declared f32" in result.first_drift.sentence


def test_a_wrong_value_on_a_coarse_grid_is_no_matter_of_precision(tmp_path):
    theirs = (normal(64, 64) * 2).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert verdicts(diffed(tmp_path, {"fwd b": normal(64, 64)}, {"fwd b": theirs})) == {"fwd b": "drift"}


def test_doubles_that_went_through_floats_are_named(tmp_path):
    ours = normal(64, 64, dtype=np.float64)
    result = diffed(tmp_path, {"fwd b": ours}, {"fwd b": ours.astype(np.float32).astype(np.float64)})
    assert verdicts(result) == {"fwd b": "precision"}


def flipping(tmp_path, change):
    """A ReLU and a max-pool whose inputs have near-ties; `change` may break the candidate's gradient."""
    x = normal(16, 64)
    x[0, :4] = [1e-8, -1e-8, 2e-8, -2e-8]
    z = noisy(x)
    z[0, :4] = [-1e-8, 1e-8, -1e-8, 1e-8]
    flow = normal(16, 64, seed=9)
    ours = {"fwd a": x, "fwd relu": np.maximum(x, 0), "agrad relu": flow, "agrad a": flow * (x > 0)}
    theirs = {"fwd a": z, "fwd relu": np.maximum(z, 0), "agrad relu": flow, "agrad a": change(flow * (z > 0), z)}
    return diffed(tmp_path, ours, theirs)


def test_a_relu_that_decided_a_near_tie_the_other_way_is_a_flip(tmp_path):
    result = flipping(tmp_path, lambda gradient, z: gradient)
    assert (result.verdict, result.exit_code, [str(f.site.name) for f in result.flips]) == ("flip", 0, ["a"])
    assert result.flips[0].facts["proof"] == "replayed"


def test_equal_values_with_another_routing_are_no_flip(tmp_path):
    x = normal(8, 64)
    x[3, 8] = x[3, 9] = 2.0
    ours, theirs = np.zeros((2, 8, 64), np.float32)
    ours[:, ::8] = theirs[:, ::8] = normal(8, 8, seed=3)
    x[3, 9] = 1.9999998  # by both sides' own values the first of the two is the larger
    ours[3, 8] = theirs[3, 9] = 1.5
    theirs[3, 8] = 0
    assert diffed(tmp_path, {"fwd a": x, "agrad a": ours}, {"fwd a": noisy(x, 0), "agrad a": theirs}).exit_code == 1


def test_a_flip_does_not_excuse_another_error(tmp_path):
    assert flipping(tmp_path, lambda gradient, z: gradient * np.float32(1.01)).exit_code == 1


def test_a_mask_that_does_not_follow_its_own_values_is_no_flip(tmp_path):
    def leaking(gradient, z):
        gradient = gradient.copy()
        gradient[5, :3] = 1.0  # let through where its own input is far below zero
        return gradient

    x = normal(16, 64)
    x[5, :3] = -1.0
    flow, relu = normal(16, 64, seed=9), (np.maximum(x, 0), {"op": "ReLU"})
    ours = {"fwd a": x, "fwd relu": relu, "agrad relu": flow, "agrad a": flow * (x > 0)}
    theirs = {**ours, "fwd a": noisy(x), "fwd relu": (np.maximum(noisy(x), 0), relu[1])}
    assert diffed(tmp_path / "1", ours, theirs).exit_code == 0
    assert diffed(tmp_path / "2", ours, theirs | {"agrad a": leaking(flow * (x > 0), x)}).exit_code == 1


@pytest.mark.parametrize("values", [(2.0, 2.0 + 2e-7), (2.0, 1.0)])
def test_a_gradient_that_went_another_way_is_left_open_where_nothing_says_what_decided(tmp_path, values):
    x = normal(8, 64)
    x[3, 8], x[3, 9] = values[0] + 1e-7, values[1] - 2e-7
    z = x.copy()
    z[3, 8], z[3, 9] = values[0] - 1e-7, values[1] + 2e-7
    ours, theirs = np.zeros((2, 8, 64), np.float32)
    ours[:, ::8] = theirs[:, ::8] = normal(8, 8, seed=3)
    ours[3, 8] = theirs[3, 9] = 1.5
    theirs[3, 8] = 0
    result = diffed(tmp_path / "1", {"fwd a": x, "agrad a": ours}, {"fwd a": z, "agrad a": theirs})
    assert (result.verdict, result.exit_code) == ("inconclusive", 2)
    same = diffed(tmp_path / "2", {"fwd a": x, "agrad a": ours}, {"fwd a": x, "agrad a": theirs})
    assert same.exit_code == 1  # the same numbers decide the same


@pytest.mark.parametrize(("dtype", "unit"), [(ml_dtypes.bfloat16, 2**-8), (np.float16, 2**-11)])
def test_short_formats_have_their_own_noise(tmp_path, dtype, unit):
    x = normal(64, 64)
    ours = {"fwd a": x.astype(dtype)}
    assert diffed(tmp_path, ours, {"fwd a": noisy(x, unit).astype(dtype)}).verdict == "noise"
    assert diffed(tmp_path / "2", ours, {"fwd a": noisy(x, 10 * unit).astype(dtype)}).exit_code == 1


def test_a_weight_in_another_layout_is_a_drift_where_nothing_is_computed_with_it(tmp_path):
    other = np.ascontiguousarray(normal(8, 8).T)
    ours = {"weight a": normal(8, 8), "fwd a": A, "grad a": normal(8, 8, seed=4)}
    theirs = {"weight a": other, "fwd a": noisy(A), "grad a": normal(8, 8, seed=4).T.copy()}
    result = diffed(tmp_path, ours, theirs)
    assert (result.exit_code, result.first_drift.phase) == (1, "weight")


@pytest.mark.parametrize(("planted", "phase"), [("2/fwd b", "fwd"), ("2/grad b", "grad"), ("1/fwd a", "fwd")])
def test_training_steps_are_judged_one_after_the_other(tmp_path, planted, phase):
    ours, theirs = {}, {}
    for step in range(3):
        for name in "ab":
            for kind in ("weight", "fwd", "grad", "weight_after"):
                value = normal(32, 32, seed=step * 2 + (name == "b"))
                if kind == "weight_after":
                    value = normal(32, 32, seed=(step + 1) * 2 + (name == "b"))
                ours[f"{step}/{kind} {name}"] = value
                theirs[f"{step}/{kind} {name}"] = noisy(value, 3e-8 if step or kind == "weight_after" else 1e-8)
    clean = diffed(tmp_path / "clean", ours, theirs)
    assert clean.exit_code == 0
    assert "inherited" not in clean.counts
    result = diffed(tmp_path / "planted", ours, theirs | {planted: theirs[planted] * np.float32(1.5)})
    assert result.exit_code == 1
    assert f"{result.first_drift.step}/{result.first_drift.phase} {result.first_drift.name}" == planted
    assert result.first_drift.phase == phase


def test_zeros_of_the_other_sign_are_noise(tmp_path):
    ours = np.maximum(A, 0)
    result = diffed(tmp_path, {"fwd relu": ours}, {"fwd relu": np.where(A > 0, A, np.float32(-0.0))})
    assert (result.verdict, result.exit_code) == ("noise", 0)


@pytest.mark.parametrize("moved", [1, 3])
def test_another_choice_is_a_drift_only_where_the_same_numbers_were_chosen_from(tmp_path, moved):
    logits = np.tile(np.array([5, 5, 1, 0], np.float32), (8, 1))
    theirs = logits.copy()
    theirs[0] += np.array([0, 4e-7, 0, 0], np.float32)
    other = np.zeros(8, np.int64)
    other[0] = moved
    ours = {"fwd x": logits, "fwd ids": np.zeros(8, np.int64)}
    assert diffed(tmp_path / "1", ours, {"fwd x": theirs, "fwd ids": other}).verdict == "inconclusive"
    assert diffed(tmp_path / "2", ours, {"fwd x": logits, "fwd ids": other}).verdict == "drift"


def test_a_bias_gradient_that_cancels_cannot_be_told_without_its_terms(tmp_path):
    x, flow = normal(4096, 8, seed=2), normal(4096, 8)
    flow -= flow.mean(0, dtype=np.float64).astype(np.float32)
    backwards = flow[::-1].cumsum(0, dtype=np.float32)[-1]
    ours = {"input input:x": x, "fwd k": x, "grad k": x.T @ flow, "grad k:bias": flow.sum(0)}
    theirs = {"input input:x": x, "fwd k": noisy(x), "grad k": x[::-1].T @ flow[::-1], "grad k:bias": backwards}
    assert diffed(tmp_path, ours, theirs).exit_code == 2


def test_a_mean_that_cancels_is_no_drift(tmp_path):
    x = normal(8, 4096)
    x -= x.mean(1, keepdims=True, dtype=np.float64).astype(np.float32)
    ours = {"fwd ln": (x, {"op": "LayerNorm"}), "fwd pool": (x.mean(1), {"op": "AdaptiveAvgPool1d"})}
    serial = x[:, ::-1].cumsum(1, dtype=np.float32)[:, -1] / np.float32(4096)
    assert diffed(tmp_path, ours, {"fwd ln": noisy(x), "fwd pool": serial}).exit_code != 1


def test_what_was_not_measured_does_not_hide_a_later_bug(tmp_path):
    for side, factor in (("r", 1), ("c", 1.5)):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("a", "fwd", A)
            writer.put_stats("relu", "fwd", {"mean": 0.0}, dtype="f32", shape=(8, 16))
            writer.put("b", "fwd", B * np.float32(factor))
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert (result.exit_code, result.first_drift.name) == (1, "b")


def test_what_was_not_measured_passes_blame_on(tmp_path):
    for side, sign in (("r", 1), ("c", -1)):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("a", "fwd", A * np.float32(sign))
            writer.put_stats("relu", "fwd", {"mean": 0.0}, dtype="f32", shape=(8, 16))
            writer.put("b", "fwd", B * np.float32(sign))
    assert verdicts(fd.diff(tmp_path / "r", tmp_path / "c"))["fwd b"] == "inherited"


def test_an_inheritance_without_a_source_is_never_green(tmp_path):
    result = diffed(tmp_path, {"fwd a": A}, {"fwd a": A})
    assert _verdict([replace(result.pairs[0], verdict=fd.Verdict.INHERITED)], compared=True) == "inconclusive"


def test_a_gradient_that_changed_on_its_way_to_another_maximum_is_no_flip(tmp_path):
    x = normal(8, 64)
    x[3, 8], x[3, 9] = 2.0 + 2e-7, 2.0
    z = x.copy()
    z[3, 8], z[3, 9] = 2.0, 2.0 + 2e-7
    ours, theirs = np.zeros((2, 8, 64), np.float32)
    ours[:, ::8] = theirs[:, ::8] = normal(8, 8, seed=3)
    ours[3, 8], theirs[3, 8], theirs[3, 9] = 1.5, 0, 3.0
    assert diffed(tmp_path, {"fwd a": x, "agrad a": ours}, {"fwd a": z, "agrad a": theirs}).exit_code == 2


def test_a_missing_gradient_is_a_drift_under_another_prefix_too(tmp_path):
    ours = {"fwd a": A, "fwd b": A, "grad a": A, "grad b": A}
    result = diffed(tmp_path, ours, {"fwd m.a": A, "fwd m.b": A, "grad m.b": A})
    assert (result.exit_code, result.first_drift.name) == (1, "a")


def test_a_reference_that_is_off_is_said_on_top(tmp_path):
    exact = normal(64, 64, dtype=np.float64)
    record(tmp_path / "t", {"fwd a": exact})
    record(tmp_path / "r", {"fwd a": (exact * 1.001).astype(np.float32)})
    record(tmp_path / "c", {"fwd a": exact.astype(np.float32)})
    result = fd.diff(tmp_path / "r", tmp_path / "c", truth=tmp_path / "t")
    assert (result.exit_code, result.cause.label) == (0, "reference-suspect")
    assert "it is the reference that is off at fwd a" in result.sentence


def test_samples_that_were_not_compared_are_said(tmp_path):
    result = diffed(tmp_path, {"fwd a": A}, {"fwd a@0": A[:1], "fwd a@1": A[1:2]})
    assert result.notes == ("only 2 of the 8 samples of a batch were compared",)


def test_the_call_that_made_a_gradient_is_named(tmp_path):
    ours = {f"fwd cell#{i}": normal(8, 8, seed=i) for i in range(4)}
    ours |= {f"agrad cell#{i}": normal(8, 8, seed=10 + i) for i in reversed(range(4))}
    result = diffed(tmp_path, ours, ours | {"agrad cell#1": normal(8, 8, seed=77)})
    assert (result.first_drift.call, result.first_drift.introduced_by) == (1, "cell (call 2)'s backward")
    assert "agrad cell (call 1)" in result.sentence


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("extra", "code"), [(1.0, 2), (1.5, 1)])
def test_a_flip_seen_in_the_forward_pass_alone_leaves_a_small_doubt_and_excuses_nothing_large(
    tmp_path, extra, code, after
):
    x, w, flow = normal(64, 32, seed=1), normal(32, 32, seed=2), normal(64, 32, seed=3)
    h = x @ w
    h[3, 5] = 1e-8
    other = noisy(h)
    other[3, 5] = -2e-8
    shown = [np.maximum(side, 0) if after else side for side in (h, other)]  # behind the ReLU, or before it
    ours = {"input input:x": x, "fwd fc": shown[0], "grad fc": x.T @ (flow * (h > 0))}
    theirs = {"input input:x": x, "fwd fc": shown[1], "grad fc": x.T @ (flow * (other > 0)) * np.float32(extra)}
    result = diffed(tmp_path, ours, theirs)
    assert result.exit_code == code


def parameters_only(seed, error=0.0, steps=1, **more):
    """Steps of which only weights and gradients were recorded; the last gradient of the first step is off."""
    sites = {}
    for step in range(steps):
        for number, name in enumerate(("fc2", "fc1")):
            g = normal(32, 16, seed=10 * step + number)
            off = error * normal(32, 16, seed=99) if name == "fc1" and step == 0 else 0
            at = f"{step}/" if step else ""
            sites[f"{at}weight {name}:weight"] = normal(32, 16, seed=number)
            sites[f"{at}grad {name}:weight"] = noisy(g, 0 if seed is None else 1e-7, seed or 0) + np.float32(off)
    return {**sites, **more}


@pytest.mark.parametrize(("error", "verdict"), [(0, "noise"), (3e-3, "inconclusive"), (0.3, "drift")])
def test_a_gradient_of_which_nothing_before_was_recorded_may_hide_a_flip(tmp_path, error, verdict):
    result = diffed(tmp_path, parameters_only(None), parameters_only(5, error))
    assert (result.verdict, result.exit_code) == (verdict, {"noise": 0, "inconclusive": 2, "drift": 1}[verdict])


def test_a_gradient_behind_recorded_activations_is_judged(tmp_path):
    seen = {"fwd fc1": A, "agrad fc1": A}
    assert diffed(tmp_path, parameters_only(None, **seen), parameters_only(5, 3e-3, **seen)).verdict == "drift"


def test_what_an_optimizer_remembers_of_a_doubtful_gradient_is_doubtful(tmp_path):
    before, after = normal(32, 16, seed=3), normal(32, 16, seed=4)

    def run(seed, error, factor):
        sites = parameters_only(seed, error, steps=2)
        sites["1/weight fc1:weight"] = before
        sites["1/weight_after fc1:weight"] = (before + factor * (after - before)).astype(np.float32)
        return sites

    assert diffed(tmp_path / "1", run(None, 0, 1.0), run(5, 3e-3, 1.001)).verdict == "inconclusive"
    assert diffed(tmp_path / "2", run(None, 0, 1.0), run(5, 0, 1.001)).first_drift.phase == "weight_after"


def test_what_follows_from_a_gradient_that_the_candidate_lacks_is_inherited(tmp_path):
    ours = {"fwd a": A, "fwd b": A, "agrad b": A, "agrad a": B, "grad b": A}
    result = diffed(tmp_path, ours, ours | {"agrad b": None, "agrad a": -B})
    found = verdicts(result)
    assert (found["agrad b"], found["agrad a"]) == ("drift", "inherited")


def test_where_nothing_is_finite_on_both_sides_nothing_can_be_said(tmp_path):
    ours, theirs = np.full((8, 16), np.nan, np.float32), np.full((8, 16), -np.nan, np.float32)
    result = diffed(tmp_path, {"fwd a": A, "fwd b": ours}, {"fwd a": A, "fwd b": theirs})
    assert (result.verdict, result.exit_code) == ("not comparable", 2)
    assert str(result.pairs[1].why) == "nan-on-both"


@pytest.mark.parametrize(("size", "code"), [(2e-4, 0), (8e-3, 1)])
def test_an_update_that_is_off_in_one_row_shows_in_the_whole(tmp_path, size, code):
    weight, update = normal(32, 32) * 10, normal(32, 32, seed=2) * np.float32(1e-3)
    off = update.copy()
    off[3] *= 1 + size * 32**0.5  # as large, by norm, as `size` everywhere
    before = {"weight a": weight}
    ours = before | {"weight_after a": weight + update}
    assert diffed(tmp_path, ours, before | {"weight_after a": weight + off}).exit_code == code


def test_a_container_inherits_nothing_from_another_step(tmp_path):
    steps = {f"{step}/fwd {name}": value for step in (0, 1) for name, value in (("block.fc", A), ("block", B))}
    result = diffed(tmp_path, steps, steps | {"0/fwd block.fc": -A, "0/fwd block": -B, "1/fwd block": -B})
    assert [str(pair.verdict) for pair in result.pairs] == ["drift", "inherited", "same", "drift"]


def test_a_truth_leaves_open_what_inputs_may_explain(tmp_path):
    exact = {f"fwd {name}": normal(64, 64, seed=n, dtype=np.float64) for n, name in enumerate("ab")}
    ours = {name: value.astype(np.float32) for name, value in exact.items()}
    theirs = {
        name: noisy(value, size).astype(np.float32)
        for (name, value), size in zip(exact.items(), (1e-6, 4e-6), strict=True)
    }
    record(tmp_path / "t", exact)
    result = diffed(tmp_path, ours, theirs, truth=tmp_path / "t")
    assert (result.verdict, result.exit_code) == ("inconclusive", 2), result.sentence


def test_a_few_choices_among_many_may_be_near_ties(tmp_path):
    ids = np.arange(200)
    other = ids.copy()
    other[:6] = other[:6][::-1]
    result = diffed(tmp_path, {"fwd x": A, "fwd ids": ids}, {"fwd x": noisy(A), "fwd ids": other})
    assert (result.verdict, result.exit_code) == ("inconclusive", 2)


def test_a_weight_behind_a_value_that_is_not_finite_is_no_layout(tmp_path):
    broken = noisy(A)
    broken[2, 3] = np.nan
    result = diffed(tmp_path, {"weight a": A, "fwd a": A}, {"weight a": noisy(A, 1e-4), "fwd a": broken})
    assert (result.first_drift.phase, verdicts(result)["fwd a"]) == ("weight", "inherited")


def test_what_is_rounded_behind_a_drift_is_not_named_apart(tmp_path):
    rounded = B.astype(ml_dtypes.bfloat16).astype(np.float32)
    result = diffed(tmp_path, {"fwd a": A, "fwd b": B}, {"fwd a": A * np.float32(1 + 1e-5), "fwd b": rounded})
    assert verdicts(result) == {"fwd a": "drift", "fwd b": "inherited"}


@pytest.mark.parametrize(("error", "verdict"), [(3e-3, "inconclusive"), (0, "drift")])
def test_the_state_of_an_optimizer_that_remembers_a_doubtful_gradient_is_doubtful(tmp_path, error, verdict):
    state = normal(32, 16, seed=6)
    ours = parameters_only(None, steps=2) | {"1/optim fc1:weight.exp_avg": state}
    theirs = parameters_only(5, error, steps=2) | {"1/optim fc1:weight.exp_avg": state * np.float32(1.001)}
    assert diffed(tmp_path, ours, theirs).verdict == verdict


@pytest.mark.parametrize(("error", "verdict"), [(3e-3, "inconclusive"), (0.3, "drift")])
def test_a_gradient_that_is_recorded_as_the_optimizer_sees_it_alone_may_hide_a_flip_too(tmp_path, error, verdict):
    ours, theirs = (
        {key.replace("grad", "grad_scaled"): value for key, value in sites.items()}
        for sites in (parameters_only(None), parameters_only(5, error))
    )
    assert diffed(tmp_path, ours, theirs).verdict == verdict


@pytest.mark.parametrize(
    ("made", "verdict", "code"),
    [
        ({"fwd m": A}, "same", 0), ({"fwd m": B}, "drift", 1), ({"fwd m": noisy(A, 1e-6)}, "not comparable", 2),
        ({}, "not comparable", 2),
    ],
)  # fmt: skip
def test_an_input_that_is_another_argument_is_excused_by_an_output_that_is_the_same(tmp_path, made, verdict, code):
    ours = {"fwd m:in.0": A, "fwd m:in.1": np.ones((2, 5), np.float32), "fwd x": A} | ({"fwd m": A} if made else {})
    result = diffed(tmp_path, ours, {"fwd m:in.0": A, "fwd m:in.1": A, "fwd x": A} | made)
    assert (result.verdict, result.exit_code) == (verdict, code), result.sentence
    if verdict == "same":
        assert any("1 input is another argument" in note for note in result.notes)
