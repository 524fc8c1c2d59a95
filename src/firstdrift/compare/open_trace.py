"""One door for every format: `open_trace(path)` finds out what a path is and reads it."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core.traces import Trace
from ..errors import NotATraceError, SelectionError, storage

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Looked up in this order, imported on first need. A trace directory wins over anything else lying in it.
BUILT_IN = {
    "trace": "firstdrift.store.formats.native_format",
    "aprt": "firstdrift.store.formats.aprt_stages",
    "npy": "firstdrift.store.formats.npy_steps",
    "npz": "firstdrift.store.formats.npz",
    "safetensors": "firstdrift.store.formats.safetensors_trace",
}
ENTRY_POINTS = "firstdrift.formats"
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")


class Format(Protocol):
    """What a format module offers; see `firstdrift.store.formats`."""

    NAME: str

    def recognise(self, path: Path) -> bool: ...

    def read(self, path: Path) -> Trace: ...

    def write(self, trace: Trace, path: Path, *, overwrite: bool, advance: Callable[[int], None]) -> list[str]: ...


def open_trace(
    path: str | os.PathLike[str], *, format: str | None = None, order: str | os.PathLike[str] | None = None
) -> Trace:
    """Open a trace in any format.

    `format` is needed where a directory fits two. `order` is a probe list for npy steps that have none.
    """
    path = Path(path)
    with storage(path, "open it", "check the path"):
        path.stat()
        chosen = load_format(format) if format else _recognise(path)
    if order is None:
        return chosen.read(path)
    if chosen.NAME != "npy":
        raise SelectionError(
            f"{path}: is {chosen.NAME}, and a probe order is only read for npy step directories; drop it"
        )
    from ..store.formats import npy_steps

    return npy_steps.read(path, Path(order))


def load_format(name: str) -> Format:
    """A format by its name."""
    if name in BUILT_IN:
        return import_module(BUILT_IN[name])
    others = _third_party()
    if name not in others:
        raise SelectionError(f"there is no format {name!r}; known are {', '.join([*BUILT_IN, *others])}")
    return _load(others[name])


def _recognise(path: Path) -> Format:
    found = []
    for name in BUILT_IN:
        format = load_format(name)
        if format.recognise(path):
            if name == "trace":
                return format
            found.append(format)
    if not found:
        found = [format for point in _third_party().values() if (format := _load(point)).recognise(path)]
    if len(found) > 1:
        names = " and ".join(format.NAME for format in found)
        raise NotATraceError(f"{path}: could be {names}; say which with format=... or --format")
    if not found:
        raise NotATraceError(_why_not(path))
    return found[0]


def _third_party() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(point: EntryPoint) -> Format:
    try:
        format: Format = point.load()
    except Exception as error:  # anything may go wrong while importing what others wrote
        raise SelectionError(
            f"the format {point.name!r} cannot be loaded from {point.value} ({error}); repair or uninstall it"
        ) from error
    return format


def _why_not(path: Path) -> str:
    from ..weights.open_checkpoint import is_checkpoint

    if is_checkpoint(path):
        return (
            f"{path}: is a checkpoint, and no trace; firstdrift weights diff compares two of them, and firstdrift "
            "weights convert writes safetensors, which are read as a trace"
        )
    known = f"a trace directory, APRT stages, npy step directories, npz or safetensors (formats {', '.join(BUILT_IN)})"
    if path.is_dir():
        return f"{path}: the directory {'is empty' if not any(path.iterdir()) else 'holds no trace'}; expected {known}"
    if path.suffix in _PICKLES:
        return f"{path}: may be a pickle, and pickles are never loaded; save the tensors as safetensors or npz"
    return f"{path}: not a trace; expected {known}"
