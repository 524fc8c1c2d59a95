"""APR version 2, byte for byte: the worked example both ways, every rejection by its name, shards and metadata."""

import json
import struct
import zlib

import gguf
import ml_dtypes
import numpy as np
import pytest
from tests.weights.samples import EXAMPLE, bits, same

from firstdrift.errors import FirstdriftError, FormatError
from firstdrift.weights.formats import apr_metadata
from firstdrift.weights.formats.apr_layout import BYTES, align, checksum
from firstdrift.weights.formats.quantized_blocks import dequantize, encode_blocks
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

METADATA = EXAMPLE[64 : 64 + 0x67]
ENTRY = EXAMPLE[192:229]
VALUES = np.array([[1, -2], [0.5, 3]], np.float32)


def build(metadata=METADATA, entries=(ENTRY,), data=EXAMPLE[256:320], flags=0x0400, footer=True, **wrong):
    """A file in the format's layout; `wrong` fields of the header are lies, with a checksum that fits."""
    index = b"".join(entries)
    fields = {
        "flags": flags,
        "tensor_count": len(entries),
        "metadata_offset": BYTES,
        "metadata_size": len(metadata),
        "index_offset": BYTES + align(len(metadata)),
        "data_offset": BYTES + align(len(metadata)) + align(len(index)),
    } | wrong
    head = bytearray(struct.pack("<4sBBHIQIQQI20x", b"APR\0", 2, 0, *fields.values(), 0))
    head[40:44] = struct.pack("<I", checksum(bytes(head)))
    body = bytes(head) + metadata.ljust(align(len(metadata)), b"\0") + index.ljust(align(len(index)), b"\0") + data
    return body + (struct.pack("<I", zlib.crc32(body)) if footer else b"")


def entry(name=b"w", code=0, dims=(2, 2), offset=0, size=16):
    numbers = struct.pack(f"<{len(dims) + 2}Q", *dims, offset, size)
    return struct.pack("<H", len(name)) + name + bytes((code, len(dims))) + numbers


def opened(tmp_path, data):
    path = tmp_path / "m.apr"
    path.write_bytes(data)
    return open_checkpoint(path)


def test_the_worked_example_is_what_our_builder_of_lies_makes():
    assert build() == EXAMPLE
    assert entry() == ENTRY


def test_the_worked_example_is_read(tmp_path):
    checkpoint = opened(tmp_path, EXAMPLE)
    assert checkpoint.format == "apr"
    assert checkpoint.metadata["model_type"] == "t"
    assert bits(checkpoint["w"]) == bits(VALUES)
    assert checkpoint.notes == ()


def test_the_worked_example_is_written(tmp_path):
    write_checkpoint(tmp_path / "m.apr", [("w", VALUES)], format="apr", metadata={"model_type": "t"})
    assert (tmp_path / "m.apr").read_bytes() == EXAMPLE


def test_a_file_without_a_footer_is_read_and_says_so(tmp_path):
    checkpoint = opened(tmp_path, EXAMPLE[:-4])
    assert bits(checkpoint["w"]) == bits(VALUES)
    assert checkpoint.notes == ("the file has no checksum at its end",)


def test_a_flipped_bit_anywhere_in_the_file_is_found(tmp_path):
    for position in range(len(EXAMPLE)):
        damaged = bytearray(EXAMPLE)
        damaged[position] ^= 0x10
        with pytest.raises(FormatError):
            [checkpoint[name] for checkpoint in [opened(tmp_path, bytes(damaged))] for name in checkpoint]


def test_a_wrong_footer_is_a_checksum_mismatch_before_any_number_is_given(tmp_path):
    checkpoint = opened(tmp_path, EXAMPLE[:-1] + b"\0")
    with pytest.raises(apr_metadata.ChecksumMismatch, match="claims checksum 00992CDD and has 63992CDD"):
        checkpoint["w"]


REJECTED = {
    "shorter than a header": (EXAMPLE[:63], apr_metadata.InvalidHeader, "63 bytes are there and a header has 64"),
    "another magic": (b"APR2" + EXAMPLE[4:], apr_metadata.InvalidMagic, "starts with b'APR2'"),
    "the magic of the documents": (b"APR\x02" + EXAMPLE[4:], apr_metadata.InvalidMagic, "APR version 2"),
    "header checksum": (
        EXAMPLE[:6] + b"\1" + EXAMPLE[7:],
        apr_metadata.ChecksumMismatch,
        "the header claims checksum 64333A0B",
    ),
    "reserved bytes count": (EXAMPLE[:50] + b"\1" + EXAMPLE[51:], apr_metadata.ChecksumMismatch, "the header claims"),
    "column-major": (build(flags=0x0C00), apr_metadata.InvalidHeader, "column-major"),
    "LZ4": (build(flags=0x0401), apr_metadata.InvalidHeader, "compressed \\(LZ4\\)"),
    "ZSTD": (build(flags=0x0402), apr_metadata.InvalidHeader, "compressed \\(ZSTD\\)"),
    "encrypted": (build(flags=0x0404), apr_metadata.InvalidHeader, "encrypted"),
    "metadata past the end": (
        build(metadata_size=2**32 - 1),
        apr_metadata.InvalidHeader,
        "its metadata ends at byte 4294967359",
    ),
    "metadata offset overflows": (build(metadata_offset=2**64 - 1), apr_metadata.InvalidHeader, "its metadata ends"),
    "metadata in the header": (build(metadata_offset=0), apr_metadata.InvalidHeader, "inside of the header"),
    "metadata is no JSON": (build(b"{nope}"), apr_metadata.MetadataError, "not JSON|not a JSON"),
    "metadata is no object": (build(b"[]"), apr_metadata.MetadataError, "not an object"),
    "metadata is no UTF-8": (build(b'{"a":"\xff"}'), apr_metadata.MetadataError, "utf-8"),
    "metadata has NaN": (build(b'{"rope_theta":NaN}'), apr_metadata.MetadataError, "NaN is not JSON"),
    "null model type": (build(b'{"model_type":null}'), apr_metadata.MetadataError, "model_type is null, not a text"),
    "a float for an integer": (
        build(b'{"num_heads":14.0}'),
        apr_metadata.MetadataError,
        "num_heads is 14.0, not a count",
    ),
    "a string for an integer": (
        build(b'{"num_heads":"14"}'),
        apr_metadata.MetadataError,
        'num_heads is "14", not a count',
    ),
    "true for an integer": (build(b'{"num_heads":true}'), apr_metadata.MetadataError, "num_heads is true"),
    "an alias that disagrees": (
        build(b'{"hidden_size":1,"n_embd":2}'),
        apr_metadata.MetadataError,
        "hidden_size 1 and n_embd 2",
    ),
    "an index before the metadata": (build(index_offset=64), apr_metadata.InvalidHeader, "overlap"),
    "an index past the end": (build(index_offset=2**40, data_offset=2**41), apr_metadata.InvalidHeader, "cut off"),
    "tensors past the end": (build(data_offset=2**63), apr_metadata.InvalidHeader, "begin at byte 9223372036854775808"),
    "more tensors than entries": (
        build(tensor_count=2**32 - 1),
        apr_metadata.InvalidTensorIndex,
        "cut off|takes|stands",
    ),
    "a name that is too long": (
        build(entries=[entry(b"w" * 257)]),
        apr_metadata.InvalidTensorIndex,
        "257 bytes is longer",
    ),
    "a name that is no UTF-8": (build(entries=[entry(b"\xff")]), apr_metadata.InvalidTensorIndex, "not UTF-8"),
    "nine dimensions": (build(entries=[entry(dims=(1,) * 9)]), apr_metadata.InvalidTensorIndex, "9 dimensions"),
    "an unknown dtype": (build(entries=[entry(code=77)]), apr_metadata.InvalidTensorIndex, "has dtype 77"),
    "the old BF16": (build(entries=[entry(code=2, size=8)]), apr_metadata.InvalidTensorIndex, "BF16, which is 30 now"),
    "a size that is too small": (
        build(entries=[entry(size=12)]),
        apr_metadata.InvalidTensorIndex,
        "takes 16 bytes, and claims 12",
    ),
    "a shape beyond memory": (
        build(entries=[entry(dims=(2**62, 0, 16))]),
        apr_metadata.InvalidTensorIndex,
        "beyond 64",
    ),
    "an offset past the end": (
        build(entries=[entry(offset=64)]),
        apr_metadata.InvalidTensorIndex,
        "need 384 bytes and the file has 324",
    ),
    "an offset that overflows": (build(entries=[entry(offset=2**64 - 16)]), apr_metadata.InvalidTensorIndex, "need"),
    "names out of order": (
        build(entries=[entry(b"b"), entry(b"a", offset=64)], data=bytes(128)),
        apr_metadata.InvalidTensorIndex,
        "'a' stands after 'b'",
    ),
    "a name twice": (
        build(entries=[entry(b"a"), entry(b"a", offset=64)], data=bytes(128)),
        apr_metadata.InvalidTensorIndex,
        "'a' stands twice",
    ),
    "tensors upon each other": (
        build(entries=[entry(b"a"), entry(b"b", offset=8)], data=bytes(128)),
        apr_metadata.InvalidTensorIndex,
        "'b' lies upon 'a'",
    ),
    "bytes behind the footer": (EXAMPLE + b"x", apr_metadata.InvalidHeader, "neither that nor 4 more"),
    "a truncated tensor": (EXAMPLE[:300], apr_metadata.InvalidTensorIndex, "need 320 bytes and the file has 300"),
    "blocks that may be padded either way": (
        build(entries=[entry(code=12, dims=(2, 255), size=288)], data=bytes(320)),
        apr_metadata.InvalidTensorIndex,
        "padded by row or at",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_lie_is_refused_by_name(tmp_path, case):
    data, kind, message = REJECTED[case]
    with pytest.raises(kind, match=message) as caught:
        opened(tmp_path, data)
    assert type(caught.value) is kind
    assert kind.__name__ in str(caught.value)
    assert str(tmp_path / "m.apr") in str(caught.value)


def test_a_data_offset_is_followed_not_assumed(tmp_path):
    """The streaming writer lays tensors as they come, under a sorted index."""
    data = bytes(64) + EXAMPLE[256:320]
    checkpoint = opened(tmp_path, build(entries=[entry(b"a", offset=64), entry(b"b")], data=data))
    assert bits(checkpoint["a"]) == bits(VALUES)
    assert not checkpoint["b"].any()


def quantized(dtype, seed=0):
    """Blocks of a quantized type, and the numbers they mean by the library or by the format's description."""
    values = np.random.default_rng(seed).standard_normal((2, 256)).astype(np.float32)
    if dtype.startswith("apr"):
        data = encode_blocks(values, dtype, "w")[0]
        return data.tobytes(), dequantize(dtype, data, values.shape)
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    data = np.random.default_rng(seed).integers(0, 60, (2, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    return data.tobytes(), gguf.quants.dequantize(data, kind)


PLAIN = {
    0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16, 3: np.float64, 4: np.int32, 5: np.int64, 6: np.int8,
    7: np.uint8,
}  # fmt: skip
QUANTIZED = {12: "q4_k", 14: "q6_k", 128: "apr_q4", 8: "apr_q4", 129: "apr_q8", 9: "apr_q8"}


@pytest.mark.parametrize("code", [*PLAIN, *QUANTIZED])
def test_every_code_of_a_dtype_is_read_as_the_format_says(tmp_path, code):
    if code in PLAIN:
        array = np.array([[1, 2], [3, 100]], PLAIN[code])
        data = array.tobytes()
    else:
        data, array = quantized(QUANTIZED[code])
    padded = data.ljust(align(len(data)), b"\0")
    checkpoint = opened(tmp_path, build(entries=[entry(code=code, dims=array.shape, size=len(data))], data=padded))
    assert same(checkpoint, {"w": array})
    assert checkpoint.entries["w"].quantized == (code in QUANTIZED)


@pytest.mark.parametrize("code", [*PLAIN, 128, 129])
def test_every_dtype_is_written_with_its_newest_code(tmp_path, code):
    array = np.ones((2, 32), PLAIN.get(code, np.float32))
    write_checkpoint(tmp_path / "m.apr", [("w", array)], format="apr", dtype=QUANTIZED.get(code))
    data = (tmp_path / "m.apr").read_bytes()
    start = struct.unpack("<Q", data[24:32])[0]
    assert data[start : start + 5] == b"\x01\0w" + bytes((code, 2))
    assert struct.unpack("<H", data[6:8])[0] == (0x0420 if code in QUANTIZED else 0x0400)


def test_every_dtype_that_the_format_has_comes_back(tmp_path, tensors):
    report = write_checkpoint(tmp_path / "m.apr", tensors.items(), format="apr")
    assert report.changes == ()
    assert same(open_checkpoint(tmp_path / "m.apr"), tensors)


def test_names_are_sorted_as_bytes(tmp_path):
    names = ["é", "z", "Z", "a.10", "a.2", "😀", "ｚ"]
    write_checkpoint(tmp_path / "m.apr", [(name, np.ones(1, np.float32)) for name in names], format="apr")
    assert list(open_checkpoint(tmp_path / "m.apr")) == sorted(names, key=str.encode)


def test_what_an_entry_cannot_say_is_refused_when_writing(tmp_path):
    for name, array in (("n" * 257, np.ones(1)), ("n", np.ones((1,) * 9))):
        with pytest.raises(FormatError, match="APR holds names of 256 bytes and 8 dimensions"):
            write_checkpoint(tmp_path / "m.apr", [(name, array)], format="apr")
    assert list(tmp_path.iterdir()) == []


def test_metadata_that_could_not_be_read_back_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("firstdrift.weights.formats.apr.MAX_METADATA", 1000)
    write_checkpoint(tmp_path / "a.apr", [], format="apr", metadata={"name": "n" * 800})
    with pytest.raises(FormatError, match="bytes of metadata are more than 1000"):
        write_checkpoint(tmp_path / "b.apr", [], format="apr", metadata={"name": "n" * 1000})


def test_metadata_is_written_in_the_writers_order_with_one_spelling(tmp_path):
    said = {"zeta": 1, "n_embd": 896, "rope_theta": 1e6, "alpha": "é", "model_type": "qwen2", "num_heads": 14}
    write_checkpoint(tmp_path / "m.apr", [], format="apr", metadata=said)
    data = (tmp_path / "m.apr").read_bytes()
    size = struct.unpack("<I", data[20:24])[0]
    assert data[64 : 64 + size].decode() == (
        '{"model_type":"qwen2","license":null,"data_source":null,"data_license":null,"total_size":0,"param_count":0,'
        '"hidden_size":896,"num_heads":14,"rope_theta":1000000.0,"alpha":"é","zeta":1}'
    )


@pytest.mark.parametrize(("alias", "key"), [("n_embd", "hidden_size"), ("n_ctx", "max_position_embeddings")])
def test_an_older_spelling_is_promoted(tmp_path, alias, key):
    checkpoint = opened(tmp_path, build(json.dumps({alias: 64}).encode()))
    assert checkpoint.metadata[key] == 64


def test_a_repeated_key_is_refused(tmp_path):
    with pytest.raises(apr_metadata.MetadataError, match="the key 'name' is there twice"):
        opened(tmp_path, build(b'{"name":"a","name":"b"}'))


def test_a_declared_tie_is_an_alias(tmp_path):
    weights = [("model.embed_tokens.weight", VALUES)]
    write_checkpoint(tmp_path / "m.apr", weights, format="apr", metadata={"tie_word_embeddings": True})
    checkpoint = open_checkpoint(tmp_path / "m.apr")
    assert bits(checkpoint["lm_head.weight"]) == bits(VALUES)


@pytest.mark.parametrize("data", [b"APRN", b"APRN" + bytes(60)])
def test_version_1_is_recognised_and_refused(tmp_path, data):
    with pytest.raises(FormatError, match="InvalidMagic: is APR version 1, which has no index of tensors"):
        opened(tmp_path, data)


def shards(tmp_path, tensors):
    write_checkpoint(tmp_path / "m.apr.index.json", tensors.items(), format="apr-sharded", shard_bytes=60)
    return tmp_path / "m.apr.index.json", json.loads((tmp_path / "m.apr.index.json").read_text())


def test_shards_are_complete_files_and_one_checkpoint(tmp_path, tensors):
    manifest, said = shards(tmp_path, tensors)
    assert said["shard_count"] == len(said["shards"]) > 1
    assert said["shards"][0]["filename"] == f"m-00001-of-{said['shard_count']:05d}.apr"
    assert same(open_checkpoint(manifest), tensors)
    one = open_checkpoint(tmp_path / said["shards"][1]["filename"])
    assert one.metadata["sharding"]["shard_index"] == 1
    data = (tmp_path / said["shards"][1]["filename"]).read_bytes()
    assert struct.unpack("<H", data[6:8])[0] & 0x0010


LIES = {
    "names the shard": lambda said: said["shards"][1].update(filename="nothing.apr"),
    "says shard_count 9, and its shards": lambda said: said.update(shard_count=9),
    "says tensor_count 99, and its shards": lambda said: said.update(tensor_count=99),
    "says shard 0, size 7": lambda said: said["shards"][0].update(size=7),
    r"says shard 0, tensors \['x'\]": lambda said: said["shards"][0].update(tensors=["x"]),
    "says shard 0, tensors 0.5": lambda said: said["shards"][0].update(tensors=0.5),
    "cannot look for its shards": lambda said: said["shards"][0].update(filename="é" * 300),
    "says weight_map {'odd': ": lambda said: said["weight_map"].update(odd=0 if said["weight_map"]["odd"] else 1),
    "says weight_map {'x': 0}": lambda said: said["weight_map"].update(x=0),
    "no list of 'shards'": lambda said: said.update(shards=3),
    "says shard 0, index 5": lambda said: said["shards"][0].update(index=5),
    "not a plain file name": lambda said: said["shards"][0].update(filename="../m.apr"),
    "without a 'filename' of their own": lambda said: said["shards"][1].update(filename=said["shards"][0]["filename"]),
}


@pytest.mark.parametrize("message", LIES)
def test_a_manifest_that_lies_is_refused(tmp_path, tensors, message):
    manifest, said = shards(tmp_path, tensors)
    LIES[message](said)
    manifest.write_text(json.dumps(said))
    with pytest.raises(FirstdriftError, match=message):
        open_checkpoint(manifest)
