"""What a format says of the model it holds, in another format's words; what it does not say is not made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...core.strict_json import Json
from ...errors import FormatError
from ..checkpoint import DECLARED, OUTPUT, Checkpoint
from .apr_metadata import KEYS, is_valid


class Field(NamedTuple):
    """One property of a model as APR, GGUF (after the architecture) and config.json call it."""

    apr: str
    gguf: str | None
    config: str


FIELDS = (
    Field("hidden_size", "embedding_length", "hidden_size"),
    Field("num_layers", "block_count", "num_hidden_layers"),
    Field("num_heads", "attention.head_count", "num_attention_heads"),
    Field("num_kv_heads", "attention.head_count_kv", "num_key_value_heads"),
    Field("vocab_size", "vocab_size", "vocab_size"),
    Field("intermediate_size", "feed_forward_length", "intermediate_size"),
    Field("max_position_embeddings", "context_length", "max_position_embeddings"),
    Field("rope_theta", "rope.freq_base", "rope_theta"),
    Field("rms_norm_eps", "attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    Field("head_dim", "attention.key_length", "head_dim"),
    Field(DECLARED, None, DECLARED),
)
FURTHER = {
    "sliding_window": "attention.sliding_window", "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping", "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
}  # fmt: skip
# Model types of Hugging Face whose GGUF architecture has another name.
ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe"}
# A config.json may have whole numbers for these, and GGUF has none.
_FLOATS = (
    "rope.freq_base", "rope.scaling.factor", "attention.layer_norm_rms_epsilon", "attn_logit_softcapping",
    "final_logit_softcapping",
)  # fmt: skip
_NOT_CARRIED = ("general.alignment", "split.no", "split.count", "split.tensors.count")  # of the file, not the model


def described(checkpoint: Checkpoint) -> dict[str, Json]:
    """The model's properties in APR's words, from whatever the checkpoint's metadata says them in."""
    said = checkpoint.metadata
    found: dict[str, Json] = {}
    architecture = said.get("general.architecture")
    for field in FIELDS:
        values = [said.get(field.apr), said.get(field.config), _rope(said) if field.apr == "rope_theta" else None]
        if isinstance(architecture, str) and field.gguf:
            values.append(said.get(f"{architecture}.{field.gguf}"))
        value = next((value for value in values if value is not None and not isinstance(value, str)), None)
        if value is not None:
            found[field.apr] = value
    if isinstance(architecture, str):
        found["architecture"] = architecture
        if checkpoint.format == "gguf":  # which has no key for it, and leaves the output layer out
            found[DECLARED] = OUTPUT in checkpoint.aliases
    elif isinstance(said.get("architectures"), list) and said["architectures"]:
        found["hf_architecture"] = said["architectures"][0]
        found["hf_model_type"] = found["architecture"] = said.get("model_type")
    return found


def metadata_for(checkpoint: Checkpoint, format: str) -> tuple[dict[str, Json], list[str]]:
    """The metadata to write in another format, and what had to stay behind."""
    if format.startswith("apr"):
        return _for_apr(checkpoint)
    if format == "gguf":
        return _for_gguf(checkpoint), []
    tied = {DECLARED: True} if OUTPUT in checkpoint.aliases else {}
    return {**checkpoint.metadata, **tied}, []


def _for_apr(checkpoint: Checkpoint) -> tuple[dict[str, Json], list[str]]:
    said = {**checkpoint.metadata, **described(checkpoint)}
    said.pop("sharding", None)
    wrong = sorted(key for key, value in said.items() if not is_valid(key, value))
    for key in wrong:
        del said[key]
    said["total_size"] = checkpoint.nbytes
    said["param_count"] = sum(entry.size for entry in checkpoint.entries.values())
    said.setdefault("model_type", said.get("architecture") or "")
    if checkpoint.format != "apr":
        said["original_format"] = checkpoint.format
    return said, [f"metadata {', '.join(wrong)} was left out: it is not of the type that APR gives it"] if wrong else []


def _for_gguf(checkpoint: Checkpoint) -> dict[str, Json]:
    about = described(checkpoint)
    architecture = about.get("architecture") or checkpoint.metadata.get("model_type")
    architecture = ARCHITECTURES.get(str(architecture), architecture)
    said = {field.gguf: about[field.apr] for field in FIELDS if field.gguf and field.apr in about}
    if "general.architecture" not in checkpoint.metadata:
        said |= _further(checkpoint, about)
    said |= {key: float(said[key]) for key in _FLOATS if type(said.get(key)) is int}
    own = {key: value for key, value in checkpoint.metadata.items() if "." in key and key not in _NOT_CARRIED}
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in said.items()},
        **{key: value for key, value in own.items() if key not in KEYS and value is not None},
    }


def _further(checkpoint: Checkpoint, about: Mapping[str, Json]) -> dict[str, Json]:
    """What else of a config.json changes what the model computes; what GGUF has no key for is refused, because the
    file would be of another model."""
    said = checkpoint.metadata
    found = {key: said[name] for name, key in FURTHER.items() if said.get(name) is not None}
    if "head_dim" in about:
        found["attention.value_length"] = about["head_dim"]
    if said.get("use_sliding_window") is False:
        found.pop(FURTHER["sliding_window"], None)
    rope = said.get("rope_parameters") or said.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope.get("factor")}
    elif kind != "default":
        raise FormatError(f"{checkpoint.path}: GGUF has no keys for RoPE scaling {kind!r}; convert to another format")
    part, size = rope.get("partial_rotary_factor", said.get("partial_rotary_factor")), about.get("head_dim")
    if isinstance(part, int | float) and part != 1:
        if not isinstance(size, int):
            raise FormatError(f"{checkpoint.path}: rotates {part} of a head and says no head_dim; add it there")
        found["rope.dimension_count"] = int(size * part)
    scalar = said.get("query_pre_attn_scalar")
    if scalar is not None and scalar != size:
        raise FormatError(
            f"{checkpoint.path}: GGUF has no key for a query_pre_attn_scalar of {scalar} where heads have {size} "
            "dimensions; convert to another format"
        )
    return found


def _rope(said: Mapping[str, Json]) -> Json:
    """Newer configurations keep the base of the rotary embedding among its other parameters."""
    parameters = said.get("rope_parameters")
    return parameters.get("rope_theta") if isinstance(parameters, dict) else None
