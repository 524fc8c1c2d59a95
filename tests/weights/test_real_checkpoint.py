"""SmolLM2-135M, a trained decoder: through every format and back, and the same logits as transformers' own loading."""

import json
from itertools import pairwise

import gguf
import numpy as np
import pytest
import torch
from tests.weights.samples import bits, gguf_types
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from firstdrift.weights.conversion import convert
from firstdrift.weights.formats.gguf_header import parse_gguf_header
from firstdrift.weights.open_checkpoint import open_checkpoint
from firstdrift.weights.writing import write_checkpoint

TOKENS = torch.tensor([[1, 9690, 198, 2683, 359, 253, 5356, 5646]])


@pytest.fixture(scope="module")
def carried(smollm2, tmp_path_factory):
    """GGUF to safetensors, to APR, to GGUF."""
    directory = tmp_path_factory.mktemp("carried")
    paths = [smollm2, directory / "m.safetensors", directory / "m.apr", directory / "m.gguf"]
    for source, target in pairwise(paths):
        convert(source, target)
    return paths


def test_every_number_survives_the_round(carried):
    checkpoints = [open_checkpoint(path) for path in carried]
    names = set(checkpoints[0])
    for checkpoint in checkpoints[1:]:
        assert set(checkpoint) == names
    for name in names:
        first = bits(checkpoints[0][name])
        assert all(bits(checkpoint[name]) == first for checkpoint in checkpoints[1:]), name


def test_the_tokenizer_and_the_architecture_survive_the_round(carried):
    first, *others, last = (open_checkpoint(path).metadata for path in carried)
    kept = {
        key: value for key, value in first.items() if key not in ("general.file_type", "general.quantization_version")
    }
    for metadata in (*others, last):
        assert {key: metadata.get(key) for key in kept} == kept
    assert others[1]["hidden_size"] == 576
    assert others[1]["tie_word_embeddings"] is True


def test_a_quantized_file_is_copied_block_for_block(smollm2, tmp_path):
    report = convert(smollm2, tmp_path / "same.gguf")
    assert report.changes == ()
    data, copy = (np.memmap(path, np.uint8, "r") for path in (smollm2, tmp_path / "same.gguf"))
    header, copied = parse_gguf_header(data, "original"), parse_gguf_header(copy, "copy")
    places = {info.name: info for info in copied.tensors}
    for info in header.tensors:
        block, size = gguf.GGML_QUANT_SIZES[info.kind]
        nbytes = int(np.prod(info.dims)) // block * size
        start, other = header.data_offset + info.offset, copied.data_offset + places[info.name].offset
        assert places[info.name].kind == info.kind
        assert bits(data[start : start + nbytes]) == bits(copy[other : other + nbytes]), info.name


@pytest.mark.parametrize(("dtype", "number"), [(None, 3), ("f32", 0), ("f16", 1), ("bf16", 32)])
def test_every_key_keeps_its_type_and_the_file_says_what_it_holds(smollm2, tmp_path, dtype, number):
    """llama.cpp refuses a vocabulary whose token types are not INT32."""
    convert(smollm2, tmp_path / "m.gguf", dtype=dtype)
    types = gguf_types(tmp_path / "m.gguf")
    assert types == gguf_types(smollm2)
    assert types["tokenizer.ggml.token_type"] == ["ARRAY", "INT32"]
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    said = [fields[f"general.{key}"].contents() for key in ("file_type", "quantization_version")]
    assert said == [number, 2]


def test_types_come_back_from_formats_that_have_none(smollm2, carried):
    assert gguf_types(carried[-1]) == gguf_types(smollm2)
    assert gguf.GGUFReader(carried[-1]).fields["general.file_type"].contents() == gguf.LlamaFileType.ALL_F32


def config_of(checkpoint):
    said = checkpoint.metadata
    return LlamaConfig(
        vocab_size=said["llama.vocab_size"],
        hidden_size=said["llama.embedding_length"],
        intermediate_size=said["llama.feed_forward_length"],
        num_hidden_layers=said["llama.block_count"],
        num_attention_heads=said["llama.attention.head_count"],
        num_key_value_heads=said["llama.attention.head_count_kv"],
        max_position_embeddings=said["llama.context_length"],
        rms_norm_eps=said["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=said["llama.rope.freq_base"],
        tie_word_embeddings="lm_head.weight" in checkpoint.aliases,
    )


def logits_of(checkpoint, change=None):
    """The logits of a model that holds exactly the checkpoint's numbers."""
    model = LlamaForCausalLM(config_of(checkpoint)).eval()
    tensors = {name: torch.from_numpy(np.array(checkpoint[name])) for name in checkpoint}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    if change:
        change(tensors)
    model.load_state_dict(tensors, strict=True)
    with torch.no_grad():
        return model(TOKENS).logits


@pytest.mark.slow
def test_the_logits_are_those_of_transformers_own_loading(smollm2):
    theirs = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(TOKENS).logits
    checkpoint = open_checkpoint(smollm2)
    assert torch.equal(logits_of(checkpoint), expected)

    def interleave(tensors):  # the negative control: rows of q left as GGUF has them
        for name in tensors:
            if name.endswith("q_proj.weight"):
                heads = tensors[name].reshape(9, 2, 32, -1)
                tensors[name] = heads.transpose(1, 2).reshape(tensors[name].shape)

    assert not torch.allclose(logits_of(checkpoint, interleave), expected, atol=0.1)


@pytest.mark.slow
def test_transformers_loads_what_is_converted_for_it(smollm2, tmp_path):
    checkpoint = open_checkpoint(smollm2)
    config_of(checkpoint).save_pretrained(tmp_path)
    convert(smollm2, tmp_path / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, logits_of(checkpoint))
    hf = open_checkpoint(tmp_path)
    assert hf.format == "hf"
    assert hf.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert AutoConfig.from_pretrained(tmp_path).num_hidden_layers == 30
    sharded = tmp_path / "sharded"
    convert(tmp_path, sharded / "model.safetensors.index.json", shard_bytes=100 << 20)
    shards = set(json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"].values())
    assert len(shards) == 6
    write_checkpoint(tmp_path / "half.apr", ((name, hf[name]) for name in hf), format="apr", dtype="f16")
    assert open_checkpoint(tmp_path / "half.apr").nbytes * 2 == hf.nbytes
