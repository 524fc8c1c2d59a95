"""Which operation makes each stage of a decoder, with which settings and weights: what a trace says beside its numbers.

Names of operations and settings are those of the library that replays them; names of weights are Hugging Face's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.strict_json import Json
from .decoder_settings import DecoderConfig, Rope

_ACTIVATIONS: dict[str, tuple[str, dict[str, Json]]] = {
    "silu": ("SiLU", {}),
    "gelu": ("GELU", {"approximate": "none"}),
    "gelu_pytorch_tanh": ("GELU", {"approximate": "tanh"}),
    "relu": ("ReLU", {}),
}


@dataclass(frozen=True, slots=True)
class StageOperation:
    """An operation, its settings, and the names of the weights that it reads, in the order in which it takes them."""

    op: str
    attrs: dict[str, Json] = field(default_factory=dict)
    weights: tuple[str, ...] = ()


def operation_of(stage: str, layer: int, config: DecoderConfig, position: int) -> StageOperation:
    """What makes a stage; `position` is that of the first token fed."""
    own = f"model.layers.{layer}."
    if stage in _PROJECTIONS:
        return _projection(own + _PROJECTIONS[stage], _is_biased(stage, config))
    if stage in ("attn_norm", "ffn_norm", "final_norm"):
        return StageOperation("RMSNorm", _norm(config), (_norm_name(stage, own, config),))
    if stage in ("post_attn_residual", "post_ffn_residual"):
        return _residual(stage, own, config)
    if stage.endswith("_rope"):
        return _around_rope(stage, own, config, position)
    if stage.startswith("moe_"):
        return _experts(stage, own, config, layer)
    if stage.startswith(("qkv_", "attn_", "attention")):
        return _attention(stage, own, config, layer)
    if stage == "embedding":
        scale = {} if config.embedding_scale == 1.0 else {"scale": config.embedding_scale}
        return StageOperation("Embedding", scale, ("model.embed_tokens.weight",))
    if stage == "lm_head":
        capped = {} if config.logit_softcap is None else {"softcap": config.logit_softcap}
        return StageOperation("Linear", capped, ("lm_head.weight",))
    return StageOperation("Mul") if stage == "ffn_swigl" else StageOperation(*_ACTIVATIONS[config.activation])


_PROJECTIONS = {
    "attn_out": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_out": "mlp.down_proj",
}  # fmt: skip


def _is_biased(stage: str, config: DecoderConfig) -> bool:
    return config.output_bias if stage == "attn_out" else config.mlp_bias


def _projection(module: str, biased: bool) -> StageOperation:
    return StageOperation("Linear", {}, (f"{module}.weight", *([f"{module}.bias"] if biased else [])))


def _norm(config: DecoderConfig) -> dict[str, Json]:
    said: dict[str, Json] = {"eps": config.rms_norm_eps}
    return said | ({"offset": config.norm_offset} if config.norm_offset else {})


def _norm_name(stage: str, own: str, config: DecoderConfig) -> str:
    before_network = "pre_feedforward_layernorm" if config.sandwich_norms else "post_attention_layernorm"
    names = {"attn_norm": f"{own}input_layernorm", "ffn_norm": own + before_network, "final_norm": "model.norm"}
    return f"{names[stage]}.weight"


def _residual(stage: str, own: str, config: DecoderConfig) -> StageOperation:
    if not config.sandwich_norms:
        return StageOperation("Add")
    norm = "post_attention_layernorm" if stage == "post_attn_residual" else "post_feedforward_layernorm"
    return StageOperation("AddNorm", _norm(config), (f"{own}{norm}.weight",))


def _heads(config: DecoderConfig) -> dict[str, Json]:
    return {"heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads, "head_dim": config.head_dim}


def _around_rope(stage: str, own: str, config: DecoderConfig, position: int) -> StageOperation:
    which = stage[0]
    if stage.endswith("post_rope"):
        return StageOperation("RoPE", {**_rope(config.rope), "position": position, **_heads(config)})
    said = _heads(config) | ({} if which == "q" else {
        "heads": config.num_key_value_heads, "start": config.num_attention_heads * config.head_dim,
    })  # fmt: skip
    if not config.qk_norm:
        return StageOperation("Heads", said)
    return StageOperation("Heads", said | _norm(config), (f"{own}self_attn.{which}_norm.weight",))


def _rope(rope: Rope) -> dict[str, Json]:
    plain = Rope()
    said: dict[str, Json] = {"theta": rope.theta}
    for name in ("partial", "adjacent", "scaling", "factor"):
        if getattr(rope, name) != getattr(plain, name):
            said[name] = getattr(rope, name)
    if rope.scaling == "llama3":
        said |= {name: getattr(rope, name) for name in ("low_freq_factor", "high_freq_factor", "original_positions")}
    return said | ({"divisors": list(rope.divisors)} if rope.divisors else {})


def _attention(stage: str, own: str, config: DecoderConfig, layer: int) -> StageOperation:
    projections = [f"{own}self_attn.{which}_proj" for which in "qkv"]
    if stage == "qkv_matmul":
        return StageOperation("Linear", _heads(config), tuple(f"{projection}.weight" for projection in projections))
    if stage == "qkv_bias":
        biases = tuple(f"{projection}.bias" for projection in projections)
        return StageOperation("BiasAdd", {}, biases) if config.qkv_bias else StageOperation("Identity")
    if stage == "attn_scores":
        scale = config.head_dim**-0.5 if config.score_scale is None else config.score_scale
        return StageOperation("AttentionScores", {"scale": scale, **_heads(config)})
    if stage == "attn_softmax":
        said = {"softcap": config.score_softcap, "window": config.window(layer)}
        return StageOperation("CausalSoftmax", {key: item for key, item in said.items() if item is not None})
    return StageOperation("AttentionMix", _heads(config))


def _experts(stage: str, own: str, config: DecoderConfig, layer: int) -> StageOperation:
    experts = config.experts_of(layer)
    assert experts is not None
    if stage != "moe_ffn_out":
        said: dict[str, Json] = {"per_token": experts.per_token, "normalised": experts.normalised}
        said |= {"indices": True} if stage == "moe_router_indices" else {}
        return StageOperation("Router", said, (f"{own}mlp.gate.weight",))
    names = (
        f"{own}mlp.experts.{number}.{part}_proj.weight"
        for number in range(experts.count)
        for part in ("gate", "up", "down")
    )
    return StageOperation("Experts", {"activation": config.activation}, tuple(names))
