"""A trace format of your own: float32 tensors as hexadecimal digits in a JSON file. docs/formats.md explains it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

import firstdrift as fd
from firstdrift.core.atomic import replacing
from firstdrift.core.records import parse_record
from firstdrift.core.strict_json import decode_object, encode
from firstdrift.errors import naming, storage, without_raising

NAME = "hexjson"


@without_raising
def recognise(path: Path) -> bool:
    return path.name.endswith(".hex.json") and path.is_file()


def read(path: Path) -> fd.Trace:
    with storage(path, "read it", "check the path"):
        data = path.read_bytes()
    with naming(str(path)):  # in front of every message
        try:
            lines = decode_object(data.decode("ascii"))["tensors"]
            values = [bytes.fromhex(line.pop("hex")) for line in lines]
            lines = [line | {"at": [0, 0, len(value)]} for line, value in zip(lines, values, strict=True)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise fd.FormatError(f"not a list of tensors ({error}); write it again") from None
        records = [parse_record(line) for line in lines]  # checks every key, and the bytes against dtype and shape
        arrays = {r.site: _array(r, value) for r, value in zip(records, values, strict=True) if r.at is not None}
        if len(arrays) < len(records):
            raise fd.FormatError("holds a site twice, or without values; write it again")
    return fd.Trace(path, NAME, records, lambda number: path, special=arrays)


def write(trace: fd.Trace, path: Path, *, overwrite: bool, advance: Callable[[int], None]) -> list[str]:
    if path.exists() and not overwrite:
        raise fd.TraceExistsError(f"{path}: exists; choose another path, or overwrite (--force)")
    whole = [record for record in trace.lines if record.at is not None]
    for record in whole:
        if record.dtype != "f32":
            raise fd.SiteError(f"{record.site}: {NAME} has only f32, not {record.dtype}; choose with --only")
    tensors = []
    for record in whole:
        line = fd.Record(record.site, record.dtype, record.shape, None).to_json()
        tensors.append(line | {"hex": trace.array(record).astype("<f4", copy=False).tobytes().hex()})
        advance(record.nbytes)
    with storage(path, "write it", "choose a place that you may write"), replacing(path) as file:
        file.write(encode({"tensors": tensors}).encode())
    left = len(trace) - len(whole)
    return [f"lines without values ({left}) and optional keys were left out"] if left else []


def _array(record: fd.Record, value: bytes) -> Callable[[], np.ndarray]:
    return lambda: np.frombuffer(value, "<f4").reshape(record.shape)
