"""Tied embeddings: an output layer that is not stored because it is the embedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..strict_json import Json

OUTPUT = "lm_head.weight"
DECLARED = "tie_word_embeddings"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight")


def tied_by_absence(names: Iterable[str]) -> dict[str, str]:
    """The tie of a format that has no key for it and leaves the output layer out, such as GGUF."""
    held = set(names)
    found = [name for name in held if name.endswith(_EMBEDDINGS)]
    return {OUTPUT: found[0]} if OUTPUT not in held and len(found) == 1 else {}


def declared_ties(metadata: Mapping[str, Json], names: Iterable[str]) -> dict[str, str]:
    """The tie that metadata or a configuration declares."""
    return tied_by_absence(names) if metadata.get(DECLARED) is True else {}
