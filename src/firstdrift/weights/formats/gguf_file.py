"""GGUF files under Hugging Face's names: dimensions reversed, and what converters do to the weights undone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import gguf

from ...core.mapped import Bytes, MappedFile
from ...core.records import count_elements
from ...core.sites import shown
from ...core.strict_json import Json
from ...errors import FormatError
from ..checkpoint import Array, Checkpoint, Entry, joined, overlap, tied_by_absence
from .gguf_header import GgufHeader, TensorInfo, parse_gguf_header
from .gguf_names import FAMILIES, Family, Place, Stored, heads_of, hf_name, numbers, place_of, unpermuted

FORMAT = "gguf"
_SPLIT = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")
PLAIN = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64", "I8": "i8", "I16": "i16", "I32": "i32", "I64": "i64"}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file, with the other files of a split one."""
    file = MappedFile(path)
    header = parse_gguf_header(file.view(0, file.size), path)
    count = header.fields.get("split.count", 1)
    if count in (0, 1):
        return _open_part(file, header, header)
    first, *others = [MappedFile(part) for part in _split_files(path, count)]
    about = parse_gguf_header(first.view(0, first.size), first.path)
    parts = [_open_part(first, about, about)]
    for other in others:
        parts.append(_open_part(other, parse_gguf_header(other.view(0, other.size), other.path), about))
    return joined(path, FORMAT, parts, about.fields, about.types)


def _split_files(path: Path, count: Json) -> list[Path]:
    """The files of a split model, in order; each must be there."""
    found = _SPLIT.fullmatch(path.name)
    if found is None or type(count) is not int or int(found[2]) != count:
        raise FormatError(f"{path}: is one of {count!r} files and not named NAME-00001-of-0000N.gguf; rename it")
    files = [path.with_name(f"{found[1]}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    for file in files:
        if not file.is_file():
            raise FormatError(f"{path}: is one of {count} files, and {file.name} is not there; fetch it")
    return files


def _open_part(file: MappedFile, header: GgufHeader, about: GgufHeader) -> Checkpoint:
    """One file, whose model is described by the header of the first. Unknown architectures keep GGUF's names."""
    path, fields = file.path, about.fields
    architecture = fields.get("general.architecture")
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    measured = [_measure(info, file, header) for info in header.tensors]
    if (why := overlap((tensor.entry, tensor.offset) for tensor in measured)) is not None:
        raise FormatError(f"{path}: tensor {why}")
    stored: dict[str, Stored] = {}
    unnamed: list[str] = []
    for tensor in measured:
        place = place_of(tensor.entry.name) if family else None
        name = hf_name(family, place) if family and place else None
        pieces = [tensor]
        if family is None or place is None or name is None:
            unnamed.append(tensor.entry.name)
        else:
            pieces = _named(tensor, name, family, place, fields, path)
        for piece in pieces:
            if piece.entry.name in stored:
                raise FormatError(f"{path}: two tensors are {shown(piece.entry.name)!r}; fetch it again")
            stored[piece.entry.name] = piece

    def rows(entry: Entry) -> Bytes:
        piece = stored[entry.name]
        return unpermuted(file.view(piece.offset, entry.nbytes), piece)

    def load(entry: Entry) -> Array:
        return numbers(rows(entry), stored[entry.name])

    entries = {name: piece.entry for name, piece in stored.items()}
    return Checkpoint(
        path, FORMAT, entries, load, files=[file], metadata=fields, aliases=tied_by_absence(entries),
        notes=_notes(architecture, family, unnamed), types=about.types,
        load_blocks=lambda entry: rows(entry) if stored[entry.name].keeps_bytes else None,
    )  # fmt: skip


def _measure(info: TensorInfo, file: MappedFile, header: GgufHeader) -> Stored:
    """A tensor under GGUF's name, its bytes within the file."""
    where = f"{file.path}, tensor {shown(info.name)!r}"
    try:
        kind = gguf.GGMLQuantizationType(info.kind)
    except ValueError:
        raise FormatError(f"{where}: this gguf library does not know the type {info.kind}; upgrade it") from None
    block, size = gguf.GGML_QUANT_SIZES[kind]
    columns = info.dims[0] if info.dims else 1
    if columns % block:
        raise FormatError(f"{where}: rows of {columns} are no whole number of {kind.name} blocks; fetch it again")
    nbytes = count_elements(where, info.dims) // block * size
    offset = header.data_offset + info.offset
    if offset + nbytes > file.size:
        raise FormatError(f"{where}: ends at byte {offset + nbytes} and the file at {file.size}; it is cut off")
    dtype = PLAIN.get(kind.name)
    row_bytes = columns // block * size if len(info.dims) > 1 else size  # a bias has rows of one number
    entry = Entry(info.name, dtype or kind.name.lower(), tuple(reversed(info.dims)), nbytes, dtype is None)
    return Stored(entry, info.kind, offset, row_bytes)


def _named(
    tensor: Stored, name: str, family: Family, place: Place, fields: dict[str, Json], path: Path
) -> list[Stored]:
    """The tensors of ours in one of GGUF's: itself, or its experts one by one."""
    entry, shape = tensor.entry, tensor.entry.shape
    where = f"{path}, tensor {shown(entry.name)!r}"
    if "{e}" in name:
        if len(shape) != 3:
            raise FormatError(f"{where}: is {list(shape)}, and stacked experts have three dimensions")
        size = entry.nbytes // max(1, shape[0])
        experts = [
            replace(entry, name=name.replace("{e}", str(number)), shape=shape[1:], nbytes=size)
            for number in range(shape[0])
        ]
        return [replace(tensor, entry=one, offset=tensor.offset + i * size) for i, one in enumerate(experts)]
    heads = heads_of(fields, place, shape[0] if shape else 0, where) if family.permuted else None
    transposed = place.stem in family.transposed and len(shape) == 2
    shifted = family.shifted_norms and name.endswith("norm.weight")
    entry = replace(entry, name=name, shape=shape[::-1] if transposed else shape)
    return [replace(tensor, entry=entry, heads=heads, transposed=transposed, shifted=shifted)]


def _notes(architecture: Json, family: Family | None, unnamed: list[str]) -> list[str]:
    if family is None:
        return [f"the architecture {architecture!r} has no table of names here: names and rows are as GGUF has them"]
    said = {
        "rows of q and k were put back from GGUF's interleaved order": family.permuted,
        "norms are stored plus one, and one was subtracted": family.shifted_norms,
        "matrices of Conv1D layers were transposed back": bool(family.transposed),
        f"{len(unnamed)} tensors have no Hugging Face name: {', '.join(map(shown, unnamed[:5]))}": bool(unnamed),
    }
    return [sentence for sentence, holds in said.items() if holds]
