"""What the two sides state differently of themselves: settings of operations, optimizers, configs. No judgement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.sites import Site
from ...core.strict_json import Json, with_floats
from ...core.traces import Trace
from ...pair.conventions import SETTINGS
from ...pair.pairs import Pair

OPTIMIZER, HEADER = "optimizer", "header"
CONFIGS = ("config", "model")  # objects in a header that hold what a model was built with
_STEPPED = frozenset({"optim", "weight_after"})
_COUNTED = frozenset({"parameters", "step"})  # of a group: how many it has, how often it stepped
_KINDS = ("class", "name")


class Unsaid:
    """In place of what a side did not state although it states others: the operation's default."""

    def __repr__(self) -> str:
        return "not stated"


UNSAID = Unsaid()


@dataclass(frozen=True, slots=True)
class Stated:
    """A setting that the two sides state differently: by `where` (a module, the optimizer, the header) and `key`.
    `sites` are the pairs of which they say so, `op` and `candidate_op` what these are made by."""

    where: str
    key: str
    reference: Json | Unsaid
    candidate: Json | Unsaid
    op: str | None = None
    sites: tuple[Site, ...] = ()
    candidate_op: str | None = None


def stated_otherwise(pairs: Iterable[Pair], reference: Trace, candidate: Trace) -> list[Stated]:
    """Everything that both sides state, and not alike, in causal order; then the optimizer's, then what headers add."""
    found: dict[tuple[str, str, str], Stated] = {}
    said = optimizer_of(reference.header).get("class")
    rule = said if isinstance(said, str) else None
    for pair in pairs:
        for line in _of_lines(pair, rule):
            key = (line.where, line.key, repr((line.reference, line.candidate)))
            known = found.get(key)
            found[key] = line if known is None else replace(known, sites=(*known.sites, *line.sites))
    for header in _of_headers(reference.header, candidate.header, rule):
        same = (other for other in found.values() if _says(other, header))
        if not any(same):
            found.setdefault((header.where, header.key, repr((header.reference, header.candidate))), header)
    return list(found.values())


def are_alike(reference: Any, candidate: Any) -> bool:
    """Whether two values mean the same: numbers that float32 holds as one, a size and as many of it."""
    if isinstance(reference, list | tuple) or isinstance(candidate, list | tuple):
        both = [list(one) if isinstance(one, list | tuple) else [one] for one in (reference, candidate)]
        length = max(map(len, both))
        both = [one * length if len(one) == 1 else one for one in both]
        return len(both[0]) == len(both[1]) and all(are_alike(*items) for items in zip(*both, strict=True))
    if isinstance(reference, int | float) and isinstance(candidate, int | float):
        with np.errstate(over="ignore"):
            held = np.float32(reference)
            return bool(reference == candidate or (np.isfinite(held) and held == np.float32(candidate)))
    return bool(reference == candidate)


def _of_lines(pair: Pair, rule: str | None) -> Iterator[Stated]:
    """What the lines of a pair state differently."""
    reference, candidate = pair.reference, pair.candidate[0]
    if len(pair.candidate) > 1 or reference.details.get("attrs") == candidate.details.get("attrs"):
        return
    mine, other = _by_usual_name(reference.attrs), _by_usual_name(candidate.attrs)
    if not mine or not other:  # a side that states nothing says nothing
        return
    is_stepped = pair.site.phase in _STEPPED
    where, *ops = (OPTIMIZER, rule, rule) if is_stepped else (pair.site.name, reference.op, candidate.op)
    keys = mine.keys() | other.keys() if reference.op and candidate.op else mine.keys() & other.keys()
    for key in sorted(keys - (_COUNTED if is_stepped else frozenset())):
        a, b = mine.get(key, UNSAID), other.get(key, UNSAID)
        if not are_alike(a, b):
            yield Stated(where, key, a, b, ops[0], (pair.site,), ops[1])


def _by_usual_name(attrs: Mapping[str, Json]) -> dict[str, Json]:
    return {SETTINGS.get(key, key): value for key, value in attrs.items()}


def _of_headers(reference: Mapping[str, Json], candidate: Mapping[str, Json], rule: str | None) -> Iterator[Stated]:
    yield from _of_tables(OPTIMIZER, optimizer_of(reference), optimizer_of(candidate), rule)
    for config in CONFIGS:
        yield from _of_tables(HEADER, _flat(reference.get(config)), _flat(candidate.get(config)), None)


def _of_tables(
    where: str, reference: Mapping[str, Json], candidate: Mapping[str, Json], op: str | None
) -> Iterator[Stated]:
    for key in sorted(reference.keys() & candidate.keys()):
        if not are_alike(reference[key], candidate[key]):
            yield Stated(where, key, reference[key], candidate[key], op)


def optimizer_of(header: Mapping[str, Json]) -> dict[str, Json]:
    """What a header says of the first optimizer: its class, and the settings that all of its groups have alike, or
    those of each group by its number."""
    said = with_floats(header.get("optimizer"))
    said = said[0] if isinstance(said, list) and said else said
    if isinstance(said, str):
        return {"class": _plain(said)}
    told = dict(said) if isinstance(said, dict) else {}
    groups = told.pop("groups", None)
    kind = next((told.pop(key) for key in _KINDS if isinstance(told.get(key), str)), None)
    found = {key: item for key, item in told.items() if key not in _KINDS}
    if kind is not None:
        found["class"] = _plain(str(kind))
    listed = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    for key in dict.fromkeys(key for group in listed for key in group if key not in _COUNTED):
        values = [group.get(key) for group in listed]
        if all(are_alike(value, values[0]) for value in values):
            found[key] = values[0]
        else:
            found |= {f"groups.{number}.{key}": value for number, value in enumerate(values)}
    return found


def _plain(name: str) -> str:
    return name.rpartition(".")[2].lower().replace("_", "")


def _flat(said: Json) -> dict[str, Json]:
    """A table with its inner tables' keys behind dots."""
    found: dict[str, Json] = {}
    for key, item in with_floats(said).items() if isinstance(said, dict) else ():
        inner = _flat(item)
        found |= {f"{key}.{name}": value for name, value in inner.items()} if inner else {key: item}
    return found


def _says(line: Stated, header: Stated) -> bool:
    """Whether lines say already what headers say."""
    ends = header.key.rpartition(".")[2]
    same_key = ends == line.key or ends.endswith(f"_{line.key}") or header.where == line.where == OPTIMIZER
    return same_key and are_alike(line.reference, header.reference) and are_alike(line.candidate, header.candidate)
