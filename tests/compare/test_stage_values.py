"""`diff --values`: aprender's numbers to the letter, in bounded memory, and a verdict that NaN cannot pass."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from firstdrift.aprt import WHOLE_MODEL_LAYER, write_stage_file
from firstdrift.errors import FormatError, StorageError
from firstdrift.judge import stage_values
from firstdrift.judge.measure.result import Verdict
from firstdrift.judge.stage_values import StageMismatchError, diff_stage_files, noise_limit
from firstdrift.report.stage_text import render_values

NAN, INF = float("nan"), float("inf")
KEYS = [
    "schema", "path_a", "path_b", "layer", "dim_product", "max_abs_diff", "max_abs_diff_index", "rms_diff",
    "cosine_sim", "top_diffs",
]  # fmt: skip


@pytest.fixture
def compare(tmp_path):
    def compare(a, b, *, stage="ffn_out", layer=0, limit=10):
        left = write_stage_file(tmp_path / "a", layer, stage, np.asarray(a, np.float32))
        right = write_stage_file(tmp_path / "b", layer, stage, np.asarray(b, np.float32))
        return diff_stage_files(left, right, limit=limit)

    return compare


def by_the_book(a, b, limit):
    """The rules of the original, one value after the other."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    with np.errstate(all="ignore"):
        d = [float(abs(x - y)) for x, y in zip(a, b, strict=True)]
    largest, index = 0.0, 0
    for i, value in enumerate(d):
        if value > largest:
            largest, index = value, i
    rms = np.float32(np.sqrt(sum(value * value for value in d) / len(d))) if d else 0.0
    top = sorted(range(len(d)), key=lambda i: -d[i])[: max(limit, 1)]
    return largest, index, rms, top


def test_the_first_vector_of_the_format(compare):
    said = compare([1, 2, 3, 4], [1, 2.5, 3, 4]).to_json()
    assert (said["max_abs_diff"], said["max_abs_diff_index"], said["rms_diff"]) == (0.5, 1, 0.25)
    assert said["top_diffs"][0] == {"index": 1, "a": 2.0, "b": 2.5, "abs_diff": 0.5}
    assert [top["index"] for top in said["top_diffs"]] == [1, 0, 2, 3]
    assert (said["verdict"], said["exit_code"]) == ("drift", 1)


def test_the_second_vector_of_the_format(compare):
    said = compare([0] * 5, [0.1, 0.5, -0.3, 0.05, 0.2], limit=3).to_json()
    assert [top["index"] for top in said["top_diffs"]] == [1, 2, 4]
    assert said["cosine_sim"] == 0.0
    assert said["rel_l2"] is None
    assert said["verdict"] == "drift"


def test_the_keys_of_the_original_come_first_and_in_its_order(compare):
    said = compare([1, 2], [1, 2]).to_json()
    assert list(said)[: len(KEYS)] == KEYS
    assert said["schema"] == "apr-stage-diff-v1"
    assert list(said["top_diffs"][0]) == ["index", "a", "b", "abs_diff"]


@pytest.mark.parametrize(("layer", "said"), [(0, 0), (31, 31), (WHOLE_MODEL_LAYER, "whole-model")])
def test_the_layer_is_a_number_or_whole_model(compare, layer, said):
    assert compare([1], [1], layer=layer).to_json()["layer"] == said


@given(st.data())
def test_numbers_and_order_are_those_of_the_book(tmp_path_factory, data):
    size = data.draw(st.integers(0, 40))
    few = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 3.0e38, -3.0e38, 1e-45])
    a, b = (data.draw(arrays(np.float32, size, elements=few)) for _ in "ab")
    limit = data.draw(st.integers(0, 45))
    directory = tmp_path_factory.mktemp("stages")
    left = write_stage_file(directory / "a", 1, "ffn_out", a)
    right = write_stage_file(directory / "b", 1, "ffn_out", b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_values, "CHUNK", data.draw(st.sampled_from([1, 2, 7, 64])))
        found = diff_stage_files(left, right, limit=limit)
    largest, index, rms, top = by_the_book(a, b, limit)
    assert (found.max_abs_diff, found.max_abs_diff_index) == (largest, index)
    assert found.rms_diff == pytest.approx(rms, rel=1e-7)
    assert [t.index for t in found.top_diffs] == top


@pytest.mark.parametrize(
    ("a", "b", "cosine"),
    [
        ([1, 0], [1, 0], 1.0),
        ([1, 0], [-1, 0], -1.0),
        ([0, 0], [1, 0], 0.0),
        ([1, 0], [0, 0], 0.0),
        ([NAN, 1], [1, 1], 0.0),
    ],
)
def test_cosine_is_zero_where_a_norm_is_not_above_zero(compare, a, b, cosine):
    assert compare(a, b).cosine_sim == pytest.approx(cosine)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([1, NAN], [1, 2], "drift"),
        ([1, 2], [1, NAN], "drift"),
        ([1, INF], [1, 2], "drift"),
        ([1, INF], [1, -INF], "drift"),
        ([1, NAN], [1, INF], "drift"),
        ([NAN, 1], [1, NAN], "drift"),
        ([1, INF], [1, INF], "same"),
        ([1, 0.0], [1, -0.0], "noise"),
        ([1, NAN, INF], [1, NAN, INF], "not comparable"),
        ([1, NAN], [1 + 2**-23, NAN], "not comparable"),
        ([1, NAN], [2, NAN], "drift"),
        ([NAN, NAN], [NAN, NAN], "not comparable"),
    ],
)
def test_what_is_not_finite_on_one_side_only_is_drift(compare, a, b, verdict):
    found = compare(a, b)
    assert found.verdict.value == verdict
    assert found.exit_code == {"drift": 1, "not comparable": 2}.get(verdict, 0)


def test_a_nan_is_null_in_json_ignored_by_the_maximum_and_first_in_the_list(compare):
    found = compare([5, NAN, 3, NAN], [4, 1, 3, NAN])
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (said["max_abs_diff"], said["max_abs_diff_index"], said["rms_diff"]) == (1.0, 0, None)
    assert [top["index"] for top in said["top_diffs"]] == [1, 0, 2, 3]
    assert said["top_diffs"][0] == {"index": 1, "a": None, "b": 1.0, "abs_diff": None}
    assert (said["nan_a"], said["nan_b"], said["inf_a"], said["inf_b"]) == (2, 1, 0, 0)
    assert (said["nonfinite_mismatches"], said["nonfinite_mismatch_index"]) == (1, 1)


@pytest.mark.parametrize(("count", "roundoffs"), [(1, 100), (30, 50), (2500, 200), (10_000, 800)])
@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "inconclusive"), (1.1, "drift")])
def test_noise_ends_where_the_rule_says(compare, count, roundoffs, factor, verdict):
    reference = np.ones(count, np.float32)
    reference[0] = 4096  # one value takes the whole error, in steps of its last bit
    limit = roundoffs * 2**-24
    assert noise_limit(count) == limit
    candidate = reference.copy()
    candidate[0] += np.float32(factor * limit * np.linalg.norm(reference.astype(np.float64)))
    assert compare(reference, candidate).verdict.value == verdict


@pytest.mark.parametrize(
    ("at", "size", "verdict"), [(5, 1e-3, "inconclusive"), (5, 1e-7, "noise"), (70_000, 1e-4, "inconclusive")]
)
def test_one_value_is_judged_for_its_own_size_beside_large_ones(compare, at, size, verdict):
    ours = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    ours[:3] = 1e7
    theirs = ours.copy()
    theirs[at] *= 1 + size
    found = compare(ours, theirs)
    assert found.verdict.value == verdict
    assert verdict == "noise" or "where rounding alone leaves" in found.reason


def test_a_difference_too_large_for_float32_is_still_judged(compare):
    found = compare([3e38, 1], [-3e38, 1])
    assert found.verdict is Verdict.DRIFT
    assert found.to_json()["max_abs_diff"] is None  # infinite, by the original's float32
    assert found.measurement.rel_l2 == pytest.approx(2)


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [([], [], "both files are empty"), ([NAN], [-NAN], "1 of 1 values are NaN in both files")],
)
def test_nothing_compared_is_never_green(compare, a, b, reason):
    if a:
        a, b = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001))
    found = compare(a, b)
    assert found.exit_code == 2
    assert reason in found.reason
    assert found.rms_diff == 0 or np.isnan(found.rms_diff)


@pytest.mark.parametrize(
    ("a", "b", "verdict", "reason"),
    [
        ([3, 7], [3, 7], "same", "all 2 expert ids are equal"),
        ([3, 16777215], [3, 16777214], "drift", "1 of 2 expert ids differ, first at 1"),
        ([0, 7], [-0.0, 7], "same", "all 2 expert ids are equal"),
        ([3, 7], [3, 7.5], "drift", "the second file has 7.5 at 1, which is no expert id"),
        ([-1, 7], [-1, 7], "drift", "the first file has -1.0 at 0, which is no expert id"),
        ([NAN, 7], [NAN, 7], "drift", "the first file has nan at 0, which is no expert id"),
        ([], [], "inconclusive", "both files are empty"),
    ],
)
def test_router_indices_are_integers_equal_or_not(compare, a, b, verdict, reason):
    found = compare(a, b, stage="moe_router_indices")
    assert found.verdict.value == verdict
    assert reason in found.reason
    said = found.to_json()
    assert (said["integers"], said["rms_diff"], said["cosine_sim"], said["noise_limit"]) == (True, None, None, 0.0)
    assert all(type(top["a"]) is int or top["a"] is None for top in said["top_diffs"])


def test_one_id_apart_is_drift_where_the_same_floats_would_be_noise(compare):
    a, b = [16777215] * 4, [16777215] * 3 + [16777214]
    assert compare(a, b, stage="moe_router").verdict is Verdict.NOISE
    assert compare(a, b, stage="moe_router_indices").verdict is Verdict.DRIFT


def test_size_is_checked_before_the_layer_and_both_messages_name_both_sides(tmp_path):
    a = write_stage_file(tmp_path, 0, "ffn_out", [1, 2])
    b = write_stage_file(tmp_path, 1, "ffn_out", [1, 2, 3])
    c = write_stage_file(tmp_path, WHOLE_MODEL_LAYER, "ffn_out", [1, 2])
    sizes = f"dim_product mismatch: {a} has 2 values, {b} has 3"
    with pytest.raises(StageMismatchError, match=re.escape(sizes)):
        diff_stage_files(a, b)
    layers = f"layer mismatch: {a} is layer 0, {c} is whole-model"
    with pytest.raises(StageMismatchError, match=re.escape(layers)):
        diff_stage_files(a, c)


@pytest.mark.parametrize("side", ["a", "b"])
def test_what_cannot_be_read_is_named(tmp_path, side):
    good = write_stage_file(tmp_path, 0, "ffn_out", [1, 2])

    def diff(bad):
        return diff_stage_files(*((bad, good) if side == "a" else (good, bad)))

    with pytest.raises(StorageError, match="none.bin: cannot read the stage file"):
        diff(tmp_path / "none.bin")
    for name, data, message in [
        ("text.bin", b"hello, world", "text.bin: is not an APRT stage file, which --values compares"),
        ("head.bin", b"APRT\0\0", "head.bin: truncated, 6 bytes of a 12-byte header"),
        (
            "short.bin",
            good.read_bytes()[:-1],
            "short.bin: the header counts 2 values, which takes 20 bytes, but the file",
        ),
        ("long.bin", good.read_bytes() + b"\0", "long.bin: the header counts 2 values"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match=message):
            diff(tmp_path / name)
    with pytest.raises(FormatError, match="is not an APRT stage file"):
        diff(tmp_path)


def test_names_of_two_stages_are_remarked_on(tmp_path):
    a = write_stage_file(tmp_path, 0, "ffn_gate", [1, 2])
    b = write_stage_file(tmp_path, 0, "ffn_up", [1, 2])
    assert "by their names these are two stages, ffn_gate and ffn_up" in diff_stage_files(a, b).reason
    alias = a.replace(a.with_name("layer_output.bin"))
    same = b.replace(b.with_name("post_ffn_residual.bin"))
    assert "two stages" not in diff_stage_files(alias, same).reason


def test_memory_does_not_grow_with_the_files(tmp_path):
    values = np.ones(4_000_000, np.float32)
    a = write_stage_file(tmp_path / "a", 0, "ffn_out", values)
    values[::3] += np.float32(1e-3)
    b = write_stage_file(tmp_path / "b", 0, "ffn_out", values)
    diff_stage_files(a, b)
    tracemalloc.start()
    try:
        diff_stage_files(a, b)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes / 4


def test_the_text_has_the_original_s_numbers_under_the_verdict(compare, tmp_path):
    text = render_values(compare([1, 2, 3, 4], [1, 2.5, 3, 4], limit=2))
    assert text.replace(str(tmp_path), "RUN").replace("\\", "/") == (
        "drift: relative L2 error 9.1e-02 is beyond float32 noise of 4 values (6.0e-06)\n"
        "a: RUN/a/layer-0/ffn_out.bin\n"
        "b: RUN/b/layer-0/ffn_out.bin\n"
        "layer:        0\n"
        "dim_product:  4\n"
        "max_abs_diff: 5.000000e-01 at 1\n"
        "rms_diff:     2.500000e-01\n"
        "cosine_sim:   0.9966351658\n"
        "max_rel:      2.500000e-01\n"
        "max_over_std: 4.472136e-01\n"
        "finite:       every value on both sides\n"
        "top 2:\n"
        "       index              a              b       abs_diff\n"
        "           1   2.000000e+00   2.500000e+00   5.000000e-01\n"
        "           0   1.000000e+00   1.000000e+00   0.000000e+00"
    )


def test_the_largest_difference_over_the_reference_s_deviation_is_said(compare):
    """The figure of FALSIFY-APR-TRACE-SAVE-003."""
    rng = np.random.default_rng(0)
    ours = rng.standard_normal(5000).astype(np.float32) * 3 + 1
    theirs = ours.copy()
    theirs[77] += 0.6
    said = compare(ours, theirs).to_json()
    assert said["max_over_std"] == pytest.approx(0.6 / ours.astype(float).std(), rel=1e-6)
    assert said["max_rel"] == pytest.approx(0.6 / abs(ours[77]), rel=1e-6)
    assert compare([2, 2], [2, 3]).to_json()["max_over_std"] is None  # over a deviation of zero
    assert compare([2, 2], [2, 2]).to_json()["max_over_std"] == 0
    assert compare([3, 5], [4, 7], stage="moe_router_indices").to_json()["max_over_std"] is None


def test_the_text_of_ids_has_whole_numbers_and_no_cosine(compare):
    text = render_values(compare([3, NAN], [4, 7], stage="moe_router_indices"))
    assert "cosine" not in text
    assert re.search(r"^ +0 +3 +4 +1$", text, re.MULTILINE)
    assert re.search(r"^ +1 +nan +7 +nan$", text, re.MULTILINE)
    assert "finite:       reference has 1 NaN and 0 Inf, candidate 0 and 0" in text


def test_quiet_is_one_sentence(compare):
    assert render_values(compare([1], [1]), quiet=True) == "same: all 1 values are bit-equal"


def test_paths_need_not_be_strings(tmp_path):
    a = write_stage_file(tmp_path, 0, "ffn_out", [1, 2])
    assert diff_stage_files(Path(a), str(a)).verdict is Verdict.SAME
