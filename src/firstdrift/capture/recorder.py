"""Putting tensors into a trace as its scope says: in full or as statistics, and the same bytes once only."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from ..core.dtypes import dtype_name
from ..core.sites import Site
from ..core.strict_json import Json
from ..core.traces import Array
from ..errors import CaptureWarning, StorageError
from ..kernels import Stats, stats
from ..store.writer import Stored
from .scope import Scope

T = TypeVar("T")
OnFull = Literal["raise", "continue"]


class Summary(NamedTuple):
    """Statistics kept in place of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    stats: Mapping[str, Json]


Kept = Stored | Summary


class Sink(Protocol):
    """What a recorder needs of a writer. `fd.Writer` writes; the one of `fd.estimate` counts."""

    @property
    def put(self) -> Callable[..., Stored]: ...
    @property
    def put_again(self) -> Callable[..., None]: ...
    @property
    def put_stats(self) -> Callable[..., None]: ...
    @property
    def put_absent(self) -> Callable[..., None]: ...

    def store(self, array: Any, place: str, over: Stored | None = None) -> Stored: ...
    def append_program(self, text: str) -> None: ...
    def describe(self, **header: Json) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Recorder:
    """Puts tensors at sites. When the disk is full it raises, or warns once and lets the run go on untraced."""

    def __init__(
        self, sink: Sink, scope: Scope, on_full: OnFull = "raise", summarise: Callable[[Array], Summary] | None = None
    ) -> None:
        self.sink = sink
        self._summary = summarise or summary
        self.scope = scope
        self.stopped = False  # by a storage error or the end of the block
        self._on_full = on_full
        self._process = os.getpid()  # a forked child runs on, and the trace is not its own

    def put(self, site: Site, array: Array, **details: Json) -> Kept | None:
        """Record a tensor as it is now; what is returned can be given to `again`."""
        if self.scope.mode(site.name) == "full":
            return self._try(lambda: self.sink.put(site.name, site.phase, array, **_where(site), **details))
        kept = self._summary(array)
        self.again(site, kept, **details)
        return kept

    def again(self, site: Site, kept: Kept, **details: Json) -> bool:
        """Record that a site holds what was kept before; False if this site is to be kept in another way."""
        if isinstance(kept, Stored) != (self.scope.mode(site.name) == "full"):
            return False
        where = _where(site) | details
        if isinstance(kept, Stored):
            self._try(lambda: self.sink.put_again(site.name, site.phase, kept, **where))
        else:
            where |= {"dtype": kept.dtype, "shape": kept.shape}
            self._try(lambda: self.sink.put_stats(site.name, site.phase, kept.stats, **where))
        return True

    def store(self, site: Site, array: Array, over: Kept | None) -> Kept | None:
        """Keep a tensor that is not final yet, in place of an earlier one; `again` makes it the site's."""
        if self.scope.mode(site.name) != "full":
            return self._summary(array)
        before = over if isinstance(over, Stored) else None
        return self._try(lambda: self.sink.store(array, str(site), before))

    def store_for_program(self, array: Array, place: str) -> Stored | None:
        """Keep a tensor that is no site and that the program needs; None when nothing more is written."""
        return self._try(lambda: self.sink.store(array, place))

    def append_program(self, text: str) -> None:
        """Add lines to the program."""
        self._try(lambda: self.sink.append_program(text))

    def absent(self, site: Site, reason: str, **details: Json) -> None:
        """Record that there is no tensor, and why."""
        self._try(lambda: self.sink.put_absent(site.name, site.phase, reason, **_where(site), **details))

    def describe(self, **header: Json) -> None:
        """Add to the trace's header."""
        self._try(lambda: self.sink.describe(**header))

    def close(self, *, whole: bool) -> None:
        """Let go of the trace, with its end line if the run ended well."""
        if whole:
            self._try(self.sink.close)
        self.sink.abort()  # does nothing after close
        self.stopped = True  # for a thread that still runs

    def _try(self, action: Callable[[], T]) -> T | None:
        if self.stopped or os.getpid() != self._process:
            return None
        try:
            return action()
        except StorageError as error:
            self.stopped = True
            self.sink.abort()
            if self._on_full == "raise":
                raise
            warnings.warn(f"{error}; tracing has stopped, the run goes on", CaptureWarning, stacklevel=2)
            return None


def summary(array: Array) -> Summary:
    """The statistics of a tensor, in one pass over it."""
    found: Stats = stats(array)
    numbers = {
        "count": found.count, "nan_count": found.nan_count, "inf_count": found.inf_count, "min": found.min,
        "max": found.max, "mean": found.mean, "std": found.std, "l2": found.l2,
    }  # fmt: skip
    dtype = dtype_name(array.dtype)
    assert dtype is not None  # whoever made the array has looked
    return Summary(dtype, array.shape, numbers)


def _where(site: Site) -> dict[str, Any]:
    return {"port": site.port, "step": site.step, "call": site.call, "sample": site.sample}
