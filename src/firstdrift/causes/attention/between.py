"""Operands that modules between the projections and an attention made of them: rotations and norms, in any axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...sites import Site
from ..evidence import Evidence
from .roles import role
from .rotary import Floats

OPERANDS = ("q", "k", "v", "kv", "qkv")
MOST = 3  # operands that no name tells


@dataclass(frozen=True, slots=True)
class Way:
    """One reading of what modules made: in which order, where no name tells, and which axis of two that are equally
    long holds the heads."""

    order: str
    axis: int = 1


WAYS = (Way("qkv"), Way("kqv"), Way("qkv", 2), Way("kqv", 2))


@dataclass(frozen=True, eq=False, slots=True)
class Made:
    """What one side's attention was computed from: by role where a name tells one, the rest as it was made."""

    named: Mapping[str, Floats]
    rest: Sequence[tuple[Site, Floats]]

    @property
    def missing(self) -> str:
        """The operands that the rest has to be. A fused projection gives its values as they are."""
        fused = {"kv", "qkv"} & set(self.named)
        return "".join(one for one in "qkv" if one not in self.named and not (one == "v" and fused))


Both = tuple[Made, Made]


def made_between(evidence: Evidence) -> Both | None:
    """The operands of both sides; None where names tell all of them, or where this can be no attention."""
    around, here = evidence.around, evidence.site
    before = set(around.producers(here)) if here.phase == "fwd" else set()
    sites = [one for one in around.sites("fwd") if one in before and not one.port.startswith("in.")] if before else []
    named = {one: role(one.name) for one in sites}
    told = {which: one for one, which in named.items() if which in OPERANDS}
    rest = [one for one in sites if not named[one]]
    missing = Made(dict.fromkeys(told, np.zeros(0)), ()).missing
    if len(rest) > len(missing):  # tables that were made for all layers come from further off
        near = here.name.rpartition(".")[0] + "."
        rest = [one for one in rest if one.name.startswith(near)]
    if not missing or len(missing) != len(rest) or len(rest) > MOST:
        return None
    reference = _read(evidence, evidence.replayed, told, rest)  # a replay computes from what the candidate has
    candidate = _read(evidence, True, told, rest)
    return None if reference is None or candidate is None else (reference, candidate)


def _read(evidence: Evidence, candidate: bool, told: Mapping[str, Site], rest: Sequence[Site]) -> Made | None:
    read = evidence.around.candidate if candidate else evidence.around.reference
    values = {site: read(site) for site in (*told.values(), *rest)}
    found = {
        site: np.asarray(value, np.float64)
        for site, value in values.items()
        if value is not None and value.dtype.kind == "f" and value.ndim in (2, 3, 4)
    }
    if len(found) < len(values) or (not told and not all(found[site].ndim == 4 for site in rest)):
        return None
    return Made({which: found[site] for which, site in told.items()}, [(site, found[site]) for site in rest])


def handed_on(made: Made, observed: Floats, way: Way) -> tuple[dict[str, Floats], int | None, None] | None:
    """The operands by role as (batch, tokens, width), and the heads of the queries where they are divided; None where
    the axes are others, or where this way is that of an earlier one."""
    order = _order(made, way)
    if order is None:
        return None
    values = {**made.named, **{which: value for which, (_, value) in zip(order, made.rest, strict=True)}}
    batch = _batch(values["q"] if "q" in values else values["qkv"], observed)
    if batch is None:
        return None
    queries = observed.shape[2] if observed.ndim == 4 else observed.size // observed.shape[-1] // batch
    if way.axis != WAYS[0].axis and not any(x.ndim == 4 and x.shape[1] == x.shape[2] for _, x in made.rest):
        return None
    parts: dict[str, Floats] = {}
    heads, keys = None, queries
    for which in OPERANDS[::-1]:  # the values tell how many keys there are
        if which not in values:
            continue
        value = values[which]
        keys = _tokens(value, batch, keys) if which in made.named else keys
        read = next(_readings(value, batch, queries if which == "q" else keys, way.axis), None)
        if read is None:
            return None
        parts[which], heads = read
    return parts, heads if "q" in parts else None, None


def _tokens(value: Floats, batch: int, usual: int) -> int:
    """How many tokens a projection has that is not divided yet."""
    if value.ndim != 3 or batch not in value.shape[:2]:
        return usual
    return value.shape[1] if len(value) == batch else len(value)


def _order(made: Made, way: Way) -> list[str] | None:
    """Which operand each of the rest is: as the letters of their names tell, else as they usually are made."""
    missing = made.missing
    letters = [_letter(site) for site, _ in made.rest]
    if sorted(letters) == sorted(missing):
        return letters if way.order == WAYS[0].order else None
    if way.order != WAYS[0].order and not {"q", "k"} <= set(missing):
        return None
    return [one for one in way.order if one in missing]


def _letter(site: Site) -> str:
    """The operand that a short name like `qn` or `ropek` begins or ends with."""
    last = site.name.rpartition(".")[2].lower()
    return next((one for one in (last[:1], last[-1:]) if one and one in "qkv"), "")


def _batch(query: Floats, observed: Floats) -> int | None:
    if observed.ndim > 2:
        return len(observed)
    return len(query) if query.ndim == 4 and len(observed) % len(query) == 0 else None


def _readings(value: Floats, batch: int, tokens: int, axis: int) -> Iterator[tuple[Floats, int | None]]:
    """A tensor as (batch, tokens, width) with its heads, in every way that the lengths of its axes allow."""
    if value.ndim == 2:
        if len(value) == batch * tokens:
            yield value.reshape(batch, tokens, -1), None
        return
    if value.ndim == 3:
        if value.shape[:2] == (batch, tokens):
            yield value, None
        elif value.shape[1] == tokens and len(value) % batch == 0:  # heads together with the samples
            yield _joined(value.reshape(batch, -1, *value.shape[1:]).transpose(0, 2, 1, 3))
        elif value.shape[:2] == (tokens, batch):
            yield value.swapaxes(0, 1), None
        return
    for one in (axis, 3 - axis) if len(value) == batch else ():
        if value.shape[3 - one] == tokens:
            yield _joined(value.transpose(0, 2, 1, 3) if one == 1 else value)
    if len(value) != batch and value.shape[:2] == (tokens, batch):
        yield _joined(value.swapaxes(0, 1))


def _joined(value: Floats) -> tuple[Floats, int]:
    return value.reshape(*value.shape[:2], -1), value.shape[2]
