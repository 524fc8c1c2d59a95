"""What a Hugging Face directory has beside its weights, made of a file that says its model and its tokenizer itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import torch

from ..core.strict_json import Json
from ..errors import FormatError
from ..weights.checkpoint import Checkpoint
from ..weights.formats.hf_directory import DTYPES, Companions, files_beside
from .config_json import FAMILIES, to_config
from .decoder_config import FREQUENCIES, config_of_checkpoint
from .decoder_layers import frequencies
from .decoder_settings import DecoderConfig, Rope
from .engines import described, dtype_of
from .tokenizing import TOKENIZER, embedded

TOKENIZER_CONFIG = "tokenizer_config.json"
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # here, and in GGUF's keys
IN_CONFIG = ("bos", "eos", "pad")
LLAMA3 = Rope(scaling="llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)  # as Meta has it
CLOSE = 1e-5  # divisors are stored in float32


def companions_of(checkpoint: Checkpoint) -> Companions:
    """The settings that the decoder derives from a file, and the tokenizer that the file embeds."""
    config = _sayable(config_of_checkpoint(checkpoint), checkpoint)
    _, plan = described(checkpoint, config)
    said = frozenset({FREQUENCIES} & checkpoint.entries.keys())
    if unknown := sorted(set(plan.extra) - said):
        raise FormatError(
            f"{checkpoint.path}: a {FAMILIES[config.family].architecture} has no place for {len(unknown)} of its "
            f"tensors ({', '.join(unknown[:4])}); convert to another format"
        )
    roles = _roles(checkpoint.metadata)
    numbers: dict[str, Json] = {f"{role}_token_id": roles[role][0] for role in IN_CONFIG if role in roles}
    dtype = next(name for name in DTYPES.values() if getattr(torch, name) == dtype_of(checkpoint))
    files, note = _tokenizer(checkpoint, config, roles)
    notes = ("the settings in config.json are those that the decoder derives from the file", note)
    return Companions({**to_config(config), **numbers, "dtype": dtype}, files, said, notes)


def _sayable(config: DecoderConfig, checkpoint: Checkpoint) -> DecoderConfig:
    """The settings in words that a config.json has; another rotation than it can say would be another model."""
    if config.rope.adjacent:
        raise FormatError(
            f"{checkpoint.path}: its rotary embedding pairs neighbours, and a config.json cannot say so; convert to "
            "another format"
        )
    if not config.rope.divisors:
        return config
    plain = replace(config.rope, divisors=())
    scaled = replace(LLAMA3, theta=plain.theta, partial=plain.partial, factor=max(config.rope.divisors))
    kept, slowed = (frequencies(rope, config.head_dim, dtype=torch.float64) for rope in (plain, scaled))
    stored = torch.tensor(config.rope.divisors, dtype=torch.float64)
    if stored.shape != kept.shape or not torch.allclose(kept / slowed, stored, rtol=CLOSE):
        raise FormatError(
            f"{checkpoint.path}: {FREQUENCIES} are not the divisors that Llama 3 has, and a config.json has no words "
            "for others; convert to another format"
        )
    return replace(config, rope=scaled)


def _roles(said: Mapping[str, Json]) -> dict[str, tuple[Json, str]]:
    """The tokens that begin and end texts and fill them up: number and text."""
    tokens = said.get("tokenizer.ggml.tokens")
    tokens = tokens if isinstance(tokens, list) else []
    found = {}
    for role, spelled in ROLES.items():
        number = said.get(f"tokenizer.ggml.{spelled}_token_id")
        if type(number) is int and 0 <= number < len(tokens):
            found[role] = number, str(tokens[number])
    return found


def _tokenizer(
    checkpoint: Checkpoint, config: DecoderConfig, roles: Mapping[str, tuple[Json, str]]
) -> tuple[dict[str, bytes], str]:
    """The files of the tokenizer inside, else of the one beside; and a sentence about them."""
    try:
        inside = embedded(checkpoint.metadata, str(checkpoint.path))
    except FormatError as error:
        return {}, f"its tokenizer was not carried: {error}"
    if inside is None:
        beside = files_beside(checkpoint.path.parent)
        return beside, f"copied {', '.join(beside)}" if beside else "there is no tokenizer in it, and none beside it"
    about: dict[str, Json] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False, **{f"{role}_token": text for role, (_, text) in roles.items()},
    }  # fmt: skip
    template = checkpoint.metadata.get("tokenizer.chat_template", checkpoint.metadata.get("chat_template"))
    if isinstance(template, str):
        about["chat_template"] = template
    text = json.dumps(about, indent=2, ensure_ascii=False)
    files = {TOKENIZER: inside.to_str(pretty=True).encode(), TOKENIZER_CONFIG: text.encode()}
    return files, f"its tokenizer is written as {' and '.join(files)}"
