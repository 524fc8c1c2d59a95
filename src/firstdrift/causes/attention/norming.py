"""Normalised queries and keys: norms as numbers that can be read off a module, applied and left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...sites import Site
from ..evidence import Evidence
from .roles import role
from .rotary import Floats

EPSILONS = (1e-6, 1e-5, 2.0**-52, 2.0**-23, 1e-8, 1e-12, 0.0, 1e-3, 1e-2)
SIDES = ("q", "k")


@dataclass(frozen=True, eq=False, slots=True)
class Norm:
    """One norm: `rms`, `layer` (which also takes the mean away) or `l2`, over each head or, if `wide`, over all.

    `gain` and `bias` are as wide as a head or as all of them.
    """

    kind: str
    gain: Floats | None = None
    bias: Floats | None = None
    eps: float = 0.0
    wide: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Norms:
    """The norms of queries and keys inside an attention, before the rotation or, if `late`, behind it."""

    q: Norm | None = None
    k: Norm | None = None
    late: bool = False


def plain_norms(kind: str) -> Norms:
    """Norms of both sides without weights."""
    return Norms(Norm(kind), Norm(kind))


def normed(x: Floats, norm: Norm | None) -> Floats:
    """x (batch, tokens, heads, channels) as a norm leaves it."""
    if norm is None:
        return x
    out = normalised(x, norm.kind, norm.eps, (-2, -1) if norm.wide else (-1,))
    for values, adds in ((norm.gain, False), (norm.bias, True)):
        if values is not None:
            shaped = values if values.size == x.shape[-1] else values.reshape(-1, x.shape[-1])[: x.shape[-2]]
            out = out + shaped if adds else out * shaped
    return np.asarray(out)


def normalised(x: Floats, kind: str, eps: float, axes: tuple[int, ...]) -> Floats:
    """x divided by its size over some axes."""
    x = x - x.mean(axis=axes, keepdims=True) if kind == "layer" else x
    square = (x * x).sum(axis=axes, keepdims=True) if kind == "l2" else (x * x).mean(axis=axes, keepdims=True)
    if kind == "l2":
        size = np.maximum(np.sqrt(square), eps)
    else:
        size = np.sqrt(square + eps)
    return np.asarray(x / np.where(size > 0, size, 1.0))


def norm_of(x: Floats, y: Floats, limit: float) -> Norm | None:
    """The norm over the last axis that makes y of x; None where none does."""
    channels = x.shape[-1]
    if (
        x.shape != y.shape
        or channels < 2
        or x.size < 4 * channels
        or not (np.isfinite(x).all() and np.isfinite(y).all())
    ):
        return None
    rows, target = x.reshape(-1, channels)[:ROWS], y.reshape(-1, channels)[:ROWS]
    size = float(np.linalg.norm(target))
    best, least = None, limit
    for kind in ("rms", "layer", "l2"):
        for eps in EPSILONS:
            if kind == "l2" and eps > EPSILONS[0]:
                continue
            made = normalised(rows, kind, eps, (-1,))
            gain, bias = _affine(made, target)
            error = float(np.linalg.norm(made * gain + bias - target)) / size if size > 0 else np.inf
            if error <= 0.9 * least:
                best, least = Norm(kind, gain, bias, eps), error
    return best


def _affine(made: Floats, target: Floats) -> tuple[Floats, Floats]:
    """The gain and bias of each channel, and no bias where it is next to nothing."""
    plain = (made * target).sum(axis=0) / np.maximum((made * made).sum(axis=0), 1e-300)
    centred, wanted = made - made.mean(axis=0), target - target.mean(axis=0)
    gain = (centred * wanted).sum(axis=0) / np.maximum((centred * centred).sum(axis=0), 1e-300)
    bias = (target - gain * made).mean(axis=0)
    if np.linalg.norm(made * plain - target) <= 2 * np.linalg.norm(made * gain + bias - target):
        return plain, np.zeros_like(plain)
    return gain, bias


ROWS = 512  # that tell a norm


def norms_of_one_side(evidence: Evidence, limit: float) -> dict[str, tuple[Norm, Floats]]:
    """The norms of queries and keys that are modules of one side only, and what that side gave them."""
    here, found = evidence.site, {}
    parent = here.name.rpartition(".")[0] if here.port.startswith("in.") else here.name
    prefix = f"{parent}." if parent else ""
    for fact, read in (("candidate_only", evidence.around.candidate), ("reference_only", evidence.around.reference)):
        for site in evidence.around.facts.get(fact, ()):
            side = role(site.name[len(prefix) :]) if _beside(site, here, prefix) else ""
            x, y = (read(site._replace(port="in.0")), read(site)) if side in SIDES else (None, None)
            if x is None or y is None or x.ndim not in (3, 4) or x.dtype.kind != "f":
                continue
            norm = norm_of(np.asarray(x, np.float64), np.asarray(y, np.float64), limit)
            if norm is not None:
                found[side] = norm, np.asarray(x, np.float64)
    return found


def _beside(site: Site, here: Site, prefix: str) -> bool:
    """Whether a site is the output of a part of the module that a drift is in."""
    return site.phase == "fwd" and site.step == here.step and site.port == "out" and site.name.startswith(prefix)


def without(norms: Mapping[str, Norm], sides: str) -> dict[str, Norm]:
    """The norms of the other sides."""
    return {side: norm for side, norm in norms.items() if side not in sides}


def over_other_axes(norm: Norm) -> Norm:
    """The same norm over all heads at once instead of each, or the other way round."""
    return replace(norm, wide=not norm.wide)
