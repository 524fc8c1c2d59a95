"""The types of GGUF's keys. llama.cpp refuses a file that has a key in another type, though the value is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import gguf

from ..strict_json import Json
from .checkpoint import Entry

Types = Mapping[str, tuple[int, ...]]  # of a key its type; of an array also that of its items

_KINDS = gguf.GGUFValueType
_KEYS = gguf.Keys
FILE_TYPE, VERSION = "general.file_type", "general.quantization_version"
# A config.json has whole numbers where GGUF has none.
_FLOATS = (
    _KEYS.Rope.FREQ_BASE, _KEYS.Rope.FREQ_BASE_SWA, _KEYS.Rope.SCALING_FACTOR, _KEYS.Rope.SCALING_ATTN_FACTOR,
    _KEYS.Rope.SCALING_YARN_LOG_MUL, _KEYS.Attention.LAYERNORM_EPS, _KEYS.Attention.LAYERNORM_RMS_EPS,
    _KEYS.Attention.GROUPNORM_EPS, _KEYS.Attention.SCALE, _KEYS.Attention.CLAMP_KQV, _KEYS.Attention.MAX_ALIBI_BIAS,
    _KEYS.LLM.LOGIT_SCALE, _KEYS.LLM.ATTN_LOGIT_SOFTCAPPING, _KEYS.LLM.FINAL_LOGIT_SOFTCAPPING,
    _KEYS.LLM.EXPERT_WEIGHTS_SCALE, _KEYS.LLM.RESIDUAL_SCALE, _KEYS.LLM.EMBEDDING_SCALE,
)  # fmt: skip
_ITEMS = {_KEYS.Tokenizer.SCORES: _KINDS.FLOAT32, _KEYS.Tokenizer.PRECOMPILED_CHARSMAP: _KINDS.UINT8}
_WHOLE = (_KINDS.UINT32, _KINDS.INT32, _KINDS.UINT64, _KINDS.INT64)
_RANGES = {_KINDS.UINT32: (0, 2**32), _KINDS.INT32: (-(2**31), 2**31), _KINDS.UINT64: (0, 2**64)}
# What llama.cpp calls a file most of whose numbers are in a type that it has several names for.
_MIXED = {"Q3_K": "MOSTLY_Q3_K_M", "Q4_K": "MOSTLY_Q4_K_M", "Q5_K": "MOSTLY_Q5_K_M", "MXFP4": "MOSTLY_MXFP4_MOE"}


def value_type(key: str, value: Json, said: Types, architecture: str) -> tuple[Any, Any] | None:
    """The type of a value and of its items, as the source had them or as llama.cpp expects; None for what has none."""
    if key in said and not (isinstance(value, list) and not value):
        kind, *items = said[key]
        return _KINDS(kind), _KINDS(items[0]) if items else None
    if isinstance(value, list):
        item = _ITEMS.get(key) or (_shared(value) if value else None)
        return None if item is None else (_KINDS.ARRAY, item)
    if key in {one.format(arch=architecture) for one in _FLOATS} and isinstance(value, int | float):
        return _KINDS.FLOAT32, None
    plain = _plain([value], _WHOLE)
    return None if plain is None else (plain, None)


def _shared(values: Sequence[Json]) -> Any | None:
    """The type of all items; arrays of whole numbers are signed wherever they can be."""
    return _plain(values, (_KINDS.INT32, *_WHOLE))


def _plain(values: Sequence[Json], whole: Sequence[Any]) -> Any | None:
    if all(isinstance(value, bool) for value in values):
        return _KINDS.BOOL
    if all(type(value) is int for value in values):
        fitting = (kind for kind in whole if kind in _RANGES and _within(values, *_RANGES[kind]))
        return next(fitting, _KINDS.INT64)
    if all(type(value) in (int, float) for value in values):
        return _KINDS.FLOAT32
    return _KINDS.STRING if all(isinstance(value, str) for value in values) else None


def _within(values: Sequence[Json], least: int, end: int) -> bool:
    return all(least <= value < end for value in values)


def file_type(entries: Sequence[Entry], kinds: Mapping[str, Any], said: Json) -> int:
    """llama.cpp's number for what most numbers of a file are stored as; the source's own where that still holds."""
    counts: Counter[str] = Counter()
    for entry in entries:
        if len(entry.shape) > 1:
            counts[kinds[entry.dtype].name] += entry.size
    most = max(counts, key=counts.__getitem__, default="F32")
    names = gguf.LlamaFileType.__members__
    known = next((name for name, number in names.items() if number == said), "")
    if known.removeprefix("MOSTLY_").removeprefix("ALL_").startswith(most):
        return int(names[known])
    chosen = _MIXED.get(most, "ALL_F32" if most == "F32" else f"MOSTLY_{most}")
    return int(names.get(chosen, names["GUESSED"]))
