"""What else than projections an attention was given: masks, biases of the scores, and rotary tables."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np

from .formula import HIDDEN
from .padding import lengths_as_mask
from .rotary import Floats, frequencies_of

LARGEST_COSINE = 2.0  # with the amplitude that a scaling may have
TABLES = 8  # that are looked at


def masks_among(rest: Mapping[str, Floats], batch: int, queries: int, keys: int) -> tuple[Floats | None, Floats | None]:
    """A mask and an additive bias, as (batch, heads, queries, keys)."""
    mask = bias = None
    for value in rest.values():
        full = _as_scores(value, batch, queries, keys)
        if full is None:
            continue
        with np.errstate(invalid="ignore"):
            masks = bool(np.isin(full, (0, 1)).all()) or bool((full <= -1e4).any() and ((full <= 0).all()))
        hides = not masks and full.shape[2:] == (queries, keys) and bool((full <= HIDDEN).any())
        if masks and mask is None:
            mask = _without_triangle(full, batch, queries, keys)
        elif hides and mask is None and not np.isnan(full).any():  # a bias in which keys are hidden
            mask = full
        elif not masks and bias is None and full.shape[2:] == (queries, keys) and np.isfinite(full).all():
            bias = full
    return mask, bias


def mask_of(value: Floats, batch: int, queries: int, keys: int) -> Floats | None:
    """One mask as (batch, heads, queries, keys), where it fits: of every sample, of all, or as lengths."""
    if value.shape == (batch,) and (told := lengths_as_mask(value, keys)) is not None:
        value = told
    elif value.shape == (keys,):
        value = value[None, None, None, :]
    elif value.shape == (keys, batch) != (batch, keys) and value.shape != (queries, keys):
        value = value.T
    mask, _ = masks_among({"": value}, batch, queries, keys)
    return mask


def _without_triangle(mask: Floats, batch: int, queries: int, keys: int) -> Floats | None:
    """A mask that hides what comes later as what else it hides: None, or the padding (1 keeps a key)."""
    if mask.shape[1] != 1 or mask.shape[2] != queries or queries != keys:
        return mask
    shown = mask > HIDDEN if (mask <= HIDDEN).any() else mask != 0
    triangle = np.tri(queries, dtype=bool)
    for visible in (shown, ~shown):
        padding = visible[:, :, -1:, :]
        real = padding.reshape(len(mask), 1, keys, 1)  # rows of padding may hold anything
        if padding.any() and np.array_equal(visible & real, triangle & padding & real):
            return None if padding.all() else padding.astype(np.float64)
    return mask


def _as_scores(value: Floats, batch: int, queries: int, keys: int) -> Floats | None:
    value = np.asarray(value, np.float64)
    if value.shape == (queries, keys) and (queries != batch or queries == keys):
        return value[None, None]
    if value.shape == (batch, keys):
        return value[:, None, None, :]
    if value.ndim == 4 and value.shape[-1] == keys and value.shape[2] in (1, queries) and value.shape[0] in (1, batch):
        return value
    if value.ndim == 3 and value.shape[1:] == (queries, keys):
        return value[:, None] if len(value) == batch else value[None]
    if value.ndim == 3 and value.shape[:2] == (queries, keys):  # a relative bias as its embedding returns it
        return value.transpose(2, 0, 1)[None]
    return None


def tables_among(rest: Mapping[str, Floats], tokens: int) -> tuple[Floats, float] | None:
    """The frequencies of recorded cosines and sines: the first two tables whose squares sum to a constant."""
    found: list[Floats] = []
    for value in rest.values():
        if value.ndim >= 2 and value.shape[-2] >= tokens and value.size:
            table = value.reshape(-1, *value.shape[-2:])[0][:tokens]
            if np.isfinite(table).all() and np.abs(table).max(initial=0.0) < LARGEST_COSINE:
                found.append(table)
    for one, other in combinations(found[:TABLES], 2):
        cos, sin = sorted((one, other), key=lambda table: -float(table[0].mean()))
        told = frequencies_of(cos, sin)
        if told is not None:
            return told
    return None
