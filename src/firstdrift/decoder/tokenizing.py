"""The tokenizer that comes with a model: a tokenizer.json, or the vocabulary that an APR or GGUF file embeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.opening import open_checkpoint
from ..errors import CaptureError, FormatError
from .embedded_tokenizer import embedded

TOKENIZER = "tokenizer.json"


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
    file = (path if path.is_dir() else path.parent) / TOKENIZER
    if path.is_dir() and file.is_file():
        return _from_file(file)
    with open_checkpoint(path) as checkpoint:
        return tokenizer_of_checkpoint(checkpoint, file)


def tokenizer_of_checkpoint(checkpoint: Checkpoint, beside: Path) -> ModelTokenizer:
    """What a file embeds; else the tokenizer.json beside it."""
    inside = embedded(checkpoint.metadata, str(checkpoint.path), tokenizers_library)
    if inside is not None:
        return ModelTokenizer(str(checkpoint.path), inside)
    if beside.is_file():
        return _from_file(beside)
    raise CaptureError(
        f"{checkpoint.path}: has no tokenizer, neither inside nor as {TOKENIZER} beside it, so that --prompt cannot be "
        "read; give --tokens"
    )


def tokenizers_library() -> Any:
    """The `tokenizers` library, or a sentence that asks for it."""
    try:
        import tokenizers
    except ImportError:
        raise CaptureError("a prompt needs the tokenizers library; pip install 'firstdrift[decoder]'") from None
    return tokenizers


def _from_file(file: Path) -> ModelTokenizer:
    library = tokenizers_library()
    try:
        return ModelTokenizer(str(file), library.Tokenizer.from_file(str(file)))
    except Exception as error:  # the library has no exception of its own
        raise FormatError(f"{file}: is no tokenizer that can be read ({error}); fetch it again") from None
