"""Where a decoder's settings come from: a preset, a config.json, or the metadata of an APR or GGUF file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.hf_directory import CONFIG
from ..checkpoints.json_file import read_json_object
from ..checkpoints.opening import open_checkpoint
from ..errors import FormatError
from ..loading.architecture import Architecture, kind_of, labels_of, metadata_of, refuse_contradiction, weights_in
from ..loading.presets import BIASED, LLAMA_370M, QWEN2_0_5B
from ..strict_json import Json
from .config_gguf import OUTPUT, config_of_gguf, described_by_gguf
from .config_json import BY_ARCHITECTURE, FAMILIES, from_config
from .settings import DecoderConfig as DecoderConfig
from .settings import Rope

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
