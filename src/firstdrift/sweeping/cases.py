"""Which cases a sweep has: from texts such as `start=0:320:32`, from a file, from Python's own values, or a
directory of finished pairs (DIR/CASE/reference and DIR/CASE/candidate, or DIR/reference/CASE and so on).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from math import prod
from pathlib import Path

from ..compare.open_trace import open_trace
from ..core.regular import read_regular
from ..core.strict_json import Json, decode_object, encode, plain
from ..errors import FirstdriftError, FormatError, NotFoundError, SelectionError, storage

Case = dict[str, Json]

ONE_VALUE = "case"  # what a value is called that has no name
RESERVED = "out"
_RANGE = re.compile(r"(-?\d+):(-?\d+)(?::(-?\d+))?")
_NAME = re.compile(r"[A-Za-z_]\w*")
_UNSAFE = re.compile(r"[^\w.=,+-]+")
MOST = 100_000  # more is a slip of the keyboard
DIGITS = 18  # of a number of a range
RUNNING = "~"  # is in no directory's name but in that of a case that runs
LONGEST = 80  # characters of a directory's name


def parse_cases(texts: Sequence[str]) -> list[Case]:
    """Cases from texts, each `NAME=VALUES`, `A,B=VALUES;VALUES` or `@FILE`; several texts are multiplied.

    VALUES are separated by commas, and a range `first:stop:step` stands for its numbers, `stop` left out. Of several
    names the values go together, first with first. A file has one JSON object a line.
    """
    if not texts:
        raise SelectionError("there are no cases; give some, for example --cases start=0:320:32")
    axes = [_axis(text) for text in texts]
    names = [name for axis in axes for name in axis[0]]
    for name in names:
        if names.count(name) > 1:
            raise SelectionError(f"the cases name {name!r} twice; put its values into one list")
    size = prod(len(axis) for axis in axes)
    if size > MOST:
        raise SelectionError(f"these are {size:,} cases, more than {MOST:,}; take larger steps")
    return check_cases([{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes)])


def as_cases(given: str | Mapping[str, Iterable[Json]] | Iterable[Json]) -> list[Case]:
    """Cases from whatever Python has: a text as above, a dict of lists to be multiplied, dicts, or single values."""
    if isinstance(given, str):
        return parse_cases([given])
    if isinstance(given, Mapping):
        values = {name: [item] if isinstance(item, str) else list(item) for name, item in given.items()}
        return check_cases([dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())])
    return check_cases([dict(one) if isinstance(one, Mapping) else {ONE_VALUE: one} for one in given])


def check_cases(cases: list[Case]) -> list[Case]:
    """The cases in JSON's own types; refused where there are none, where two are equal, or where names differ."""
    if not cases or not cases[0]:
        raise SelectionError("there are no cases; give some, for example --cases start=0:320:32")
    checked: list[Case] = [plain(case) for case in cases]
    seen = set()
    for case in checked:
        for name in case:
            if not _NAME.fullmatch(name) or name == RESERVED:
                raise SelectionError(f"{name!r} cannot name a variable of cases; take letters, and not {RESERVED!r}")
        if case.keys() != checked[0].keys():
            raise SelectionError(f"a case has {_names(case)}, the first one {_names(checked[0])}; give all the same")
        if (key := key_of(case)) in seen:
            raise SelectionError(f"the case {name_of(case)} is there twice, which is no further evidence; drop one")
        seen.add(key)
    return checked


def key_of(case: Case) -> str:
    """What tells one case from another."""
    return encode(dict(sorted(case.items())))


def name_of(case: Case) -> str:
    """A case for people: `start=0`, or `start=0 seed=1`."""
    return " ".join(f"{name}={value}" for name, value in case.items())


def directory_of(case: Case) -> str:
    """The name of a directory of its own, readable where the values allow it."""
    plainly = ",".join(f"{name}={value}" for name, value in case.items())
    safe = _UNSAFE.sub("_", plainly)[:LONGEST]
    if safe == plainly == plainly.lower():  # some file systems take A for a
        return safe
    return f"{safe}-{blake2b(key_of(case).encode(), digest_size=4).hexdigest()}"


def _names(case: Case) -> str:
    return ", ".join(case) or "nothing"


def _axis(text: str) -> list[Case]:
    """What one text says: cases of one name, or of several that go together."""
    if text.startswith("@"):
        return _read(Path(text[1:]))
    left, _, right = text.partition("=") if "=" in text else (ONE_VALUE, "", text)
    names = [name.strip() for name in left.split(",")]
    lists = [_values(part, text) for part in (right.split(";") if len(names) > 1 else [right])]
    if len(lists) != len(names):
        raise SelectionError(f"--cases {text}: has {len(names)} names and {len(lists)} lists; separate these by ';'")
    if len({len(values) for values in lists}) > 1:
        counts = " and ".join(str(len(values)) for values in lists)
        raise SelectionError(f"--cases {text}: has lists of {counts} values, which go together; make them equally long")
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]


def _values(text: str, whole: str) -> list[Json]:
    found: list[Json] = []
    for part in text.split(","):
        if not part.strip():
            raise SelectionError(f"--cases {whole}: has an empty value; write NAME=VALUES, for example start=0:320:32")
        range_ = _RANGE.fullmatch(part.strip())
        found += [_value(part.strip())] if range_ is None else _numbers(range_, whole)
    return found


def _numbers(found: re.Match[str], whole: str) -> range:
    if any(len(text.lstrip("-")) > DIGITS for text in found.groups("1")):
        raise SelectionError(f"--cases {whole[:60]}: has a number of more than {DIGITS} digits in a range; shorten it")
    first, stop, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if step == 0 or not (numbers := range(first, stop, step)):
        raise SelectionError(f"--cases {whole}: the range {found[0]} is empty; write first:stop:step, stop left out")
    if len(numbers) > MOST:
        raise SelectionError(f"--cases {whole}: {found[0]} are {len(numbers):,} numbers, more than {MOST:,}")
    return numbers


def _value(text: str) -> Json:
    """A number where writing it gives the text again, so that a command gets what was typed; else the text."""
    for kind in (int, float):
        try:
            if str(kind(text)) == text:
                return plain(kind(text))
        except ValueError:
            continue
    return text


def _read(path: Path) -> list[Case]:
    with storage(path, "read the cases", "give a file with one JSON object a line"):
        data = read_regular(path)
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: is not UTF-8 at byte {error.start}; save it as plain text") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(decode_object(line))
            except FormatError as error:
                raise FormatError(f"{path}, line {number}: {error}; write one JSON object a line") from None
    return check_cases(found)


SIDES = {
    "reference": ("reference", "ref", "dump_pt"),
    "candidate": ("candidate", "cand", "dump_c"),
    "truth": ("truth", "float64"),
}


def find_pairs(directory: Path) -> tuple[list[Case], dict[str, dict[str, Path]]]:
    """The cases of a directory, and the traces of each; one that lacks a side is a case too."""
    if not directory.is_dir():
        raise NotFoundError(f"{directory}: there is no such directory; name one that holds pairs of traces")
    with storage(directory, "list the pairs", "check the path"):
        sides = _sides(directory)
        if "reference" in sides and "candidate" in sides:
            found = {directory.resolve().name: sides} if is_trace(sides["reference"]) else _by_side(sides)
        else:
            found = {path.name: one for path in sorted(directory.iterdir()) if path.is_dir() and (one := _sides(path))}
    if not found:
        hint = "name them CASE/reference and CASE/candidate, or reference/CASE and candidate/CASE"
        raise SelectionError(f"{directory}: holds no pairs of traces; {hint}")
    names = sorted(found, key=_natural)
    return [{"pair": name} for name in names], found


def is_trace(path: Path) -> bool:
    """Whether a path can be opened as a trace of any format."""
    try:
        open_trace(path)
    except FirstdriftError:
        return False
    return True


def _sides(directory: Path) -> dict[str, Path]:
    """What of a directory is a side; a file may have any suffix."""
    found: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):
        for side, names in SIDES.items():
            if path.name in names or (path.is_file() and path.stem in names):
                found.setdefault(side, path)
    return found


def _by_side(sides: dict[str, Path]) -> dict[str, dict[str, Path]]:
    found: dict[str, dict[str, Path]] = {}
    for side, directory in sides.items():
        for path in sorted(directory.iterdir()):
            found.setdefault(path.stem if path.is_file() else path.name, {})[side] = path
    return found


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Names with numbers in their own order: batch-2 before batch-10."""
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name))
