"""APRT stage files: the original's claims, its byte vectors, and the stricter rules that are ours."""

from __future__ import annotations

import os
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import firstdrift as fd
from firstdrift.aprt import WHOLE_MODEL_LAYER, StageHeader, is_stage_file, read_header, save_stage, stage_path
from firstdrift.testing import awkward_array, bits


def stage_bytes(layer, values, count=None):
    values = np.asarray(values, "<f4")
    return struct.pack("<4sII", b"APRT", layer, values.size if count is None else count) + values.tobytes()


# --- the original's claims


def test_a_layer_file_round_trips(tmp_path):
    path = fd.write_stage_file(tmp_path, 3, "ffn_gate", [1.0, -2.5, 0.25])
    header, values = fd.read_stage_file(path)
    assert (header.layer, header.dim_product, header.is_whole_model) == (3, 3, False)
    assert values.dtype == np.float32
    assert values.tolist() == [1.0, -2.5, 0.25]


def test_a_whole_model_file_round_trips(tmp_path):
    path = fd.write_stage_file(tmp_path, WHOLE_MODEL_LAYER, "lm_head", [7.0])
    header, values = fd.read_stage_file(path)
    assert header.is_whole_model
    assert values.tolist() == [7.0]


def test_missing_parents_are_created(tmp_path):
    path = fd.write_stage_file(tmp_path / "a" / "b", 0, "embedding", [1.0])
    assert path == tmp_path / "a" / "b" / "layer-0" / "embedding.bin"
    assert path.is_file()


def test_an_existing_file_is_truncated_and_not_appended_to(tmp_path):
    fd.write_stage_file(tmp_path, 0, "ffn_up", np.zeros(1000, np.float32))
    path = fd.write_stage_file(tmp_path, 0, "ffn_up", [1.0])
    assert path.stat().st_size == 16
    assert fd.read_stage_file(path)[1].tolist() == [1.0]


def test_a_zero_length_tensor_is_twelve_bytes(tmp_path):
    path = fd.write_stage_file(tmp_path, 5, "attn_out", [])
    assert path.stat().st_size == 12
    header, values = fd.read_stage_file(path)
    assert header.dim_product == 0
    assert values.shape == (0,)


def test_nan_inf_and_sign_bits_are_kept(tmp_path):
    awkward = awkward_array("f32")
    assert 0x7F800001 in awkward.view("<u4")  # a signalling NaN, which struct would quiet
    path = fd.write_stage_file(tmp_path, 0, "attention", awkward)
    assert bits(fd.read_stage_file(path)[1]) == bits(awkward)


def test_magic_and_layer_stand_in_the_raw_bytes(tmp_path):
    raw = fd.write_stage_file(tmp_path, 0x01020304, "ffn_norm", [0.0]).read_bytes()
    assert raw[:4] == b"APRT"
    assert raw[4:8] == b"\x04\x03\x02\x01"


def test_a_missing_path_is_an_error_that_names_it(tmp_path):
    with pytest.raises(fd.StorageError, match=r"nowhere\.bin: cannot read the stage file \(No such file"):
        fd.read_stage_file(tmp_path / "nowhere.bin")


@pytest.mark.parametrize("layer", [0, 12, WHOLE_MODEL_LAYER])
def test_the_returned_path_is_that_of_output_path(tmp_path, layer):
    assert fd.write_stage_file(tmp_path, layer, "x", [1.0]) == fd.output_path(tmp_path, layer, "x")


def test_three_stages_in_one_layer_are_three_files(tmp_path):
    for stage in ("ffn_gate", "ffn_up", "ffn_silu"):
        fd.write_stage_file(tmp_path, 3, stage, [1.0])
    assert sorted(path.name for path in (tmp_path / "layer-3").iterdir()) == [
        "ffn_gate.bin",
        "ffn_silu.bin",
        "ffn_up.bin",
    ]


def test_two_writes_give_identical_bytes(tmp_path):
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    first = fd.write_stage_file(tmp_path / "a", 1, "qkv_bias", values)
    second = fd.write_stage_file(tmp_path / "b", 1, "qkv_bias", values)
    assert first.read_bytes() == second.read_bytes()


def test_the_whole_model_head_lies_beside_the_head_of_layer_0(tmp_path):
    whole = fd.write_stage_file(tmp_path, WHOLE_MODEL_LAYER, "lm_head", [1.0])
    layered = fd.write_stage_file(tmp_path, 0, "lm_head", [2.0])
    assert (whole, layered) == (tmp_path / "lm_head.bin", tmp_path / "layer-0" / "lm_head.bin")
    trace = fd.open_trace(tmp_path)
    assert trace.array(fd.Site(0, "fwd", "lm_head", "out")).tolist() == [1.0]
    assert trace.array(fd.Site(0, "fwd", "layer-0.lm_head", "out")).tolist() == [2.0]


@pytest.mark.parametrize("size", range(12))
def test_a_truncated_header_is_one_class_of_error_for_bytes_and_files(tmp_path, size):
    data = stage_bytes(0, [1.0])[:size]
    with pytest.raises(fd.FormatError, match=f"truncated, {size} bytes of a 12-byte header"):
        StageHeader.parse(data)
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(fd.FormatError, match=rf"x\.bin: truncated, {size} bytes"):
        fd.read_stage_file(tmp_path / "x.bin")


# --- byte vectors and headers


def test_the_byte_vector_of_layer_3(tmp_path):
    path = fd.write_stage_file(tmp_path, 3, "x", np.array([0x7FC00000, 0x3F800000], "<u4").view("<f4"))
    assert path.read_bytes() == bytes.fromhex("41505254 03000000 02000000 0000C07F 0000803F")


def test_the_byte_vector_of_the_empty_whole_model(tmp_path):
    path = fd.write_stage_file(tmp_path, WHOLE_MODEL_LAYER, "x", [])
    assert path.read_bytes() == bytes.fromhex("41505254 FFFFFFFF 00000000")


def test_the_header_parser_uses_twelve_bytes_and_knows_the_total_size():
    header = StageHeader.parse(stage_bytes(7, [1.0, 2.0]) + b"rest")
    assert header == StageHeader(7, 2)
    assert header.total_size == 20
    assert StageHeader(7, 2).to_bytes() == stage_bytes(7, [1.0, 2.0])[:12]


# --- strict rules that are ours


def test_a_bad_magic_says_what_it_got(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"APRN" + bytes(8))
    with pytest.raises(fd.FormatError, match=r"x\.bin: bad magic b'APRN', expected b'APRT'"):
        read_header(tmp_path / "x.bin")


@pytest.mark.parametrize(("change", "size"), [(-1, 19), (-8, 12), (1, 21), (4, 24)])
def test_a_body_of_another_length_names_both_byte_counts(tmp_path, change, size):
    data = stage_bytes(0, [1.0, 2.0])
    (tmp_path / "x.bin").write_bytes(data[:change] if change < 0 else data + b"\0" * change)
    with pytest.raises(fd.FormatError, match=f"counts 2 values, which takes 20 bytes, but the file has {size}"):
        fd.read_stage_file(tmp_path / "x.bin")


def test_a_huge_claim_on_twelve_bytes_fails_without_allocating(tmp_path):
    (tmp_path / "x.bin").write_bytes(stage_bytes(0, [], count=0xFFFFFFFF))
    tracemalloc.start()
    try:
        with pytest.raises(fd.FormatError, match="4294967295 values, which takes 17179869192 bytes"):
            fd.read_stage_file(tmp_path / "x.bin")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.bin")
    assert not is_stage_file(tmp_path / "x.bin")
    with pytest.raises(fd.FormatError, match="not a regular file"):
        read_header(tmp_path / "x.bin")


# --- what may be written


@pytest.mark.parametrize("stage", ["", "../x", "a/b", "a\\b", "..", "nul\0", "\ud800"])
def test_a_stage_that_is_no_file_name_is_refused(tmp_path, stage):
    with pytest.raises(fd.SiteError, match="stage"):
        fd.write_stage_file(tmp_path / "out", 0, stage, [1.0])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layer", [-1, 2**32, True, 1.0, "0", None])
def test_a_layer_that_is_no_number_is_refused(tmp_path, layer):
    with pytest.raises(fd.SiteError, match="from 0 to 4294967294"):
        fd.output_path(tmp_path, layer, "x")


@pytest.mark.parametrize(
    "values",
    [
        np.array([1, 2], np.int64),
        np.array([1.5, np.nan, -np.inf, -0.0]),
        np.array([1.5, 2.0], ml_dtypes.bfloat16),
        np.array([1.0, 2.0], ">f4"),
        np.asfortranarray([[1.0, 2.0], [3.0, 4.0]], np.float32),
    ],
    ids=["int64", "float64", "bfloat16", "big-endian", "fortran"],
)
def test_arrays_whose_values_are_float32_values_are_written_in_c_order(tmp_path, values):
    stored = fd.read_stage_file(fd.write_stage_file(tmp_path, 0, "x", values))[1]
    np.testing.assert_array_equal(stored, values.astype(np.float64).reshape(-1))


@pytest.mark.parametrize(
    "values",
    [np.array([0.1]), np.array([2**24 + 1]), np.array([2**53 + 1]), np.array([1e300]), np.array([1j]), np.array(["a"])],
    ids=str,
)
def test_values_that_float32_would_change_are_refused(tmp_path, values):
    with pytest.raises(fd.SiteError, match="values do not fit; convert them first"):
        fd.write_stage_file(tmp_path, 0, "x", values)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_the_way_is_our_error(tmp_path):
    (tmp_path / "x.bin").mkdir()
    with pytest.raises(fd.FormatError, match=r"x\.bin: is not a regular file but a directory"):
        fd.write_stage_file(tmp_path, WHOLE_MODEL_LAYER, "x", [1.0])
    assert list(tmp_path.iterdir()) == [tmp_path / "x.bin"]


# --- saving by stage


def test_save_stage_puts_whole_model_stages_at_the_root_whatever_the_layer(tmp_path):
    save_stage(tmp_path, "lm_head", 7, [1.0])
    assert fd.read_stage_file(tmp_path / "lm_head.bin")[0].is_whole_model


def test_save_stage_writes_the_alias_under_its_own_name(tmp_path):
    save_stage(tmp_path, "layer_output", 2, [1.0])
    assert (tmp_path / "layer-2" / "post_ffn_residual.bin").is_file()


def test_writing_by_name_takes_the_name_as_it_is(tmp_path):
    assert fd.write_stage_file(tmp_path, 2, "Layer_Output", [1.0]).name == "Layer_Output.bin"


def test_maybe_save_follows_the_plan(tmp_path):
    plan = fd.SavePlan.from_cli("ffn_gate,layer_output,final_norm", "1..3", tmp_path)
    fd.maybe_save(None, "ffn_gate", 1, [1.0])
    for layer in range(4):
        for stage in ("ffn_gate", "ffn_up", "layer_output", "final_norm"):
            fd.maybe_save(plan, stage, layer, [float(layer)])
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.bin"))
    assert written == [
        "final_norm.bin",
        *(f"layer-{layer}/{stage}.bin" for layer in (1, 2) for stage in ("ffn_gate", "post_ffn_residual")),
    ]


def test_stage_path_forces_the_sentinel_for_whole_model_stages(tmp_path):
    plan = fd.SavePlan.from_cli("all", "0..1", tmp_path)
    assert stage_path(plan, "lm_head", 3) == tmp_path / "lm_head.bin"
    assert stage_path(plan, "layer_output", 3) == tmp_path / "layer-3" / "post_ffn_residual.bin"


@pytest.mark.parametrize("values", [[1e300], None, ["1.5"], ["a"], [None, "x"], [[1.0], [2.0, 3.0]], [object()]])
def test_values_that_are_no_float32_are_refused(tmp_path, values):
    with pytest.raises(fd.SiteError, match=r"ffn_up\.bin"):
        fd.write_stage_file(tmp_path, 0, "ffn_up", values)
    assert not list(tmp_path.rglob("*.bin"))
