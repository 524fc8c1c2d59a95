"""Which operation makes each stage of a decoder, with which settings and weights: what a trace says beside its numbers.

Names of operations and settings are those of the library that replays them; names of weights are Hugging Face's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.strict_json import Json
from .decoder_settings import MOE_STAGES, DecoderConfig, Rope

Settings = dict[str, Json]
_ACTIVATIONS: dict[str, tuple[str, Settings]] = {
    "silu": ("SiLU", {}),
    "gelu": ("GELU", {"approximate": "none"}),
    "gelu_pytorch_tanh": ("GELU", {"approximate": "tanh"}),
    "relu": ("ReLU", {}),
}


@dataclass(frozen=True, slots=True)
class StageOperation:
    """An operation, its settings, and the names of the weights that it reads, in the order in which it takes them."""

    op: str
    attrs: Settings = field(default_factory=dict)
    weights: tuple[str, ...] = ()


def operation_of(stage: str, layer: int, config: DecoderConfig, position: int) -> StageOperation:
    """What makes a stage; `position` is that of the first token fed."""
    own = f"model.layers.{layer}."
    if stage in MOE_STAGES:
        return _experts(stage, own, config, layer)
    norm: Settings = {"eps": config.rms_norm_eps} | ({"offset": config.norm_offset} if config.norm_offset else {})
    return {**_outside_attention(own, config, norm), **_attention(own, config, norm, layer, position)}[stage]


def _outside_attention(own: str, config: DecoderConfig, norm: Settings) -> dict[str, StageOperation]:
    scaled = {} if config.embedding_scale == 1.0 else {"scale": config.embedding_scale}
    capped = {} if config.logit_softcap is None else {"softcap": config.logit_softcap}
    before_network = "pre_feedforward_layernorm" if config.sandwich_norms else "post_attention_layernorm"
    add_attention = add_network = StageOperation("Add")
    if config.sandwich_norms:
        add_attention = StageOperation("AddNorm", norm, (f"{own}post_attention_layernorm.weight",))
        add_network = StageOperation("AddNorm", norm, (f"{own}post_feedforward_layernorm.weight",))
    return {
        "embedding": StageOperation("Embedding", scaled, ("model.embed_tokens.weight",)),
        "attn_norm": StageOperation("RMSNorm", norm, (f"{own}input_layernorm.weight",)),
        "post_attn_residual": add_attention,
        "ffn_norm": StageOperation("RMSNorm", norm, (f"{own}{before_network}.weight",)),
        "ffn_gate": _projection(f"{own}mlp.gate_proj", config.mlp_bias),
        "ffn_up": _projection(f"{own}mlp.up_proj", config.mlp_bias),
        "ffn_silu": StageOperation(*_ACTIVATIONS[config.activation]),
        "ffn_swigl": StageOperation("Mul"),
        "ffn_out": _projection(f"{own}mlp.down_proj", config.mlp_bias),
        "post_ffn_residual": add_network,
        "final_norm": StageOperation("RMSNorm", norm, ("model.norm.weight",)),
        "lm_head": StageOperation("Linear", capped, ("lm_head.weight",)),
    }


def _attention(own: str, config: DecoderConfig, norm: Settings, layer: int, position: int) -> dict[str, StageOperation]:
    query_heads, key_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    heads: Settings = {"heads": query_heads, "kv_heads": key_heads, "head_dim": size}
    keys = {**heads, "heads": key_heads, "start": query_heads * size}  # behind the queries in qkv_bias
    scale = size**-0.5 if config.score_scale is None else config.score_scale
    weights = tuple(f"{own}self_attn.{which}_proj.weight" for which in "qkv")
    biases = tuple(f"{own}self_attn.{which}_proj.bias" for which in "qkv")
    turned = StageOperation("RoPE", {**_rope(config.rope), "position": position, **heads})
    cut = {"softcap": config.score_softcap, "window": config.window(layer)}

    def split(which: str, said: Settings) -> StageOperation:
        if not config.qk_norm:
            return StageOperation("Heads", said)
        return StageOperation("Heads", said | norm, (f"{own}self_attn.{which}_norm.weight",))

    return {
        "qkv_matmul": StageOperation("Linear", heads, weights),
        "qkv_bias": StageOperation("BiasAdd", {}, biases) if config.qkv_bias else StageOperation("Identity"),
        "q_pre_rope": split("q", heads),
        "k_pre_rope": split("k", keys),
        "q_post_rope": turned,
        "k_post_rope": turned,
        "attn_scores": StageOperation("AttentionScores", {"scale": scale, **heads}),
        "attn_softmax": StageOperation("CausalSoftmax", {key: item for key, item in cut.items() if item is not None}),
        "attention": StageOperation("AttentionMix", heads),
        "attn_out": _projection(f"{own}self_attn.o_proj", config.output_bias),
    }


def _projection(module: str, biased: bool) -> StageOperation:
    return StageOperation("Linear", {}, (f"{module}.weight", *([f"{module}.bias"] if biased else [])))


def _rope(rope: Rope) -> Settings:
    plain = Rope()
    said: Settings = {"theta": rope.theta}
    for name in ("partial", "adjacent", "scaling", "factor"):
        if getattr(rope, name) != getattr(plain, name):
            said[name] = getattr(rope, name)
    if rope.scaling == "llama3":
        said |= {name: getattr(rope, name) for name in ("low_freq_factor", "high_freq_factor", "original_positions")}
    return said | ({"divisors": list(rope.divisors)} if rope.divisors else {})


def _experts(stage: str, own: str, config: DecoderConfig, layer: int) -> StageOperation:
    experts = config.experts_of(layer)
    assert experts is not None
    if stage != "moe_ffn_out":
        said: Settings = {"per_token": experts.per_token, "normalised": experts.normalised}
        said |= {"indices": True} if stage == "moe_router_indices" else {}
        return StageOperation("Router", said, (f"{own}mlp.gate.weight",))
    names = (
        f"{own}mlp.experts.{number}.{part}_proj.weight"
        for number in range(experts.count)
        for part in ("gate", "up", "down")
    )
    return StageOperation("Experts", {"activation": config.activation}, tuple(names))
