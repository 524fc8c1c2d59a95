"""The vocabulary of a tokenizer against the rows of a model's embedding, before either is loaded."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints.json_file import read_json_object
from ..decoder.tokenizing import LARGEST, TOKENIZER, VOCAB
from ..errors import FirstdriftError, FormatError
from ..strict_json import Json
from .identifiers import RELAXED, STRICT, VOCABULARY

DEFAULT = "llama-370m"  # without init, and the one preset whose vocabulary has to be exactly its own


def count_entries(path: Path) -> int:
    """How many entries a tokenizer has: of vocab.json where there is one, else of tokenizer.json."""
    file = _file(path)
    try:
        said = read_json_object(file, most=LARGEST)
        entries = said if file.name == VOCAB else _of_tokenizer(said)
        if not entries:
            raise FormatError(f"{file}: holds no entries")
    except FirstdriftError as error:
        raise FormatError(f"{VOCABULARY}: {error}; name a tokenizer's directory with --tokenizer") from None
    return len(entries)


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


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    return path / TOKENIZER if not (path / VOCAB).is_file() and (path / TOKENIZER).is_file() else path / VOCAB


def _of_tokenizer(said: dict[str, Json]) -> set[str]:
    """The model's entries and the ones that were added to them."""
    model, added = said.get("model"), said.get("added_tokens")
    own = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(own, list):  # of a unigram model: pairs of a piece and its score
        own = {str(pair[0]): 0 for pair in own if isinstance(pair, list) and pair}
    if not isinstance(own, dict):
        raise FormatError("it has no model with a vocab")
    others = [one.get("content") for one in added if isinstance(one, dict)] if isinstance(added, list) else []
    return {*own, *(text for text in others if isinstance(text, str))}
