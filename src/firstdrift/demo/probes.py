"""The manifest: the names of the layers in forward order, one file for both sides."""

from __future__ import annotations

from pathlib import Path

from ..core.regular import read_regular
from ..errors import FormatError, storage

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
