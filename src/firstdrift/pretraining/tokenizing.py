"""Tokenizers to train with: a tokenizer.json, a vocab.json with its merges, or what a checkpoint embeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoints.hf_directory import tokenizer_files
from ..checkpoints.json_file import read_json_object
from ..checkpoints.opening import open_checkpoint
from ..decoder.embedded_tokenizer import embedded
from ..decoder.tokenizing import MERGES, TOKENIZER, VOCAB, library_of, tokenizer_file, tokenizers_library
from ..errors import FirstdriftError, FormatError, NotFoundError, storage
from ..regular import check_regular, read_regular
from .identifiers import VOCABULARY
from .vocabulary import count_entries

CONFIG = "tokenizer_config.json"
EMBEDDED = ("tokenizer.ggml.tokens", "tokenizer.vocabulary")  # keys of metadata
EMBEDDED_END = "tokenizer.ggml.eos_token_id"
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>")  # where no file says which it is


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the `tokenizers` library, the token that ends a text, and the files that make it again."""

    library: Any
    end: int | None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, without any that mark its beginning or end."""
        return [found.ids for found in self.library.encode_batch(texts, add_special_tokens=False)]


def count_tokens(path: Path) -> int:
    """How many entries the tokenizer of a path has, without making it."""
    if not _is_checkpoint(path):
        return count_entries(path)
    try:
        with open_checkpoint(path) as checkpoint:
            found = next((checkpoint.metadata[key] for key in EMBEDDED if key in checkpoint.metadata), None)
    except FirstdriftError as error:
        raise FormatError(f"{VOCABULARY}: {error}") from error
    if not isinstance(found, list | dict):
        raise FormatError(f"{VOCABULARY}: {path}: embeds no tokenizer; name one with --tokenizer")
    return len(found)


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a directory, of one of its files, or of a checkpoint that embeds one."""
    if _is_checkpoint(path):
        return _from_checkpoint(path)
    if path.exists() and not path.is_dir():
        check_regular(path)
    directory = path if path.is_dir() else path.parent
    file = path if path.is_file() else tokenizer_file(directory)
    if file is None:
        raise NotFoundError(f"{path}: holds no tokenizer ({TOKENIZER}, or {VOCAB}); name one with --tokenizer")
    library = library_of(file)
    if path.is_dir():
        names = {name: directory / name for name in tokenizer_files(directory)}
    elif file.name == VOCAB:
        names = {name: directory / name for name in (VOCAB, MERGES) if (directory / name).is_file()}
    else:
        names = {TOKENIZER: file}  # whatever it is called here, it is found by that name there
    with storage(directory, "read the tokenizer", "check that you may read it"):
        return Tokenizer(library, _end(library, directory), {name: read_regular(one) for name, one in names.items()})


def _from_checkpoint(path: Path) -> Tokenizer:
    with open_checkpoint(path) as checkpoint:
        said = dict(checkpoint.metadata)
    library = embedded(said, str(path), tokenizers_library)
    if library is None:
        raise NotFoundError(f"{path}: embeds no tokenizer; name one with --tokenizer")
    end = said.get(EMBEDDED_END)
    if type(end) is not int or not 0 <= end < library.get_vocab_size():
        end = _usual_end(library)
    return Tokenizer(library, end, {TOKENIZER: library.to_str(pretty=True).encode()})


def _end(library: Any, directory: Path) -> int | None:
    """The token that ends a text: what the configuration says, else a usual one."""
    said = None
    if (directory / CONFIG).is_file():
        said = read_json_object(directory / CONFIG).get("eos_token")
        said = said.get("content") if isinstance(said, dict) else said
    return library.token_to_id(said) if isinstance(said, str) else _usual_end(library)


def _usual_end(library: Any) -> int | None:
    return next((found for name in ENDS if (found := library.token_to_id(name)) is not None), None)


def _is_checkpoint(path: Path) -> bool:
    return path.is_file() and path.suffix != ".json"
