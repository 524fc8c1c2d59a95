"""Masks that an attention may obey though they were not recorded as its inputs: of what is around it, and padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...sites import Site
from ...traces import Array
from ..evidence import Evidence
from .formula import HIDDEN
from .rotary import Floats

MOST = 6  # masks that are tried
LARGEST = 1 << 22  # elements of one


def masks_around(evidence: Evidence) -> list[Floats]:
    """Different masks, nearest first: of the modules around the attention, of the model, and what tokens tell."""
    found: list[Floats] = []
    values = list(_nearby(evidence))
    for mask in (*filter(_masks, values), *(one for value in values for one in _padding(value))):
        plain = np.asarray(mask, np.float64)
        if not any(plain.shape == other.shape and np.array_equal(plain, other) for other in found):
            found.append(plain)
        if len(found) == MOST:
            break
    return found


def lengths_as_mask(lengths: Floats, keys: int) -> Floats | None:
    """How many keys of each sample are real, as a mask of them: (batch, keys)."""
    if lengths.ndim != 1 or not np.array_equal(lengths, np.round(lengths)):
        return None
    if lengths.min(initial=1) < 1 or lengths.max(initial=0) > keys or (lengths == keys).all() or lengths.max() < 2:
        return None
    return np.asarray(np.arange(keys) < lengths[:, None], np.float64)


def _nearby(evidence: Evidence) -> Iterator[Array]:
    """What the modules around a site were given or hold, the innermost first, then what the model was fed."""
    around, here = evidence.around, evidence.site
    forward = [one for one in around.sites("fwd") if one.step == here.step and one.port.startswith("in.")]
    held = [one for one in around.sites("weight") if one.step == here.step and one.port not in ("weight", "bias")]
    for name in _enclosing(here.name):
        for site in (*forward, *held):
            if site.name == name:
                yield from _read(evidence, site)
    for site in around.sites("input"):
        if site.step == here.step:
            yield from _read(evidence, site)
    yield from (value for value in evidence.inputs.values() if value.size <= LARGEST)


def _read(evidence: Evidence, site: Site) -> Iterator[Array]:
    value = evidence.around.reference(site)
    if value is not None and 0 < value.size <= LARGEST and not np.iscomplexobj(value):
        yield value


def _enclosing(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def _masks(value: Array) -> bool:
    """Whether numbers hide something and show something: of two kinds, or low and none above zero."""
    if value.ndim == 0 or value.size < 2:
        return False
    if value.dtype.kind == "b" or np.isin(value, (0, 1)).all():
        return bool(np.any(value) and not np.all(value))
    low = np.asarray(value, np.float64)
    return bool((low <= HIDDEN).any() and (low <= 0).all() and (low > HIDDEN).any())


def _padding(value: Array) -> Iterator[Array]:
    """Numbers of tokens as masks: one number fills the end, or the beginning, of some rows and is nowhere else.

    A vector of whole numbers may be how many tokens are real, and is left as it is.
    """
    if value.dtype.kind not in "iu":
        return
    if value.ndim == 1 and len(np.unique(value)) > 1:
        yield value
    if value.ndim != 2 or value.shape[1] < 2:
        return
    for column in (-1, 0):
        for token in np.unique(value[:, column]):
            real = value != token
            ends = real if column == 0 else real[:, ::-1]
            if not real.all() and real.any(axis=1).all() and (np.diff(ends.astype(np.int8), axis=1) >= 0).all():
                yield real
