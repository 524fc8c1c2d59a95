"""Settings whose numbers are no usual ones, and are fitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .formula import Settings
from .problem import Problem, fitted
from .proposals import parts, slopes
from .rotary import PAIRINGS, Floats, Rotary, geometric

GRID = tuple(10.0 ** (power / 4) for power in range(4, 33))  # thetas from 10 to 1e8
CAPS = (50.0, 30.0, 20.0)


def searched(base: Settings, few: Problem, limit: float) -> Iterator[Settings]:
    """Settings whose numbers are fitted: the scale, and one of softcap, slopes, normalisation or frequencies."""
    channels = int(few.operands.q.shape[-1]) // (1 if few.alone else base.heads)
    natural = channels**-0.5
    plain = [replace(base, scale=natural, biased=few.operands.bias is not None)]
    plain += [replace(plain[0], slopes=slopes(base.heads))]
    plain += [
        replace(plain[0], norm=kind, scale=scale) for kind, scale in (("rms", natural), ("l2", 1.0), ("l2", 10.0))
    ]
    plain += [replace(plain[0], softcap=cap) for cap in CAPS]
    turned = [_best_rotary(plain[0], few, pairing, part) for pairing in PAIRINGS for part in parts(channels)]
    turned.sort(key=few.error)
    close = turned[:2]
    starts = plain + close
    starts += [replace(one, norm=kind) for one in close for kind in ("rms",)]
    starts += [replace(one, softcap=cap) for one in close for cap in CAPS[:1]]
    for start in starts:
        found = refined(start, few)
        if few.error(found) <= limit:
            yield found
    for start in close:
        found = free_frequencies(refined(start, few), few)
        if few.error(found) <= limit:
            yield found


def _best_rotary(base: Settings, few: Problem, pairing: str, part: int) -> Settings:
    tried = [replace(base, rotary=Rotary(geometric(theta, part), pairing)) for theta in GRID]
    return min(tried, key=few.error)


def refined(start: Settings, given: Problem) -> Settings:
    """Settings with the scale, the base of the rotation and the softcap fitted."""
    rotary = start.rotary
    theta = None if rotary is None else _theta(rotary)

    def settings(x: Floats) -> Settings:
        found = replace(start, scale=start.scale * float(np.exp(x[0])))
        if start.softcap is not None:
            found = replace(found, softcap=start.softcap * float(np.exp(x[-1])))
        if rotary is not None and theta is not None:
            turn = replace(rotary, frequencies=geometric(theta * float(np.exp(x[1])), rotary.channels))
            found = replace(found, rotary=turn)
        return found

    count = 1 + (theta is not None) + (start.softcap is not None)
    with np.errstate(over="ignore"):
        x, _ = fitted(lambda x: given.difference(settings(np.clip(x, -20, 20))) / given.scale, np.zeros(count))
    return settings(np.clip(x, -20, 20))


def free_frequencies(start: Settings, given: Problem) -> Settings:
    """Settings with each frequency of the rotation fitted on its own, and the scale."""
    rotary = start.rotary
    assert rotary is not None

    def settings(x: Floats) -> Settings:
        turn = replace(rotary, frequencies=rotary.frequencies + x[1:])
        return replace(start, scale=start.scale * float(np.exp(np.clip(x[0], -5, 5))), rotary=turn)

    x, _ = fitted(
        lambda x: given.difference(settings(x)) / given.scale, np.zeros(1 + len(rotary.frequencies)), rounds=8
    )
    return settings(x)


def _theta(rotary: Rotary) -> float | None:
    steps = rotary.frequencies
    return float((steps[0] / steps[1]) ** (rotary.channels / 2)) if len(steps) > 1 and steps[1] > 0 else None
