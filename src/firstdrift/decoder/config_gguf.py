"""What the keys and tensors of a GGUF file say of its model, in the words of a config.json."""

from __future__ import annotations

from ..checkpoints.checkpoint import Checkpoint
from ..errors import FormatError
from ..strict_json import Json
from .config_json import FAMILIES, SUPPORTED

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
        found["rope_divisors"] = [float(one) for one in checkpoint.array(FREQUENCIES)]
    return found


def described_by_gguf(checkpoint: Checkpoint) -> bool:
    """Whether the metadata is GGUF's, as it also is of an APR file that was converted from one."""
    return isinstance(checkpoint.metadata.get("general.architecture"), str)
