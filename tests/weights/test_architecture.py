"""Ten fields, all of them said by the file, none assumed; families that agree; encoders refused."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import firstdrift as fd
from firstdrift.weights.loading.architecture import (
    LLAMA_370M,
    PRESETS,
    QWEN2_0_5B,
    Fields,
    require_decoder,
)
from firstdrift.weights.loading.families import SPELLINGS, family_of_metadata, family_of_names, hybrid_of, is_encoder
from firstdrift.weights.writing import write_checkpoint

ID = "FALSIFY-APR-PRETRAIN-INIT-005"
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936, "hidden_size": 896, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "num_hidden_layers": 24, "max_position_embeddings": 32768,
    "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "tie_word_embeddings": True,
}  # fmt: skip
APR = {
    "model_type": "t", "architecture": "qwen2", "vocab_size": 151936, "hidden_size": 896, "num_heads": 14,
    "num_kv_heads": 2, "intermediate_size": 4864, "num_layers": 24, "max_position_embeddings": 32768,
    "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "tie_word_embeddings": True,
}  # fmt: skip
NAMES = [field.name for field in fields(Fields)]


def config(tmp_path, **changes):
    said = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(said))
    return tmp_path / "config.json"


def apr(tmp_path, tensors=("w",), **changes):
    said = {key: value for key, value in (APR | changes).items() if value is not ...}
    path = tmp_path / "m.apr"
    write_checkpoint(path, [(name, np.ones(2, np.float32)) for name in tensors], format="apr", metadata=said)
    return path


def test_there_are_exactly_ten_fields():
    assert len(NAMES) == 10
    assert list(QWEN2_0_5B.to_json()) == NAMES


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-003")
@pytest.mark.parametrize("write", [config, apr])
def test_the_ten_fields_are_read_as_they_are(write, tmp_path):
    found = fd.read_architecture(write(tmp_path))
    assert found.to_json() == QWEN2_0_5B.to_json()
    assert found.family == "qwen2"
    assert found.derived == ()


def test_a_directory_is_read_with_and_without_weights(tmp_path):
    config(tmp_path)
    assert fd.read_architecture(tmp_path).hidden_size == 896
    names = ["model.layers.0.self_attn.q_proj.bias", "model.embed_tokens.weight"]
    write_checkpoint(
        tmp_path / "model.safetensors", [(name, np.ones(2, np.float32)) for name in names], format="safetensors"
    )
    assert fd.read_architecture(tmp_path).family == "qwen2"


@pytest.mark.parametrize("key", [key for key in CONFIG if key != "architectures"])
def test_a_missing_field_of_a_config_is_named(key, tmp_path):
    with pytest.raises(fd.FormatError, match=f"{ID}.*{key}.* is missing"):
        fd.read_architecture(config(tmp_path, **{key: ...}))


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-005")
@pytest.mark.parametrize("key", [key for key in APR if key not in ("architecture", "model_type")])
def test_a_missing_field_of_an_apr_file_is_named(key, tmp_path):
    with pytest.raises(fd.FormatError, match=f"{ID}.*{key}.* is missing"):
        fd.read_architecture(apr(tmp_path, **{key: ...}))


def test_all_missing_fields_are_named_together(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(fd.FormatError) as caught:
        fd.read_architecture(tmp_path / "config.json")
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 896.0), ("hidden_size", "896"), ("hidden_size", True), ("hidden_size", 0), ("vocab_size", -1),
        ("rope_theta", "1e6"), ("rope_theta", True), ("rms_norm_eps", 0), ("tie_word_embeddings", 1),
        ("tie_word_embeddings", "true"), ("num_key_value_heads", [2]), ("num_hidden_layers", None),
        ("vocab_size", 2**63), ("rope_theta", float("inf")), ("rms_norm_eps", float("nan")),
    ],
)  # fmt: skip
def test_a_mistyped_field_is_named_with_its_value(key, value, tmp_path):
    with pytest.raises(fd.FormatError) as caught:
        fd.read_architecture(config(tmp_path, **{key: value}))
    assert ID in str(caught.value)
    assert key in str(caught.value)
    assert value is None or repr(value) in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@given(key=st.sampled_from([*CONFIG, "rope_parameters", "model_type", "attention_bias"]), value=JSON)
def test_whatever_stands_under_a_key_is_read_or_refused_by_name(tmp_path_factory, key, value):
    path = config(tmp_path_factory.getbasetemp(), **{key: value})
    try:
        found = fd.read_architecture(path)
    except fd.FirstdriftError as error:
        assert "FALSIFY" in str(error)
    else:
        assert all(type(one) in (int, float, bool) for one in found.to_json().values())


def test_heads_that_cannot_be_shared_are_bogus(tmp_path):
    with pytest.raises(fd.FormatError, match="14 is no multiple of num_kv_heads 4"):
        fd.read_architecture(config(tmp_path, num_key_value_heads=4))


def test_rope_theta_is_read_from_the_table_of_newer_configs(tmp_path):
    new = config(tmp_path, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 500000})
    assert fd.read_architecture(new).rope_theta == 500000.0
    with pytest.raises(fd.FormatError, match=r"rope_parameters\.rope_theta.* is missing"):
        fd.read_architecture(config(tmp_path, rope_theta=..., rope_parameters={"rope_type": "default"}))


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-INIT-003", "FALSIFY-APR-PRETRAIN-INIT-004")
def test_a_file_that_is_not_there_or_no_checkpoint_carries_its_id(tmp_path):
    with pytest.raises(fd.NotFoundError, match="FALSIFY-APR-PRETRAIN-INIT-003"):
        fd.read_architecture(tmp_path / "none.apr")
    for content in (b"", b"AP", b"NOPE and more of it"):
        (tmp_path / "bad.apr").write_bytes(content)
        with pytest.raises(fd.FormatError, match="FALSIFY-APR-PRETRAIN-INIT-004"):
            fd.read_architecture(tmp_path / "bad.apr")


def test_version_one_passes_the_magic_and_fails_at_the_architecture(tmp_path):
    (tmp_path / "old.apr").write_bytes(b"APRN" + bytes(60))
    with pytest.raises(fd.FormatError, match=ID):
        fd.read_architecture(tmp_path / "old.apr")


def test_a_damaged_header_of_a_known_file_is_no_architecture(tmp_path):
    (tmp_path / "cut.apr").write_bytes(b"APR\0" + bytes(10))
    with pytest.raises(fd.FormatError, match=ID):
        fd.read_architecture(tmp_path / "cut.apr")


@pytest.mark.falsifies("FALSIFY-INIT-ARCH-MATCH-001")
def test_a_family_that_contradicts_the_tensor_names_is_an_error(tmp_path):
    names = ["model.layers.0.self_attn.q_norm.weight"]
    with pytest.raises(fd.WeightsError, match="FALSIFY-INIT-ARCH-MATCH-001.*qwen2.*qwen3"):
        fd.read_architecture(apr(tmp_path, names))
    assert fd.read_architecture(apr(tmp_path, names, architecture="Qwen3ForCausalLM")).family == "qwen3"
    assert fd.read_architecture(apr(tmp_path, names, architecture="something new")).family == "qwen3"


def test_models_that_rightly_have_names_of_another_family_are_no_contradiction(tmp_path):
    fused = ["model.layers.0.self_attn.qkv_proj.weight"]
    assert fd.read_architecture(apr(tmp_path, fused, architecture="Phi3ForCausalLM")).family == "llama"
    biased = ["model.layers.0.self_attn.q_proj.bias"]
    assert fd.read_architecture(apr(tmp_path, biased, architecture="llama", attention_bias=True)).family == "llama"
    with pytest.raises(fd.WeightsError, match="FALSIFY-INIT-ARCH-MATCH-001"):
        fd.read_architecture(apr(tmp_path, biased, architecture="llama"))


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-007")
@pytest.mark.parametrize("name", ["BertModel", "bert", "RobertaForMaskedLM", "XLM-ROBERTA", "DistilBertModel"])
def test_encoders_are_refused_for_decoder_use_in_any_case(name, tmp_path):
    found = fd.read_architecture(config(tmp_path, architectures=[name]))
    assert found.encoder
    with pytest.raises(fd.WeightsError) as caught:
        require_decoder(found, "place")
    for said in ("FALSIFY-APR-PRETRAIN-ARCH-007", "Encoder", "decoder-only", name, "896", "24", "151936"):
        assert said in str(caught.value)


def test_decoders_are_not_refused(tmp_path):
    require_decoder(fd.read_architecture(config(tmp_path)), "place")


@pytest.mark.falsifies("FALSIFY-TAH-001")
@pytest.mark.parametrize("name", ["Qwen3NextForCausalLM", "qwen3_next", "Qwen3.5ForCausalLM", "qwen35"])
def test_hybrids_are_refused_by_what_they_have_in_place_of_attention(name, tmp_path):
    assert hybrid_of(name) == "Gated DeltaNet"
    with pytest.raises(fd.FormatError, match=r"FALSIFY-TAH-001.*Gated DeltaNet"):
        fd.read_architecture(config(tmp_path, architectures=[name]))


def test_every_spelling_belongs_to_one_family():
    spellings = [name for names in SPELLINGS.values() for name in names]
    assert len(spellings) == len(set(spellings))
    for family, names in SPELLINGS.items():
        assert {family_of_metadata(name) for name in names} == {family}
    assert family_of_metadata("MistralForCausalLM") == "llama"
    assert family_of_metadata("LLAMA") is None
    assert family_of_metadata(None) is None


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (["backbone.layers.0.mixer.in_proj.weight"], "mamba"),
        (["rwkv.blocks.0.ln1.weight"], "rwkv"),
        (["blocks.0.att.key.weight"], "rwkv"),
        (["gpt_neox.layers.0.attention.dense.weight"], "gpt-neox"),
        (["model.decoder.layers.0.fc1.weight"], "opt"),
        (["bert.encoder.layer.0.output.dense.weight"], "bert"),
        (["model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_norm.weight"], "qwen3"),
        (["model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"], "qwen2"),
        (["model.layers.0.self_attn.qkv_proj.weight"], "qwen2"),
        (["model.layers.0.self_attn.q_proj.weight"], "llama"),
        (["transformer.h.0.attn.c_attn.weight"], "gpt2"),
        (["h.0.attn.c_attn.weight"], "gpt2"),
        (["h.0.mlp.weight"], None),
        (["conv1.weight"], None),
        ([], None),
    ],
)
def test_names_tell_the_family_by_the_first_rule_that_fits(names, family):
    assert family_of_names(names) == family


@given(st.text(max_size=30))
def test_no_name_breaks_the_tables(name):
    assert family_of_metadata(name) in {None, *SPELLINGS}
    assert family_of_names([name]) in {None, *SPELLINGS}
    assert is_encoder(name) == ("bert" in name.lower())
    hybrid_of(name)


@pytest.mark.falsifies("FALSIFY-APR-PRETRAIN-ARCH-001")
def test_presets_have_the_published_numbers():
    assert set(PRESETS) == {"llama-370m", "qwen2-0.5b"}
    assert (LLAMA_370M.hidden_size, LLAMA_370M.vocab_size, LLAMA_370M.rms_norm_eps) == (1024, 50257, 1e-5)
    for one in PRESETS.values():
        assert one.hidden_size // one.num_attention_heads == 64


def test_the_presets_are_the_models_of_transformers():
    from firstdrift.weights.loading.destinations import destinations

    kinds = {
        "llama-370m": (transformers.LlamaConfig, 322_045_952),
        "qwen2-0.5b": (transformers.Qwen2Config, 494_032_768),
    }
    for name, (kind, parameters) in kinds.items():
        said = PRESETS[name].to_json()
        said["num_key_value_heads"] = said.pop("num_kv_heads")
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(kind(**said))
        places = destinations(model)
        assert sum(place.size for place in places) == parameters
        if name == "qwen2-0.5b":
            assert len(places) == 290
