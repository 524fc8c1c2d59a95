"""What files say of a decoder: every format, with what only real files have; and what is refused."""

import json

import numpy as np
import pytest
from tests.decoder.checkpoints import converted, directory, traced
from tests.decoder.families import config_json, theirs
from tests.decoder.gguf_files import write_gguf

import firstdrift as fd
from firstdrift.decoder.config_json import FAMILIES, from_config, to_config
from firstdrift.decoder.decoder_config import PRESETS, config_of
from firstdrift.decoder.decoder_layers import frequencies
from firstdrift.errors import FormatError, WeightsError

PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
GGUF = {
    "llama": ({"attention_bias": False, "mlp_bias": False}, {}),
    "qwen2": ({"use_sliding_window": False, "hidden_size": 48, "num_attention_heads": 4, "head_dim": 12}, {}),
    "qwen3": ({"use_sliding_window": False}, {}),
    "gemma2": (
        {"query_pre_attn_scalar": 16, "head_dim": 16, "tie_word_embeddings": True},
        {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "attention__sliding_window": 4},
    ),
    "qwen3_moe": (
        {"use_sliding_window": False, "mlp_only_layers": [], "norm_topk_prob": True, "num_experts_per_tok": 2},
        {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24},
    ),
}


@pytest.mark.parametrize("family", GGUF)
def test_a_gguf_file_of_the_converters_is_the_model_it_was_made_from(family, tmp_path):
    changes, keys = GGUF[family]
    said = config_json(family, **PLAIN, **changes)
    model = theirs(said)
    path = write_gguf(tmp_path / "model.gguf", model, **keys)
    model.save_pretrained(tmp_path / "model")
    wanted, found = to_config(from_config(said, "config.json")), to_config(config_of(path))
    wanted["rms_norm_eps"] = float(np.float32(wanted["rms_norm_eps"]))  # GGUF has numbers of 32 bits
    assert found == wanted
    traced(tmp_path / "model", tmp_path / "wanted")
    traced(path, tmp_path / "found")
    result = fd.diff(tmp_path / "wanted", tmp_path / "found")
    assert result.verdict in ("same", "noise"), result.sentence
    assert result.exit_code == 0


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
def test_the_library_reads_the_same_gguf_file_to_the_same_model(family, tmp_path):
    changes, keys = GGUF[family]
    path = write_gguf(tmp_path / "model.gguf", theirs(config_json(family, **PLAIN, **changes)), **keys)
    stages = "embedding,qkv_bias,attn_norm,ffn_gate"  # the library reads no softcaps and windows from GGUF
    traced(path, tmp_path / "theirs", stages, "0..1", engine="transformers")
    traced(path, tmp_path / "ours", stages, "0..1")
    result = fd.diff(tmp_path / "theirs", tmp_path / "ours", only=["*embedding", "*qkv_bias", "*attn_norm"])
    assert result.verdict in ("same", "noise"), result.sentence


def test_divisors_of_frequencies_as_llama_3_has_them_in_gguf_are_its_scaling(tmp_path):
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    said = config_json(
        "llama", attention_bias=False, mlp_bias=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10_000.0, **scaling},
    )  # fmt: skip
    model = theirs(said)
    config = from_config(said, "config.json")
    plain = from_config(said | PLAIN, "config.json")
    divisors = frequencies(plain.rope, plain.head_dim) / frequencies(config.rope, config.head_dim)
    path = write_gguf(tmp_path / "model.gguf", model, divisors=divisors.numpy())
    assert config_of(path).rope.divisors == pytest.approx(divisors.tolist())
    model.save_pretrained(tmp_path / "model")
    traced(tmp_path / "model", tmp_path / "wanted")
    traced(path, tmp_path / "found")
    assert fd.diff(tmp_path / "wanted", tmp_path / "found").verdict in ("same", "noise")


def test_linear_scaling_and_partial_rotation_are_read_from_gguf(tmp_path):
    model = theirs(config_json("llama", **PLAIN, attention_bias=False, mlp_bias=False, head_dim=16))
    path = write_gguf(tmp_path / "model.gguf", model, rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert (config_of(path).rope.scaling, config_of(path).rope.factor) == ("linear", 4.0)
    path = write_gguf(tmp_path / "yarn.gguf", model, rope__scaling__type="yarn", rope__scaling__factor=4.0)
    with pytest.raises(FormatError, match="RoPE scaling is yarn, and only default, linear, llama3 are known"):
        config_of(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_apr_file_says_all_that_the_directory_said(family, tmp_path):
    model = directory(tmp_path / "model", family, 2)
    assert config_of(converted(model, tmp_path / "model.apr")) == config_of(model) == config_of(model / "config.json")


def test_an_apr_file_converted_from_gguf_says_what_the_gguf_said(tmp_path):
    model = theirs(config_json("llama", **PLAIN, attention_bias=False, mlp_bias=False))
    path = write_gguf(tmp_path / "model.gguf", model)
    assert config_of(converted(path, tmp_path / "model.apr")) == config_of(path)


def test_older_spellings_mean_the_same():
    new = config_json("llama", rope_parameters={"rope_type": "linear", "rope_theta": 500_000.0, "factor": 2.0})
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "architectures")}
    old |= {"rope_theta": 500_000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert from_config(old, "config.json") == from_config(new, "config.json")
    gemma = config_json("gemma", hidden_act="gelu")
    assert from_config(gemma, "config.json").activation == "gelu_pytorch_tanh"


def test_what_a_config_json_leaves_out_is_what_the_library_takes_for_it():
    import transformers

    core = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-6}  # fmt: skip
    for family, about in FAMILIES.items():
        moe = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24} if about.experts else {}
        given = core | moe | ({"num_key_value_heads": 2} if family != "llama" else {})
        library = getattr(transformers, about.architecture).config_class(**given)
        written = json.loads(library.to_json_string(use_diff=False)) | {"architectures": [about.architecture]}
        ours = from_config(given | {"architectures": [about.architecture]}, "config.json")
        assert ours == from_config(written, "config.json"), family


WRONG = {
    "missing": ({"hidden_size": None}, "hidden_size is missing"),
    "text": ({"num_attention_heads": "4"}, "num_attention_heads is '4', not a whole number"),
    "true": ({"num_hidden_layers": True}, "num_hidden_layers is True, not a whole number"),
    "zero": ({"vocab_size": 0}, "vocab_size is 0, not a whole number"),
    "infinite": ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf, not a number above 0"),
    "groups": ({"num_attention_heads": 6, "num_key_value_heads": 4}, "6 is no multiple of num_key_value_heads 4"),
    "odd head": ({"head_dim": 7}, "7 of 7 dimensions of a head would turn, and that must be an even number"),
    "too many layers": (
        {"num_hidden_layers": 10**9},
        "num_hidden_layers is 1000000000, not a whole number up to 65536",
    ),
    "activation": ({"hidden_act": "tanh"}, "hidden_act is 'tanh', and only silu, gelu, gelu_pytorch_tanh, relu"),
    "scaling": ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "RoPE scaling is yarn"),
    "factor": ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor is missing"),
    "rope": ({"rope_parameters": 3}, "rope_parameters is 3, not a table"),
    "bidirectional": ({"use_bidirectional_attention": True}, "attention is causal here"),
    "quantized": ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
    "tied": ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_run_is_refused_with_the_key_and_its_value(kind):
    changes, sentence = WRONG[kind]
    with pytest.raises(FormatError) as caught:
        from_config(config_json("llama", **changes), "some/config.json")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("FALSIFY-APR-PRETRAIN-INIT-005: some/config.json: ")


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(FormatError, match="hidden_size is missing; vocab_size is 'x'.*; rms_norm_eps is missing"):
        from_config(config_json("llama", hidden_size=None, vocab_size="x", rms_norm_eps=None), "config.json")


def test_experts_and_windows_that_cannot_be_are_refused():
    with pytest.raises(FormatError, match="num_experts_per_tok 9 is more than num_experts 6"):
        from_config(config_json("qwen3_moe", num_experts_per_tok=9), "config.json")
    with pytest.raises(FormatError, match="layer_types is no list of 2 kinds"):
        from_config(config_json("gemma2", num_hidden_layers=2, layer_types=["full_attention"]), "config.json")
    with pytest.raises(FormatError, match="mlp_only_layers is"):
        from_config(config_json("qwen3_moe", mlp_only_layers="1"), "config.json")


def test_an_encoder_is_refused_in_every_format(tmp_path):
    from firstdrift.weights.writing import write_checkpoint

    weight = [("embeddings.weight", np.zeros((4, 4), np.float32))]
    write_checkpoint(tmp_path / "bert.apr", weight, format="apr", metadata={"hf_architecture": "BertModel"})
    with pytest.raises(WeightsError, match="FALSIFY-APR-PRETRAIN-ARCH-007.*BertModel is an encoder"):
        config_of(tmp_path / "bert.apr")
    write_checkpoint(tmp_path / "bert.gguf", weight, format="gguf", metadata={"general.architecture": "bert"})
    with pytest.raises((FormatError, WeightsError), match="bert .*supported are llama"):
        config_of(tmp_path / "bert.gguf")


def test_presets_are_the_published_ones():
    assert to_config(PRESETS["qwen2-0.5b"])["architectures"] == ["Qwen2ForCausalLM"]
    assert (PRESETS["llama-370m"].vocab_size, PRESETS["llama-370m"].num_hidden_layers) == (50_257, 24)
    assert PRESETS["qwen2-0.5b"].qkv_bias
    assert not PRESETS["llama-370m"].qkv_bias
