"""What GGUF calls a tensor and how it lies there, by architecture, against Hugging Face's names and order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import gguf
import numpy as np

from ...core.dtypes import numpy_dtype
from ...core.mapped import Bytes
from ...core.sites import shown
from ...core.strict_json import Json
from ...errors import FormatError
from ..checkpoint import Array, Entry
from .quantized_blocks import AT_ONCE, GEOMETRY, dequantize, room_for

_LAYER = "model.layers.{}."
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_FOUR_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
}


@dataclass(frozen=True)
class Family:
    """The names of an architecture, and how its tensors differ from Hugging Face's."""

    names: dict[str, str]
    permuted: bool = False  # rows of q and k are interleaved for rotary embeddings
    shifted_norms: bool = False  # norms are stored plus one
    transposed: frozenset[str] = frozenset()  # stems whose matrices lie the other way round


def _decoder(*parts: dict[str, str]) -> dict[str, str]:
    layers = {f"blk.{{}}.{stem}": _LAYER + name for part in parts for stem, name in part.items()}
    return {**_ENDS, **layers}


_PLAIN = _decoder(_ATTENTION, _NORMS, _MLP)
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
FAMILIES = {
    "llama": Family(_decoder(_ATTENTION, _NORMS, _MLP, _MIXTRAL), permuted=True),
    **dict.fromkeys(("arcee", "granite", "minicpm", "olmo", "smollm3"), Family(_PLAIN, permuted=True)),
    **dict.fromkeys(("qwen2", "stablelm"), Family(_PLAIN)),
    "qwen3": Family(_decoder(_ATTENTION, _NORMS, _QK_NORMS, _MLP)),
    "qwen3moe": Family(_decoder(_ATTENTION, _NORMS, _QK_NORMS, _EXPERTS)),
    "phi3": Family(
        _decoder(
            {"attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj"},
            _NORMS,
            {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"},
        )
    ),
    "starcoder2": Family(_decoder(_ATTENTION, _NORMS, {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"})),
    "olmo2": Family(
        _decoder(
            _ATTENTION,
            _QK_NORMS,
            _MLP,
            {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
        )
    ),
    "gemma": Family(_PLAIN, shifted_norms=True),
    "gemma2": Family(_decoder(_ATTENTION, _FOUR_NORMS, _MLP), shifted_norms=True),
    "gemma3": Family(_decoder(_ATTENTION, _FOUR_NORMS, _QK_NORMS, _MLP), shifted_norms=True),
    "gpt2": Family(
        _GPT2,
        transposed=frozenset({"blk.{}.attn_qkv", "blk.{}.attn_output", "blk.{}.ffn_up", "blk.{}.ffn_down"}),
    ),
}
_STORED = re.compile(r"(?:blk\.(\d+)\.)?([a-z0-9_]+)(\.weight|\.bias)")
_NUMBER = re.compile(r"\.(\d+)\.")


class Place(NamedTuple):
    """A tensor's stem in the table, its layer, and what its name ends in."""

    stem: str
    layer: int | None
    suffix: str


def place_of(name: str) -> Place | None:
    """The parts of GGUF's name for a tensor."""
    found = _STORED.fullmatch(name)
    if found is None:
        return None
    layer = None if found[1] is None else int(found[1])
    return Place(found[2] if layer is None else f"blk.{{}}.{found[2]}", layer, found[3])


def hf_name(family: Family, place: Place) -> str | None:
    """Hugging Face's name for a tensor; of a stacked one, `{e}` stands for the expert."""
    name = family.names.get(place.stem)
    return None if name is None else name.replace("{}", str(place.layer)) + place.suffix


def gguf_name(family: Family, name: str) -> tuple[str, Place] | None:
    """GGUF's name for one of Hugging Face's."""
    base, dot, suffix = name.rpartition(".")
    numbers = _NUMBER.findall(f"{base}.")
    layer = int(numbers[0]) if numbers else None
    for stem, spelled in family.names.items():
        if "{e}" not in spelled and spelled.replace("{}", str(layer)) == base and (layer is None) == ("{}" not in stem):
            return stem.replace("{}", str(layer)) + dot + suffix, Place(stem, layer, dot + suffix)
    return None


ROTATED = ("blk.{}.attn_q", "blk.{}.attn_k")


@dataclass(frozen=True)
class Stored:
    """One tensor of ours: where its rows lie in the file, and what has to be undone."""

    entry: Entry
    kind: int  # as GGUF numbers its types
    offset: int
    row_bytes: int
    heads: int | None = None  # the rows of so many heads are interleaved
    transposed: bool = False
    shifted: bool = False

    @property
    def keeps_bytes(self) -> bool:
        """Whether its rows, in order, are the tensor."""
        return not self.transposed and not self.shifted


def heads_of(fields: dict[str, Json], place: Place, rows: int, where: str) -> int | None:
    """How many heads the interleaved rows of q or k belong to; None for every other tensor."""
    if place.stem not in ROTATED:
        return None
    key = f"{fields['general.architecture']}.attention.head_count"
    said = fields.get(key)
    if place.stem == ROTATED[1]:
        said = fields.get(f"{key}_kv", said)
    if isinstance(said, list):  # a number a layer
        said = said[place.layer] if place.layer is not None and place.layer < len(said) else None
    if type(said) is not int or said < 1 or rows % (2 * said):
        raise FormatError(f"{where}: its {rows} rows are interleaved by heads, and {key} says {said!r}; fetch it again")
    return said


def unpermuted(data: Bytes, piece: Stored) -> Bytes:
    """The bytes with rows in Hugging Face's order: the halves of a head one after the other."""
    if piece.heads is None:
        return data
    pairs = data.reshape(piece.heads, -1, 2, piece.row_bytes)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)


def permuted(data: Bytes, heads: int, row_bytes: int) -> Bytes:
    """The inverse of `unpermuted`."""
    halves = data.reshape(heads, 2, -1, row_bytes)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(-1)


def numbers(data: Bytes, piece: Stored) -> Array:
    """The numbers of bytes whose rows are in order."""
    entry = piece.entry
    shape = entry.shape[::-1] if piece.transposed else entry.shape
    if not entry.quantized:
        array: Array = data.view(numpy_dtype(entry.dtype)).reshape(shape)
    elif entry.dtype in GEOMETRY:
        array = dequantize(entry.dtype, data, shape)
    else:
        array = _by_library(data, piece, shape)
    if piece.shifted:
        array = np.subtract(array, 1, dtype=array.dtype)
    return array.T if piece.transposed else array


def _by_library(data: Bytes, piece: Stored, shape: tuple[int, ...]) -> Array:
    """What only the library decodes, in long rows: it is slow on many short ones, and works on copies."""
    kind = gguf.GGMLQuantizationType(piece.kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    result = room_for(shape)
    flat = result.reshape(-1)
    step = max(1, AT_ONCE // block)
    for start in range(0, flat.size // block, step):
        part = data[start * size : (start + step) * size].reshape(1, -1)
        try:
            with np.errstate(all="ignore"):  # scales may be anything in a damaged file
                flat[start * block : (start + step) * block] = gguf.quants.dequantize(part, kind).reshape(-1)
        except NotImplementedError:
            raise FormatError(f"{shown(piece.entry.name)!r}: the gguf library cannot decode {kind.name}") from None
    return result
