"""`gradient_of.json` beside npy dumps: what their gradients are of, which file names cannot say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ...core.atomic import replacing
from ...core.regular import read_regular
from ...core.strict_json import Json, decode_object, encode
from ...errors import FirstdriftError, FormatError

FILE = "gradient_of.json"
MAX_BYTES = 4096
REDUCTIONS = ("mean", "sum")


def read_gradient_of(directories: Iterable[Path]) -> dict[str, Json]:
    """What the first of the directories with such a file says, as a header has it; others must say the same."""
    files = [file for directory in dict.fromkeys(directories) if (file := directory / FILE).is_file()]
    said = [_read(file) for file in files]
    for file, other in zip(files, said, strict=True):
        if other != said[0]:
            raise FormatError(f"{files[0]} says {encode(said[0])} and {file} {encode(other)}; keep one of them")
    return {"gradient_of": said[0]} if said else {}


def write_gradient_of(directory: Path, header: Mapping[str, Json]) -> None:
    """Write what a header says; where it says nothing, an earlier file must not say it."""
    said = _stated(header)
    if said is None:
        (directory / FILE).unlink(missing_ok=True)
        return
    with replacing(directory / FILE) as file:
        file.write(encode(said).encode())


def _stated(header: Mapping[str, Json]) -> dict[str, Json] | None:
    said = header.get("gradient_of")
    if type(said) is not dict:
        return None
    reduction = said.get("reduction")
    whole = {"reduction": reduction, "batch": said.get("batch") or header.get("batch") or (reduction == "sum" and 1)}
    return whole if _is_usable(whole) else None


def _read(file: Path) -> dict[str, Json]:
    data = read_regular(file, MAX_BYTES + 1)
    try:
        said = decode_object(data.decode("utf-8-sig").strip()) if len(data) <= MAX_BYTES else {}
    except (FirstdriftError, UnicodeDecodeError) as error:
        raise FormatError(f"{file}: is no JSON object ({error}); write it again") from None
    if not _is_usable(said):
        raise FormatError(
            f"{file}: says reduction {said.get('reduction')!r} and batch {said.get('batch')!r}; write mean or sum, and "
            "how many samples"
        )
    return said


def _is_usable(said: Mapping[str, Json]) -> bool:
    batch = said.get("batch")
    return said.get("reduction") in REDUCTIONS and type(batch) is int and batch > 0
