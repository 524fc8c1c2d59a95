"""Hostile bytes for every reader: only errors of ours come out, at opening or when a tensor is asked for."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import firstdrift as fd
from firstdrift.aprt import StageHeader
from firstdrift.compare.open_trace import load_format
from firstdrift.core.stages import parse_layer_range, parse_stages
from firstdrift.core.strict_json import encode
from firstdrift.store.formats.carried import NAME as CARRIED
from firstdrift.testing import awkward_array, memory_trace
from firstdrift.testing.damage import files_of, read_all
from firstdrift.testing.strategies import damaged

fuzz = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

SOURCE = memory_trace(
    {
        fd.Site(0, "fwd", "layer-0.attn_norm", "out"): awkward_array("f32"),
        fd.Site(0, "fwd", "lm_head", "out"): np.float32([]),
    }
)
FLAT = memory_trace(
    {
        fd.Site(0, "fwd", "conv1", "out"): awkward_array("f32"),
        fd.Site(0, "grad", "conv1", "bias"): awkward_array("f16").reshape(2, -1),
        fd.Site(1, "fwd", "conv1", "out", 0, 3): np.float64(1.5),
    }
)
CASES = {
    "trace": ("run", FLAT), "aprt": ("run", SOURCE), "npy": ("run", FLAT),
    "npz": ("a.npz", FLAT), "safetensors": ("a.safetensors", FLAT),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_mutated_files_give_only_our_errors(name):
    target, source = CASES[name]
    format = load_format(name)

    @fuzz
    @given(st.data())
    def check(data):
        with TemporaryDirectory() as directory:
            path = Path(directory) / target
            format.write(source, path, overwrite=False, advance=lambda n: None)
            files = files_of(path)
            file = data.draw(st.sampled_from(files))
            other = data.draw(st.sampled_from(files)).read_bytes()
            file.write_bytes(data.draw(damaged(file.read_bytes()) | st.just(other)))
            read_all(format, path)

    check()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | st.just("f32"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
LINE_KEYS = (
    "step",
    "phase",
    "name",
    "port",
    "call",
    "sample",
    "dtype",
    "shape",
    "key",
    "from",
    "stats",
    "order",
    "attrs",
)


@fuzz
@given(st.dictionaries(st.sampled_from(LINE_KEYS), json_values, max_size=4), json_values)
@example({"dtype": ["f32"]}, {})
@example({"dtype": {}}, {})
def test_a_carried_index_of_any_json_gives_only_our_errors(changes, header):
    line = {"phase": "fwd", "name": "a", "port": "out", "dtype": "f32", "shape": [2], "key": "a.fwd"}
    index = encode({"version": 1, "header": header, "sites": [{**line, **changes}]})
    with TemporaryDirectory() as directory:
        path = Path(directory) / "a.safetensors"
        save_file({"a.fwd": np.float32([1, 2])}, path, metadata={CARRIED: index})
        read_all(load_format("safetensors"), path)


@fuzz
@given(json_values, st.sampled_from(("weight_map", "metadata", "x")))
def test_a_shard_index_of_any_json_gives_only_our_errors(value, key):
    with TemporaryDirectory() as directory:
        path = Path(directory) / "m.safetensors.index.json"
        path.write_text(encode({key: value}))
        read_all(load_format("safetensors"), path)


@fuzz
@given(st.dictionaries(st.text(max_size=8), json_values, max_size=3))
def test_a_safetensors_header_of_any_json_gives_only_our_errors(header):
    text = json.dumps(header).encode()
    with TemporaryDirectory() as directory:
        path = Path(directory) / "a.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
        read_all(load_format("safetensors"), path)


@fuzz
@given(st.text(max_size=60))
def test_an_npy_header_of_any_text_gives_only_our_errors(text):
    with TemporaryDirectory() as directory:
        data = text.encode("utf-8", "replace")
        file = Path(directory) / "a.fwd.npy"
        file.write_bytes(b"\x93NUMPY\x01\x00" + len(data).to_bytes(2, "little") + data)
        read_all(load_format("npy"), Path(directory))


@fuzz
@given(
    st.sampled_from(("'<f4'", "'|V2'", "'O'", "'<U3'", "[('a','<f4')]", "'>c16'", "'f'", "''", "{}", "'<M8[D]'", "7")),
    st.lists(st.integers(-2, 2**65), max_size=4).map(tuple),
    st.booleans(),
    st.binary(max_size=40),
)
def test_npy_headers_of_any_dtype_and_shape_give_only_our_errors(descr, shape, fortran, body):
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n".encode()
    with TemporaryDirectory() as directory:
        file = Path(directory) / "a.fwd.npy"
        file.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body)
        read_all(load_format("npy"), Path(directory))


@fuzz
@given(st.binary(max_size=64))
def test_any_bytes_under_any_name_give_only_our_errors(data):
    with TemporaryDirectory() as directory:
        for name in ("a.npz", "a.safetensors", "m.safetensors.index.json", "a.bin", "a.aprt"):
            path = Path(directory) / name
            path.write_bytes(data)
            try:
                fd.open_trace(path)
            except fd.FirstdriftError as error:
                assert name in str(error)


@fuzz
@given(st.binary(max_size=40), st.text(max_size=20))
def test_parsers_of_stages_and_headers_give_only_our_errors(data, text):
    for parse, argument in ((StageHeader.parse, data), (parse_stages, text), (parse_layer_range, text)):
        with suppress(fd.FirstdriftError):
            parse(argument)


def test_the_fuzzer_starts_from_files_that_are_whole(tmp_path):
    for name, (target, source) in CASES.items():
        path = tmp_path / name / target
        path.parent.mkdir()
        load_format(name).write(source, path, overwrite=False, advance=lambda n: None)
        assert fd.open_trace(path).complete
