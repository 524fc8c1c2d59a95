"""The header of a GGUF file, every length judged before it is believed; and the types of its keys, which llama.cpp
insists on.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gguf
import numpy as np

from ...core.mapped import Bytes
from ...core.sites import shown
from ...core.strict_json import Json
from ...errors import FormatError
from ..checkpoint import Entry

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MAX_DIMS = 8
MAX_HEADER = 100_000_000  # bytes, ten times the largest vocabulary: what is parsed takes several times as much memory
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class TensorInfo(NamedTuple):
    """What the header says of a tensor; `dims` as the file has them, the fastest first."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int


class GgufHeader(NamedTuple):
    """Keys and values, tensors, and the byte where their data begins."""

    fields: dict[str, Json]
    tensors: list[TensorInfo]
    data_offset: int
    types: dict[str, tuple[int, ...]]  # of each key; of an array also that of its items


class _Cursor:
    """Reads on, and refuses to read beyond the end."""

    def __init__(self, data: Bytes, place: object) -> None:
        self.data, self.place, self.position = memoryview(data), place, 0

    def take(self, nbytes: int, what: str) -> memoryview:
        end = self.position + nbytes
        said = f"{self.place}: {what} at byte {self.position} claims {nbytes} bytes"
        if end > len(self.data):
            raise FormatError(f"{said} and the file ends at {len(self.data)}; it is cut off or damaged, fetch it again")
        if end > MAX_HEADER:
            raise FormatError(f"{said}, and no header is longer than {MAX_HEADER}; fetch it again")
        part = self.data[self.position : end]
        self.position = end
        return part

    def number(self, layout: str, what: str) -> Json:
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]

    def text(self, what: str) -> str:
        return bytes(self.take(self.number("<Q", what), what)).decode("utf-8", "backslashreplace")

    def value(self, kind: int, what: str) -> tuple[Json, tuple[int, ...]]:
        """A value and its type."""
        if kind == _STRING:
            return self.text(what), (kind,)
        if kind == _ARRAY:
            values, items = self._array(what)
            return values, (kind, items)
        if kind not in _SCALARS:
            raise FormatError(f"{self.place}: {what} has the value type {kind}, which does not exist; fetch it again")
        return self.number(_SCALARS[kind], what), (kind,)

    def _array(self, what: str) -> tuple[list[Json], int]:
        kind, length = self.number("<I", what), self.number("<Q", what)
        if kind in _SCALARS:
            layout = _SCALARS[kind]
            part = self.take(length * struct.calcsize(layout), what)
            return list(struct.unpack(f"<{length}{layout[1]}", part)), kind
        if kind != _STRING:
            raise FormatError(f"{self.place}: {what} is an array of the type {kind}, which is not read; fetch it again")
        if length * 8 > len(self.data) - self.position:
            raise FormatError(f"{self.place}: {what} claims {length} strings, more than the file has room for")
        return [self.text(what) for _ in range(length)], kind


def parse_gguf_header(data: Bytes, place: object) -> GgufHeader:
    """Everything before the tensors."""
    cursor = _Cursor(data, place)
    magic = bytes(cursor.take(4, "the magic"))
    if magic != MAGIC:
        raise FormatError(f"{place}: starts with {magic!r}, not {MAGIC!r}; give a GGUF file")
    version = cursor.number("<I", "the version")
    if version not in VERSIONS:
        why = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
        raise FormatError(f"{place}: is GGUF of {why}, and {VERSIONS} little-endian are read; convert it")
    tensor_count, key_count = cursor.number("<Q", "the tensor count"), cursor.number("<Q", "the key count")
    fields: dict[str, Json] = {}
    types: dict[str, tuple[int, ...]] = {}
    for number in range(key_count):
        key = cursor.text(f"key {number}")
        if key in fields:
            raise FormatError(f"{place}: the key {shown(key)!r} is there twice; fetch it again")
        fields[key], types[key] = cursor.value(cursor.number("<I", f"key {shown(key)!r}"), f"key {shown(key)!r}")
    tensors = [_tensor(cursor, number) for number in range(tensor_count)]
    alignment = fields.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise FormatError(f"{place}: general.alignment {alignment!r} is not a power of two; fetch it again")
    return GgufHeader(fields, tensors, -(-cursor.position // alignment) * alignment, types)


def _tensor(cursor: _Cursor, number: int) -> TensorInfo:
    name = cursor.text(f"tensor {number}")
    what = f"tensor {shown(name)!r}"
    ndim = cursor.number("<I", what)
    if ndim > MAX_DIMS:
        raise FormatError(f"{cursor.place}: {what} claims {ndim} dimensions, more than {MAX_DIMS}; fetch it again")
    dims = tuple(cursor.number("<Q", what) for _ in range(ndim))
    return TensorInfo(name, dims, cursor.number("<I", what), cursor.number("<Q", what))


Types = Mapping[str, tuple[int, ...]]  # of a key its type; of an array also that of its items

_KINDS = gguf.GGUFValueType
_KEYS = gguf.Keys
FILE_TYPE, VERSION = "general.file_type", "general.quantization_version"
_ITEMS = {_KEYS.Tokenizer.SCORES: _KINDS.FLOAT32, _KEYS.Tokenizer.PRECOMPILED_CHARSMAP: _KINDS.UINT8}
_WHOLE: dict[Any, Any] = {
    _KINDS.UINT32: np.uint32,
    _KINDS.INT32: np.int32,
    _KINDS.UINT64: np.uint64,
    _KINDS.INT64: np.int64,
}
# What llama.cpp calls a file most of whose numbers are in a type that it has several names for.
_MIXED = {"Q3_K": "MOSTLY_Q3_K_M", "Q4_K": "MOSTLY_Q4_K_M", "Q5_K": "MOSTLY_Q5_K_M", "MXFP4": "MOSTLY_MXFP4_MOE"}


def value_type(key: str, value: Json, said: Types) -> tuple[Any, Any] | None:
    """The type of a value and of its items, as the source had them or as llama.cpp expects; None for what has none."""
    if key in said and not (isinstance(value, list) and not value):
        kind, *items = said[key]
        return _KINDS(kind), _KINDS(items[0]) if items else None
    if isinstance(value, list):  # arrays of whole numbers are signed wherever they can be
        item = _ITEMS.get(key) or _shared_type(value, _KINDS.INT32)
        return None if item is None else (_KINDS.ARRAY, item)
    plain = _shared_type([value], _KINDS.UINT32)
    return None if plain is None else (plain, None)


def _shared_type(values: Sequence[Json], first: Any) -> Any | None:
    """The type of all values, None where they share none; of whole numbers `first` if they fit it."""
    types = set(map(type, values))
    if types == {int}:
        fitting = (
            kind
            for kind in (first, *_WHOLE)
            if np.iinfo(_WHOLE[kind]).min <= min(values) <= max(values) <= np.iinfo(_WHOLE[kind]).max
        )
        return next(fitting, _KINDS.INT64)
    if types and types <= {int, float}:
        return _KINDS.FLOAT32
    return {bool: _KINDS.BOOL, str: _KINDS.STRING}.get(types.pop()) if len(types) == 1 else None


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
