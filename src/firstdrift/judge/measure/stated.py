"""What the two sides state differently of themselves: settings of operations, optimizers, configs. No judgement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.sites import Site
from ...core.strict_json import Json, with_floats
from ...core.traces import Trace
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
        for one in _of_lines(pair, rule):
            key = (one.where, one.key, repr((one.reference, one.candidate)))
            known = found.get(key)
            found[key] = one if known is None else replace(known, sites=(*known.sites, *one.sites))
    for one in _of_headers(reference.header, candidate.header, rule):
        same = (other for other in found.values() if _says(other, one))
        if not any(same):
            found.setdefault((one.where, one.key, repr((one.reference, one.candidate))), one)
    return list(found.values())


def are_alike(ours: Any, theirs: Any) -> bool:
    """Whether two values mean the same: numbers that float32 holds as one, a size and as many of it."""
    if isinstance(ours, list | tuple) or isinstance(theirs, list | tuple):
        both = [list(one) if isinstance(one, list | tuple) else [one] for one in (ours, theirs)]
        length = max(map(len, both))
        both = [one * length if len(one) == 1 else one for one in both]
        return len(both[0]) == len(both[1]) and all(are_alike(*items) for items in zip(*both, strict=True))
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        with np.errstate(over="ignore"):
            held = np.float32(ours)
            return bool(ours == theirs or (np.isfinite(held) and held == np.float32(theirs)))
    return bool(ours == theirs)


def _of_lines(pair: Pair, rule: str | None) -> Iterator[Stated]:
    """What the lines of a pair state differently."""
    ours, theirs = pair.reference, pair.candidate[0]
    if len(pair.candidate) > 1 or ours.details.get("attrs") == theirs.details.get("attrs"):
        return
    mine, other = ours.attrs, theirs.attrs
    if not mine or not other:  # a side that states nothing says nothing
        return
    is_stepped = pair.site.phase in _STEPPED
    where, *ops = (OPTIMIZER, rule, rule) if is_stepped else (pair.site.name, ours.op, theirs.op)
    keys = mine.keys() | other.keys() if ours.op and theirs.op else mine.keys() & other.keys()
    for key in sorted(keys - (_COUNTED if is_stepped else frozenset())):
        a, b = mine.get(key, UNSAID), other.get(key, UNSAID)
        if not are_alike(a, b):
            yield Stated(where, key, a, b, ops[0], (pair.site,), ops[1])


def _of_headers(ours: Mapping[str, Json], theirs: Mapping[str, Json], rule: str | None) -> Iterator[Stated]:
    yield from _of_tables(OPTIMIZER, optimizer_of(ours), optimizer_of(theirs), rule)
    for config in CONFIGS:
        yield from _of_tables(HEADER, _flat(ours.get(config)), _flat(theirs.get(config)), None)


def _of_tables(where: str, ours: Mapping[str, Json], theirs: Mapping[str, Json], op: str | None) -> Iterator[Stated]:
    for key in sorted(ours.keys() & theirs.keys()):
        if not are_alike(ours[key], theirs[key]):
            yield Stated(where, key, ours[key], theirs[key], op)


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
