"""Write Hugging Face directories: weights as safetensors, and beside them the configuration and the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..atomic import replacing
from ..errors import FormatError, TraceExistsError, storage
from ..strict_json import Json
from .checkpoint import Checkpoint
from .hf_directory import CONFIG, FORMAT, tokenizer_files

SINGLE, SHARDED = "model.safetensors", "model.safetensors.index.json"
DTYPE_KEYS = ("dtype", "torch_dtype")
DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Companions:
    """What lies beside the weights: the configuration, and files by name. `said` are tensors that it makes needless."""

    config: Mapping[str, Json]
    files: Mapping[str, bytes] = field(default_factory=dict)
    said: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def own_companions(source: Checkpoint) -> Companions:
    """Those that a directory has; a file has none."""
    if source.format != FORMAT:
        raise FormatError(
            f"{source.path}: a Hugging Face directory needs a {CONFIG}, and this file has none; convert to "
            f"DIR/{SINGLE} and put the model's {CONFIG} beside it"
        )
    copied = files_beside(source.path)
    return Companions(source.metadata, copied, notes=(f"copied {', '.join([CONFIG, *copied])}",))


def files_beside(directory: Path) -> dict[str, bytes]:
    """The files of a tokenizer in a directory."""
    with storage(directory, "read the tokenizer", "check that you may read it"):
        return {name: (directory / name).read_bytes() for name in tokenizer_files(directory)}


def weights_path(target: Path, nbytes: int, shard_bytes: int) -> tuple[Path, str]:
    """Where in a directory the weights go, and in which format."""
    if target.exists() and not target.is_dir():
        raise TraceExistsError(f"{target}: is a file, and a Hugging Face directory is asked for; choose another path")
    if nbytes > shard_bytes:
        return target / SHARDED, "safetensors-sharded"
    return target / SINGLE, "safetensors"


def write_companions(beside: Companions, target: Path, weights: Path, dtype: str | None) -> None:
    """Write the tokenizer and the configuration, which says the new dtype if it said the old one.

    Weights of an older writer, in shards where these are not or the other way round, would be read in place of these.
    """
    config = dict(beside.config)
    for key in DTYPE_KEYS:
        if key in config and dtype in DTYPES:
            config[key] = DTYPES[dtype]
    text = json.dumps(config, indent=2, ensure_ascii=False).encode()
    with storage(target, "write the directory", "choose a place that you may write, with room for it"):
        (target / (SHARDED if weights.name == SINGLE else SINGLE)).unlink(missing_ok=True)
        for name, data in {**beside.files, CONFIG: text}.items():
            with replacing(target / name) as file:
                file.write(data)
