"""The rows of a sweep on disk: one JSON line a case, appended when it is done, so that nothing is done twice. A
function is told from another of the same name by its code and the values it was made with.
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from .._version import __version__
from ..core.atomic import PARTIAL, replacing
from ..core.regular import read_regular
from ..core.strict_json import Json, decode_object, encode, plain
from ..errors import FormatError, TraceExistsError, TraceInUseError, storage
from ..store.lock import acquire
from .case_rows import Row
from .cases import RUNNING, Case, directory_of, key_of
from .templates import ORPHANED

_PLAIN = (bool, int, float, complex, str, bytes, PurePath, type(None), type(Ellipsis))


def identity_of(call: Callable[..., Any]) -> dict[str, Any]:
    """A function as a results file keeps it: its name, a digest of what it does, and its file's size and time.

    The file says nothing of a function that was typed into a session; its digest does.
    """
    inner: Any = call
    while isinstance(inner, functools.partial):
        inner = inner.func
    place = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    code = getattr(inner, "__code__", None) or getattr(_called(inner), "__code__", None)
    file = None if code is None else Path(code.co_filename)
    stat = file.stat() if file is not None and file.is_file() else None
    digest = blake2b(_seen(call, set()).encode("utf-8", "replace"), digest_size=8).hexdigest()
    return {"function": place, "code": digest, "file": stat and [stat.st_size, stat.st_mtime_ns]}


def _seen(value: Any, before: set[int]) -> str:
    """A value as text that is the same in every process; of what has no such text, its type alone."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if id(value) in before:
        return "again"
    before.add(id(value))
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{value.shape}{blake2b(value.tobytes(), digest_size=8).hexdigest()}"
    texts = [_seen(part, before) for part in _parts(value)]
    return f"{type(value).__qualname__}[{', '.join(sorted(texts) if isinstance(value, set | frozenset) else texts)}]"


def _parts(value: Any) -> list[Any]:
    """What a value is made of, as far as it matters to what a function does."""
    match value:
        case tuple() | list() | set() | frozenset():
            return list(value)
        case dict():
            return [part for item in value.items() for part in item]
        case CodeType():
            return [value.co_code, value.co_names, value.co_varnames, value.co_consts]
        case FunctionType():
            return [value.__code__, value.__defaults__, value.__kwdefaults__, *_around(value)]
        case MethodType():
            return [value.__func__, value.__self__]
        case functools.partial():
            return [value.func, value.args, value.keywords]
    return [_called(value), vars(value)] if _called(value) is not None and hasattr(value, "__dict__") else []


def _called(value: Any) -> FunctionType | None:
    """What is run when an object is called that is no function itself."""
    found = vars(type(value)).get("__call__")
    return found if isinstance(found, FunctionType) else None


def _around(function: FunctionType) -> list[Any]:
    """What a function reads of its surroundings: the variables it closes over, and the globals that it names.

    Those of a module with a file are left to the file.
    """
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            found.append(None)
    if Path(function.__code__.co_filename).is_file():
        return found
    known = function.__globals__
    named = [known[name] for name in function.__code__.co_names if name in known]
    return found + [one for one in named if isinstance(one, (*_PLAIN, FunctionType, tuple, list, dict, np.ndarray))]


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
