"""JSON files beside checkpoints: indexes, manifests and configurations, bounded and strict."""

from __future__ import annotations

import json
from pathlib import Path

from ..core.regular import read_regular
from ..core.strict_json import Json, without_repetition
from ..errors import FormatError, storage

MAX_CONFIG_BYTES = 16 << 20


def read_json_object(path: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Json]:
    """One JSON object; a key that is there twice is refused, because a reader would lose one of them."""
    with storage(path, "read it", "check that it exists and that you may read it"):
        data = read_regular(path, most + 1)
    if len(data) > most:
        raise FormatError(f"{path}: is larger than {most} bytes, which no such file is; fetch it again")
    try:
        said = json.loads(data.decode("utf-8-sig"), object_pairs_hook=without_repetition)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: is not JSON ({error}); fetch it again") from None
    if type(said) is not dict:
        raise FormatError(f"{path}: is JSON but a {type(said).__name__}, not an object; fetch it again")
    return said
