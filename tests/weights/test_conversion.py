"""Converting keeps every bit that both formats can hold, reports the rest, and never leaves half a file."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.weights.samples import bits, gguf_types, same
from tests.weights.test_gguf import split, write_gguf

from firstdrift.cli.main import cli
from firstdrift.errors import FormatError, TraceExistsError
from firstdrift.weights.conversion import convert
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import WRITERS, write_checkpoint

SUFFIXES = {
    "safetensors": ".safetensors",
    "safetensors-sharded": ".safetensors.index.json",
    "apr": ".apr",
    "apr-sharded": ".apr.index.json",
    "gguf": ".gguf",
    "npz": ".npz",
    "pt": ".pt",
}
LLAMA = {"general.architecture": "llama", "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1}


def weights(dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = {
        "model.embed_tokens.weight": (6, 4),
        "model.layers.0.self_attn.q_proj.weight": (8, 4),
        "model.layers.0.self_attn.k_proj.weight": (4, 4),
        "model.layers.0.self_attn.k_proj.bias": (4,),
        "model.layers.0.mlp.down_proj.weight": (4, 8),
        "model.norm.weight": (4,),
    }
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def test_every_format_that_can_be_written_is_tried_here():
    assert set(SUFFIXES) == set(WRITERS)


@pytest.mark.parametrize("target", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_between_any_two_formats_no_bit_changes(tmp_path, source, target):
    first, second = tmp_path / f"a{SUFFIXES[source]}", tmp_path / f"b{SUFFIXES[target]}"
    tensors = weights()
    write_checkpoint(first, tensors.items(), format=source, metadata=LLAMA, shard_bytes=100)
    if target == "gguf" and source in ("npz", "pt"):  # these hold no metadata, and GGUF needs an architecture
        with pytest.raises(FormatError, match="GGUF needs an architecture"):
            convert(first, second)
        return
    report = convert(first, second, shard_bytes=100)
    assert report.changes == ()
    with open_checkpoint(second) as checkpoint:
        assert same(checkpoint, tensors)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_what_is_rounded_is_reported_tensor_by_tensor(tmp_path, dtype):
    tensors = weights()
    write_checkpoint(tmp_path / "a.safetensors", tensors.items(), format="safetensors")
    report = convert(tmp_path / "a.safetensors", tmp_path / "b.apr", dtype=dtype)
    numpy_dtype = np.float16 if dtype == "f16" else ml_dtypes.bfloat16
    expected = {name: array.astype(numpy_dtype) for name, array in tensors.items()}
    assert same(open_checkpoint(tmp_path / "b.apr"), expected)
    assert {change.name for change in report.changes} == set(tensors)
    changed = sum(int((array.astype(numpy_dtype).astype(np.float32) != array).sum()) for array in tensors.values())
    assert report.rounded == changed > 0
    worst = max(np.abs(array.astype(numpy_dtype).astype(float) - array).max() for array in tensors.values())
    assert max(change.largest for change in report.changes) == pytest.approx(worst)


def test_whole_numbers_do_not_follow_a_float_dtype(tmp_path):
    write_checkpoint(tmp_path / "a.npz", [("steps", np.array([7])), ("w", np.ones(2))], format="npz")
    convert(tmp_path / "a.npz", tmp_path / "b.npz", dtype="f16")
    checkpoint = open_checkpoint(tmp_path / "b.npz")
    assert [entry.dtype for entry in checkpoint.entries.values()] == ["i64", "f16"]


def test_a_value_beyond_the_dtype_is_refused_and_nothing_is_written(tmp_path):
    write_checkpoint(tmp_path / "a.npz", [("w", np.array([1.0, 70000.0]))], format="npz")
    with pytest.raises(FormatError, match="'w': 1 of its values, such as 70000, are beyond f16; choose bf16"):
        convert(tmp_path / "a.npz", tmp_path / "b.safetensors", dtype="f16")
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def quantized_gguf(path):
    rng = np.random.default_rng(0)
    tensors = {}
    for name, kind, size in (
        ("blk.0.attn_q.weight", gguf.GGMLQuantizationType.Q4_K, 144),
        ("blk.0.ffn_up.weight", gguf.GGMLQuantizationType.Q6_K, 210),
        ("blk.0.ffn_down.weight", gguf.GGMLQuantizationType.Q8_0, 272),
    ):
        tensors[name] = (rng.integers(0, 60, (8, 2 * size), dtype=np.uint8), kind)
    fields = {"attention.head_count": 2, "attention.head_count_kv": 2, "block_count": 1, "embedding_length": 512}
    return write_gguf(path, tensors, fields=fields)


def test_blocks_go_to_apr_and_back_as_they_are(tmp_path):
    """Q4_K and Q6_K are both formats' own; what APR does not have becomes float32, exactly."""
    source = quantized_gguf(tmp_path / "a.gguf")
    report = convert(source, tmp_path / "b.apr")
    assert [(change.source, change.target, change.changed) for change in report.changes] == [("q8_0", "f32", 0)]
    first, second = open_checkpoint(source), open_checkpoint(tmp_path / "b.apr")
    assert second.entries["model.layers.0.self_attn.q_proj.weight"].dtype == "q4_k"
    for name in first:
        assert bits(first[name]) == bits(second[name])
    convert(tmp_path / "b.apr", tmp_path / "c.gguf")
    third = open_checkpoint(tmp_path / "c.gguf")
    for name in first:
        assert bits(first[name]) == bits(third[name])
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "c.gguf").tensors}
    for tensor in gguf.GGUFReader(source).tensors[:2]:
        assert bits(stored[tensor.name].data) == bits(tensor.data)  # rows of q in GGUF's own order again


def test_norms_of_gemma_get_their_one_back(tmp_path):
    norm = np.float32([1.5, 0.75])
    source = write_gguf(tmp_path / "a.gguf", {"blk.0.attn_norm.weight": norm}, "gemma2")
    convert(source, tmp_path / "b.safetensors")
    report = convert(tmp_path / "b.safetensors", tmp_path / "c.gguf")
    assert report.rounded == 0
    assert bits(gguf.GGUFReader(tmp_path / "c.gguf").tensors[0].data) == bits(norm)


def test_conv1d_matrices_are_turned_for_gguf(tmp_path):
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    name = "transformer.h.0.mlp.c_fc.weight"
    write_checkpoint(tmp_path / "a.gguf", [(name, weight)], format="gguf", metadata={"general.architecture": "gpt2"})
    assert bits(gguf.GGUFReader(tmp_path / "a.gguf").tensors[0].data) == bits(weight.T.copy())
    assert bits(open_checkpoint(tmp_path / "a.gguf")[name]) == bits(weight)


def test_apr_quantizes_matrices_when_asked_and_leaves_vectors(tmp_path):
    write_checkpoint(tmp_path / "a.npz", weights().items(), format="npz")
    report = convert(tmp_path / "a.npz", tmp_path / "b.apr", dtype="apr_q8")
    entries = open_checkpoint(tmp_path / "b.apr").entries
    assert {entry.dtype for entry in entries.values() if len(entry.shape) == 2} == {"apr_q8"}
    assert entries["model.norm.weight"].dtype == "f32"
    assert report.rounded > 0
    with pytest.raises(FormatError, match="safetensors has no apr_q8"):
        convert(tmp_path / "a.npz", tmp_path / "c.safetensors", dtype="apr_q8")


def test_a_hugging_face_config_becomes_apr_and_gguf_metadata(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 6, "intermediate_size": 8,
        "max_position_embeddings": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    }  # fmt: skip
    directory = tmp_path / "hf"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    write_checkpoint(directory / "model.safetensors", weights().items(), format="safetensors")
    convert(directory, tmp_path / "m.apr")
    said = open_checkpoint(tmp_path / "m.apr").metadata
    ten = {
        "vocab_size": 6, "hidden_size": 4, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 8, "num_layers": 1,
        "max_position_embeddings": 16, "rope_theta": 5e5, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    }  # fmt: skip
    assert {key: said[key] for key in ten} == ten
    assert (said["hf_architecture"], said["architecture"], said["original_format"]) == (
        "LlamaForCausalLM",
        "llama",
        "hf",
    )
    assert "num_hidden_layers" not in said
    convert(tmp_path / "m.apr", tmp_path / "m.gguf")
    fields = open_checkpoint(tmp_path / "m.gguf").metadata
    assert fields["llama.attention.head_count_kv"] == 1
    assert fields["llama.rope.freq_base"] == 5e5
    assert same(open_checkpoint(tmp_path / "m.gguf"), weights())


def test_whole_numbers_of_a_config_become_the_floats_that_llama_cpp_expects(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "rms_norm_eps": 1,
        "num_key_value_heads": 1, "head_dim": 4, "rope_theta": 10000, "final_logit_softcapping": 30,
    }  # fmt: skip
    directory = tmp_path / "hf"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    write_checkpoint(directory / "model.safetensors", weights().items(), format="safetensors")
    report = convert(directory, tmp_path / "m.gguf")
    types = gguf_types(tmp_path / "m.gguf")
    floats = ("rope.freq_base", "attention.layer_norm_rms_epsilon", "final_logit_softcapping")
    assert {types[f"llama.{key}"][0] for key in floats} == {"FLOAT32"}
    assert types["llama.block_count"] == ["UINT32"]
    said = open_checkpoint(tmp_path / "m.gguf").metadata
    assert said["llama.attention.value_length"] == said["llama.attention.key_length"] == 4
    assert (said["tokenizer.ggml.model"], said["llama.vocab_size"]) == ("no_vocab", 6)
    assert "the source has no GGUF tokenizer" in report.notes[-1]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_vectors_in_gguf_stay_wide_because_llama_cpp_aborts_at_others(tmp_path, dtype):
    write_checkpoint(tmp_path / "a.safetensors", weights().items(), format="safetensors", metadata=LLAMA)
    convert(tmp_path / "a.safetensors", tmp_path / "a.gguf", dtype=dtype)
    convert(tmp_path / "a.safetensors", tmp_path / "half.safetensors", dtype=dtype)
    convert(tmp_path / "half.safetensors", tmp_path / "b.gguf")
    for name in ("a", "b"):
        entries = open_checkpoint(tmp_path / f"{name}.gguf").entries.values()
        assert {(len(entry.shape), entry.dtype) for entry in entries} == {(1, "f32"), (2, dtype)}


def test_every_type_of_a_key_is_kept(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"):
        getattr(writer, f"add_{kind}")(f"some.{kind}", 7)
        some = [7.0 if "float" in kind else 7]
        item = gguf.GGUFValueType[kind.upper()]
        writer.add_key_value(f"many.{kind}", some, gguf.GGUFValueType.ARRAY, item)
    writer.add_bool("some.bool", True)
    writer.add_array("many.texts", ["a", "b"])
    writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert(tmp_path / "a.gguf", tmp_path / "b.gguf")
    before, after = gguf_types(tmp_path / "a.gguf"), gguf_types(tmp_path / "b.gguf")
    assert {key: after[key] for key in before} == before
    values = [{k: v for k, v in open_checkpoint(tmp_path / f"{n}.gguf").metadata.items() if k in before} for n in "ab"]
    assert values[0] == values[1]


def test_one_file_of_a_split_model_does_not_say_that_it_is_split(tmp_path):
    first, _ = split(tmp_path, {"token_embd.weight": np.ones((2, 2), np.float32), "output_norm.weight": np.ones(2)})
    convert(first, tmp_path / "whole.gguf")
    assert "split.count" not in gguf_types(tmp_path / "whole.gguf")
    assert len(open_checkpoint(tmp_path / "whole.gguf")) == 2


def test_a_file_is_called_what_most_of_its_numbers_are(tmp_path):
    convert(quantized_gguf(tmp_path / "a.gguf"), tmp_path / "b.gguf")
    assert open_checkpoint(tmp_path / "b.gguf").metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_K_M
    some = {**LLAMA, "general.file_type": 14}  # as small ones of that type are called
    with open_checkpoint(tmp_path / "b.gguf") as source:
        tensors = [(name, source[name]) for name in source]
    write_checkpoint(tmp_path / "c.gguf", tensors, format="gguf", metadata=some)
    assert open_checkpoint(tmp_path / "c.gguf").metadata["general.file_type"] == gguf.LlamaFileType.ALL_F32


def test_a_tie_that_nobody_declares_is_not_made_up(tmp_path):
    """Only GGUF says by an absent output layer that it is the embedding."""
    write_checkpoint(tmp_path / "a.safetensors", weights().items(), format="safetensors", metadata=LLAMA)
    convert(tmp_path / "a.safetensors", tmp_path / "b.apr")
    assert "tie_word_embeddings" not in open_checkpoint(tmp_path / "b.apr").metadata
    convert(tmp_path / "b.apr", tmp_path / "c.gguf")
    convert(tmp_path / "c.gguf", tmp_path / "d.safetensors")
    assert open_checkpoint(tmp_path / "d.safetensors").aliases == {"lm_head.weight": "model.embed_tokens.weight"}


def test_a_hugging_face_directory_is_copied_with_all_that_belongs_to_it(tmp_path):
    source = tmp_path / "hf"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "float32"}))
    (source / "tokenizer.json").write_text('{"model": "é"}')
    write_checkpoint(source / "model.safetensors", weights().items(), format="safetensors")
    report = convert(source, tmp_path / "half", format="hf", dtype="bf16")
    assert report.rounded > 0
    copy = open_checkpoint(tmp_path / "half")
    assert same(copy, weights(ml_dtypes.bfloat16))
    assert copy.metadata == {"model_type": "llama", "dtype": "bfloat16"}
    assert (tmp_path / "half" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    convert(source, tmp_path / "shards", format="hf", shard_bytes=200)
    assert same(open_checkpoint(tmp_path / "shards"), weights())
    with pytest.raises(TraceExistsError, match="exists"):
        convert(source, tmp_path / "shards", format="hf")
    convert(
        source, tmp_path / "shards", format="hf", dtype="bf16", overwrite=True
    )  # and not the shards that were there
    assert same(open_checkpoint(tmp_path / "shards"), weights(ml_dtypes.bfloat16))
    convert(source, tmp_path / "shards", format="hf", shard_bytes=200, overwrite=True)
    assert same(open_checkpoint(tmp_path / "shards"), weights())
    with pytest.raises(TraceExistsError, match="is the checkpoint that is read"):
        convert(source, source, format="hf", overwrite=True)
    with pytest.raises(FormatError, match="needs a config.json"):
        convert(source / "model.safetensors", tmp_path / "no", format="hf")


def test_an_existing_file_is_kept_unless_told(tmp_path):
    write_checkpoint(tmp_path / "a.npz", weights().items(), format="npz")
    (tmp_path / "b.apr").write_text("precious")
    with pytest.raises(TraceExistsError, match="exists; choose another path"):
        convert(tmp_path / "a.npz", tmp_path / "b.apr")
    assert (tmp_path / "b.apr").read_text() == "precious"
    convert(tmp_path / "a.npz", tmp_path / "b.apr", overwrite=True)
    assert same(open_checkpoint(tmp_path / "b.apr"), weights())


def test_a_checkpoint_is_not_converted_onto_itself(tmp_path):
    write_checkpoint(tmp_path / "a.npz", weights().items(), format="npz")
    with pytest.raises(TraceExistsError, match="is the checkpoint that is read"):
        convert(tmp_path / "a.npz", tmp_path / "a.npz", dtype="f16", overwrite=True)


@pytest.mark.parametrize("when", [1, 6])  # after the first tensor, and after the last
@pytest.mark.parametrize("target", ["safetensors", "apr", "npz", "pt", "gguf"])
def test_a_source_that_changes_on_the_way_leaves_nothing_behind(tmp_path, target, when):
    source = tmp_path / "a.safetensors"
    write_checkpoint(source, weights().items(), format="safetensors", metadata=LLAMA)

    written = []

    def touch(nbytes):
        written.append(nbytes)
        if len(written) == when:
            os.utime(source, ns=(1, 1))

    with pytest.raises(FormatError, match="was changed since"):
        convert(source, tmp_path / f"b.{target}", bar=lambda what, total: nullcontext(touch))
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_an_empty_source_is_not_converted(tmp_path):
    write_checkpoint(tmp_path / "a.apr", [], format="apr")
    with pytest.raises(FormatError, match="holds no tensors"):
        convert(tmp_path / "a.apr", tmp_path / "b.npz")
    with pytest.raises(FormatError, match="its name does not tell the format"):
        convert(tmp_path / "a.apr", tmp_path / "b")


def test_pytorch_loads_what_is_written_for_it(tmp_path):
    write_checkpoint(tmp_path / "a.npz", weights().items(), format="npz")
    convert(tmp_path / "a.npz", tmp_path / "b.pt", dtype="bf16")
    loaded = torch.load(tmp_path / "b.pt", weights_only=True)
    for name, array in weights().items():
        assert torch.equal(loaded[name], torch.from_numpy(array).to(torch.bfloat16))


MEASURED = r"""
import re, sys, threading, time
from firstdrift.weights.conversion import convert
import firstdrift.weights.formats.apr, firstdrift.weights.formats.npz_weights
import firstdrift.weights.formats.safetensors_weights
if sys.argv[2].endswith("pt"): import torch
def anonymous(): return int(re.search(r"RssAnon:\s+(\d+) kB", open("/proc/self/status").read())[1]) / 1024
base = peak = anonymous()
done = False
def watch():
    global peak
    while not done: peak = max(peak, anonymous()); time.sleep(0.002)
watcher = threading.Thread(target=watch); watcher.start()
convert(sys.argv[1], sys.argv[2], dtype=sys.argv[3] or None, overwrite=True)
done = True; watcher.join()
print(peak - base)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["", "f16"])
@pytest.mark.parametrize("target", ["safetensors", "apr", "npz", "pt"])
def test_memory_is_for_one_tensor_not_for_the_checkpoint(tmp_path, target, dtype):
    """24 tensors of 16 MiB: 384 MiB would show."""
    tensor = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32)
    write_checkpoint(tmp_path / "a.safetensors", ((f"w{n}", tensor) for n in range(24)), format="safetensors")
    command = [sys.executable, "-c", MEASURED, tmp_path / "a.safetensors", tmp_path / f"b.{target}", dtype]
    used = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert used < 4 * 16 + 64


def run(*arguments):
    return CliRunner().invoke(cli, ["weights", *map(str, arguments)])


def test_the_command_says_what_was_rounded(tmp_path):
    write_checkpoint(tmp_path / "a.safetensors", weights().items(), format="safetensors")
    result = run("convert", tmp_path / "a.safetensors", tmp_path / "b.apr", "--dtype", "f16")
    assert result.exit_code == 0
    assert "0 tensors bit for bit, 0 exactly in another dtype, 6 rounded" in result.output
    assert "model.norm.weight: f32 to f16" in result.output
    many = [(f"w{number:02d}", np.full(2, 0.1, np.float32)) for number in range(13)]
    write_checkpoint(tmp_path / "many.npz", many, format="npz")
    result = run("convert", tmp_path / "many.npz", tmp_path / "many.apr", "--dtype", "f16")
    assert "13 rounded (26 values)" in result.output
    assert "w09: f32 to f16, 2 values rounded, by at most 2.44e-05\n  and 3 more; --json lists them" in result.output
    result = run("convert", tmp_path / "a.safetensors", tmp_path / "c.npz", "--json")
    said = json.loads(result.output)
    assert (said["schema"], said["rounded"], said["tensors"]) == ("firstdrift-weights-convert-v1", 0, 6)
    result = run("convert", tmp_path / "a.safetensors", tmp_path / "c.npz")
    assert result.exit_code == 2
    assert "exists; choose another path" in result.stderr
