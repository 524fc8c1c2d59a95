"""Whatever bytes are in a file: a checkpoint, or one of our errors, and soon."""

import json
import struct
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.weights.samples import some_tensors
from tests.weights.test_apr import build

from firstdrift.errors import FirstdriftError
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

FILES = {
    "safetensors": "m.safetensors",
    "apr": "m.apr",
    "gguf": "m.gguf",
    "npz": "m.npz",
    "pt": "m.pt",
    "safetensors-sharded": "m.safetensors.index.json",
    "apr-sharded": "m.apr.index.json",
}


@cache
def whole(format):
    """The files of a small checkpoint, the one that is opened first."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / FILES[format]
        tensors = some_tensors()
        metadata = {}
        if format == "gguf":
            tensors = {
                "model.embed_tokens.weight": np.ones((2, 32), np.float32),
                "model.layers.0.self_attn.q_proj.weight": np.ones((8, 4), np.float16),
            }
            metadata = {
                "general.architecture": "llama",
                "llama.attention.head_count": 2,
                "tokenizer.ggml.tokens": ["a", "b"],
            }
        write_checkpoint(path, tensors.items(), format=format, metadata=metadata, shard_bytes=60)
        return {file.name: file.read_bytes() for file in [path, *Path(directory).iterdir()]}


def survives(files):
    """Open damaged files and load everything: nothing but our own errors may come out."""
    with TemporaryDirectory() as directory:
        for name, data in files.items():
            (Path(directory) / name).write_bytes(data)
        try:
            with open_checkpoint(Path(directory) / next(iter(files))) as checkpoint:
                for name in checkpoint:
                    entry = checkpoint.entries[name]
                    assert checkpoint[name].shape == entry.shape
        except FirstdriftError as error:
            assert str(error)
            return False
        return True


@pytest.mark.parametrize("format", FILES)
def test_what_is_whole_is_read(format):
    assert survives(whole(format))


@pytest.mark.parametrize("format", FILES)
@given(data=st.data())
def test_a_truncated_file_is_refused(format, data):
    files = dict(whole(format))
    name = data.draw(st.sampled_from(sorted(files)))
    cut = data.draw(st.integers(0, len(files[name]) - 1))
    footer = format == "apr" and cut == len(files[name]) - 4  # an APR file may do without its checksum
    assert survives({**files, name: files[name][:cut]}) == footer


@pytest.mark.parametrize("format", FILES)
@given(data=st.data())
def test_changed_bytes_are_read_or_refused(format, data):
    files = dict(whole(format))
    name = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1) | st.integers(0, min(200, len(content) - 1)))
        patch = data.draw(
            st.sampled_from([b"\0", b"\xff" * 8, b"\x7f", b"\x01" + b"\0" * 7]) | st.binary(min_size=1, max_size=8)
        )
        content[at : at + len(patch)] = patch
    survives({**files, name: bytes(content)})


@given(
    start=st.sampled_from(
        [b"APR\0\2\0", b"APRN", b"GGUF\3\0\0\0", b"PK\3\4", b"\x80\2", b"{", b'\x20\0\0\0\0\0\0\0{"']
    ),
    rest=st.binary(max_size=400),
)
def test_noise_behind_any_magic_is_refused(start, rest):
    assert not survives({"m.bin": start + rest})


@given(st.binary(max_size=64))
def test_noise_is_refused(data):
    assert not survives({"m": data})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("format", ["safetensors-sharded", "apr-sharded"])
@given(data=st.data())
def test_an_index_with_other_values_is_read_or_refused(format, data):
    files = dict(whole(format))
    index = next(iter(files))
    said = json.loads(files[index])
    key = data.draw(st.sampled_from(sorted(said)))
    said[key] = data.draw(json_values)
    survives({**files, index: json.dumps(said).encode()})


@given(json_values)
def test_a_config_of_any_kind_is_read_or_refused(value):
    with TemporaryDirectory() as directory:
        write_checkpoint(Path(directory) / "model.safetensors", [("wte.weight", np.ones(1))], format="safetensors")
        said = {"tie_word_embeddings": value, "architectures": value, "model_type": value}
        (Path(directory) / "config.json").write_text(json.dumps(said))
        with suppress(FirstdriftError):
            open_checkpoint(directory)


def sparse(path, start, size=6 << 30):
    """A file that claims much and holds nothing: zeros that take no room on the disk."""
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(size)
    return path


HUGE = {
    "m.gguf": b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 0, 5 << 30),  # one array of bytes
    "keys.gguf": b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
    "m.apr": build(metadata_size=2**32 - 1, index_offset=2**32 + 64, data_offset=2**32 + 64, footer=False)[:64],
    "index.apr": build(tensor_count=2**32 - 1, data_offset=5 << 30, footer=False)[:192],
    "m.safetensors": struct.pack("<Q", 5 << 30) + b"{",
    "m.safetensors.index.json": b'{"weight_map": {',
    "m.json": b"{",
    "m.npz": b"PK\3\4",
    "m.pt": b"\x80\2",
}
MEASURED = """
import resource, sys
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.errors import FirstdriftError
if sys.argv[1].endswith(".pt"):
    import torch
if sys.argv[1].endswith(".gguf"):
    import gguf
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    open_checkpoint(sys.argv[1])
except FirstdriftError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures as Linux does")
@pytest.mark.parametrize("name", HUGE)
def test_what_claims_gigabytes_is_refused_without_taking_them(tmp_path, name):
    path = sparse(tmp_path / name, HUGE[name])
    command = [sys.executable, "-c", MEASURED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 200, "MiB"


def test_metadata_nested_without_end_is_refused(tmp_path):
    (tmp_path / "m.apr").write_bytes(build(b'{"a":' + b"[" * 200_000))
    with pytest.raises(FirstdriftError, match="MetadataError"):
        open_checkpoint(tmp_path / "m.apr")
