"""Hugging Face model directories: a configuration, weights in one file or in shards, and a tokenizer; read and
written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.atomic import replacing
from ...core.strict_json import Json
from ...errors import FormatError, TraceExistsError, storage
from ...store.formats.safetensors_trace import INDEX_SUFFIX
from ..checkpoint import Checkpoint, declared_ties
from ..json_file import read_json_object

FORMAT = "hf"
CONFIG = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "chat_template.jinja",
)  # fmt: skip
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
PATTERNS = (
    f"*{INDEX_SUFFIX}", "*.safetensors", "*.bin.index.json", "*.bin", "*.pt", "*.pth", "*.gguf",
    "*.apr.index.json", "*.apr",
)  # fmt: skip
_PREFERRED = ("model", "pytorch_model")  # what the library itself looks for, in this order


def open_directory(path: Path, open_file: Callable[[Path], Checkpoint]) -> Checkpoint:
    """Open the weights in a directory; with a config.json beside them it is a Hugging Face model."""
    weights = open_file(weights_file(path))
    if not (path / CONFIG).is_file():
        return weights
    config = read_json_object(path / CONFIG)
    notes = list(weights.notes)
    if not any((path / name).is_file() for name in VOCABULARIES):
        notes.append(f"there is no tokenizer here ({', '.join(VOCABULARIES)})")
    return Checkpoint(
        path, FORMAT, weights.entries, lambda entry: weights.array(entry.name), files=weights.files,
        metadata=config, aliases={**declared_ties(config, weights), **weights.aliases}, notes=notes,
        load_blocks=lambda entry: weights.blocks(entry.name), verify=weights.verify,
    )  # fmt: skip


def tokenizer_files(path: Path) -> list[str]:
    """Which of the usual files of a tokenizer lie in a directory."""
    return [name for name in TOKENIZER_FILES if (path / name).is_file()]


def weights_file(path: Path) -> Path:
    """The index if there is one, else the one file; several that nothing tells apart are refused."""
    there = sorted(path.iterdir())  # refused where it may not be read; a glob finds nothing there
    for pattern in PATTERNS:
        found = [file for file in there if file.match(pattern) and file.is_file() and file.name != "training_args.bin"]
        usual = [file for file in found if file.name.split(".")[0] in _PREFERRED]
        if len(found) > 1 and len(usual) == 1:
            found = usual
        if len(found) > 1:
            names = ", ".join(file.name for file in found[:5])
            raise FormatError(f"{path}: holds {len(found)} checkpoints and no index ({names}); name the one to open")
        if found:
            return found[0]
    raise FormatError(f"{path}: holds no weights (*.safetensors, *.bin, *.gguf, *.apr); name a directory that does")


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
