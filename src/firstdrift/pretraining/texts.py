"""Text to train on: documents of files, as tokens in one row with the end-of-text token after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import FormatError, storage
from ..regular import read_regular
from ..strict_json import decode_object
from .shards import Tokens

SUFFIXES = (".txt", ".text", ".md", ".rst", ".py", ".jsonl")
_AT_ONCE = 64  # documents


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    @property
    def end(self) -> int | None:
        """The token that ends a text, where there is one."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, without any that mark its beginning or end."""


def encode_files(files: Sequence[Path], encoder: Encoder) -> Tokens:
    """All documents of the files as one row of tokens."""
    parts: list[Tokens] = []
    end = [] if encoder.end is None else [encoder.end]
    for batch in _batches(documents(files)):
        parts += [np.array([*tokens, *end], np.uint32) for tokens in encoder.encode_batch(batch)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def documents(files: Sequence[Path]) -> Iterator[str]:
    """The texts of files; of JSON lines those under `text`. Empty ones are left out."""
    for path in files:
        text = _read(path)
        if path.suffix == ".jsonl":
            yield from _of_lines(path, text)
        elif text.strip():
            yield text


def _read(path: Path) -> str:
    with storage(path, "read the text", "check that it exists and that you may read it"):
        data = read_regular(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path}: byte {error.start} is 0x{data[error.start]:02x}, which is no UTF-8; convert it, or name the text "
            "files alone"
        ) from None


def _of_lines(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            said = decode_object(line).get("text")
        except FormatError as error:
            raise FormatError(f"{path}, line {number}: {error}; write one object a line") from None
        if not isinstance(said, str):
            raise FormatError(f'{path}, line {number}: has no text under "text"; write one object a line')
        if said.strip():
            yield said


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
