"""safetensors: checkpoints of others, shard indices that lie, and files that are not what they say."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import firstdrift as fd
from firstdrift.store.formats import carried, safetensors_trace
from firstdrift.testing import memory_trace

SITE = fd.Site(0, "fwd", "a", "out")


def export(tensors, path):
    safetensors_trace.write(memory_trace(tensors), path, overwrite=False, advance=lambda n: None)
    return path


def sharded(directory, shards, weight_map=None):
    """Shards {file: {key: array}} and their index."""
    for name, tensors in shards.items():
        save_file(tensors, directory / name)
    said = {key: name for name, tensors in shards.items() for key in tensors} if weight_map is None else weight_map
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": said}))
    return index


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
X, Y = np.float32([1, 2]), np.float32([3])


def raw(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


# --- one file


def test_a_checkpoint_is_read_as_weights(tmp_path):
    save_file({"layers.0.q_proj.weight": X, "layers.0.q_proj.bias": Y, "scale": Y}, tmp_path / "model.safetensors")
    trace = fd.open_trace(tmp_path)
    found = {str(record.site): trace.array(record).tolist() for record in trace}
    assert found == {
        "weight layers.0.q_proj:weight step 0": [1.0, 2.0],
        "weight layers.0.q_proj:bias step 0": [3.0],
        "weight (root):scale step 0": [3.0],
    }


def test_an_export_loads_with_the_library(tmp_path):
    path = export({fd.Site(0, "weight", "fc", "weight"): X, SITE: Y}, tmp_path / "a.safetensors")
    loaded = load_file(path)
    assert {key: array.tolist() for key, array in loaded.items()} == {"fc.weight": [1.0, 2.0], "a.fwd": [3.0]}


def test_sites_whose_keys_would_be_equal_keep_their_own_tensors(tmp_path):
    tensors = {
        fd.Site(0, "fwd", "a", "c1"): X, fd.Site(0, "fwd", "a", "out", 1): Y,
        fd.Site(0, "weight", "", "__metadata__"): X + 1, fd.Site(0, "fwd", "x" * 4096, "out"): Y + 1,
    }  # fmt: skip
    trace = fd.open_trace(export(tensors, tmp_path / "a.safetensors"))
    assert {record.site: trace.array(record).tobytes() for record in trace} == {
        site: array.tobytes() for site, array in tensors.items()
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a valid safetensors file"),
        (b"\x80\x04pickle", "not a valid safetensors file"),
        (raw({}, length=1 << 40), "not a valid safetensors file"),
        (raw(b"{" * 5000), "not a valid safetensors file"),
        (raw({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)), "not a valid safetensors file"),
        (raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(8)), "not a valid safetensors file"),
        (raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(5)), "not a valid safetensors file"),
        (raw({"a": {"dtype": "Q4", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "not a valid safetensors file"),
        (
            raw({"a": {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [0, 1]}}, bytes(1)),
            "tensor 'a': has dtype F8_E8M0",
        ),
        (raw({"a": {"dtype": "F32", "shape": [0, 1 << 62], "data_offsets": [0, 0]}}), "tensor 'a': .*beyond"),
        (raw({"a": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}, bytes(4)), "tensor 'a': .*beyond"),
        (
            raw({"../a/..": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, bytes(1)),
            "would leave the directory",
        ),
    ],
    ids=range(12),
)
def test_files_that_lie_are_refused_by_name(tmp_path, data, words):
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises((fd.FormatError, fd.SiteError), match=rf"a\.safetensors.*{words}"):
        fd.open_trace(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda index: index.update(version=9), fd.VersionError, "version 9, but this firstdrift reads up to 1"),
        (lambda index: index["sites"][0].update(dtype=["f32"]), fd.FormatError, "in the index and"),
        (lambda index: index["sites"][0].update(dtype="i32"), fd.FormatError, r"i32\[2\] in the index and f32\[2\]"),
        (lambda index: index["sites"].append(7), fd.FormatError, "7 is not an object"),
        (lambda index: index["sites"][0].update(key="b"), fd.FormatError, "names the tensor 'b'"),
    ],
    ids=range(5),
)
def test_a_carried_index_that_lies_is_refused(tmp_path, change, error, words):
    path = export({SITE: X}, tmp_path / "a.safetensors")
    with safe_open(path, "np") as opened:
        index = json.loads(opened.metadata()[carried.NAME])
    change(index)
    save_file({"a.fwd": X}, path, metadata={carried.NAME: json.dumps(index)})
    with pytest.raises(error, match=rf"a\.safetensors: its firstdrift index: .*{words}"):
        fd.open_trace(path)


def test_a_tensor_added_later_is_named(tmp_path):
    path = export({SITE: X}, tmp_path / "a.safetensors")
    with safe_open(path, "np") as opened:
        metadata = opened.metadata()
    save_file({"a.fwd": X, "b": Y}, path, metadata=metadata)
    assert fd.open_trace(path).problems == ("'b' is not in the firstdrift index; it was added later",)


# --- shards


@pytest.mark.parametrize("by_index", [True, False])
def test_a_sharded_checkpoint_is_opened_by_its_index_or_its_directory(tmp_path, by_index):
    index = sharded(tmp_path, {ONE: {"a.weight": X}, TWO: {"b.weight": Y, "b.bias": X}})
    trace = fd.open_trace(index if by_index else tmp_path)
    assert trace.complete
    found = {(record.site.name, record.site.port): trace.array(record).tolist() for record in trace}
    assert found == {("a", "weight"): [1.0, 2.0], ("b", "weight"): [3.0], ("b", "bias"): [1.0, 2.0]}


def test_a_missing_shard_is_named(tmp_path):
    index = sharded(tmp_path, {ONE: {"a": X}, TWO: {"b": Y}})
    (tmp_path / TWO).unlink()
    with pytest.raises(fd.FormatError, match=f"index.json: names the shard {TWO}, which is not there"):
        fd.open_trace(index)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    index = sharded(tmp_path, {ONE: {"a": X}, TWO: {"a": X, "b": Y}}, {"a": ONE, "b": TWO})
    with pytest.raises(fd.FormatError, match=f"{TWO} and {ONE}: both hold 'a'"):
        fd.open_trace(index)


@pytest.mark.parametrize("weight_map", [{"a": ONE, "b": ONE, "c": TWO}, {"a": ONE, "b": TWO, "c": TWO, "gone": TWO}])
def test_an_index_that_names_the_wrong_shard_is_refused(tmp_path, weight_map):
    index = sharded(tmp_path, {ONE: {"a": X}, TWO: {"b": Y, "c": X}}, weight_map)
    with pytest.raises(fd.FormatError, match=r"index.json: says that .* holds '(b|gone)', and it does not"):
        fd.open_trace(index)


def test_a_tensor_the_index_does_not_list_is_a_problem(tmp_path):
    index = sharded(tmp_path, {ONE: {"a": X, "extra": Y}}, {"a": ONE})
    trace = fd.open_trace(index)
    assert trace.problems == (f"{ONE} holds 'extra', which {index.name} does not list",)
    assert len(trace) == 2


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b", "x\0"])
def test_a_shard_outside_of_the_directory_is_refused(tmp_path, name):
    with pytest.raises(fd.FormatError, match="is not a plain file name beside the index"):
        fd.open_trace(sharded(tmp_path, {}, {"a": name}))


def test_a_shard_whose_name_is_too_long_is_refused(tmp_path):
    with pytest.raises(fd.FirstdriftError, match="cannot look for its shards .File name too long."):
        fd.open_trace(sharded(tmp_path, {}, {"a": "é" * 300}))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}', b"\xff", b"{"],
)
def test_an_index_that_is_none_is_refused(tmp_path, text):
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(text)
    with pytest.raises(fd.FormatError, match=r"model\.safetensors\.index\.json: .*fetch it again"):
        fd.open_trace(index)


def test_a_directory_of_several_checkpoints_asks_which(tmp_path):
    save_file({"a": X}, tmp_path / "a.safetensors")
    save_file({"a": X}, tmp_path / "b.safetensors")
    with pytest.raises(fd.NotATraceError, match=r"holds 2 files a\.safetensors, b\.safetensors; name the one to open"):
        fd.open_trace(tmp_path)


def test_one_shard_of_several_without_their_index_is_not_a_whole_checkpoint(tmp_path):
    save_file({"a.weight": np.ones(3, np.float32)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(fd.NotATraceError, match="is one of 2 shards, without their index; fetch it"):
        fd.open_trace(tmp_path)
