"""The writer of traces: streaming, thread-safe, and never more than one tensor behind."""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..core.arrays import as_array
from ..core.atomic import replacing
from ..core.dtypes import ITEMSIZE, dtype_name
from ..core.records import At, encode_details, encode_line, tensor_bytes
from ..core.sites import Site, check_site, default_port, plain_text, whole
from ..core.strict_json import Json, encode
from ..core.traces import Array
from ..errors import FirstdriftError, SiteError, StorageError, storage
from .background import BackgroundQueue
from .files import exists, forget, is_trace, open_files, stale_ranks
from .layout import HEADER, INDEX, MAX_RANKS, new_header, rank_directory

QUEUE_BYTES = 32 << 20  # what background writing holds, and the most that a killed process loses

_FREE_SPACE = "free some space or choose another disk; what was written before it stays readable"


class Stored:
    """A tensor's bytes in a trace, which further lines may name: known by type and shape, placed once written."""

    __slots__ = ("at", "crc32", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.at: At | None = None
        self.crc32: int | None = None


class Writer:
    """Writes a trace: `put` for every tensor, `close` (or the end of a `with` block) for the end line.

        with fd.Writer("ref", model="kws", batch=32) as w:
            w.put("conv1", "fwd", array)

    - `overwrite`: replace a trace. `checksum`: add a crc32 to every line.
    - `background`: write in a thread, from a queue of at most 32 MiB.
    - `rank` of `ranks`: write into the directory of that rank.
    - Other keywords go into trace.json: `producer`, `model`, `batch`, `seed`, `optimizer`, `gradient_of`, ...

    After an exception in the block the trace is readable, but incomplete.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        /,
        *,
        overwrite: bool = False,
        checksum: bool = False,
        background: bool = False,
        rank: int = 0,
        ranks: int = 1,
        **header: Json,
    ) -> None:
        if not (type(rank) is int is type(ranks) and 0 <= rank < ranks <= MAX_RANKS):
            raise SiteError(f"rank {rank!r} of {ranks!r} ranks is impossible; count from 0, up to {MAX_RANKS} ranks")
        self._root = Path(path)
        self.path = rank_directory(self._root, rank)
        self._header = header
        self._rank = (rank, ranks)
        text = new_header(rank, ranks, header)
        self._checksum = checksum
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._lines = 0
        self._broken: BaseException | None = None
        self._closed = False
        with storage(self.path, "write a trace here", "choose a directory that you may write"):
            stale = stale_ranks(self._root, ranks) if rank == 0 else []
            if stale and not overwrite:
                raise exists(stale[0])
            fresh = not is_trace(self.path)
            self._files = open_files(self.path, overwrite)
            try:
                forget(stale)
                with replacing(self.path / HEADER) as file:
                    file.write(text.encode())
            except BaseException:
                self._files.close()
                if fresh:  # a refusal leaves nothing behind
                    (self.path / INDEX).unlink(missing_ok=True)
                raise
        self._queue = BackgroundQueue(QUEUE_BYTES) if background else None
        _open_writers.add(self)

    def put(
        self,
        name: str,
        phase: str,
        array: Any,
        *,
        port: str | None = None,
        step: int = 0,
        call: int = 0,
        sample: int | None = None,
        **details: Json,
    ) -> Stored:
        """Record a tensor as it is now. `details` are optional keys of a line: op, attrs, producers, ..."""
        array = as_array(array, f"{phase} {name}")
        stored = _stored(array, name)
        site = _site(step, phase, name, port, call, sample)
        tail = _tail(details, site)
        self._submit(site, array.nbytes, lambda: partial(self._write, site, stored, self._held(array), tail))
        return stored

    def put_again(
        self,
        name: str,
        phase: str,
        stored: Stored,
        *,
        port: str | None = None,
        step: int = 0,
        call: int = 0,
        sample: int | None = None,
        **details: Json,
    ) -> None:
        """Record that a site holds bytes that were stored before."""
        site = _site(step, phase, name, port, call, sample)
        tail = _tail(details, site)
        # Made only when its turn comes: a queue may not have placed the bytes yet.
        self._put_line(site, len(tail), partial(_line_of, site, stored, tail))

    def store(self, array: Any, place: str, over: Stored | None = None) -> Stored:
        """Store a tensor for a later `put_again`, or over one that no line names yet, such as a growing gradient."""
        array = as_array(array, place)
        stored = _stored(array, place)
        if self._queue is not None:
            raise SiteError(f"{place}: a writer with a background queue cannot store ahead; open it without one")
        with self._lock, self._writing(place, still_open=f"{place} was stored"):
            data = _bytes_of(_plain_bytes(array))
            if over is not None and over.at is not None and over.at[2] == data.nbytes:
                stored.at = over.at
                self._files.rewrite(over.at, data)
            else:
                stored.at = self._files.append(data)
            stored.crc32 = zlib.crc32(data) if self._checksum else None
        return stored

    def append_program(self, text: str) -> None:
        """Add lines to program.jsonl; docs/trace-format.md specifies them."""
        with self._lock, self._writing("its program", still_open="its program was written"):
            self._files.append_program(text.encode())

    def describe(self, **header: Json) -> None:
        """Add keys to trace.json that became known after the start."""
        header = self._header | header
        text = new_header(*self._rank, header)
        self._header = header  # what was refused is forgotten
        with storage(self.path, "write its header", _FREE_SPACE), replacing(self.path / HEADER) as file:
            file.write(text.encode())

    def put_stats(
        self,
        name: str,
        phase: str,
        stats: Mapping[str, Json],
        *,
        dtype: str,
        shape: tuple[int, ...],
        port: str | None = None,
        step: int = 0,
        call: int = 0,
        sample: int | None = None,
        **details: Json,
    ) -> None:
        """Record statistics in place of a tensor."""
        site = _site(step, phase, name, port, call, sample)
        if dtype not in ITEMSIZE:
            raise SiteError(f"{site}: dtype {dtype!r} is not one of {', '.join(ITEMSIZE)}; use one of these")
        tensor_bytes(site, dtype, list(shape))
        tail = encode_details({**details, "stats": dict(stats)}, site)
        self._put_line(site, len(tail), lambda: encode_line(site, dtype, shape, None, tail))

    def put_absent(
        self,
        name: str,
        phase: str,
        reason: str,
        /,
        *,
        port: str | None = None,
        step: int = 0,
        call: int = 0,
        sample: int | None = None,
        **details: Json,
    ) -> None:
        """Record that there is no such tensor, and why, such as `no gradient`."""
        site = _site(step, phase, name, port, call, sample)
        tail = encode_details({**details, "absent": reason}, site)
        self._put_line(site, len(tail), lambda: encode_line(site, None, None, None, tail))

    def close(self) -> None:
        """Write the end line and unlock the trace. Raises errors of background writing."""
        self._finish(end=True)

    def abort(self) -> None:
        """Unlock the trace without an end line: readable, but incomplete."""
        with suppress(FirstdriftError):  # whatever it is, it was raised already or is being raised
            self._finish(end=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _put_line(self, site: Site, size: int, line: Callable[[], str]) -> None:
        self._submit(site, size, lambda: partial(self._write_line, line))

    def _submit(self, site: Site, size: int, prepare: Callable[[], Callable[[], None]]) -> None:
        """Claim a site and do what `prepare` returns: now, or in the background once there is room for `size` bytes."""
        if self._queue is None:
            with self._lock:
                self._claim(site)
                prepare()()
            return
        weight = self._queue.reserve(size)
        try:
            with self._lock:
                self._claim(site)
            job = prepare()
        except BaseException:
            self._queue.release(weight)
            raise
        self._queue.submit(job, weight)

    def _held(self, array: Array) -> Array:
        """The array as it is written, in memory of its own where that is done later."""
        plain = _plain_bytes(array)
        return plain.copy() if self._queue is not None and plain is array else plain

    def _claim(self, site: Site) -> None:
        """A site may be put once. Hashes are kept, not sites: 100,000 tensors cost 8 MiB."""
        step, phase, name, port, call, sample = site
        key = hash(f"{step}/{call}/{sample}/{phase}/{port}/{name}")  # of text: integers collide on purpose
        if self._closed:
            raise SiteError(f"{self.path}: {site} was put after the trace was closed; put it before")
        if key in self._seen:
            raise SiteError(f"{self.path}: {site} was put twice; give the second one its own call, sample or step")
        self._seen.add(key)

    def _write(self, site: Site, stored: Stored, array: Array, tail: str) -> None:
        with self._writing(str(site)):
            data = _bytes_of(array)
            stored.at = self._files.append(data)
            stored.crc32 = zlib.crc32(data) if self._checksum else None
            self._files.append_line((_line_of(site, stored, tail) + "\n").encode())
        self._lines += 1

    def _write_line(self, line: Callable[[], str]) -> None:
        with self._writing("its index"):
            self._files.append_line((line() + "\n").encode())
        self._lines += 1

    @contextmanager
    def _writing(self, what: str, still_open: str = "") -> Iterator[None]:
        """After a failed write nothing may follow and no end line: a gap in the trace would be silent."""
        if still_open and self._closed:
            raise SiteError(f"{self.path}: {still_open} after the trace was closed; do it before")
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except BaseException as error:
            self._broken = error
            if isinstance(error, OSError):
                why = error.strerror or error
                self._broken = StorageError(f"{self.path}: cannot write {what} ({why}); {_FREE_SPACE}")
            raise self._broken from error

    def _finish(self, *, end: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _open_writers.discard(self)
        try:
            if self._queue is not None:
                self._queue.close()
            if end:
                self._write_line(lambda: encode({"end": self._lines}))
        finally:
            self._files.close()


def _site(step: int, phase: str, name: str, port: str | None, call: int, sample: int | None) -> Site:
    if type(phase) is not str:
        raise SiteError(f"phase {phase!r} is a {type(phase).__name__}; give a string")
    port = default_port(phase) if port is None else port
    site = Site(whole(step), phase, plain_text(name), plain_text(port), whole(call), whole(sample))
    return check_site(site)


def _stored(array: Array, name: str) -> Stored:
    dtype = dtype_name(array.dtype)
    if dtype is None:
        raise SiteError(
            f"{name}: an array of dtype {array.dtype} cannot be recorded; make it one of {', '.join(ITEMSIZE)}"
        )
    return Stored(dtype, array.shape)


def _tail(details: Mapping[str, Json], site: Site) -> str:
    """The optional keys of a line that has data."""
    if "absent" in details or "crc32" in details:
        raise SiteError(f"{site}: a tensor that is there is not absent, and its crc32 is ours; leave both out")
    return encode_details(details, site) if details else ""


def _line_of(site: Site, stored: Stored, tail: str) -> str:
    checksum = "" if stored.crc32 is None else f',"crc32":{stored.crc32}'
    return encode_line(site, stored.dtype, stored.shape, stored.at, tail + checksum)


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data  # raw bytes: ml_dtypes export no buffer of their own


def _plain_bytes(array: Array) -> Array:
    """The array as its bytes go to disk: C order, little-endian."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array if array.flags.c_contiguous else array.copy(order="C")


_open_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked child shares the lock and the file positions: it must neither hold the one nor move the other."""
    for writer in list(_open_writers):
        writer._closed = True
        writer._files.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
