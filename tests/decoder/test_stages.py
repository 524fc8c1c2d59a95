"""Each of the 23 stages is what its name says, recomputed in float64 from the stages before it and the weights."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.decoder.checkpoints import directory, traced

import firstdrift as fd
from firstdrift.decoder.decoder_config import config_of


@pytest.fixture(scope="module", params=["qwen2", "qwen3_moe", "gemma2", "qwen2 f64", "gemma2 f64", "qwen3_moe f64"])
def run(request, tmp_path_factory):
    """Stages of the last layer but one by name, weights, settings."""
    family, _, dtype = request.param.partition(" ")
    root = tmp_path_factory.mktemp(family)
    model = directory(root / "model", family, 1, num_hidden_layers=2, mlp_only_layers=[], attention_bias=True)
    traced(model, root / "trace", dtype=dtype or "f32")
    trace = fd.open_trace(root / "trace")
    found = {record.site.name: trace.array(record)[0] for record in trace.records}
    assert {value.dtype for value in found.values()} >= {np.dtype(np.float64 if dtype else np.float32)}
    weights = {name: value.astype(np.float64) for name, value in load_file(model / "model.safetensors").items()}
    return found, weights, config_of(model)


def close(found, wanted):
    """To the roundings of the dtype that a stage was computed in."""
    limit = 2e-5 if found.dtype == np.float32 else 2e-13
    np.testing.assert_allclose(found, wanted, rtol=limit, atol=limit * np.abs(wanted).max())


def rms(x, weight, config):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * (weight + config.norm_offset)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def activation(x, config):
    if config.activation == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_embedding_and_what_follows_the_layers(run):
    found, weights, config = run
    table = weights["model.embed_tokens.weight"]
    close(found["layer-0.embedding"], table[found["input"].astype(int)] * config.embedding_scale)
    close(found["final_norm"], rms(found["layer-1.post_ffn_residual"], weights["model.norm.weight"], config))
    logits = found["final_norm"] @ weights.get("lm_head.weight", table).T
    if config.logit_softcap:
        logits = np.tanh(logits / config.logit_softcap) * config.logit_softcap
    close(found["lm_head"], logits)


def test_attention(run):
    found, weights, config = run
    at = {name.partition(".")[2]: value for name, value in found.items() if name.startswith("layer-1.")}
    own = {name.removeprefix("model.layers.1."): value for name, value in weights.items() if ".layers.1." in name}
    close(at["attn_norm"], rms(found["layer-0.post_ffn_residual"], own["input_layernorm.weight"], config))
    parts = [f"self_attn.{one}_proj" for one in "qkv"]
    close(at["qkv_matmul"], np.concatenate([at["attn_norm"] @ own[f"{part}.weight"].T for part in parts], -1))
    bias = np.concatenate([own.get(f"{part}.bias", np.zeros(len(own[f"{part}.weight"]))) for part in parts])
    close(at["qkv_bias"], at["qkv_matmul"] + bias)
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    tokens = len(at["qkv_bias"])
    assert at["q_post_rope"].shape == (tokens, heads, size)
    assert at["k_post_rope"].shape == (tokens, groups, size)
    close(np.linalg.norm(at["q_post_rope"], axis=-1), np.linalg.norm(at["q_pre_rope"], axis=-1))
    assert np.array_equal(at["q_post_rope"][0], at["q_pre_rope"][0])  # the first position does not turn
    assert not np.allclose(at["q_post_rope"][5], at["q_pre_rope"][5])
    keys = at["k_post_rope"].repeat(heads // groups, 1)
    scale = size**-0.5 if config.score_scale is None else config.score_scale
    close(at["attn_scores"], np.einsum("qhd,khd->hqk", at["q_post_rope"], keys) * scale)
    scores = at["attn_scores"]
    if config.score_softcap:
        scores = np.tanh(scores / config.score_softcap) * config.score_softcap
    query, key = np.mgrid[:tokens, :tokens]
    hidden = (key > query) | (key <= query - (config.window(1) or tokens + 1))
    close(at["attn_softmax"], softmax(np.where(hidden, -np.inf, scores)))
    assert not at["attn_softmax"][:, hidden].any()
    values = at["qkv_bias"][:, -groups * size :].reshape(tokens, groups, size).repeat(heads // groups, 1)
    close(at["attention"], np.einsum("hqk,khd->qhd", at["attn_softmax"], values).reshape(tokens, -1))
    out = at["attention"] @ own["self_attn.o_proj.weight"].T + own.get("self_attn.o_proj.bias", 0)
    close(at["attn_out"], out)
    added = rms(out, own["post_attention_layernorm.weight"], config) if config.sandwich_norms else out
    close(at["post_attn_residual"], found["layer-0.post_ffn_residual"] + added)


def test_feed_forward_or_experts(run):
    found, weights, config = run
    at = {name.partition(".")[2]: value for name, value in found.items() if name.startswith("layer-1.")}
    own = {name.removeprefix("model.layers.1."): value for name, value in weights.items() if ".layers.1." in name}
    norm = "pre_feedforward_layernorm" if config.sandwich_norms else "post_attention_layernorm"
    close(at["ffn_norm"], rms(at["post_attn_residual"], own[f"{norm}.weight"], config))
    if config.experts:
        out = experts(at, own, config)
        assert not {"ffn_gate", "ffn_up", "ffn_silu", "ffn_swigl", "ffn_out"} & set(at)
    else:
        close(at["ffn_gate"], at["ffn_norm"] @ own["mlp.gate_proj.weight"].T)
        close(at["ffn_up"], at["ffn_norm"] @ own["mlp.up_proj.weight"].T)
        close(at["ffn_silu"], activation(at["ffn_gate"], config))
        close(at["ffn_swigl"], at["ffn_silu"] * at["ffn_up"])
        out = at["ffn_swigl"] @ own["mlp.down_proj.weight"].T
        close(at["ffn_out"], out)
        assert not {"moe_router", "moe_router_indices", "moe_ffn_out"} & set(at)
    if config.sandwich_norms:
        out = rms(out, own["post_feedforward_layernorm.weight"], config)
    close(at["post_ffn_residual"], at["post_attn_residual"] + out)


def experts(at, own, config):
    likely = softmax(at["ffn_norm"] @ own["mlp.gate.weight"].T)
    chosen = np.argsort(-likely, -1)[:, : config.experts.per_token]
    assert np.array_equal(at["moe_router_indices"], chosen)
    strength = np.take_along_axis(likely, chosen, -1)
    if config.experts.normalised:
        strength = strength / strength.sum(-1, keepdims=True)
    close(at["moe_router"], strength)
    out = np.zeros_like(at["ffn_norm"])
    for token, numbers in enumerate(chosen):
        for number, weight in zip(numbers, strength[token], strict=True):
            gate, up, down = (own[f"mlp.experts.{number}.{one}_proj.weight"] for one in ("gate", "up", "down"))
            x = at["ffn_norm"][token]
            out[token] += weight * (down @ (activation(gate @ x, config) * (up @ x)))
    close(at["moe_ffn_out"], out)
    return out


def test_producers_are_the_nearest_recorded_stages(tmp_path):
    model = directory(tmp_path / "model", "llama", num_hidden_layers=3)
    traced(model, tmp_path / "trace", "embedding,attn_out,ffn_norm,layer_output,lm_head")
    records = {record.site.name: record for record in fd.open_trace(tmp_path / "trace").records}
    made_of = {name: {site.name for site in record.producers or ()} for name, record in records.items()}
    assert made_of["layer-0.attn_out"] == {"layer-0.embedding"}
    assert made_of["layer-1.attn_out"] == {"layer-0.post_ffn_residual"}
    assert made_of["layer-1.ffn_norm"] == {"layer-1.attn_out", "layer-0.post_ffn_residual"}
    assert made_of["layer-1.post_ffn_residual"] == {"layer-1.ffn_norm", "layer-1.attn_out", "layer-0.post_ffn_residual"}
    assert made_of["lm_head"] == {"layer-2.post_ffn_residual"}
    orders = [record.order for record in records.values() if record.order is not None]
    assert orders == sorted(orders)
