"""The tokenizer that comes with a model: tokenizer.json, vocab.json with its merges, or what a file embeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import CaptureError
from ..weights.checkpoint import Checkpoint
from ..weights.json_file import read_json_object
from ..weights.open_checkpoint import open_checkpoint
from .embedded_tokenizer import check_merges, embedded, refusing

TOKENIZER, VOCAB, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
LARGEST = 256 << 20  # bytes


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """Text to token ids and back; `place` says where it came from."""

    place: str
    library: Any

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with what the model wants before and after it."""
        found: list[int] = self.library.encode(text).ids
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are left out."""
        found: str = self.library.decode(list(ids))
        return found


def tokenizer_of(path: str | PathLike[str]) -> ModelTokenizer:
    """The tokenizer of a model; a model that has none is refused, because token ids cannot be guessed."""
    path = Path(path)
    file = tokenizer_file(path if path.is_dir() else path.parent)
    if path.is_dir() and file is not None:
        return ModelTokenizer(str(file), library_of(file))
    with open_checkpoint(path) as checkpoint:
        return tokenizer_of_checkpoint(checkpoint, file)


def tokenizer_file(directory: Path) -> Path | None:
    """The file that says what a directory's tokenizer is."""
    return next((file for name in (TOKENIZER, VOCAB) if (file := directory / name).is_file()), None)


def tokenizer_of_checkpoint(checkpoint: Checkpoint, beside: Path | None) -> ModelTokenizer:
    """What a file embeds; else what lies beside it."""
    inside = embedded(checkpoint.metadata, str(checkpoint.path), tokenizers_library)
    if inside is not None:
        return ModelTokenizer(str(checkpoint.path), inside)
    if beside is not None:
        return ModelTokenizer(str(beside), library_of(beside))
    raise CaptureError(
        f"{checkpoint.path}: has no tokenizer, neither inside nor as {TOKENIZER} or {VOCAB} beside it, so that "
        "--prompt cannot be read; give --tokens"
    )


def tokenizers_library() -> Any:
    """The `tokenizers` library, or a sentence that asks for it."""
    try:
        import tokenizers
    except ImportError:
        raise CaptureError("a tokenizer needs the tokenizers library; pip install 'firstdrift[decoder]'") from None
    return tokenizers


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
