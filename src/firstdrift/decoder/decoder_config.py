"""Where a decoder's settings come from: a preset, a config.json, or the metadata of an APR or GGUF file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ..core.strict_json import Json
from ..errors import FormatError
from ..weights.checkpoint import Checkpoint
from ..weights.formats.hf_directory import CONFIG
from ..weights.json_file import read_json_object
from ..weights.loading.architecture import (
    BIASED,
    LLAMA_370M,
    QWEN2_0_5B,
    Architecture,
    kind_of,
    labels_of,
    metadata_of,
    refuse_contradiction,
    weights_in,
)
from ..weights.open_checkpoint import open_checkpoint
from .config_json import BY_ARCHITECTURE, FAMILIES, SUPPORTED, from_config
from .decoder_settings import DecoderConfig as DecoderConfig
from .decoder_settings import Rope

# What an APR file calls the keys of a config.json.
APR_KEYS = {
    "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads",
}  # fmt: skip
ADJACENT = 0  # APR's rope_type of pairs that lie side by side


def config_of(path: str | PathLike[str]) -> DecoderConfig:
    """The settings of a model: of a Hugging Face directory or its config.json, an APR or a GGUF file, or weights with
    a config.json beside them. Only metadata is read. Encoders and architectures that are not supported are refused."""
    path = Path(path)
    if (path / CONFIG).is_file() and not weights_in(path):
        path = path / CONFIG
    if path.name.endswith(".json") and not path.name.endswith(".index.json"):
        return from_config(read_json_object(path), str(path))
    with open_checkpoint(path) as checkpoint:
        return config_of_checkpoint(checkpoint)


def config_of_checkpoint(checkpoint: Checkpoint, *, by_names: bool = True) -> DecoderConfig:
    """The settings of an open checkpoint. `by_names` also compares what it calls its model with its tensors' names."""
    said, place = metadata_of(checkpoint)
    kind = "gguf" if described_by_gguf(checkpoint) else kind_of(checkpoint)
    if kind == "config" and "vocab_size" not in said and place.name != CONFIG:
        raise FormatError(
            f"{place}: {checkpoint.format} weights do not say what model they are of, and there is no {CONFIG} beside "
            "them; put it there"
        )
    refuse_contradiction(kind, said, str(place), checkpoint.entries if by_names else ())
    if kind == "gguf":
        return from_config(config_of_gguf(checkpoint), str(place))
    return from_config(_config_of_apr(checkpoint) if kind == "apr" else said, str(place))


def _config_of_apr(checkpoint: Checkpoint) -> dict[str, Json]:
    said = dict(checkpoint.metadata)
    labels = labels_of("apr", said)
    for key, spelled in APR_KEYS.items():
        if spelled in said:
            said.setdefault(key, said[spelled])
    known = [name for name in labels.values() if name in BY_ARCHITECTURE or name.lower() in FAMILIES]
    name = next(iter([*known, *labels.values()]), None)
    said.pop("architectures", None)
    said["model_type"] = None if name is None else BY_ARCHITECTURE.get(name, name.lower() if known else name)
    said.setdefault("tie_word_embeddings", OUTPUT not in checkpoint.entries)
    said["rope_adjacent"] = said.pop("rope_type", None) == ADJACENT
    return said


def _preset(of: Architecture) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=of.vocab_size, hidden_size=of.hidden_size, intermediate_size=of.intermediate_size,
        num_hidden_layers=of.num_hidden_layers, num_attention_heads=of.num_attention_heads,
        num_key_value_heads=of.num_kv_heads, head_dim=of.hidden_size // of.num_attention_heads,
        max_position_embeddings=of.max_position_embeddings, rms_norm_eps=of.rms_norm_eps, rope=Rope(of.rope_theta),
        tie_word_embeddings=of.tie_word_embeddings, qkv_bias=of.family in BIASED, family=of.family or "llama",
    )  # fmt: skip


PRESETS = {
    "llama-370m": _preset(LLAMA_370M),
    "qwen2-0.5b": _preset(QWEN2_0_5B),
    "tiny": DecoderConfig(
        vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=True,
    ),
}  # fmt: skip


FAMILY_OF = {"qwen3moe": "qwen3_moe"} | {name: name for name in FAMILIES if name not in ("mistral", "qwen3_moe")}
KEYS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base", "vocab_size": "vocab_size",
    "sliding_window": "attention.sliding_window", "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping", "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
}  # fmt: skip
EMBEDDING, OUTPUT, FREQUENCIES = "model.embed_tokens.weight", "lm_head.weight", "rope_freqs.weight"
GEMMA2_27B_LAYERS = 46  # the one Gemma 2 whose scores are scaled by the hidden size; GGUF has no key for it


def config_of_gguf(checkpoint: Checkpoint) -> dict[str, Json]:
    """The config.json that a GGUF file would have had; also of one that was converted to another format."""
    said, names = checkpoint.metadata, checkpoint.entries
    architecture = said.get("general.architecture")
    family = FAMILY_OF.get(str(architecture))
    if family is None:
        raise FormatError(
            f"{checkpoint.path}: the architecture {architecture} is not supported; supported are {SUPPORTED}"
        )
    config: dict[str, Json] = {"model_type": family}
    for key, spelled in KEYS.items():
        value = said.get(f"{architecture}.{spelled}")
        if value is not None:
            config[key] = value
    if family == "llama" and config.get("sliding_window"):
        config["model_type"] = "mistral"  # which GGUF calls llama; a window is all that tells them apart
    if EMBEDDING in names:
        config.setdefault("vocab_size", names[EMBEDDING].shape[0])
    config.setdefault("head_dim", _quotient(config.get("hidden_size"), config.get("num_attention_heads")))
    config["tie_word_embeddings"] = OUTPUT not in names
    config["attention_bias"] = "model.layers.0.self_attn.o_proj.bias" in names
    config["mlp_bias"] = "model.layers.0.mlp.up_proj.bias" in names
    if family == "qwen3_moe":
        config["norm_topk_prob"] = True
        config.setdefault("intermediate_size", config.get("moe_intermediate_size"))  # of no layer: all have experts
    if family == "gemma2":
        config.setdefault("sliding_window", 4096)
        config["query_pre_attn_scalar"] = _gemma2_scalar(config)
    return config | _rope(checkpoint, str(architecture), config)


def _quotient(whole: Json, part: Json) -> Json:
    return whole // part if type(whole) is int and type(part) is int and part > 0 else None


def _gemma2_scalar(config: dict[str, Json]) -> Json:
    if config.get("num_hidden_layers") == GEMMA2_27B_LAYERS:
        return _quotient(config.get("hidden_size"), config.get("num_attention_heads"))
    return config.get("head_dim")


def _rope(checkpoint: Checkpoint, architecture: str, config: dict[str, Json]) -> dict[str, Json]:
    """The kind of scaling; or, as Llama 3 has it, a tensor with a divisor for every frequency."""
    said = checkpoint.metadata
    found: dict[str, Json] = {}
    turned, size = said.get(f"{architecture}.rope.dimension_count"), config.get("head_dim")
    if type(turned) is int and type(size) is int and 0 < turned < size:
        found["partial_rotary_factor"] = turned / size
    kind = said.get(f"{architecture}.rope.scaling.type")
    if kind not in (None, "none"):
        found["rope_scaling"] = {"rope_type": kind, "factor": said.get(f"{architecture}.rope.scaling.factor")}
    entry = checkpoint.entries.get(FREQUENCIES)
    if entry is not None:
        most = size if type(size) is int else 0
        if len(entry.shape) != 1 or entry.size > most:
            raise FormatError(
                f"{checkpoint.path}: {FREQUENCIES} is {list(entry.shape)}, and heads have {size} dimensions; fetch it "
                "again"
            )
        found["rope_divisors"] = [float(divisor) for divisor in checkpoint.array(FREQUENCIES)]
    return found


def described_by_gguf(checkpoint: Checkpoint) -> bool:
    """Whether the metadata is GGUF's, as it also is of an APR file that was converted from one."""
    return isinstance(checkpoint.metadata.get("general.architecture"), str)
