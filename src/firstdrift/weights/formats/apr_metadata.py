"""The metadata of an APR file and its older version, and the ways in which a file is refused, named as the format's
own library names them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ...core.sites import shown
from ...core.strict_json import Json, decode_object, plain
from ...errors import FirstdriftError, FormatError


class AprError(FormatError):
    """An APR file is not what it claims to be; the message begins with the place and the kind."""

    @classmethod
    def at(cls, place: object, sentence: str) -> AprError:
        """The error at a place."""
        return cls(f"{place}: {cls.__name__}: {sentence}")


class InvalidMagic(AprError):  # noqa: N818
    """The first four bytes are not those of APR version 2."""


class InvalidHeader(AprError):  # noqa: N818
    """The header is too short, contradicts the file, or asks for a layout that is not supported."""


class ChecksumMismatch(AprError):  # noqa: N818
    """The header or the file is not what was written."""


def refuse_damage(place: object, what: str, claimed: int, actual: int) -> None:
    """Compare two checksums."""
    if claimed != actual:
        said = f"{what} claims checksum {claimed:08X} and has {actual:08X}"
        raise ChecksumMismatch.at(place, f"{said}; it is damaged, fetch it again")


class MetadataError(AprError):
    """The metadata is not JSON, or a key of it has the wrong type."""


class InvalidTensorIndex(AprError):  # noqa: N818
    """An entry of the index is impossible, out of order, there twice, or out of the file's bounds."""


# What may stand under a key. A null is an absent value everywhere but under the keys of REQUIRED.
_KINDS: dict[str, Callable[[Json], bool]] = {
    "text": lambda value: type(value) is str,
    "count": lambda value: type(value) is int and 0 <= value < 2**64,
    "number": lambda value: type(value) in (int, float),
    "object": lambda value: type(value) is dict,
}
KEYS = {
    "model_type": "text", "name": "text", "description": "text", "author": "text", "license": "text",
    "data_source": "text", "data_license": "text", "version": "text", "source": "text", "original_format": "text",
    "created_at": "text", "total_size": "count", "param_count": "count", "quantization": "object",
    "sharding": "object", "chat_template": "text", "chat_format": "text", "special_tokens": "object",
    "architecture": "text", "hf_architecture": "text", "hf_model_type": "text", "hidden_size": "count",
    "num_layers": "count", "num_heads": "count", "num_kv_heads": "count", "vocab_size": "count",
    "intermediate_size": "count", "max_position_embeddings": "count", "rope_theta": "number", "rope_type": "count",
    "rms_norm_eps": "number", "head_dim": "count", "num_experts": "count", "num_experts_per_tok": "count",
    "moe_intermediate_size": "count",
}  # fmt: skip
REQUIRED = {"model_type": "", "total_size": 0, "param_count": 0}  # always written, and never null
WRITTEN_AS_NULL = ("license", "data_source", "data_license")
ALIASES = {
    "hidden_size": ("hidden_dim", "d_model", "n_embd"),
    "num_layers": ("num_hidden_layers", "n_layers", "n_layer"),
    "num_heads": ("num_attention_heads", "n_heads", "n_head"),
    "num_kv_heads": ("num_key_value_heads", "n_kv_heads"),
    "vocab_size": ("n_vocab",),
    "intermediate_size": ("ffn_dim", "intermediate_dim", "n_inner"),
    "max_position_embeddings": ("max_seq_len", "context_length", "n_ctx"),
    "rms_norm_eps": ("layer_norm_eps", "norm_eps"),
}


def parse_metadata(data: bytes, place: object) -> dict[str, Json]:
    """The keys as they are, and the canonical one beside any older spelling."""
    try:
        said = decode_object(data.decode("utf-8"))
    except (UnicodeDecodeError, FirstdriftError) as error:
        raise MetadataError.at(place, f"{error}; write the file again") from None
    return canonical(said, place)


def canonical(said: Mapping[str, Json], place: object) -> dict[str, Json]:
    """Metadata whose known keys have their types, in the canonical spelling."""
    known = dict(said)
    for key, aliases in ALIASES.items():
        spelled = [(name, said[name]) for name in (key, *aliases) if said.get(name) is not None]
        if any(value != spelled[0][1] for _, value in spelled):
            both = " and ".join(f"{name} {value!r}" for name, value in spelled)
            raise MetadataError.at(place, f"it says {both}, which mean the same; keep one")
        if spelled:
            known[key] = spelled[0][1]
    for key, value in known.items():
        if not is_valid(key, value):
            raise MetadataError.at(place, f"{key} is {shown(json.dumps(value))[:60]}, not a {KEYS[key]}; correct it")
    return known


def is_valid(key: str, value: Json) -> bool:
    """Whether a key may have a value; keys that the format does not know may have any."""
    if key not in KEYS or (value is None and key not in REQUIRED):
        return True
    return _KINDS[KEYS[key]](value)


def pack_metadata(metadata: Mapping[str, Json], place: object) -> bytes:
    """The JSON that the format's own writer makes: known keys in its order, then the others by name."""
    said = canonical(plain(dict(metadata)), place)
    ordered: dict[str, Json] = {}
    for key in KEYS:
        value = said.pop(key, None)
        if value is None and key in REQUIRED:
            value = REQUIRED[key]
        if value is not None or key in WRITTEN_AS_NULL:
            ordered[key] = value
    older = {alias for aliases in ALIASES.values() for alias in aliases}
    ordered |= {key: said[key] for key in sorted(said) if key not in older}
    return json.dumps(ordered, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
