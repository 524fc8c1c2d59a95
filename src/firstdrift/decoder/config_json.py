"""A decoder's settings from a Hugging Face config.json, and back.

What a config.json leaves out has the meaning that the library which wrote it gives to that; what this decoder cannot
compute is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from ..core.strict_json import Json
from ..errors import FormatError, WeightsError
from ..weights.loading.architecture import refuse_contradiction
from ..weights.loading.failures import ARCHITECTURE, ENCODER
from ..weights.loading.families import is_encoder
from .decoder_settings import DecoderConfig, Experts, Reader, Rope

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
SAME_ACTIVATION = {"swish": "silu", "gelu_new": "gelu_pytorch_tanh"}
SCALINGS = ("default", "linear", "llama3")
MOST_LAYERS = MOST_EXPERTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Family:
    """What members of a family have in common, whatever their config.json says."""

    architecture: str
    qkv_bias: bool | None = None  # None: the key attention_bias says it, of the output projection too
    qk_norm: bool = False
    gemma: bool = False
    sandwich: bool = False
    sliding: str | None = None  # which layers look back a window: all of them, late ones, or every other
    experts: bool = False
    head_dim: int | None = None  # where the key is left out; else the hidden size divided by the heads


FAMILIES = {
    "llama": Family("LlamaForCausalLM"),
    "mistral": Family("MistralForCausalLM", qkv_bias=False, sliding="all"),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True, sliding="late"),
    "qwen3": Family("Qwen3ForCausalLM", qk_norm=True, sliding="late", head_dim=128),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", qk_norm=True, sliding="asked", experts=True),
    "gemma": Family("GemmaForCausalLM", gemma=True, head_dim=256),
    "gemma2": Family("Gemma2ForCausalLM", gemma=True, sandwich=True, sliding="alternate", head_dim=256),
}
BY_ARCHITECTURE = {family.architecture: name for name, family in FAMILIES.items()}
SUPPORTED = ", ".join(f"{name} ({family.architecture})" for name, family in FAMILIES.items())


def from_config(said: Mapping[str, Json], place: str) -> DecoderConfig:
    """The settings that a config.json means; every key that is missing or wrong is named."""
    family = family_of(said, place)
    of = FAMILIES[family]
    read = Reader(said)
    hidden, heads = read.whole("hidden_size"), read.whole("num_attention_heads")
    layers = read.whole("num_hidden_layers", most=MOST_LAYERS)
    positions = read.whole("max_position_embeddings")
    window = read.unless_null("sliding_window", 4096) if of.sliding else None
    sliding = _sliding_layers(read, of, layers, window)
    biased = read.flag("attention_bias", False) if of.qkv_bias is None else of.qkv_bias
    scale = read.number("query_pre_attn_scalar", 256.0) if family == "gemma2" else None
    config = DecoderConfig(
        vocab_size=read.whole("vocab_size"), hidden_size=hidden, intermediate_size=read.whole("intermediate_size"),
        num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=read.whole("num_key_value_heads", heads),
        head_dim=read.whole("head_dim", of.head_dim or hidden // max(1, heads)), max_position_embeddings=positions,
        rms_norm_eps=read.number("rms_norm_eps"), rope=_rope(read, positions),
        tie_word_embeddings=read.flag("tie_word_embeddings", of.gemma), qkv_bias=biased,
        output_bias=biased and of.qkv_bias is None, mlp_bias=family == "llama" and read.flag("mlp_bias", False),
        qk_norm=of.qk_norm, activation=_activation(read, of), norm_offset=1.0 if of.gemma else 0.0,
        sandwich_norms=of.sandwich, embedding_scale=sqrt(hidden) if of.gemma else 1.0,
        score_scale=None if scale is None else scale**-0.5,
        score_softcap=read.unless_null("attn_logit_softcapping", 50.0) if of.sandwich else None,
        logit_softcap=read.unless_null("final_logit_softcapping", 30.0) if of.sandwich else None,
        sliding_window=int(window) if sliding and window else None, sliding_layers=sliding,
        experts=_experts(read, layers) if of.experts else None, family=family,
    )  # fmt: skip
    read.refuse_what_would_be_ignored()
    if not read.problems:
        read.problems += contradictions(config)
    if read.problems:
        raise FormatError(
            f"{ARCHITECTURE}: {place}: does not describe a {of.architecture} that can be run here: "
            f"{'; '.join(read.problems)}; correct it"
        )
    return config


def to_config(config: DecoderConfig) -> dict[str, Json]:
    """The config.json of a decoder: `from_config` of it is the same decoder again."""
    family = FAMILIES[config.family]
    rope: dict[str, Json] = {"rope_type": config.rope.scaling, "rope_theta": config.rope.theta}
    if config.rope.partial != 1.0:
        rope["partial_rotary_factor"] = config.rope.partial
    if config.rope.scaling != "default":
        rope["factor"] = config.rope.factor
    if config.rope.scaling == "llama3":
        rope |= {
            "low_freq_factor": config.rope.low_freq_factor, "high_freq_factor": config.rope.high_freq_factor,
            "original_max_position_embeddings": config.rope.original_positions,
        }  # fmt: skip
    said: dict[str, Json] = {
        "architectures": [family.architecture], "model_type": config.family, "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers, "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads, "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings, "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope, "rope_theta": config.rope.theta, "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": config.activation,
    }  # fmt: skip
    if family.qkv_bias is None:
        said["attention_bias"] = config.qkv_bias
    if config.family == "llama":
        said["mlp_bias"] = config.mlp_bias
    if family.sliding:
        said |= _window_keys(config)
    if family.sandwich:
        scalar: Json = config.head_dim if config.score_scale is None else round(config.score_scale**-2, 9)
        scalar = int(scalar) if scalar == int(scalar) else scalar  # the library takes whole numbers alone
        said |= {
            "hidden_activation": config.activation, "query_pre_attn_scalar": scalar,
            "attn_logit_softcapping": config.score_softcap, "final_logit_softcapping": config.logit_softcap,
        }  # fmt: skip
    if config.experts is not None:
        said |= {
            "num_experts": config.experts.count, "num_experts_per_tok": config.experts.per_token,
            "moe_intermediate_size": config.experts.intermediate_size, "norm_topk_prob": config.experts.normalised,
            "mlp_only_layers": list(config.experts.dense_layers), "decoder_sparse_step": 1,
        }  # fmt: skip
    return said


def family_of(said: Mapping[str, Json], place: str) -> str:
    """The family that a config.json names; encoders and what is not known are refused."""
    refuse_contradiction("config", said, place)
    named = said.get("architectures")
    name = named[0] if isinstance(named, list) and named else said.get("model_type")
    known = BY_ARCHITECTURE if isinstance(named, list) and named else dict(zip(FAMILIES, FAMILIES, strict=True))
    if not isinstance(name, str):
        raise FormatError(f"{place}: names no architecture (architectures, model_type); supported are {SUPPORTED}")
    if name in known:
        return known[name]
    if is_encoder(name):
        raise WeightsError(
            f"{ENCODER}: {place}: {name} is an encoder, and only decoders can be traced; supported are {SUPPORTED}"
        )
    raise FormatError(f"{place}: the architecture {name} is not supported; supported are {SUPPORTED}")


def contradictions(config: DecoderConfig) -> list[str]:
    """What no model can be, of numbers that are each possible."""
    rotated = int(config.head_dim * config.rope.partial)
    said = {
        f"num_attention_heads {config.num_attention_heads} is no multiple of num_key_value_heads "
        f"{config.num_key_value_heads}": config.num_attention_heads % config.num_key_value_heads,
        f"{rotated} of {config.head_dim} dimensions of a head would turn, and that must be an even number above 0": (
            not 0 < rotated <= config.head_dim or rotated % 2
        ),
        f"{len(config.rope.divisors)} divisors are given for {rotated // 2} frequencies": (
            len(config.rope.divisors) not in (0, rotated // 2)
        ),
    }  # fmt: skip
    if config.experts is not None:
        chosen, count = config.experts.per_token, config.experts.count
        said[f"num_experts_per_tok {chosen} is more than num_experts {count}"] = chosen > count
    return [sentence for sentence, holds in said.items() if holds]


def _rope(read: Reader, positions: int) -> Rope:
    """Newer configurations keep all of it in `rope_parameters`; older ones the base beside `rope_scaling`."""
    table = read.table("rope_parameters") or read.table("rope_scaling") or Reader({}, read.problems)
    kind = table.said.get("rope_type", table.said.get("type", "default"))
    if kind not in SCALINGS:
        if any(isinstance(value, dict) for value in table.said.values()):
            kind = "one for each kind of layer"
        read.problems.append(f"RoPE scaling is {kind}, and only {', '.join(SCALINGS)} are known")
        return Rope()
    scaled = table if kind in ("linear", "llama3") else None
    llama3 = table if kind == "llama3" else None
    plain = Rope()
    return Rope(
        theta=table.number("rope_theta", read.number("rope_theta", plain.theta)),
        partial=table.number("partial_rotary_factor", read.number("partial_rotary_factor", plain.partial)),
        scaling=str(kind),
        factor=scaled.number("factor") if scaled else plain.factor,
        low_freq_factor=llama3.number("low_freq_factor") if llama3 else plain.low_freq_factor,
        high_freq_factor=llama3.number("high_freq_factor") if llama3 else plain.high_freq_factor,
        original_positions=llama3.whole("original_max_position_embeddings", positions)
        if llama3
        else plain.original_positions,
        divisors=tuple(read.said.get("rope_divisors", ())),
        adjacent=read.said.get("rope_adjacent", False) is True,
    )


def _activation(read: Reader, of: Family) -> str:
    key = "hidden_activation" if of.sandwich else "hidden_act"
    name = read.said.get(key) or read.said.get("hidden_act") or ("gelu_pytorch_tanh" if of.gemma else "silu")
    name = SAME_ACTIVATION.get(str(name), name)
    if of.gemma and name == "gelu":
        return "gelu_pytorch_tanh"  # as the first releases of Gemma wrote it, and meant
    if name not in ACTIVATIONS:
        read.problems.append(f"{key} is {name!r}, and only {', '.join(ACTIVATIONS)} are known")
        return ACTIVATIONS[0]
    return str(name)


def _sliding_layers(read: Reader, of: Family, layers: int, window: float | None) -> tuple[int, ...]:
    """The layers whose attention looks back a window, in the words of each family."""
    if of.sliding is None or window is None:
        return ()
    asked = of.sliding in ("all", "alternate") or read.flag("use_sliding_window", False)
    if not asked:
        return ()
    kinds = read.said.get("layer_types")
    if of.sliding in ("late", "alternate") and kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            read.problems.append(f"layer_types is no list of {layers} kinds, one for each layer")
            return ()
        unknown = {str(kind) for kind in kinds} - {"full_attention", "sliding_attention"}
        if unknown:
            read.problems.append(f"layer_types has {', '.join(sorted(unknown))}, which is not known")
        return tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    if of.sliding == "late":
        return tuple(range(read.whole("max_window_layers", 28), layers))
    return tuple(range(0, layers, 2 if of.sliding == "alternate" else 1))


def _window_keys(config: DecoderConfig) -> dict[str, Json]:
    kinds = ["sliding_attention" if config.window(i) else "full_attention" for i in range(config.num_hidden_layers)]
    said: dict[str, Json] = {"sliding_window": config.sliding_window}
    way = FAMILIES[config.family].sliding
    if way in ("late", "asked"):
        said["use_sliding_window"] = bool(config.sliding_layers)
    return said | ({"layer_types": kinds} if way in ("late", "alternate") else {})


def _experts(read: Reader, layers: int) -> Experts:
    count_key = "num_experts" if "num_experts" in read.said else "num_local_experts"
    step = read.whole("decoder_sparse_step", 1)
    dense = set(read.whole_list("mlp_only_layers")) | {layer for layer in range(layers) if (layer + 1) % step}
    return Experts(
        count=read.whole(count_key, most=MOST_EXPERTS), per_token=read.whole("num_experts_per_tok"),
        intermediate_size=read.whole("moe_intermediate_size"), normalised=read.flag("norm_topk_prob", False),
        dense_layers=tuple(sorted(dense)),
    )  # fmt: skip
