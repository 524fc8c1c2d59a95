"""How GGUF stores a tensor of ours, and its numbers in Hugging Face's order.

Rows are moved before they are dequantized: a row is a whole number of blocks, so that blocks can be carried over
to another file as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..dtypes import numpy_dtype
from ..errors import FormatError
from ..mapped import Bytes
from ..sites import shown
from ..strict_json import Json
from .blocks import AT_ONCE, GEOMETRY, dequantize, room_for
from .checkpoint import Array, Entry
from .gguf_names import Place

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
    import gguf

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
            raise FormatError(
                f"tensor {shown(piece.entry.name)!r}: the gguf library cannot decode {kind.name}"
            ) from None
    return result
