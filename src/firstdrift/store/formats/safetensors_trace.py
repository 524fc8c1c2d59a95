"""safetensors: one file, or the shards that an index names. The library validates, the bytes are mapped."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ...core.atomic import replacing_path
from ...core.mapped import MappedFile
from ...core.records import tensor_bytes
from ...core.regular import read_regular
from ...core.scratch import scratch
from ...core.sites import shown
from ...core.strict_json import Json, decode_object
from ...core.traces import Array, Trace
from ...errors import (
    FirstdriftError,
    FormatError,
    NotATraceError,
    SiteError,
    TraceExistsError,
    storage,
    without_raising,
)
from . import carried
from .carried import Stored
from .site_keys import keys_of

NAME = "safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
COPIED = 32 << 20  # bytes of tensors that are copied in memory, where they must be copied
MAX_INDEX_BYTES = 256 << 20
DTYPES = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "C64": "c64",
    "F8_E4M3": "f8e4m3fn", "F8_E4M3FNUZ": "f8e4m3fnuz", "F8_E5M2": "f8e5m2", "F8_E5M2FNUZ": "f8e5m2fnuz",
    "I64": "i64", "I32": "i32", "I16": "i16", "I8": "i8",
    "U64": "u64", "U32": "u32", "U16": "u16", "U8": "u8", "BOOL": "bool",
}  # fmt: skip
_SHARD = re.compile(r"-\d{1,9}-of-(\d{1,9})\.safetensors$")


@without_raising
def recognise(path: Path) -> bool:
    """Whether a path is a safetensors file, a shard index, or a directory with either."""
    if path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob(f"*{INDEX_SUFFIX}"))
    return path.name.endswith((".safetensors", INDEX_SUFFIX)) and path.is_file()


def carries_trace(file: Path) -> bool:
    """Whether one file is a trace that was written as safetensors, and no checkpoint."""
    return carried.NAME in read_claims(MappedFile(file))[1]


def read(path: Path) -> Trace:
    """Open a checkpoint as a trace: what carries no index of ours is phase `weight`."""
    with storage(path, "read the checkpoint", "check that it exists and that you may read it"):
        file = _entry(path) if path.is_dir() else path
        if file.name.endswith(INDEX_SUFFIX):
            files, stored, problems = _read_shards(file)
            text = None
        else:
            files, problems = [file], []
            stored, metadata = read_claims(MappedFile(file))
            text = metadata.get(carried.NAME)
    header, lines, unnamed = carried.read_container(text, stored, str(file), otherwise="weight")
    return Trace(path, NAME, lines, files.__getitem__, header=header, problems=[*problems, *unnamed])


def write(trace: Trace, path: Path, *, overwrite: bool, advance: Callable[[int], None]) -> list[str]:
    """Write a trace as one safetensors file, its index carried in the metadata."""
    from safetensors.numpy import save_file

    if path.exists() and not overwrite:
        raise TraceExistsError(f"{path}: exists; choose another path, or overwrite (--force)")
    keys = keys_of(record.site for record in trace.records if record.at is not None)
    tensors: dict[str, Array] = {}
    copied = 0
    for record in trace.records:
        if record.at is None:
            continue
        if record.dtype not in DTYPES.values():
            raise SiteError(
                f"{record.site}: safetensors has no {record.dtype}; export to npz, or leave it out with --only"
            )
        # The library writes from each array's memory: mapped arrays cost nothing, others are made contiguous.
        array = trace.array(record)
        if not _is_mapped(array):  # the library needs all tensors at once, and memory is for one
            copied += array.nbytes
            array = _copied(array, in_memory=copied <= COPIED)
        tensors[keys[record.site]] = array
    with storage(path, "write the checkpoint", "choose a place that you may write, with room for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_path(path) as partial:
            try:
                save_file(tensors, partial, metadata={carried.NAME: carried.write_index(trace, keys)})
            except Exception as error:  # the library reports a full disk by an error of its own
                raise OSError(None, str(error), str(path)) from error
            trace.check_unchanged()
    advance(trace.nbytes)
    return []


def _is_mapped(array: Array) -> bool:
    """Whether the library can write from the file the array lies in."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return array.flags.c_contiguous and isinstance(base, mmap.mmap)


def _copied(array: Array, in_memory: bool) -> Array:
    """The array in C order, in memory or in a file that vanishes with it."""
    copy = scratch(array.shape, array.dtype, None if in_memory else 0)
    copy[...] = array
    return copy


def _entry(directory: Path) -> Path:
    """The one index, or the one file, that a directory is read through."""
    for pattern in (f"*{INDEX_SUFFIX}", "*.safetensors"):
        found = sorted(directory.glob(pattern))
        if len(found) == 1:
            if (shard := _SHARD.search(found[0].name)) and int(shard[1]) > 1:
                raise NotATraceError(f"{found[0]}: is one of {int(shard[1])} shards, without their index; fetch it")
            return found[0]
        if found:
            names = ", ".join(file.name for file in found[:5])
            raise NotATraceError(f"{directory}: holds {len(found)} files {names}; name the one to open")
    raise NotATraceError(f"{directory}: holds no safetensors file; name a directory that does")


def read_claims(file: MappedFile, number: int = 0) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of one file with their places, in the order of their bytes, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file.path, "np") as opened:
            metadata = opened.metadata() or {}
            slices = {key: opened.get_slice(key) for key in opened.offset_keys()}
            claims = {key: (held.get_dtype(), held.get_shape()) for key, held in slices.items()}
    except SafetensorError as error:
        raise FormatError(f"{file.path}: not a valid safetensors file ({error}); download or export it again") from None
    offset = 8 + int.from_bytes(file.read(0, 8), "little")  # the library has checked that nothing lies between
    stored: dict[str, Stored] = {}
    for key, (kind, shape) in claims.items():
        place = f"{file.path}, tensor {shown(key)!r}"
        if kind not in DTYPES:
            raise FormatError(f"{place}: has dtype {kind}, which is not one of {', '.join(DTYPES)}; convert it")
        nbytes = tensor_bytes(place, DTYPES[kind], shape)
        stored[key] = Stored(DTYPES[kind], tuple(shape), (number, offset, nbytes))
        offset += nbytes
    if offset != file.size:
        raise FormatError(
            f"{file.path}: its tensors end at byte {offset} and it has {file.size}; it changed while read"
        )
    return stored, metadata


def _read_shards(index: Path) -> tuple[list[Path], dict[str, Stored], list[str]]:
    """Every tensor of the index, each in the shard the index says and in no other."""
    try:
        about = decode_object(read_regular(index, MAX_INDEX_BYTES).decode("utf-8"))
    except (FirstdriftError, UnicodeDecodeError) as error:
        raise FormatError(f"{index}: {error}; fetch it again") from None
    shard_of = weight_map(about, index)
    files = [index.parent / name for name in dict.fromkeys(shard_of.values())]
    stored: dict[str, Stored] = {}
    problems = []
    for number, file in enumerate(files):
        for key, held in read_claims(MappedFile(file), number)[0].items():
            if key in stored:
                raise FormatError(f"{file} and {files[stored[key].at[0]].name}: both hold {key!r}; fetch them again")
            stored[key] = held
            if key not in shard_of:
                problems.append(f"{file.name} holds {key!r}, which {index.name} does not list")
    for key, name in shard_of.items():
        if key not in stored or files[stored[key].at[0]].name != name:
            raise FormatError(f"{index}: says that {name} holds {key!r}, and it does not; fetch the shards again")
    return files, stored, problems


def weight_map(about: dict[str, Json], index: Path) -> dict[str, str]:
    """Which file beside an index holds which tensor, as the index says it; all of them are there."""
    said = about.get("weight_map")
    if type(said) is not dict or not said or not all(type(name) is str for name in said.values()):
        raise FormatError(f"{index}: has no 'weight_map' from tensors to files; fetch it again")
    check_shards(said.values(), index)
    return said


def check_shards(names: Iterable[str], index: Path) -> None:
    """Refuse names that are not those of files beside an index."""
    for name in dict.fromkeys(names):
        if name != Path(name).name or name in ("", ".", "..") or "\\" in name or "\0" in name:
            raise FormatError(f"{index}: shard {shown(name)!r} is not a plain file name beside the index; fetch it")
        with storage(index, "look for its shards", "fetch it again"):  # a name may be too long for the system
            found = (index.parent / name).is_file()
        if not found:
            raise FormatError(f"{index}: names the shard {shown(name)}, which is not there; fetch it")
