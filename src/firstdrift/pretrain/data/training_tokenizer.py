"""Tokenizers to train with: a tokenizer.json, a vocab.json with its merges, or what a checkpoint embeds; held
against the rows of the model's embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.regular import check_regular, read_regular
from ...decoder.tokenizing import MERGES, TOKENIZER, VOCAB, embedded, library_of, tokenizer_file
from ...errors import CaptureError, FirstdriftError, FormatError, NotFoundError, storage
from ...weights.formats.hf_directory import tokenizer_files
from ...weights.json_file import read_json_object
from ...weights.open_checkpoint import open_checkpoint
from ..run_settings import RELAXED, STRICT, VOCABULARY

CONFIG = "tokenizer_config.json"
EMBEDDED = ("tokenizer.ggml.tokens", "tokenizer.vocabulary")  # keys of metadata
EMBEDDED_END = "tokenizer.ggml.eos_token_id"
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>")  # where no file says which it is
DEFAULT = "llama-370m"  # without init, and the one preset whose vocabulary has to be exactly its own


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the `tokenizers` library, the token that ends a text, and the files that make it again."""

    library: Any
    end: int | None
    files: Mapping[str, bytes]

    @property
    def entries(self) -> int:
        """How many tokens there are, added ones included."""
        return int(self.library.get_vocab_size())

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, without any that mark its beginning or end."""
        return [found.ids for found in self.library.encode_batch(texts, add_special_tokens=False)]


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a directory, of one of its files, or of a checkpoint that embeds one."""
    try:
        found = _from_checkpoint(path) if path.is_file() and path.suffix != ".json" else _from_files(path)
        if not found.entries:
            raise FormatError(f"{path}: holds no entries")
    except CaptureError:  # there is no library to read it with
        raise
    except FirstdriftError as error:
        raise FormatError(f"{VOCABULARY}: {error}; name a tokenizer's directory with --tokenizer") from error
    return found


def _from_files(path: Path) -> Tokenizer:
    if path.exists() and not path.is_dir():
        check_regular(path)
    directory = path if path.is_dir() else path.parent
    file = path if path.is_file() else tokenizer_file(directory)
    if file is None:
        raise NotFoundError(f"{path}: holds no tokenizer ({TOKENIZER}, or {VOCAB})")
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
    library = embedded(said, str(path))
    if library is None:
        raise NotFoundError(f"{path}: embeds no tokenizer")
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


def check_vocabulary(count: int, target: int, *, strict: bool, place: object) -> None:
    """Without init the preset's own number is wanted exactly; with init no more than the embedding has rows."""
    if strict and count != target:
        raise FormatError(
            f"{VOCABULARY}: {STRICT}: {place} has {count} entries, and the {DEFAULT} preset is for exactly "
            f"{target}; give its tokenizer, or the architecture that this one belongs to"
        )
    if count > target:
        raise FormatError(
            f"{VOCABULARY}: {RELAXED}: {place} has {count} entries, and the model's embedding has {target} rows; "
            f"tokens from {target} on would be out of bounds (OOB), give the model's own tokenizer"
        )
