"""Causes where one vector is made of all tokens of a sequence, or of all places of an image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..variants import reproduces

Floats = NDArray[np.float64]
WORDS = {
    "mean": "the mean over all tokens", "sum": "the sum of all tokens", "max": "the maximum over all tokens",
    "first": "the first token", "last": "the last token",
}  # fmt: skip
MASKED = {
    "mean": "the mean over the tokens that the mask keeps", "sum": "the sum of the tokens that the mask keeps",
    "max": "the maximum over the tokens that the mask keeps", "first": "the first token that the mask keeps",
    "last": "the last token that the mask keeps",
    "diluted": "the sum of the tokens that the mask keeps, over the number of all tokens,",
}  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """One way to make a vector of tokens; `mask` is true where a token counts, and None where all do."""

    kind: str
    mask: NDArray[np.bool_] | None

    @property
    def words(self) -> str:
        """What it is, in words."""
        return WORDS[self.kind] if self.mask is None else MASKED[self.kind]

    def of(self, x: Floats) -> Floats:
        """The vectors (batch, channels) of tokens (batch, tokens, channels)."""
        kept = np.ones(x.shape[:2], bool) if self.mask is None else self.mask
        number = np.arange(len(x))
        if self.kind == "first":
            return np.asarray(x[number, np.argmax(kept, axis=1)])
        if self.kind == "last":
            return np.asarray(x[number, kept.shape[1] - 1 - np.argmax(kept[:, ::-1], axis=1)])
        if self.kind == "max":
            return np.asarray(np.where(kept[..., None], x, -np.inf).max(axis=1))
        total = np.einsum("btc,bt->bc", x, kept.astype(np.float64))
        counts = {"mean": np.maximum(kept.sum(axis=1), 1), "diluted": np.full(len(x), x.shape[1]), "sum": 1}
        return np.asarray(total / np.reshape(counts[self.kind], (-1, 1)))


def pooled_tokens(evidence: Evidence) -> Iterator[Finding]:
    """The reference makes a vector of tokens in one way, the candidate in another."""
    shape = evidence.expected.shape
    if evidence.site.phase != "fwd" or len(shape) != 2 or evidence.found.shape != shape:
        return
    for name, given in evidence.inputs.items():
        own = evidence.candidate_inputs.get(name, given)
        for x, mine in zip(_tokens(given, shape), _tokens(own, shape), strict=True):
            readings = _readings(evidence, x.shape[:2])
            ours = next((one for one in readings if reproduces(one.of(x), evidence.expected, evidence.noise)), None)
            if ours is not None:
                for theirs in readings:
                    if theirs is not ours:
                        yield _finding(ours, theirs, mine)
                return


def _finding(ours: Reading, theirs: Reading, x: Floats) -> Finding:
    kinds = {"pooling": theirs.kind, "reference_pooling": ours.kind}
    sentence = f"{theirs.words} is taken instead of {ours.words}"
    if "diluted" in (ours.kind, theirs.kind) and {ours.kind, theirs.kind} <= {"mean", "diluted"}:
        label = "pool-count-pad"
    elif ours.kind == theirs.kind:
        label = "mask-missing"
    elif {ours.kind, theirs.kind} == {"first", "last"}:
        label = "index-shift"
    else:
        label = "pool-mode"
    return Finding(label, sentence, theirs.of(x), 0, kinds)


def _tokens(x: Array, shape: tuple[int, ...]) -> list[Floats]:
    """A tensor as (batch, tokens, channels), in the ways its shape allows."""
    if x.ndim < 3 or len(x) != shape[0] or not np.issubdtype(x.dtype, np.floating) or not np.isfinite(x).all():
        return []
    values, found = np.asarray(x, np.float64), []
    if values.shape[-1] == shape[1]:
        found.append(values.reshape(shape[0], -1, shape[1]))
    if values.shape[1] == shape[1]:
        found.append(values.reshape(shape[0], shape[1], -1).swapaxes(1, 2))
    return [one for one in found if one.shape[1] > 1]


def _readings(evidence: Evidence, shape: tuple[int, ...]) -> list[Reading]:
    """Every way, those without a mask first."""
    masks = _masks(evidence, shape)
    return [Reading(kind, None) for kind in WORDS] + [Reading(kind, mask) for mask in masks for kind in MASKED]


def _masks(evidence: Evidence, shape: tuple[int, ...]) -> list[NDArray[np.bool_]]:
    """The tensors of zeros and ones with an element for every token, read both ways; such that keep all say nothing."""
    around = evidence.around
    known = [*evidence.inputs.values(), *(around.reference(site) for site in around.sites("input"))]
    found: list[NDArray[np.bool_]] = []
    for value in known:
        if value is None or value.size != np.prod(shape) or not np.isin(value, (0, 1)).all():
            continue
        mask = np.asarray(value).reshape(shape).astype(bool)
        for kept in (mask, ~mask):
            if kept.any(axis=1).all() and not kept.all() and not any(np.array_equal(kept, one) for one in found):
                found.append(kept)
    return found


HYPOTHESES: tuple[Hypothesis, ...] = (pooled_tokens,)
