"""What `--data` names: a text, a shard of tokens, or a directory of one of both."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import FormatError, NotFoundError, SelectionError, storage
from ..regular import check_regular
from . import shards, texts
from .shards import Tokens, check_range, open_shard
from .texts import Encoder, encode_files


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
        return Corpus(root, (root,), root.suffix in shards.SUFFIXES)
    with storage(root, "list the directory", "check that you may read it"):
        found = sorted(_files(root))
    tokenized = tuple(file for file in found if file.suffix in shards.SUFFIXES)
    plain = tuple(file for file in found if file.suffix in texts.SUFFIXES)
    if tokenized and plain:
        raise FormatError(f"{root}: holds token shards ({tokenized[0].name}) and text ({plain[0].name}); name one kind")
    if not tokenized and not plain:
        known = ", ".join((*texts.SUFFIXES, *shards.SUFFIXES))
        raise FormatError(f"{root}: holds nothing to train on ({known}); name a directory that does")
    files = tokenized or plain
    return Corpus(root, files, bool(tokenized), len(found) - len(files))


def read_tokens(corpus: Corpus, vocab_size: int, encoder: Encoder | None) -> tuple[Tokens, ...]:
    """The tokens of a corpus, all below `vocab_size`; every shard is a segment of its own, a text is one."""
    if corpus.tokenized:
        return tuple(open_shard(file, vocab_size) for file in corpus.files)
    if encoder is None:
        raise SelectionError(f"{corpus.path}: is text, which needs a tokenizer; name one with --tokenizer")
    tokens = encode_files(corpus.files, encoder)
    check_range(tokens, vocab_size, corpus.path)
    return (tokens,)


def _files(root: Path) -> list[Path]:
    found = []
    for directory, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        found += [Path(directory, name) for name in names if not name.startswith(".")]
    return found
