"""A checkpoint: names, dtypes and shapes at once; numbers when they are asked for, from files that nobody may cut
off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import ITEMSIZE, dtype_name
from ..core.mapped import Bytes, MappedFile
from ..core.sites import shown
from ..core.strict_json import Json
from ..errors import FormatError, SelectionError

Array = NDArray[np.generic]
_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True)
class Entry:
    """One stored tensor. `dtype` is one of ours, or the name of a quantized type such as `q4_k`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    quantized: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def entry_of(name: str, array: Array) -> Entry:
    """The entry of a plain array."""
    dtype = dtype_name(array.dtype)
    if dtype is None:
        raise FormatError(
            f"tensor {shown(name)!r}: dtype {array.dtype} is not one of {', '.join(ITEMSIZE)}; convert it"
        )
    return Entry(name, dtype, array.shape, array.nbytes)


class Checkpoint:
    """A read-only, lazily mapped view of stored weights.

    `entries` are the stored tensors by name, `aliases` the further names of tied ones, `metadata` what the format
    says of the model, `notes` what was inferred on the way, `files` every file that was opened. `array(name)` is
    mapped wherever the file holds plain bytes; `blocks(name)` are the stored bytes of a quantized tensor. `types` are
    those of GGUF's metadata, which the values alone do not tell.
    """

    def __init__(
        self,
        path: Path,
        format: str,
        entries: Mapping[str, Entry],
        load: Callable[[Entry], Array],
        *,
        files: Sequence[MappedFile] = (),
        metadata: Mapping[str, Json] | None = None,
        aliases: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
        load_blocks: Callable[[Entry], Bytes | None] | None = None,
        verify: Callable[[], None] = lambda: None,
        types: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.path = path
        self.format = format
        self.entries: Mapping[str, Entry] = MappingProxyType(dict(entries))
        self.metadata: Mapping[str, Json] = MappingProxyType(dict(metadata or {}))
        self.aliases: Mapping[str, str] = MappingProxyType(
            {name: stored for name, stored in (aliases or {}).items() if name not in entries}
        )
        self.types = MappingProxyType(dict(types or {}))
        self.notes = tuple(notes)
        self.files = tuple(files)
        self._load = load
        self._load_blocks = load_blocks
        self._verify = verify
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors together."""
        return sum(entry.nbytes for entry in self.entries.values())

    def entry(self, name: str) -> Entry:
        """The stored tensor that a name, or an alias, stands for."""
        found = self.entries.get(self.aliases.get(name, name))
        if found is None:
            raise SelectionError(
                f"{self.path}: holds no tensor {shown(name)!r}; `firstdrift weights inspect` lists them"
            )
        return found

    def array(self, name: str) -> Array:
        """The numbers in their stored dtype; quantized types come as float32. Do not write to it."""
        array = self._load(self._open_entry(name))
        array.flags.writeable = False
        return array

    def blocks(self, name: str) -> Bytes | None:
        """The bytes of a quantized tensor, row after row; None where its numbers are not simply those of its bytes."""
        entry = self._open_entry(name)
        return self._load_blocks(entry) if entry.quantized and self._load_blocks else None

    def verify(self) -> None:
        """Compare the checksum that a format has of the whole file, if it has one; the first array does so too."""
        self._verify()

    def check_unchanged(self) -> None:
        """Refuse to go on when a file was written to after it was opened."""
        for file in self.files:
            file.check_unchanged()

    def close(self) -> None:
        """Let go of the files; nothing more can be loaded."""
        self._closed = True
        for file in self.files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> Array:
        return self.array(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries or name in self.aliases

    def __repr__(self) -> str:
        return f"<Checkpoint {str(self.path)!r} format={self.format} {len(self)} tensors>"

    def _open_entry(self, name: str) -> Entry:
        if self._closed:
            raise FormatError(f"{self.path}: the checkpoint was closed; open it again")
        self.check_unchanged()
        return self.entry(name)


def in_natural_order(names: Iterable[str]) -> list[str]:
    """Names with layer 2 before layer 10 where they are sorted as text; any other order is somebody's own, and kept."""
    given = list(names)
    return sorted(given, key=_natural) if given == sorted(given) else given


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _DIGITS.split(name)]


def overlap(tensors: Iterable[tuple[Entry, int]]) -> str | None:
    """What is wrong with tensors whose bytes begin at these offsets where one lies upon another."""
    end, before = 0, ""
    for entry, offset in sorted(tensors, key=lambda item: item[1]):
        if entry.nbytes and offset < end:
            return f"{shown(entry.name)!r} lies upon {shown(before)!r}; export it again"
        if entry.nbytes:
            end, before = offset + entry.nbytes, entry.name
    return None


def joined(
    path: Path, format: str, parts: Sequence[Checkpoint], metadata: Mapping[str, Json],
    types: Mapping[str, tuple[int, ...]] | None = None,
) -> Checkpoint:  # fmt: skip
    """Several checkpoints as one; the same tensor in two of them is refused."""
    owner: dict[str, Checkpoint] = {}

    def verify() -> None:
        for part in parts:
            part.verify()

    for part in parts:
        for name in part.entries:
            if name in owner:
                raise FormatError(f"{owner[name].path} and {part.path.name}: both hold {shown(name)!r}; fetch both")
            owner[name] = part
    return Checkpoint(
        path,
        format,
        {name: part.entries[name] for name, part in owner.items()},
        lambda entry: owner[entry.name].array(entry.name),
        files=[file for part in parts for file in part.files],
        metadata=metadata,
        aliases={name: stored for part in parts for name, stored in part.aliases.items()},
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
        load_blocks=lambda entry: owner[entry.name].blocks(entry.name),
        verify=verify,
        types=types,
    )


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


try:
    import fcntl
except ImportError:  # Windows
    AVAILABLE = False
else:
    AVAILABLE = hasattr(fcntl, "F_SETLEASE")


@contextmanager
def leased(files: Sequence[MappedFile]) -> Iterator[list[int] | None]:
    """Leases on all of the files until the end of the block; None when one of them cannot be had."""
    descriptors: list[int] = []
    try:
        yield descriptors if all(_take(file, descriptors) for file in files) else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)  # which ends the lease


def undisturbed(leases: Sequence[int]) -> bool:
    """Whether nobody waits to write. Who does is let in after a while (/proc/sys/fs/lease-break-time, 45 s)."""
    return all(fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK for descriptor in leases)


def _take(file: MappedFile, descriptors: list[int]) -> bool:
    """Lease a file by a descriptor of its own, so that two loads of one checkpoint do not end each other's."""
    if not AVAILABLE:
        return False
    with suppress(OSError):
        descriptors.append(os.open(file.path, os.O_RDONLY))
        if not file.is_open_as(descriptors[-1]):  # another file has its name by now
            return False
        fcntl.fcntl(descriptors[-1], fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptors[-1], fcntl.F_SETOWN, 0)  # or a signal would tell of a writer, and end the process
        return True
    return False
