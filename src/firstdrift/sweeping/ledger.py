"""The rows of a sweep on disk: one JSON line a case, appended when it is done, so that nothing is done twice."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._version import __version__
from ..atomic import PARTIAL, replacing
from ..errors import FormatError, TraceExistsError, TraceInUseError, storage
from ..regular import read_regular
from ..store.lock import acquire
from ..strict_json import Json, decode_object, encode, plain
from .cases import RUNNING, Case, directory_of, key_of
from .processes import ORPHANED
from .rows import Row

SCHEMA = "firstdrift-sweep-rows-v1"
RESULTS = "results.jsonl"
BEFORE = "results.old.jsonl"
LOCK = "lock"
CASES = "cases"
LOOKS = 4  # at a lock, ORPHANED apart


class Ledger:
    """The rows that are done, by case, and where further ones go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows: dict[str, Row] = {}
        self.notes: list[str] = []

    @property
    def path(self) -> Path:
        """The file of rows."""
        return self.directory / RESULTS

    def place(self, case: Case) -> Path:
        """The directory of a case."""
        return self.directory / CASES / directory_of(case)

    def finished(self, case: Case, stamp: Json) -> bool:
        """Whether a case need not be run: it was compared, and what was compared is still the same."""
        row = self.rows.get(key_of(case))
        return row is not None and not row.failed and row.stamp == stamp

    def add(self, row: Row) -> None:
        """Keep a row, at once and for good."""
        line = (encode(row.to_json()) + "\n").encode()
        with storage(self.path, "keep the result", "free some space"), open(self.path, "ab") as file:
            file.write(line)
        self.rows[key_of(row.case)] = row

    def begin(self, identity: dict[str, Any], force: bool) -> None:
        """Read the rows of the same sweep; those of another one are put aside."""
        head = plain({"schema": SCHEMA, "firstdrift": __version__, **identity})
        old = self._read()
        self.clear()
        changed = None if old is None else "--force was given" if force else _changed(old, head)
        if old is not None and changed is None:
            return
        if changed is not None:
            self.notes.append(f"started anew, because {changed}; the results of before are in {BEFORE}")
            self.path.replace(self.directory / BEFORE)
        self.rows = {}
        shutil.rmtree(self.directory / CASES, ignore_errors=True)
        with replacing(self.path) as file:
            file.write((encode(head) + "\n").encode())

    def clear(self) -> None:
        """Remove what runs have left that did not come to an end."""
        for left in (self.directory / CASES).glob(f"*{RUNNING}*"):
            shutil.rmtree(left, ignore_errors=True)
        for partial in self.directory.glob(f".{RESULTS}.*{PARTIAL}"):
            partial.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any] | None:
        """The first line of the file; the whole rows after it are kept, a torn one at its end is cut off."""
        if not self.path.is_file():
            return None
        data = read_regular(self.path)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)
            self.notes.append("the last result was cut off when it was written, and is made again")
        lines = data[:whole].decode("utf-8", "replace").splitlines()
        head = _head(lines[0] if lines else "", self.path)
        damaged = []
        for number, line in enumerate(lines[1:], 2):
            try:
                row = Row.from_json(decode_object(line))
            except (FormatError, KeyError, TypeError, ValueError) as error:
                damaged.append(f"line {number} of {RESULTS} is no result ({error}), and is left out")
                continue
            self.rows[key_of(row.case)] = row
        more = f"; so are {len(damaged) - 1} more" if len(damaged) > 1 else ""
        self.notes += [f"{damaged[0]}{more}"] if damaged else []
        return head


def _head(line: str, path: Path) -> dict[str, Any]:
    try:
        head = decode_object(line)
    except FormatError:
        head = {}
    if head.get("schema") != SCHEMA:
        raise FormatError(f"{path}: does not begin as the results of a sweep do; choose another --out")
    return head


def _changed(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """What a sweep of before did otherwise, in words."""
    if old == new:
        return None
    what = next(key for key in (*new, *old) if old.get(key) != new.get(key))
    if what == "firstdrift":
        return f"firstdrift was {old.get(what)} and is {new.get(what)}"
    if what == "options":
        return f"options changed ({', '.join(_differing(old.get(what), new.get(what)))})"
    if {"files"} == set(_differing(old.get(what), new.get(what))):
        files = _differing((old[what] or {}).get("files"), (new[what] or {}).get("files"))
        return f"{files[0]}, which the {what} uses, changed"
    return f"the {what} changed"


def _differing(old: Any, new: Any) -> list[str]:
    old, new = (one if isinstance(one, dict) else {} for one in (old, new))
    return sorted(key for key in {*old, *new} if old.get(key) != new.get(key))


def _acquired(descriptor: int) -> bool:
    """Whether the lock is ours. What a killed sweep had started holds it until it has seen that it is an orphan."""
    for look in range(LOOKS):
        if look:
            time.sleep(ORPHANED)
        if acquire(descriptor):
            return True
    return False


@contextmanager
def open_ledger(directory: Path, identity: dict[str, Any], *, force: bool = False) -> Iterator[Ledger]:
    """The ledger of a directory, which nobody else may use meanwhile."""
    with storage(directory, "make the directory of results", "choose another by --out"):
        directory.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in directory.iterdir()}
    others = sorted(name for name in names - {LOCK} if not (name.startswith(f".{RESULTS}.") and name.endswith(PARTIAL)))
    if others and not names & {RESULTS, BEFORE}:  # the latter alone where a sweep was killed while it began anew
        raise TraceExistsError(f"{directory}: holds {others[0]!r}, which no sweep made; choose another --out")
    refused = "choose another by --out"
    with storage(directory, "write the results", refused):
        lock = open(directory / LOCK, "ab")  # noqa: SIM115
    with lock:
        if not _acquired(lock.fileno()):
            raise TraceInUseError(f"{directory}: another sweep is writing there; wait for it, or choose another --out")
        ledger = Ledger(directory)
        with storage(directory, "write the results", refused):
            ledger.begin(identity, force)
        try:
            yield ledger
        finally:
            ledger.clear()
