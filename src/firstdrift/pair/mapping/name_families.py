"""Families: names that differ in their numbers alone, and whose candidates differ in the same numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from .entries import Entry, Part
from .patterns import MAX_PLACEHOLDERS, RUN, Pattern, escape, parse_pattern

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Family:
    """One line with placeholders that stands for several; the names of its parts are patterns."""

    how: str
    reference: Pattern
    parts: tuple[Part, ...]

    def covers(self, name: str, entry: Entry) -> bool:
        """Whether this line says of a name just what its own would."""
        return self.how == entry.how and self.expand(name) == entry.parts

    def expand(self, name: str) -> tuple[Part, ...] | None:
        """What the line says of a name; None when it does not speak of it."""
        captures = self.reference.match(name)
        if captures is None:
            return None
        return tuple(part.renamed(lambda text: _pattern(text).fill(captures)) for part in self.parts)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> Pattern:
    return parse_pattern(text, "map")


def find_families(entries: dict[str, Entry], others: Iterable[str], taken: Collection[str]) -> list[Family]:
    """The families of at least two names, in the order of their first one.

    `others` are reference names without an entry: a family may speak of one only when that changes nothing, which is
    so when no name in `taken`, the candidate's, comes out. A name of which it says something wrong has a line of its
    own, and that wins; unless that line leaves some of its ports to others.
    """
    members: dict[Family, int] = {}
    for name, entry in entries.items():
        family = _family(name, entry)
        if family is not None:
            members[family] = members.get(family, 0) + 1
    others = list(others)
    return [family for family, count in members.items() if count > 1 and _harmless(family, entries, others, taken)]


def _harmless(family: Family, entries: dict[str, Entry], others: list[str], taken: Collection[str]) -> bool:
    if any(entry.restricted and family.expand(name) not in (None, entry.parts) for name, entry in entries.items()):
        return False
    said = (part for name in others for part in family.expand(name) or ())
    return not any(name in taken for part in said for name in part.names)


def _family(name: str, entry: Entry) -> Family | None:
    """The widest family a name could belong to."""
    numbers = _NUMBER.findall(name)
    common = set(range(len(numbers)))
    for other in _candidates(entry):
        common &= _shared_numbers(numbers, _NUMBER.findall(other))
    kept = sorted(common)[:MAX_PLACEHOLDERS]
    if not kept:
        return None
    values = [numbers[i] for i in kept]
    reference = parse_pattern(_with_placeholders(name, set(kept)), "map")
    parts = tuple(part.renamed(lambda text: _with_placeholders(text, _positions(text, values))) for part in entry.parts)
    return Family(entry.how, reference, parts)


def _candidates(entry: Entry) -> Iterable[str]:
    return (name for part in entry.parts for name in part.names)


def _shared_numbers(reference: list[str], candidate: list[str]) -> set[int]:
    """Which of the reference's numbers come, in their order, among the candidate's."""
    from difflib import SequenceMatcher  # here, because a comparison that writes no map does not need it

    blocks = SequenceMatcher(None, reference, candidate, autojunk=False).get_matching_blocks()
    return {block.a + i for block in blocks for i in range(block.size)}


def _positions(name: str, values: list[str]) -> set[int]:
    """Where the numbers of a name are these values, in order; each is known to be there."""
    found: set[int] = set()
    for position, number in enumerate(_NUMBER.findall(name)):
        if len(found) < len(values) and number == values[len(found)]:
            found.add(position)
    return found


def _with_placeholders(name: str, positions: set[int]) -> str:
    """The name as a pattern, with a placeholder for each of these numbers."""
    pieces, end = [], 0
    for position, number in enumerate(_NUMBER.finditer(name)):
        if position in positions:
            pieces += [escape(name[end : number.start()]), RUN]
            end = number.end()
    return "".join([*pieces, escape(name[end:])])
