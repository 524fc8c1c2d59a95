"""Hugging Face model directories: a configuration, weights in one file or in shards, and a tokenizer."""

from __future__ import annotations

from pathlib import Path

from ..errors import FormatError
from ..formats.safetensors_file import INDEX_SUFFIX
from .checkpoint import Checkpoint
from .json_file import read_json_object
from .safetensors_file import open_safetensors, open_sharded
from .ties import declared_ties

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


def open_directory(path: Path) -> Checkpoint:
    """Open the weights in a directory; with a config.json beside them it is a Hugging Face model."""
    weights = _open_one(*weights_file(path))
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


def weights_file(path: Path) -> tuple[Path, str]:
    """The index if there is one, else the one file, and the pattern it was found by; several that nothing tells apart
    are refused."""
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
            return found[0], pattern
    raise FormatError(f"{path}: holds no weights (*.safetensors, *.bin, *.gguf, *.apr); name a directory that does")


def _open_one(file: Path, pattern: str) -> Checkpoint:
    if pattern.endswith(INDEX_SUFFIX):
        return open_sharded(file)
    if pattern == "*.safetensors":
        return open_safetensors(file)
    from .opening import open_checkpoint

    return open_checkpoint(file)
