"""An alignment into the text of a map: every pair of names, how it was found, and what found no counterpart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..pairs import Alignment, Unmatched
from .entries import Entry, Family, entries_of, find_families
from .lines import Mapping
from .patterns import escape
from .quoting import comment, table_line

_HEAD = """\
# reference name: candidate name. {} stands for the same text, without a dot, on both sides.
# What has no counterpart is in a comment: remove its # to leave it out on purpose, or to write its counterpart.
version: 1
pairs:"""
_HOW = {
    "name": "the same name on both sides",
    "prefix": "the same name under another prefix",
    "map": "by a map",
    "alias": "another name of the same tensor",
    "port": "the same name, its one output called differently",
    "sample": "a batch on one side, its samples on the other",
    "weights": "by weights with the same numbers",
    "numbers": "by what they return",
    "structure": "by what they compute, what is around them, and their order",
    "parts": "joined of several, or part of one",
}
_Lines = dict[str, list[Any]]  # what stands behind each name


def write_map(alignment: Alignment, mapping: Mapping | None = None) -> str:
    """The map that says what `alignment` found, for editing.

    Reading it back gives every site of a pair the same candidate names and port. `mapping` is the map that was used:
    its lines are kept as they are, and with them the transforms and tolerances, which an alignment does not keep
    apart from what the comparison reconciles by itself.
    """
    mapping = mapping or Mapping("", ())
    entries = entries_of(alignment, mapping)
    groups = _groups(entries, _families(alignment, entries, mapping))
    given = {key: _listed(value) for key, value in mapping.written.items()}
    for lines in groups.values():  # a table has each name once, so further lines of a given one go there
        for key in [key for key in lines if key in given]:
            given[key] = [*given[key], *lines.pop(key)]
    text = [_HEAD, *_section(f"from {mapping.place}", given)]
    for how, lines in groups.items():
        text.extend(_section(_HOW.get(how, how), lines))
    paired = {pair.site.name for pair in alignment.pairs}
    text.extend(_leftovers("the candidate has no counterpart for", alignment.reference_only, paired))
    text.extend(_leftovers("left out of the comparison", alignment.ignored, paired))
    text.append("candidate_ignore:")
    text.extend(line for key, value in mapping.written_ignore.items() for line in table_line(key, value))
    ends = {record.site.name for pair in alignment.pairs for record in pair.candidate}
    text.extend(_leftovers("only the candidate has", alignment.candidate_only, ends))
    if mapping.meant:
        text.append("meant:")
        text.extend(line for key, why in mapping.meant.items() for line in table_line(key, why))
    return "\n".join(text) + "\n"


def _families(alignment: Alignment, entries: dict[str, Entry], mapping: Mapping) -> list[Family]:
    left = (*alignment.reference_only, *alignment.ignored)
    others = dict.fromkeys(item.site.name for item in left if item.site.name not in entries)
    taken = {record.site.name for pair in alignment.pairs for record in pair.candidate}
    taken.update(item.site.name for item in alignment.candidate_only)
    # The given lines were first, and with a `{}` of our own before their `*` they no longer would be.
    given = {pair.site.name for pair in alignment.pairs if mapping.find(pair.site) is not None}
    return [
        family
        for family in find_families(entries, others, taken)
        if family.reference.text not in mapping.written
        and not any(family.reference.match(name) is not None for name in given)
    ]


def _groups(entries: dict[str, Entry], families: list[Family]) -> dict[str, _Lines]:
    """For each way of matching the lines it needs: one a family and one a name without, in the order of the run."""
    groups: dict[str, _Lines] = {entry.how: {} for entry in entries.values()}
    order = list(groups)
    families = sorted(families, key=lambda family: order.index(family.how))
    home = {name: _home(name, entry, families) for name, entry in entries.items()}
    used = set(home.values())
    waiting = [family for family in families if family in used]
    for name, entry in entries.items():
        family = home[name]
        if family is None:
            groups[entry.how][escape(name)] = [part.renamed(escape).value() for part in entry.parts]
        while family in waiting:  # with all before it, for of two that fit a name the first one in the file wins
            first = waiting.pop(0)
            groups[first.how][first.reference.text] = [part.value() for part in first.parts]
    return groups


def _home(name: str, entry: Entry, families: list[Family]) -> Family | None:
    """The family whose line speaks for a name; None when it needs a line of its own."""
    first = next((family for family in families if family.reference.match(name) is not None), None)
    return first if first is not None and first.covers(name, entry) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _section(title: str, lines: _Lines) -> Iterator[str]:
    if lines:
        yield f"  # {comment(title)}"
    for key, values in lines.items():
        yield from table_line(key, values[0] if len(values) == 1 else values)


def _leftovers(title: str, items: Iterable[Unmatched], paired: set[str]) -> Iterator[str]:
    """Comments that are lines of the table once their # is gone; a name with a pair of its own cannot be one."""
    reasons: dict[str, list[Unmatched]] = {}
    for item in items:
        reasons.setdefault(item.site.name, []).append(item)
    if reasons:
        yield f"  # {title}:"
    for name, unmatched in reasons.items():
        first, more = unmatched[0], f" (and {len(unmatched) - 1} more)" if len(unmatched) > 1 else ""
        if name in paired:
            what = f"{first.site.phase} {comment(first.site.port)}{more}"
            yield f"  #   {what} of {comment(name)}: {comment(first.reason)}"
        else:
            yield from table_line(
                escape(name), {"ignore": comment(first.reason).strip() or "no reason given"}, margin="  # "
            )
