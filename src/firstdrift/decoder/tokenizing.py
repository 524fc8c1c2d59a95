"""The tokenizer that comes with a model: tokenizer.json, vocab.json with its merges, or what a file embeds."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import CaptureError
from ..weights.json_file import read_json_object
from ..weights.open_checkpoint import open_checkpoint
from .embedded_tokenizer import check_merges, embedded, refusing, tokenizers_library

TOKENIZER, VOCAB, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
LARGEST = 256 << 20  # bytes


def tokenizer_of(path: str | PathLike[str]) -> Any:
    """The tokenizer of a model, of the `tokenizers` library: the directory's, what a file embeds, or what lies beside
    it. A model that has none is refused, because token ids cannot be guessed."""
    path = Path(path)
    file = tokenizer_file(path if path.is_dir() else path.parent)
    if path.is_dir() and file is not None:
        return library_of(file)
    with open_checkpoint(path) as checkpoint:
        inside = embedded(checkpoint.metadata, str(checkpoint.path))
    if inside is not None:
        return inside
    if file is not None:
        return library_of(file)
    raise CaptureError(
        f"{path}: has no tokenizer, neither inside nor as {TOKENIZER} or {VOCAB} beside it, so that --prompt cannot be "
        "read; give --tokens"
    )


def tokenizer_file(directory: Path) -> Path | None:
    """The file that says what a directory's tokenizer is."""
    return next((file for name in (TOKENIZER, VOCAB) if (file := directory / name).is_file()), None)


def library_of(file: Path) -> Any:
    """The tokenizer of a tokenizer.json, or of a vocab.json."""
    if file.name == VOCAB:
        return _from_vocabulary(file)
    library = tokenizers_library()
    with refusing(f"{file}: is no tokenizer that can be read"):
        return library.Tokenizer.from_file(str(file))


def _from_vocabulary(file: Path) -> Any:
    """Byte-level BPE, as GPT-2 has it; without merges every byte is a token of its own."""
    tokenizers = tokenizers_library()
    vocabulary = read_json_object(file, most=LARGEST)
    merges = file.parent / MERGES
    with refusing(f"{file}: is no vocabulary with its merges"):
        lines = merges.read_text("utf-8").split("\n") if merges.is_file() else []
        pairs = [tuple(line.split(" ")) for line in lines if line.strip() and not line.startswith("#version")]
        check_merges(pairs, vocabulary, merges)
        library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    return library
