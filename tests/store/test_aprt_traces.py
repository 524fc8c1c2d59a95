"""Directories of stage files as traces: sites, order, producers, and what is in the wrong place."""

from __future__ import annotations

import numpy as np
import pytest

import firstdrift as fd
from firstdrift.aprt import WHOLE_MODEL_LAYER, maybe_save
from firstdrift.core.stages import EXECUTION_RANK, STAGES, WHOLE_MODEL
from firstdrift.store.formats import aprt_stages


def write(directory, *stages):
    for stage in stages:
        name, _, layer = stage.partition("@")
        fd.write_stage_file(directory, int(layer) if layer else WHOLE_MODEL_LAYER, name, [1.0])
    return fd.open_trace(directory)


def producers(trace, name):
    found = trace[fd.Site(0, "fwd", name, "out")].producers
    return None if found is None else [site.name for site in found]


def test_all_stages_come_in_execution_order_layer_by_layer(tmp_path):
    plan = fd.SavePlan.from_cli("all", "0..12", tmp_path)
    for layer in range(12):
        for stage in STAGES:
            maybe_save(plan, stage, layer, [1.0])
    trace = fd.open_trace(tmp_path)
    layered = sorted(set(STAGES) - WHOLE_MODEL, key=EXECUTION_RANK.__getitem__)
    expected = [f"layer-{layer}.{stage}" for layer in range(12) for stage in layered]
    assert [record.site.name for record in trace] == [*expected, "final_norm", "lm_head"]
    assert {(record.site.phase, record.site.port) for record in trace} == {("fwd", "out")}
    assert trace.header["graph"] == "stage table"
    assert [r.site.name for r in trace if r.attrs.get("index")] == [f"layer-{n}.moe_router_indices" for n in range(12)]


def test_producers_come_before_their_consumers_in_every_selection(tmp_path):
    trace = write(tmp_path, *(f"{stage}@{n}" for n in (0, 2, 10) for stage in STAGES if stage not in WHOLE_MODEL))
    place = {record.site: number for number, record in enumerate(trace)}
    for record in trace:
        assert all(place[producer] < place[record.site] for producer in record.producers)


@pytest.mark.parametrize(
    ("stages", "of", "expected"),
    [
        (["embedding@0", "attn_norm@0"], "layer-0.attn_norm", ["layer-0.embedding"]),
        (["post_ffn_residual@0", "attn_norm@1"], "layer-1.attn_norm", ["layer-0.post_ffn_residual"]),
        (["embedding@0", "ffn_out@0", "attn_norm@1"], "layer-1.attn_norm", ["layer-0.ffn_out", "layer-0.embedding"]),
        (["post_ffn_residual@9", "attn_norm@10"], "layer-10.attn_norm", ["layer-9.post_ffn_residual"]),
        (["ffn_norm@0", "ffn_swigl@0"], "layer-0.ffn_swigl", ["layer-0.ffn_norm"]),
        (["ffn_gate@0", "ffn_up@0", "ffn_swigl@0"], "layer-0.ffn_swigl", ["layer-0.ffn_up", "layer-0.ffn_gate"]),
        (["post_ffn_residual@3", "final_norm"], "final_norm", ["layer-3.post_ffn_residual"]),
        (["final_norm", "lm_head"], "lm_head", ["final_norm"]),
        (["moe_ffn_out@0", "ffn_norm@0", "post_ffn_residual@0"], "layer-0.post_ffn_residual",
         ["layer-0.moe_ffn_out"]),
        (["moe_router@0", "moe_ffn_out@0"], "layer-0.moe_ffn_out", ["layer-0.moe_router"]),
        (["embedding@0"], "layer-0.embedding", []),
        (["mystery@0"], "layer-0.mystery", None),
        (["final_norm", "lm_head@0"], "layer-0.lm_head", None),
    ],
)  # fmt: skip
def test_producers_are_the_nearest_recorded_stages(tmp_path, stages, of, expected):
    found = producers(write(tmp_path, *stages), of)
    assert found == expected if expected is None else set(found) == set(expected)


def test_a_single_file_is_a_trace_of_one_site(tmp_path):
    path = fd.write_stage_file(tmp_path, 3, "ffn_gate", [1.0, 2.0])
    trace = fd.open_trace(path)
    assert [str(record.site) for record in trace] == ["fwd layer-3.ffn_gate:out step 0"]
    assert trace.array(trace.records[0]).tolist() == [1.0, 2.0]


def test_the_alias_as_a_file_is_the_residual_and_not_a_second_one(tmp_path):
    trace = write(tmp_path, "layer_output@0")
    assert [record.site.name for record in trace] == ["layer-0.post_ffn_residual"]
    fd.write_stage_file(tmp_path, 0, "post_ffn_residual", [1.0])
    with pytest.raises(fd.FormatError, match=r"post_ffn_residual\.bin and layer_output\.bin: are the same stage"):
        fd.open_trace(tmp_path)


@pytest.mark.parametrize(
    ("header", "place", "words"),
    [
        ("x@1", "layer-2/x.bin", "says layer 1, its place layer 2"),
        ("x", "layer-2/x.bin", "says whole model, its place layer 2"),
        ("x@1", "x.bin", "says layer 1, its place whole model"),
    ],
)
def test_a_file_whose_header_contradicts_its_place_is_refused(tmp_path, header, place, words):
    write(tmp_path / "made", header)
    (tmp_path / "run" / place).parent.mkdir(parents=True)
    next((tmp_path / "made").rglob("*.bin")).rename(tmp_path / "run" / place)
    with pytest.raises(fd.FormatError, match=rf"x\.bin: its header {words}"):
        fd.open_trace(tmp_path / "run")


@pytest.mark.parametrize("name", ["layer-00", "layer-4294967295", "layer-99999999999999999999"])
def test_a_layer_directory_that_no_header_can_mean_is_refused(tmp_path, name):
    write(tmp_path, "x@0")
    (tmp_path / "layer-0").rename(tmp_path / name)
    with pytest.raises(fd.FormatError, match=f"{name}: is not layer-N with N from 0 to 4294967294, unpadded"):
        fd.open_trace(tmp_path)


def test_a_stray_bin_among_stage_files_is_named(tmp_path):
    write(tmp_path, "x@0")
    (tmp_path / "layer-0" / "notes.bin").write_bytes(b"something else")
    with pytest.raises(fd.FormatError, match=r"notes\.bin: bad magic"):
        fd.open_trace(tmp_path)


def test_a_file_name_that_is_not_unicode_is_named(tmp_path):
    path = fd.write_stage_file(tmp_path, 0, "x", [1.0])
    path.rename(path.with_name("\udcff.bin"))
    with pytest.raises(fd.SiteError, match=r"layer-0/.*lone surrogate"):
        fd.open_trace(tmp_path)


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (fd.Site(1, "fwd", "x", "out"), "one step"),
        (fd.Site(0, "grad", "x", "weight"), "only float32 forward outputs"),
        (fd.Site(0, "fwd", "a/b", "out"), "not a plain file name"),
        (fd.Site(0, "fwd", "layer-4294967295.x", "out"), "layer 4294967295 is above"),
    ],
    ids=str,
)
def test_what_aprt_cannot_hold_is_refused_before_anything_is_written(tmp_path, site, words):
    with fd.Writer(tmp_path / "source") as writer:
        writer.put("first", "fwd", np.float32([1]))
        step, phase, name, port, call, sample = site
        writer.put(name, phase, np.float32([1]), port=port, step=step, call=call, sample=sample)
    with pytest.raises(fd.SiteError, match=words):
        aprt_stages.write(fd.open_trace(tmp_path / "source"), tmp_path / "out", overwrite=False, advance=lambda n: None)
    assert not (tmp_path / "out").exists()
