"""Write GGUF files through the `gguf` library: names and rows as llama.cpp expects them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gguf
import numpy as np

from ...core.atomic import replacing_path
from ...core.dtypes import numpy_dtype
from ...core.sites import shown
from ...core.strict_json import Json
from ...errors import FormatError
from ..checkpoint import Array
from ..dtype_rounding import Rounding
from ..writing import Job, Tensor, in_dtype, stored_bytes
from .gguf_file import PLAIN
from .gguf_header import FILE_TYPE, VERSION, file_type, value_type
from .gguf_names import FAMILIES, Family, Place, gguf_name, heads_of, permuted

_KINDS = {(PLAIN.get(kind.name) or kind.name.lower()): kind for kind in gguf.GGMLQuantizationType}
DTYPES = tuple(_KINDS)
WIDENED = {
    "f8e4m3fn": "f16", "f8e4m3fnuz": "f16", "f8e5m2": "f16", "f8e5m2fnuz": "f16",
    "bool": "i8", "u8": "i16", "u16": "i32", "u32": "i64",
}  # fmt: skip
QUANTIZATION_VERSION = 2
TOKENIZER, NO_TOKENIZER = "tokenizer.ggml.model", "no_vocab"  # llama.cpp then runs on token ids
EMBEDDING = "token_embd.weight"


def write(job: Job) -> list[str]:
    """Write the file; the metadata must say the architecture, which decides about names and rows."""
    architecture = job.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise FormatError(f"{job.path}: GGUF needs an architecture, and there is {architecture!r}; add config.json")
    family = FAMILIES.get(architecture)
    tensors = [_stored(tensor, family, dict(job.metadata)) for tensor in job.tensors]
    with replacing_path(job.path) as partial:
        writer = gguf.GGUFWriter(partial, architecture)
        try:
            _add_fields(writer, job, tensors, architecture)
            for tensor in tensors:
                _announce(writer, tensor)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for _, data in job.stored(tensors):
                writer.write_tensor_data(data)
        finally:
            writer.close()
        job.verify()
    tokenizer = job.metadata.get(TOKENIZER, NO_TOKENIZER) != NO_TOKENIZER
    return [] if tokenizer else ["the source has no GGUF tokenizer, so that the file has none"]


def _stored(tensor: Tensor, family: Family | None, fields: dict[str, Json]) -> Tensor:
    """A tensor under GGUF's name, and as its converters would store it."""
    if family is None:
        return tensor  # the names are GGUF's own, as they were read
    found = gguf_name(family, tensor.name)
    if found is None:
        if tensor.name.startswith("blk.") or "." not in tensor.name.removesuffix(".weight"):
            return tensor
        raise FormatError(f"tensor {shown(tensor.name)!r}: has no name in GGUF for this architecture; leave it out")
    name, place = found
    tensor = replace(tensor, entry=replace(tensor.entry, name=name))
    if family.shifted_norms and name.endswith("norm.weight"):
        return _shifted(tensor)
    if place.stem in family.transposed and len(tensor.entry.shape) == 2:
        return _transposed(tensor)
    return _interleaved(tensor, place, fields) if family.permuted else tensor


def _interleaved(tensor: Tensor, place: Place, fields: dict[str, Json]) -> Tensor:
    shape = tensor.entry.shape
    heads = heads_of(fields, place, shape[0] if shape else 0, f"tensor {shown(tensor.name)!r}")
    if heads is None:
        return tensor

    def load() -> tuple[Array, Rounding]:
        data, rounding = stored_bytes(tensor)
        rows: Array = permuted(data, heads, data.nbytes // shape[0])
        return rows if tensor.entry.quantized else rows.view(numpy_dtype(tensor.entry.dtype)).reshape(shape), rounding

    return replace(tensor, load=load)


def _transposed(tensor: Tensor) -> Tensor:
    def load() -> tuple[Array, Rounding]:
        array, rounding = tensor.load()
        return array.T, rounding

    return replace(tensor, entry=replace(tensor.entry, shape=tensor.entry.shape[::-1]), load=load)


def _shifted(tensor: Tensor) -> Tensor:
    """Norms plus one, in float32: what is lost by it is counted."""
    wide = in_dtype(tensor, "f32")

    def load() -> tuple[Array, Rounding]:
        array, rounding = wide.load()
        stored = np.add(array, 1, dtype=np.float32)
        lost = np.abs(stored - np.float32(1) - array.astype(np.float32))
        return stored, rounding + Rounding(int((lost != 0).sum()), float(lost.max(initial=0)))

    return replace(wide, load=load)


def _announce(writer: Any, tensor: Tensor) -> None:
    entry = tensor.entry
    kind = _KINDS[entry.dtype]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    shape = entry.shape or (1,)
    if shape[-1] % block:
        raise FormatError(f"{shown(entry.name)!r}: rows of {shape[-1]} are no whole number of {kind.name} blocks")
    stored = (*shape[:-1], shape[-1] // block * size)
    writer.add_tensor_info(entry.name, stored, np.dtype(np.uint8), entry.nbytes, raw_dtype=kind)


def _add_fields(writer: Any, job: Job, tensors: list[Tensor], architecture: str) -> None:
    """The metadata in GGUF's types, and what it says of the file."""
    said = dict(job.metadata)
    said[FILE_TYPE] = file_type([tensor.entry for tensor in tensors], _KINDS, said.get(FILE_TYPE))
    said.setdefault(VERSION, QUANTIZATION_VERSION)
    if said.setdefault(TOKENIZER, NO_TOKENIZER) == NO_TOKENIZER:
        sizes = [tensor.entry.shape[0] for tensor in tensors if tensor.entry.name == EMBEDDING]
        said |= {f"{architecture}.vocab_size": size for size in sizes}  # where llama.cpp looks for it then
    for key, value in said.items():
        kinds = value_type(key, value, job.types)
        if key != "general.architecture" and kinds is not None:
            writer.add_key_value(key, value, *kinds)
