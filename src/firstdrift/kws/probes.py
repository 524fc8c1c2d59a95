"""The manifest: the names of the layers in forward order, one file for both sides."""

from __future__ import annotations

from pathlib import Path

from ..errors import FormatError, storage

HERE = Path(__file__).parent
PROBES = HERE / "probes.txt"
LAYERS = 17


def read_probes(path: Path = PROBES) -> list[str]:
    """The names, of which there must be one for each layer."""
    with storage(path, "read the probe manifest", "give a file with one probe name a line"):
        names = path.read_text("utf-8-sig").split()
    if len(names) != LAYERS or len(set(names)) != LAYERS:
        raise FormatError(f"{path}: lists {len(set(names))} probes, and the network has {LAYERS} layers; name each")
    return names
