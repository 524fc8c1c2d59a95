"""What `--data` names: text files, shards of tokens, or a directory of one of both; as tokens in one row.

Texts are encoded document by document, each followed by the end-of-text token. `.npy` shards say their own dtype;
`.bin` is raw little-endian: 16 bits, or 32 where the vocabulary needs them or every second half is zero. A header
as llm.c writes it is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.regular import check_regular, open_regular, read_regular
from ...core.strict_json import decode_object
from ...errors import FormatError, NotFoundError, SelectionError, storage
from ...store.formats.npy import read_npy_header
from .training_tokenizer import Tokenizer

SHARD_SUFFIXES = (".npy", ".bin")
Tokens = NDArray[Any]  # one axis of unsigned or signed whole numbers

_CHUNK = 1 << 22
_HEADER = 1024  # bytes, of 256 numbers: magic, version, count
_HEADERS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
_DTYPES = ("uint16", "uint32", "uint64", "int32", "int64", "uint8")
_READ = "check that it exists and that you may read it"


def open_shard(path: Path, vocab_size: int) -> Tokens:
    """The tokens of one file, all of them below `vocab_size`."""
    with storage(path, "read the shard", _READ):
        check_regular(path)
        tokens = _open_npy(path) if path.suffix == ".npy" else _open_bin(path, vocab_size)
    check_range(tokens, vocab_size, path)
    return tokens


def check_range(tokens: Tokens, vocab_size: int, place: object) -> None:
    """Refuse tokens that the model has no row for."""
    for start in range(0, len(tokens), _CHUNK):
        part = tokens[start : start + _CHUNK]
        wrong = np.flatnonzero((part < 0) | (part >= vocab_size))
        if wrong.size:
            at = int(wrong[0])
            raise FormatError(
                f"{place}: token {start + at} is {int(part[at])}, and the model's vocabulary ends at {vocab_size - 1} "
                "(OOB); give the shards, or the tokenizer, that belong to the model"
            )


def _open_npy(path: Path) -> Tokens:
    with open_regular(path) as file:
        header = read_npy_header(file, path.stat().st_size, str(path))
    if len(header.shape) != 1 or header.stored.name not in _DTYPES:
        what = f"{header.stored.name}{list(header.shape)}"
        raise FormatError(f"{path}: holds {what}, not one axis of {', '.join(_DTYPES)}; write the shard again")
    if not header.nbytes:
        return np.empty(0, header.stored)
    return np.memmap(path, header.stored, "r", header.offset, header.shape)


def _open_bin(path: Path, vocab_size: int) -> Tokens:
    size = path.stat().st_size
    if size == 0:
        return np.empty(0, np.uint16)
    dtype, skipped = _header(path, size)
    if dtype is None:
        dtype = "<u4" if vocab_size > 1 << 16 or _is_wide(path, size) else "<u2"
    width = np.dtype(dtype).itemsize
    if (size - skipped) % width:
        raise FormatError(f"{path}: {size - skipped} bytes are no whole number of {width}-byte tokens; write it again")
    return np.memmap(path, dtype, "r", offset=skipped)


def _header(path: Path, size: int) -> tuple[str | None, int]:
    """The dtype that a header says, and its length; nothing for a file without one."""
    if size < _HEADER:
        return None, 0
    magic, version, count = np.fromfile(path, "<i4", 3).tolist()
    dtype = _HEADERS.get((magic, version))
    if dtype is None:
        return None, 0
    held = (size - _HEADER) // np.dtype(dtype).itemsize
    if held != count:
        raise FormatError(f"{path}: its header claims {count} tokens and {held} follow; write the shard again")
    return dtype, _HEADER


def _is_wide(path: Path, size: int) -> bool:
    """Whether every second number of 16 bits is zero, which makes the numbers ones of 32."""
    if size % 4:
        return False
    halves = np.memmap(path, "<u2", "r")
    return not any(halves[start + 1 : start + _CHUNK : 2].any() for start in range(0, len(halves), _CHUNK))


TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".py", ".jsonl")
_AT_ONCE = 64  # documents


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


@dataclass(frozen=True, slots=True)
class Corpus:
    """Files of one kind, in order; `skipped` counts the others that lie between them."""

    path: Path
    files: tuple[Path, ...]
    tokenized: bool
    skipped: int = 0


def find_corpus(path: str | os.PathLike[str]) -> Corpus:
    """The files of a path. A directory is searched to its depths; hidden files are not seen."""
    root = Path(path)
    if not root.exists():
        raise NotFoundError(f"{root}: there is no such file or directory; name text or token shards with --data")
    if not root.is_dir():
        check_regular(root)
        return Corpus(root, (root,), root.suffix in SHARD_SUFFIXES)
    with storage(root, "list the directory", "check that you may read it"):
        found = sorted(_files(root))
    tokenized = tuple(file for file in found if file.suffix in SHARD_SUFFIXES)
    plain = tuple(file for file in found if file.suffix in TEXT_SUFFIXES)
    if tokenized and plain:
        raise FormatError(f"{root}: holds token shards ({tokenized[0].name}) and text ({plain[0].name}); name one kind")
    if not tokenized and not plain:
        known = ", ".join((*TEXT_SUFFIXES, *SHARD_SUFFIXES))
        raise FormatError(f"{root}: holds nothing to train on ({known}); name a directory that does")
    files = tokenized or plain
    return Corpus(root, files, bool(tokenized), len(found) - len(files))


def read_tokens(corpus: Corpus, vocab_size: int, tokenizer: Tokenizer | None) -> tuple[Tokens, ...]:
    """The tokens of a corpus, all below `vocab_size`; every shard is a segment of its own, a text is one."""
    if corpus.tokenized:
        return tuple(open_shard(file, vocab_size) for file in corpus.files)
    if tokenizer is None:
        raise SelectionError(f"{corpus.path}: is text, which needs a tokenizer; name one with --tokenizer")
    end = [] if tokenizer.end is None else [tokenizer.end]
    texts = documents(corpus.files)
    parts: list[Tokens] = [np.empty(0, np.uint32)]
    while batch := list(islice(texts, _AT_ONCE)):
        parts += [np.array([*found, *end], np.uint32) for found in tokenizer.encode_batch(batch)]
    tokens = np.concatenate(parts)
    check_range(tokens, vocab_size, corpus.path)
    return (tokens,)


def _files(root: Path) -> list[Path]:
    found = []
    for directory, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        found += [Path(directory, name) for name in names if not name.startswith(".")]
    return found
