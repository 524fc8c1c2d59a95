"""A trace as another engine would have written it: other names, another order, other layouts, fewer ports."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import firstdrift as fd
from firstdrift.core.records import Record
from firstdrift.core.sites import Site
from firstdrift.core.traces import Trace

Name = tuple[str, str]  # a name and a port


@dataclass(frozen=True)
class Engine:
    """How an engine records: what it calls a site (None where it has none), how it lies, which facts it knows."""

    name: Callable[[Record], Name | None]
    array: Callable[[Record, np.ndarray], np.ndarray] = lambda record, array: array
    graph: bool = False
    ops: Callable[[str], str | None] = lambda op: op
    shuffled: int | None = None  # a seed: lines in any order


def rewrite(source: Trace, path: Path, engine: Engine) -> dict[Site, Name]:
    """Write the trace as the engine would; gives what it calls every site that it has."""
    named = {one.site: engine.name(one) for one in source.records if one.at is not None}
    told = {site: name for site, name in named.items() if name is not None}
    lines = [record for record in source.records if record.site in told]
    if engine.shuffled is not None:
        random.Random(engine.shuffled).shuffle(lines)
    with fd.Writer(path, overwrite=True) as writer:
        for record in lines:
            site, (name, port) = record.site, told[record.site]
            array = engine.array(record, np.asarray(source.array(record)))
            writer.put(
                name, site.phase, np.ascontiguousarray(array), port=port, step=site.step, call=site.call,
                sample=site.sample, **_details(record, engine, told),
            )  # fmt: skip
    return told


def _details(record: Record, engine: Engine, told: dict[Site, Name]) -> dict[str, object]:
    details: dict[str, object] = {}
    if record.op is not None and engine.ops(record.op) is not None:
        details["op"] = engine.ops(record.op)
    if engine.graph and record.producers is not None:
        known = [one for one in record.producers if one in told]
        details["producers"] = [one._replace(name=told[one][0], port=told[one][1]) for one in known]
    renamed = [_alias(alias, told) for alias in record.aliases]
    return details | ({"aliases": [one for one in renamed if one]} if any(renamed) else {})


def _alias(alias: str, told: dict[Site, Name]) -> str | None:
    name, _, port = alias.rpartition(".")
    for site, other in told.items():
        if site.name == name and site.phase == "fwd":
            return f"{other[0]}.{port}"
    return None


def scrambled(seed: int) -> Callable[[Record], Name]:
    """Names that say nothing: every part of a path under a word of its own, the same one each time."""
    draw = random.Random(seed)
    words: dict[str, str] = {}

    def part(text: str) -> str:
        if text not in words:
            words[text] = f"x{draw.randrange(10**6)}" if not text.isdecimal() else f"y{draw.randrange(10**6)}"
        return words[text]

    def name(record: Record) -> Name:
        site = record.site
        if site.phase in ("input", "loss", "lossgrad"):
            return site.name, site.port
        return ".".join(part(one) for one in site.name.split(".")) if site.name else "", site.port

    return name
