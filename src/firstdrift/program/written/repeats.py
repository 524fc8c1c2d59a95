"""Steps whose program is that of an earlier step: written as what differs, and read back from it.

Most steps of a training run make the same calls with a few other numbers: a bias correction, a learning rate, where
masks were stored. Such a step says which step it is like, and three kinds of differences:

- `stored`: the place `[file, offset]` of every tensor that the program stores, in order;
- `changes`: `[operation, where, was, now]`: a number that all calls of an operation have otherwise;
- `replaced`: `[line, object]` for anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from ...core.strict_json import Json, decode_object, encode
from ...errors import FormatError

WORTH = 4  # a step is written as differences if they take less than a fourth of its lines
_DIGITS = 20  # of a number that can be a place in a list
_CHANGING = ("args", "kwargs", "read", "optimizer")


class Whole:
    """The lines of a step that was written in full, for later steps to be compared with."""

    def __init__(self, step: int, lines: Sequence[str]) -> None:
        self.step = step
        self.lines = lines
        self._objects: dict[int, dict[str, Json]] = {}  # parsed once, however many steps are like it
        self._calls: dict[str, list[int]] | None = None  # the lines of each operation
        self._numbers: dict[tuple[int, str], str] = {}  # what changes in most steps, by line and place in it

    def _object(self, number: int) -> dict[str, Json]:
        found = self._objects.get(number)
        if found is None:
            found = self._objects[number] = decode_object(self.lines[number])
        return found

    def _lines_of(self, name: str) -> list[int]:
        """The lines that call an operation."""
        if self._calls is None:
            self._calls = {}
            for number, line in enumerate(self.lines):
                self._calls.setdefault(_operation_in(line), []).append(number)
        return self._calls.get(name, [])

    def differences(self, now: Sequence[str]) -> dict[str, Json] | None:
        """What turns these lines into those of another step; None where that is not worth it."""
        if len(self.lines) != len(now):
            return None
        stored: list[Json] = []
        changed: dict[int, list[list[Json]]] = {}
        replaced: list[Json] = []
        seen: dict[str, tuple[str, str, list[Json]]] = {}  # the last change of one number, by operation
        for new in [line for line in now if '"at":[' in line]:
            if "at" in (leaf := decode_object(new)):
                stored.append(leaf["at"][:2])
        for number in [at for at, (old, new) in enumerate(zip(self.lines, now, strict=True)) if old != new]:
            known = self._like_one_before(number, now[number], seen)
            if known is not None:
                changed[number] = [known]
                continue
            said = decode_object(now[number])
            if not _same_but_place(self._object(number), said):
                found = _changed(self._object(number), said)
                if found is None:
                    replaced.append([number, said])
                else:
                    changed[number] = found
                    if len(found) == 1:
                        name, _, was, then = found[0]
                        seen[name] = (encode(was), encode(then), found[0])
        rules = self._rules(changed)
        if rules is None:
            return None
        answer = {key: item for key, item in (("stored", stored), ("changes", rules), ("replaced", replaced)) if item}
        return answer if WORTH * len(encode(answer)) <= sum(map(len, now)) else None

    def _like_one_before(
        self, number: int, now: str, seen: Mapping[str, tuple[str, str, list[Json]]]
    ) -> list[Json] | None:
        """The change of another line of this operation, if nothing else changed here; without parsing the line."""
        was, then, change = seen.get(_operation_in(now), ("", "", None))
        old = self.lines[number]
        if change is None or old.count(was) != 1 or old.replace(was, then) != now:
            return None
        key = (number, change[1])
        if key not in self._numbers:
            self._numbers[key] = repr(_get(self._object(number), change[1].split(".")))
        return change if self._numbers[key] == repr(change[2]) else None

    def _rules(self, changed: Mapping[int, list[list[Json]]]) -> list[Json] | None:
        """The changes as rules for all calls of an operation; None where they hold for some of its calls alone."""
        rules: dict[tuple[str, str], dict[Json, Json]] = {}
        different = {id(change): change for changes in changed.values() for change in changes}
        for name, where, was, then in different.values():
            if repr(rules.setdefault((name, where), {}).setdefault(repr(was), (was, then))[1]) != repr(then):
                return None
        paths: dict[str, list[tuple[str, list[str], Any]]] = {}
        for (name, where), table in rules.items():
            paths.setdefault(name, []).append((where, where.split("."), table))
        for name, found in paths.items():
            every: list[list[list[Json]]] = [changed.get(number, []) for number in self._lines_of(name)]
            if len(found) == 1 and all(len(changes) == 1 and changes[0] is every[0][0] for changes in every):
                continue  # one change, of all of them
            if not all(map(self._follows, self._lines_of(name), repeat(found), every)):
                return None
        return [[name, where, was, then] for (name, where), table in rules.items() for was, then in table.values()]

    def _follows(self, number: int, paths: Sequence[tuple[str, list[str], Any]], changes: Sequence[list[Json]]) -> bool:
        """Whether the rules change in a line just what has changed there."""
        line, expected = self._object(number), {change[1] for change in changes}
        for where, path, table in paths:
            was = _get(line, path)
            if (_is_number(was) and repr(was) in table) != (where in expected):
                return False
        return True


def repeated(lines: Sequence[dict[str, Json]], said: Mapping[str, Json], where: str) -> list[dict[str, Json]]:
    """The lines of a step that is like another one."""
    found, kept = list(lines), set()
    for item in _list(said, "replaced", where):
        if not (type(item) is list and len(item) == 2 and type(item[0]) is int and 0 <= item[0] < len(found)):
            raise FormatError(f"{where}: 'replaced' {str(item)[:80]} is not [line, object] of a line there is")
        if type(item[1]) is not dict:
            raise FormatError(f"{where}: line {item[0]} is replaced by {str(item[1])[:80]}, not by an object")
        found[item[0]] = item[1]
        kept.add(item[0])
    changes = _rules(_list(said, "changes", where), where)
    places = iter(_list(said, "stored", where))
    for number, line in enumerate(found):
        if number not in kept and (name := _operation(line)) in changes:
            found[number] = _applied(line, changes[name])
        elif "at" in line and "stored" in said:
            found[number] = line | {"at": _moved(line["at"], next(places, None), where)}
    return found


def _operation(line: dict[str, Json]) -> str:
    """What a line is a call of; an optimizer's settings change as arguments do."""
    return str(line.get("op", "optimizer" if "optimizer" in line else ""))


def _operation_in(line: str) -> str:
    """The same from a line's text, without reading all of it."""
    start = line.find('"op":"') + 6
    return line[start : line.find('"', start)] if start > 5 else "optimizer" if line.startswith('{"opt') else ""


def _same_but_place(was: dict[str, Json], said: dict[str, Json]) -> bool:
    there = "at" in was and "at" in said and was["at"][2] == said["at"][2]
    return there and repr({**was, "at": 0}) == repr({**said, "at": 0})


def _changed(was: dict[str, Json], said: dict[str, Json]) -> list[list[Json]] | None:
    """The numbers in which two lines of one call differ; None where they differ in more."""
    name = _operation(was)
    if not name or was.keys() != said.keys() or any(repr(was[k]) != repr(said[k]) for k in was if k not in _CHANGING):
        return None
    found: list[list[Json]] = []
    for key in _CHANGING:
        if key in was and not _walk(name, key, was[key], said[key], found):
            return None
    return found


def _walk(op: str, where: str, was: Json, now: Json, found: list[list[Json]]) -> bool:
    if type(was) is list and type(now) is list and len(was) == len(now):
        return all(
            _walk(op, f"{where}.{at}", one, other, found) for at, (one, other) in enumerate(zip(was, now, strict=True))
        )
    if type(was) is dict and type(now) is dict and was.keys() == now.keys() and "%" not in was:
        return all(_walk(op, f"{where}.{key}", was[key], now[key], found) for key in was)
    if _is_number(was) and _is_number(now):
        if repr(was) != repr(now):  # 1 is not 1.0 to an operation, nor 0.0 -0.0
            found.append([op, where, was, now])
        return True
    return repr(was) == repr(now)


def _rules(changes: Sequence[Json], where: str) -> dict[str, list[tuple[list[str], Json, Json]]]:
    rules: dict[str, list[tuple[list[str], Json, Json]]] = {}
    for change in changes:
        whole = type(change) is list and len(change) == 4 and type(change[0]) is str and type(change[1]) is str
        if not whole or not (_is_number(change[2]) and _is_number(change[3])):
            raise FormatError(f"{where}: change {str(change)[:80]} is not [operation, where, number, number]")
        rules.setdefault(change[0], []).append((change[1].split("."), change[2], change[3]))
    return rules


def _applied(line: dict[str, Json], rules: Sequence[tuple[list[str], Json, Json]]) -> dict[str, Json]:
    """A line with the rules that fit it applied, each to what the line said before."""
    changed: Json = line
    for path, was, now in rules:
        if repr(_get(line, path)) == repr(was):
            changed = _set(changed, path, now)
    return dict(changed)


def _get(item: Json, path: Sequence[str]) -> Json:
    for key in path:
        if type(item) is list and key.isdecimal() and len(key) < _DIGITS and int(key) < len(item):
            item = item[int(key)]
        elif type(item) is dict and key in item:
            item = item[key]
        else:
            return None
    return item


def _set(item: Json, path: Sequence[str], value: Json) -> Json:
    if not path:
        return value
    if type(item) is list:
        at = int(path[0])
        return [*item[:at], _set(item[at], path[1:], value), *item[at + 1 :]]
    return {**item, path[0]: _set(item[path[0]], path[1:], value)}


def _moved(at: Json, place: Json, where: str) -> Json:
    if not (type(at) is list and len(at) == 3 and type(place) is list and len(place) == 2):
        raise FormatError(f"{where}: 'stored' has no place [file, offset] for every stored tensor")
    return [*place, at[2]]


def _list(said: Mapping[str, Json], key: str, where: str) -> list[Json]:
    item = said.get(key, [])
    if type(item) is not list:
        raise FormatError(f"{where}: {key!r} is {str(item)[:80]}, not a list")
    return item


def _is_number(item: Json) -> bool:
    return type(item) in (int, float)
