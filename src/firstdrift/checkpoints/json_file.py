"""JSON files beside checkpoints: indexes, manifests and configurations, bounded and strict."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import FormatError, storage
from ..sites import shown
from ..strict_json import Json

MAX_CONFIG_BYTES = 16 << 20


def read_json_object(path: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Json]:
    """One JSON object; a key that is there twice is refused, because a reader would lose one of them."""
    with storage(path, "read it", "check that it exists and that you may read it"), open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise FormatError(f"{path}: is larger than {most} bytes, which no such file is; fetch it again")
    try:
        said = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: is not JSON ({error}); fetch it again") from None
    if type(said) is not dict:
        raise FormatError(f"{path}: is JSON but a {type(said).__name__}, not an object; fetch it again")
    return said


def _without_repetition(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    said = dict(pairs)
    if len(said) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in said if names.count(name) > 1)
        raise ValueError(f"the key {shown(twice)!r} is there twice")
    return said
