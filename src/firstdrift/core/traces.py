"""Traces: what one run recorded, in causal order, whatever format it was read from.

A format hands over validated records and the files their bytes lie in; arrays are mapped when asked for, so
that opening a trace costs memory for its index alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, SelectionError
from .causality import causal_order, stating_order
from .dtypes import numpy_dtype
from .mapped import MappedFile, Stamp, check_stamp, stamp_of
from .records import At, Record
from .sites import Site
from .strict_json import Json

Array = NDArray[np.generic]
MAPS_KEPT = 32  # each holds two file descriptors; a directory of npy files has thousands


def doubts(trace: Trace) -> dict[str, Json]:
    """What a copy of a trace must not forget: header keys for what is missing and for what was only inferred."""
    said = {"problems": list(trace.problems), "notes": list(trace.notes)}
    return {key: sentences for key, sentences in said.items() if sentences}


class DataFiles:
    """The files that tensors lie in, mapped when asked for; a trace and what is derived from it share them.

    It knows no trace: a cycle would keep maps and descriptors until the garbage collector comes by. Files of a trace
    that is still written may become longer; all others stay what they were when the trace was opened.
    """

    def __init__(self, path_of: Callable[[int], Path], numbers: Iterable[int] = (), *, grows: bool = False) -> None:
        self._path_of = path_of
        self._cwd = Path.cwd()  # a relative path means what it meant when the trace was opened
        self._grows = grows
        self._stamps = {number: stamp for number in numbers if (stamp := self._now(number)) is not None}
        self._read: set[int] = set()
        self._open: OrderedDict[int, MappedFile] = OrderedDict()  # the one asked for last is last

    def file(self, number: int) -> MappedFile:
        """One of the files; those that were asked for last stay open."""
        if number not in self._open:
            self._open[number] = MappedFile(self.path(number), self._stamps.get(number), grows=self._grows)
            self._read.add(number)
            if len(self._open) > MAPS_KEPT:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return self._open[number]

    def path(self, number: int) -> Path:
        """Where a file is, whatever the working directory is now."""
        return self._cwd / self._path_of(number)

    def check_unchanged(self) -> None:
        """Refuse what was read if a file is no longer what it was; one that was only removed or replaced since is."""
        for number in self._read:
            if number in self._open:
                self._open[number].check_unchanged()
            elif number in self._stamps and (now := self._now(number)) is not None:
                check_stamp(self.path(number), self._stamps[number], now, grows=self._grows)

    def _now(self, number: int) -> Stamp | None:
        try:
            return stamp_of(self.path(number).stat())
        except OSError:  # whoever reads it says what is wrong
            return None


@contextmanager
def unchanged(*traces: Trace) -> Iterator[None]:
    """What is made of traces inside counts only if their files stay what they were."""

    def check() -> None:
        for trace in traces:
            trace.check_unchanged()

    try:
        yield
    except Exception:  # perhaps only because numbers were lost
        check()
        raise
    check()


class Trace:
    """A recorded run: `records` in causal order (`lines` as written), `array(record)` for the numbers.

    `problems` says what is missing or damaged, `notes` what was inferred. `header` is trace.json.
    """

    def __init__(
        self,
        path: Path,
        format: str,
        lines: Sequence[Record],
        files: Callable[[int], Path],
        *,
        header: Mapping[str, Json] | None = None,
        problems: Sequence[str] = (),
        notes: Sequence[str] = (),
        special: Mapping[Site, Callable[[], Array]] | None = None,
        grows: bool = False,
        data: DataFiles | None = None,
    ) -> None:
        self.path = path
        self.format = format
        self.header: Mapping[str, Json] = header or {}
        self.problems = (*_sentences(self.header.get("problems")), *problems)
        self.notes = (*_sentences(self.header.get("notes")), *notes)
        self.lines = lines
        self.records: list[Record] = causal_order(lines)
        self._files = files
        if data is None:
            elsewhere = special or {}  # made when asked for, perhaps of no file at all
            numbers = {
                line.at[0] for line in lines if line.at is not None and not (elsewhere and line.site in elsewhere)
            }
            data = DataFiles(files, numbers, grows=grows)
        self._data = data
        self._special = special or {}
        self._by_site: dict[Site, Record] | None = None

    @property
    def complete(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(record.nbytes for record in self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __contains__(self, site: object) -> bool:
        return site in self._sites()

    def __repr__(self) -> str:
        state = "complete" if self.complete else f"{len(self.problems)} problems"
        return f"<Trace {str(self.path)!r} format={self.format} {len(self)} sites, {state}>"

    def __getitem__(self, site: Site) -> Record:
        try:
            return self._sites()[site]
        except KeyError:
            raise SelectionError(
                f"{self.path}: no site {site}; `firstdrift show` lists the {len(self)} there are"
            ) from None

    def array(self, site: Site | Record) -> Array:
        """The tensor of a site, read-only, memory-mapped where possible."""
        record = site if isinstance(site, Record) else self[site]
        if record.at is None or record.dtype is None or record.shape is None:
            why = f"absent: {record.absent}" if record.absent else "recorded as statistics only"
            raise SelectionError(f"{self.path}: {record.site} has no values ({why}); look at its record instead")
        if record.site in self._special:
            return self._special[record.site]()
        return self.stored(record.at, record.dtype, record.shape, str(record.site))

    def stored(self, at: At, dtype: str, shape: tuple[int, ...], what: str) -> Array:
        """Bytes of the data files as a read-only array."""
        number, offset, nbytes = at
        kind = numpy_dtype(dtype)
        if not nbytes:
            empty = np.empty(shape, kind)
            empty.flags.writeable = False
            return empty
        file = self._data.file(number)
        if file.size < offset + nbytes:
            raise FormatError(
                f"{file.path}: {what} needs bytes {offset} to {offset + nbytes} but the file now has {file.size}; it "
                "was changed after opening, open the trace again"
            )
        return file.view(offset, nbytes).view(kind).reshape(shape)

    def check_unchanged(self) -> None:
        """Raise if a file changed after the trace was opened."""
        self._data.check_unchanged()

    def matching(self, only: Sequence[str] = (), phases: Sequence[str] = ()) -> list[Record]:
        """Records whose name matches one of the globs `only`, and whose phase one of `phases`."""
        kept = [
            record
            for record in self.records
            if (not only or any(fnmatchcase(record.site.name, glob) for glob in only))
            and (not phases or any(fnmatchcase(record.site.phase, glob) for glob in phases))
        ]
        if not kept and (only or phases):
            asked = " ".join([*(f"--only {glob}" for glob in only), *(f"--phase {glob}" for glob in phases)])
            raise SelectionError(f"{self.path}: nothing matches {asked}; `firstdrift show` lists what there is")
        return kept

    def select(self, only: Sequence[str] = (), phases: Sequence[str] = ()) -> Trace:
        """A trace of the records that `matching` finds."""
        kept = {record.site for record in self.matching(only, phases)}
        # What is left out can no longer testify to the order, so the rest has it stated.
        return self._with([record for record in stating_order(self.lines) if record.site in kept], self.problems)

    def with_problems(self, problems: Sequence[str]) -> Trace:
        """The same trace with further problems."""
        return self._with(self.lines, (*self.problems, *problems)) if problems else self

    def with_arrays(
        self, arrays: Mapping[Site, Callable[[], Array]], shapes: Mapping[Site, tuple[int, ...]] | None = None
    ) -> Trace:
        """The same trace with other numbers, and shapes, at some sites; each is made when asked for."""
        said = shapes or {}
        lines = [record._replace(shape=said.get(record.site, record.shape)) for record in self.lines]
        changed = self._with(lines, self.problems)
        changed._special = {**self._special, **arrays}
        return changed

    def renamed(self, site: Callable[[Site], Site]) -> Trace:
        """The same trace under other names; aliases of tied tensors follow."""
        return self._with([_renamed(record, site) for record in self.lines], self.problems)

    def stating(self, line: Callable[[Record], Record], header: Mapping[str, Json]) -> Trace:
        """The same numbers with other lines and another header."""
        return self._with([line(record) for record in self.lines], self.problems, header)

    def _with(
        self, lines: Sequence[Record], problems: Sequence[str], header: Mapping[str, Json] | None = None
    ) -> Trace:
        said = self.header if header is None else header
        return Trace(
            self.path, self.format, lines, self._files,
            header={key: item for key, item in said.items() if key not in ("problems", "notes")},
            problems=problems, notes=self.notes, special=self._special, data=self._data,
        )  # fmt: skip

    def _sites(self) -> dict[Site, Record]:
        if self._by_site is None:
            self._by_site = {record.site: record for record in self.records}
        return self._by_site


def _renamed(record: Record, site: Callable[[Site], Site]) -> Record:
    record = record._replace(site=site(record.site))
    if "aliases" not in record.details:
        return record
    aliases = []
    for alias in record.aliases:
        name, _, port = alias.rpartition(".")
        other = site(record.site._replace(phase="weight", name=name, port=port))
        aliases.append(f"{other.name}.{other.port}" if other.name else other.port)
    return record._replace(details={**record.details, "aliases": aliases})


def _sentences(said: Json) -> list[str]:
    """Sentences from a header; anything else there is somebody else's."""
    return [text for text in said if isinstance(text, str)] if isinstance(said, list) else []
