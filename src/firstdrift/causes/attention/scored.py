"""What scores were computed from: queries and keys, where no values take part yet, and where no name tells them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations

import numpy as np

from ..evidence import Evidence
from .rotary import Floats

MOST = 4  # divided tensors among which queries and keys are looked for


def without_values(parts: Mapping[str, Floats], observed: Floats) -> dict[str, Floats] | None:
    """Queries and keys with values of no width, where scores were observed, which no value has a part in."""
    if observed.ndim != 4 or not {"q", "k"} <= set(parts):
        return None
    q, k = parts["q"], parts["k"]
    if (len(q), q.shape[1], k.shape[1]) != (observed.shape[0], *observed.shape[2:]):
        return None
    return {"q": q, "k": k, "v": np.zeros((*k.shape[:2], 0))}


def divided_before(evidence: Evidence, candidate: bool, observed: Floats) -> dict[str, Floats] | None:
    """Queries and keys as the operation before left them, divided into heads: the first and the second of what scores
    were computed from, as one module called twice, or one that returns both, gives them; unless the heads tell."""
    if observed.ndim != 4:
        return None
    batch, heads, queries, keys = observed.shape
    for first, second in permutations(_divided(evidence, candidate, batch), 2):
        q, k = _as_tokens(first, queries, heads), _as_tokens(second, keys, heads)
        if q is not None and k is not None and q.shape[2] == heads and q.shape[3] == k.shape[3]:
            return without_values({"q": _flat(q), "k": _flat(k)}, observed)
    return None


def _divided(evidence: Evidence, candidate: bool, batch: int) -> list[Floats]:
    """The tensors of four axes that a drift was computed from, in the order in which they were made."""
    around = evidence.around
    before = set(around.producers(evidence.site))
    own = candidate or evidence.replayed  # a replay computes from what the candidate has
    read = around.candidate if own else around.reference
    found = []
    for site in around.sites("fwd") if before else ():
        value = read(site) if site in before else None
        if value is not None and value.ndim == 4 and len(value) == batch and value.dtype.kind == "f":
            found.append(np.asarray(value, np.float64))
    return found if len(found) <= MOST else []


def _as_tokens(value: Floats, tokens: int, heads: int) -> Floats | None:
    """A tensor as (batch, tokens, heads, channels); None where its axes are others."""
    return next(_readings(value, tokens, heads), None)


def _readings(value: Floats, tokens: int, heads: int) -> Iterator[Floats]:
    if value.shape[2] == tokens and heads % value.shape[1] == 0:
        yield value.transpose(0, 2, 1, 3)
    if value.shape[1] == tokens and heads % value.shape[2] == 0:
        yield value


def _flat(value: Floats) -> Floats:
    return value.reshape(*value.shape[:2], -1)
