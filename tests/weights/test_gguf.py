"""GGUF under Hugging Face's names: the library's header, its tables of names, its numbers, and rows put back."""

import struct
import sys

import gguf
import numpy as np
import pytest
import torch
import transformers
from tests.weights.samples import bits

from firstdrift.errors import FormatError
from firstdrift.weights.formats.gguf_names import FAMILIES, gguf_name, hf_name, place_of
from firstdrift.weights.open_checkpoint import open_checkpoint

HEADS, KV_HEADS, WIDTH = 4, 2, 64


def write_gguf(path, tensors, architecture="llama", fields=None):
    """A file by the library's own writer; quantized tensors are pairs of bytes and type."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (fields or {}).items():
        writer.add_uint32(f"{architecture}.{key}", value)
    for name, array in tensors.items():
        if isinstance(array, tuple):
            writer.add_tensor(name, array[0], raw_dtype=array[1])
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted_by_llama_cpp(weights, heads):
    """The converter's own formula, for Hugging Face to GGUF."""
    rows = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return rows.swapaxes(1, 2).reshape(weights.shape)


LLAMA_FIELDS = {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "block_count": 1}


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_every_name_of_the_table_is_the_librarys(architecture):
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    known = gguf.get_tensor_name_map(number, 2)
    for stem, name in FAMILIES[architecture].names.items():
        for layer in (0, 1):
            theirs = name.replace("{}", str(layer)).replace(".{e}", "")  # the library names the stack of experts
            # Some architectures have no such tensor; none has it under another name.
            assert known.get_name(theirs) in (None, stem.replace("{}", str(layer))), (stem, name)


MODELS = {
    "llama": "LlamaConfig", "mistral": "MistralConfig", "granite": "GraniteConfig", "smollm3": "SmolLM3Config",
    "olmo": "OlmoConfig", "olmo2": "Olmo2Config", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "phi3": "Phi3Config",
    "stablelm": "StableLmConfig", "starcoder2": "Starcoder2Config", "gemma": "GemmaConfig", "gemma2": "Gemma2Config",
    "gemma3": "Gemma3TextConfig", "gpt2": "GPT2Config", "arcee": "ArceeConfig",
}  # fmt: skip


@pytest.mark.parametrize("architecture", MODELS)
def test_every_parameter_of_the_transformers_model_has_the_librarys_name(architecture):
    config = getattr(transformers, MODELS[architecture])(num_hidden_layers=2, vocab_size=8, pad_token_id=0)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    architecture = "llama" if architecture == "mistral" else architecture
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    known = gguf.get_tensor_name_map(number, 2)
    for name, _ in model.named_parameters():
        assert gguf_name(FAMILIES[architecture], name)[0] == known.get_name(name, try_suffixes=(".weight", ".bias"))


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_a_name_there_and_back_is_the_same(architecture):
    family = FAMILIES[architecture]
    for stem, name in family.names.items():
        stored = f"{stem.replace('{}', '7')}.weight"
        place = place_of(stored)
        assert hf_name(family, place) == f"{name.replace('{}', '7')}.weight"
        if "{e}" not in name:
            assert gguf_name(family, hf_name(family, place)) == (stored, place)


def test_dimensions_are_reversed_and_rows_of_q_and_k_put_back(tmp_path):
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((WIDTH, 8)).astype(np.float32), rng.standard_normal((WIDTH // 2, 8)).astype(np.float32)
    bias, v = rng.standard_normal(WIDTH).astype(np.float32), rng.standard_normal((WIDTH // 2, 8)).astype(np.float16)
    path = write_gguf(
        tmp_path / "m.gguf",
        {
            "blk.0.attn_q.weight": permuted_by_llama_cpp(q, HEADS),
            "blk.0.attn_q.bias": permuted_by_llama_cpp(bias, HEADS),
            "blk.0.attn_k.weight": permuted_by_llama_cpp(k, KV_HEADS),
            "blk.0.attn_v.weight": v,
            "token_embd.weight": v,
        },
        fields=LLAMA_FIELDS,
    )
    checkpoint = open_checkpoint(path)
    attention = "model.layers.0.self_attn"
    assert bits(checkpoint[f"{attention}.q_proj.weight"]) == bits(q)
    assert bits(checkpoint[f"{attention}.q_proj.bias"]) == bits(bias)
    assert bits(checkpoint[f"{attention}.k_proj.weight"]) == bits(k)
    assert bits(checkpoint[f"{attention}.v_proj.weight"]) == bits(v)
    assert checkpoint.aliases == {"lm_head.weight": "model.embed_tokens.weight"}


def test_a_family_that_does_not_permute_is_left_alone(tmp_path):
    q = np.arange(WIDTH * 2, dtype=np.float32).reshape(WIDTH, 2)
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.attn_q.weight": q}, "qwen2", LLAMA_FIELDS)
    assert bits(open_checkpoint(path)["model.layers.0.self_attn.q_proj.weight"]) == bits(q)


def test_rows_of_quantized_tensors_are_put_back_too(tmp_path):
    q = np.random.default_rng(0).standard_normal((WIDTH, 256)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    data = gguf.quants.quantize(permuted_by_llama_cpp(q, HEADS), kind)
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.attn_q.weight": (data, kind)}, fields=LLAMA_FIELDS)
    expected = gguf.quants.dequantize(gguf.quants.quantize(q, kind), kind)
    assert bits(open_checkpoint(path)["model.layers.0.self_attn.q_proj.weight"]) == bits(expected)


@pytest.mark.parametrize("heads", [0, 3, 64])
def test_heads_that_do_not_divide_the_rows_are_refused(tmp_path, heads):
    fields = {**LLAMA_FIELDS, "attention.head_count": heads}
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.attn_q.weight": np.ones((WIDTH, 2), np.float32)}, fields=fields)
    with pytest.raises(FormatError, match=f"64 rows are interleaved by heads, and .* says {heads}"):
        open_checkpoint(path)


def test_norms_of_gemma_lose_their_one_and_conv1d_is_turned_back(tmp_path):
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write_gguf(tmp_path / "a.gguf", {"blk.0.attn_norm.weight": np.float32([1.5, 0.75])}, "gemma2")
    assert open_checkpoint(path)["model.layers.0.input_layernorm.weight"].tolist() == [0.5, -0.25]
    path = write_gguf(tmp_path / "b.gguf", {"blk.0.ffn_up.weight": weight.T.copy()}, "gpt2")
    assert bits(open_checkpoint(path)["transformer.h.0.mlp.c_fc.weight"]) == bits(weight)


def test_stacked_experts_are_named_one_by_one(tmp_path):
    experts = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    path = write_gguf(tmp_path / "m.gguf", {"blk.1.ffn_up_exps.weight": experts}, "qwen3moe")
    checkpoint = open_checkpoint(path)
    assert list(checkpoint) == [f"model.layers.1.mlp.experts.{number}.up_proj.weight" for number in range(3)]
    assert bits(checkpoint["model.layers.1.mlp.experts.2.up_proj.weight"]) == bits(experts[2])


def test_an_architecture_without_a_table_keeps_its_names_and_says_so(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.attn_q.weight": np.ones((4, 2), np.float32)}, "mamba")
    checkpoint = open_checkpoint(path)
    assert list(checkpoint) == ["blk.0.attn_q.weight"]
    assert "no table of names" in checkpoint.notes[0]


def split(tmp_path, tensors, count=2):
    """Files of a split model: only the first describes it."""
    paths = []
    for number, (name, array) in enumerate(tensors.items()):
        path = tmp_path / f"m-{number + 1:05d}-of-{count:05d}.gguf"
        writer = gguf.GGUFWriter(path, "llama" if number == 0 else "")
        for key, value in (LLAMA_FIELDS if number == 0 else {}).items():
            writer.add_uint32(f"llama.{key}", value)
        writer.add_uint16("split.count", count)
        writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def test_a_split_model_is_opened_whole_by_any_of_its_files(tmp_path):
    q = np.arange(WIDTH * 2, dtype=np.float32).reshape(WIDTH, 2)
    tensors = {"token_embd.weight": q, "blk.0.attn_q.weight": permuted_by_llama_cpp(q, HEADS)}
    for path in split(tmp_path, tensors):
        checkpoint = open_checkpoint(path)
        assert bits(checkpoint["model.layers.0.self_attn.q_proj.weight"]) == bits(q)
        assert bits(checkpoint["lm_head.weight"]) == bits(q)


def test_a_split_model_with_a_missing_or_renamed_file_is_refused(tmp_path):
    first, second = split(
        tmp_path, {"token_embd.weight": np.ones((2, 2), np.float32), "output_norm.weight": np.ones(2)}
    )
    second.rename(tmp_path / "n.gguf")
    with pytest.raises(FormatError, match="is one of 2 files, and m-00002-of-00002.gguf is not there"):
        open_checkpoint(first)
    with pytest.raises(FormatError, match="is one of 2 files and not named"):
        open_checkpoint(tmp_path / "n.gguf")


def test_an_output_layer_in_another_file_is_no_tie(tmp_path):
    first, _ = split(tmp_path, {"token_embd.weight": np.ones((2, 2), np.float32), "output.weight": np.zeros((2, 2))})
    checkpoint = open_checkpoint(first)
    assert checkpoint.aliases == {}
    assert not checkpoint["lm_head.weight"].any()


def decodable():
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        if block > 1:
            try:
                with np.errstate(all="ignore"):
                    gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
            except NotImplementedError:
                continue
            yield kind


@pytest.mark.parametrize("kind", list(decodable()), ids=lambda kind: kind.name)
def test_every_quantization_is_decoded_as_the_library_does(tmp_path, kind):
    _, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 100, (6, 3 * size), dtype=np.uint8)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", {"other.weight": (raw, kind)}))
    entry = checkpoint.entries["other.weight"]
    assert (entry.dtype, entry.quantized, entry.nbytes) == (kind.name.lower(), True, raw.size)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, kind)
    assert np.array_equal(checkpoint["other.weight"], expected, equal_nan=True)


def header(fields=b"", tensors=b"", keys=0, count=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, count, keys) + fields + tensors


def text(value):
    return struct.pack("<Q", len(value)) + value


def tensor(name=b"w", dims=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


LIES = {
    "the version at byte 4 claims 4 bytes": b"GGUF",
    "is GGUF of version 9": header(version=9),
    "is GGUF of big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "key 0 at byte 32 claims 18446744073709551615 bytes": header(struct.pack("<Q", 2**64 - 1), keys=1),
    "claims 4611686018427387904 bytes": header(text(b"k") + struct.pack("<IIQ", 9, 4, 2**60), keys=1),
    "claims 1152921504606846976 strings": header(text(b"k") + struct.pack("<IIQ", 9, 8, 2**60), keys=1),
    "array of the type 9": header(text(b"k") + struct.pack("<IIQ", 9, 9, 2**60), keys=1),
    "value type 77": header(text(b"k") + struct.pack("<I", 77), keys=1),
    "'k' is there twice": header(2 * (text(b"k") + struct.pack("<IB", 0, 1)), keys=2),
    "key 1 at byte": header(text(b"k") + struct.pack("<IB", 0, 1), keys=2**63),
    "tensor 0 at byte": header(count=2**63),
    "claims 4000000000 dimensions": header(tensors=text(b"w") + struct.pack("<I", 4_000_000_000), count=1),
    "does not know the type 999": header(tensors=tensor(kind=999), count=1),
    "is beyond 64 dimensions or 2\\*\\*63 bytes": header(tensors=tensor(dims=(2**62, 2**62)), count=1),
    "no whole number of Q4_K blocks": header(tensors=tensor(dims=(100,), kind=12), count=1),
    "it is cut off": header(tensors=tensor(), count=1),
    "'b' lies upon 'a'": header(tensors=tensor(b"a") + tensor(b"b", offset=8), count=2) + bytes(200),
    "two tensors are 'w'": header(tensors=tensor() + tensor(offset=32), count=2) + bytes(200),
    "general.alignment 3": header(text(b"general.alignment") + struct.pack("<II", 4, 3), keys=1),
}


@pytest.mark.parametrize("message", LIES)
def test_a_header_that_lies_is_refused(tmp_path, message):
    (tmp_path / "m.gguf").write_bytes(LIES[message])
    with pytest.raises(FormatError, match=message):
        open_checkpoint(tmp_path / "m.gguf")


SCALARS = {
    0: ("<B", 255), 1: ("<b", -128), 2: ("<H", 65535), 3: ("<h", -32768), 4: ("<I", 2**32 - 1), 5: ("<i", -(2**31)),
    6: ("<f", 0.5), 7: ("<?", True), 10: ("<Q", 2**64 - 1), 11: ("<q", -(2**63)), 12: ("<d", 0.1),
}  # fmt: skip


def test_every_type_of_a_value_is_read_alone_and_in_arrays(tmp_path):
    fields = b"".join(
        text(b"one%d" % kind) + struct.pack("<I", kind) + struct.pack(layout, value)
        + text(b"two%d" % kind) + struct.pack("<IIQ", 9, kind, 2) + 2 * struct.pack(layout, value)
        for kind, (layout, value) in SCALARS.items()
    )  # fmt: skip
    fields += text(b"texts") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text("é".encode())
    (tmp_path / "m.gguf").write_bytes(header(fields, keys=2 * len(SCALARS) + 1))
    said = open_checkpoint(tmp_path / "m.gguf").metadata
    expected = {f"one{kind}": value for kind, (_, value) in SCALARS.items()}
    expected |= {f"two{kind}": [value, value] for kind, (_, value) in SCALARS.items()}
    assert dict(said) == {**expected, "texts": ["a", "é"]}


def test_a_real_file_reads_as_the_library_reads_it(smollm2):
    checkpoint = open_checkpoint(smollm2)
    theirs = gguf.GGUFReader(smollm2)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert dict(checkpoint.metadata) == fields
    family = FAMILIES["llama"]
    assert len(checkpoint) == len(theirs.tensors) == 272
    for tensor_ in theirs.tensors:
        entry = checkpoint.entries[hf_name(family, place_of(tensor_.name))]
        assert entry.shape == tuple(reversed(tensor_.shape.tolist()))
        assert (entry.dtype, entry.nbytes) == (tensor_.tensor_type.name.lower(), tensor_.n_bytes)
    for tensor_ in theirs.tensors[:8]:
        if "attn_q" not in tensor_.name and "attn_k" not in tensor_.name:
            held = checkpoint[hf_name(family, place_of(tensor_.name))]
            assert bits(held) == bits(gguf.quants.dequantize(tensor_.data, tensor_.tensor_type))


def test_without_the_library_it_is_said_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(20))
    for name in ("gguf_file", "gguf_header", "gguf_names"):
        monkeypatch.delitem(sys.modules, f"firstdrift.weights.formats.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(FormatError, match=r"a\.gguf: gguf needs gguf; pip install 'firstdrift\[gguf\]'"):
        open_checkpoint(tmp_path / "a.gguf")
