"""Shards of an APR model and the manifest that lists them."""

from __future__ import annotations

from pathlib import Path

from ...errors import FormatError
from ...sites import shown
from ...strict_json import Json
from ..checkpoint import Checkpoint, joined
from ..json_file import read_json_object
from ..safetensors_file import MAX_INDEX_BYTES, check_shards
from .reading import FORMAT, open_apr


def open_manifest(path: Path) -> Checkpoint:
    """Open the shards of a manifest: each complete, each what the manifest says of it."""
    said = read_json_object(path, MAX_INDEX_BYTES)
    shards = _listed(said, path)
    names = check_shards({str(number): shard["filename"] for number, shard in enumerate(shards)}, path)
    if len(names) != len(shards):
        raise FormatError(f"{path}: lists {len(shards)} shards in {len(names)} files; fetch it again")
    parts = [_open_shard(path, shard, len(shards)) for shard in shards]
    whole = joined(path, FORMAT, parts, {**parts[0].metadata, "sharding": None} if parts else {})
    if said.get("tensor_count") != len(whole):
        raise FormatError(
            f"{path}: counts {said.get('tensor_count')} tensors and its shards hold {len(whole)}; fetch it again"
        )
    where: dict[str, Json] = said["weight_map"]
    held = {name: number for number, part in enumerate(parts) for name in part.entries}
    if where != held:
        wrong = next(iter(sorted(set(where) ^ set(held) or {n for n in held if where[n] != held[n]})), "")
        raise FormatError(f"{path}: its 'weight_map' is wrong about {shown(wrong)!r}; fetch the shards again")
    return whole


def _listed(said: dict[str, Json], path: Path) -> list[dict[str, Json]]:
    shards = said.get("shards")
    if type(shards) is not list or not shards or not all(type(shard) is dict for shard in shards):
        raise FormatError(f"{path}: has no list of 'shards'; fetch it again")
    if type(said.get("weight_map")) is not dict:
        raise FormatError(f"{path}: has no 'weight_map' from tensors to shards; fetch it again")
    if said.get("shard_count") != len(shards):
        raise FormatError(f"{path}: says {said.get('shard_count')} shards and lists {len(shards)}; fetch it again")
    for number, shard in enumerate(shards):
        if type(shard.get("filename")) is not str or shard.get("index") != number:
            raise FormatError(f"{path}: shard {number} has no 'filename', or another 'index'; fetch it again")
    return shards


def _open_shard(manifest: Path, shard: dict[str, Json], count: int) -> Checkpoint:
    """One shard, compared with what the manifest and its own metadata say of its place."""
    path = manifest.parent / shard["filename"]
    size = path.stat().st_size
    if shard.get("size") not in (None, size):
        raise FormatError(f"{path}: has {size} bytes and its manifest says {shard['size']}; fetch it again")
    part = open_apr(path)
    own = part.metadata.get("sharding")
    if type(own) is dict and (own.get("shard_count"), own.get("shard_index")) != (count, shard["index"]):
        raise FormatError(
            f"{path}: says it is shard {own.get('shard_index')} of {own.get('shard_count')}, its manifest "
            f"{shard['index']} of {count}; fetch it again"
        )
    listed = shard.get("tensors")
    if listed is not None and not (type(listed) is list and _same_names(listed, part)):
        raise FormatError(f"{path}: does not hold the tensors that its manifest lists; fetch it again")
    return part


def _same_names(listed: list[Json], part: Checkpoint) -> bool:
    return all(type(name) is str for name in listed) and sorted(listed) == sorted(part.entries)
