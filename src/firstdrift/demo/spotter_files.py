"""The files that both sides read: the weights, and the manifest with the names of the layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.regular import read_regular
from ..errors import FormatError, storage

FIRST_LINE = b"firstdrift-kws 1\n"
Arrays = dict[str, NDArray[np.float32]]


def write_weights(path: Path, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Write parameters, float32 and little-endian, in the order given."""
    with storage(path, "write the weights", "choose a path that you may write"), path.open("wb") as file:
        file.write(FIRST_LINE)
        for name, value in weights.items():
            file.write(" ".join([name, *map(str, value.shape)]).encode() + b"\n")
            file.write(np.ascontiguousarray(value, "<f4").tobytes())


def read_weights(path: Path, expected: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Read parameters of these names and shapes, in this order."""
    again = "export the weights of this network"
    with storage(path, "read the weights", "export them with `python -m firstdrift.demo.twin --export`"):
        data = read_regular(path)
    if not data.startswith(FIRST_LINE):
        raise FormatError(f"{path}: is no weights file, for it does not begin with {FIRST_LINE.decode()!r}; {again}")
    at, found = len(FIRST_LINE), Arrays()
    for name, shape in expected.items():
        line = " ".join([name, *map(str, shape)])
        head = data[at : at + 256].partition(b"\n")[0].decode("latin-1") or "its end"
        if head != line:
            raise FormatError(f"{path}: has {head[:80]!r} where {line!r} belongs; {again}")
        at += len(line) + 1
        size = 4 * int(np.prod(shape))
        if len(data) < at + size:
            raise FormatError(f"{path}: ends within {line}; {again}")
        found[name] = np.frombuffer(data, "<f4", size // 4, at).reshape(shape).astype(np.float32)
        at += size
    if at != len(data):
        raise FormatError(f"{path}: goes on after the last parameter; {again}")
    return found


HERE = Path(__file__).parent
PROBES = HERE / "probes.txt"
LAYERS = 17


def read_probes(path: Path = PROBES) -> list[str]:
    """The names, of which there must be one for each layer."""
    with storage(path, "read the probe manifest", "give a file with one probe name a line"):
        data = read_regular(path)
    try:
        names = data.decode("utf-8-sig").split()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: is not UTF-8 at byte {error.start}; give a file with one name a line") from None
    if len(names) != LAYERS or len(set(names)) != LAYERS:
        raise FormatError(f"{path}: lists {len(set(names))} probes, and the network has {LAYERS} layers; name each")
    return names
