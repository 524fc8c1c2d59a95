"""Settings whose numbers are no usual ones, and are fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from .formula import Settings, products
from .norming import plain_norms
from .problem import Problem, fitted
from .proposals import parts, slopes
from .rotary import PAIRINGS, Floats, Rotary, base_of, geometric

GRID = tuple(10.0 ** (power / 4) for power in range(4, 33))  # thetas from 10 to 1e8
CAPS = (50.0, 30.0, 20.0)
COARSE = tuple(10.0 ** (power / 2) for power in range(2, 17))  # thetas to begin a search with
FIRST_CAPS = (50.0, 15.0, 5.0, 1.5)
FIRST_SCALES = (1.0, 0.3, 3.0)  # times the usual one
KINDS = 3  # of rotations, the nearest of which are refined
STARTS = 2  # of each kind
CAPPED = 8  # kinds, the nearest of which are tried with a softcap


def searched(base: Settings, few: Problem, limit: float, over: Callable[[], bool]) -> Iterator[Settings]:
    """Settings whose numbers are fitted: the scale, and some of softcap, slopes, normalisation or frequencies.

    `over` says when to give up.
    """
    channels = int(few.operands.q.shape[-1]) // (1 if few.alone else base.heads)
    natural = replace(base, scale=channels**-0.5, biased=few.operands.bias is not None)
    close: list[Settings] = []
    for found in _refined(natural, channels, few, close, over):
        if few.error(found) <= limit:
            yield found
        if over():
            return
    for start in close:
        found = free_frequencies(start, few)
        if few.error(found) <= limit:
            yield found
        if over():
            return


def measured(kinds: Iterable[Settings], few: Problem, limit: float, over: Callable[[], bool]) -> Iterator[Settings]:
    """The kinds whose scores have no usual factor: with the factor fitted, then with a softcap too.

    A cap shows where the scores come near it, so the largest score is where its fit begins.
    """
    scaled = []
    for kind in kinds:
        if over():
            return
        found = refined(kind, few)
        error = few.error(found)
        if error <= limit:
            yield found
        scaled.append((error, found))
    scaled.sort(key=lambda one: one[0])
    for _, start in scaled[:CAPPED]:
        if over():
            return
        largest = start.scale * float(np.abs(products(few.operands, _alone(start, few), few.rows)).max(initial=0.0))
        for cap in (largest, largest / 3) if np.isfinite(largest) and largest > 0 else ():
            found = refined(replace(start, softcap=cap), few)
            if few.error(found) <= limit:
                yield found
                break


def _alone(settings: Settings, few: Problem) -> Settings:
    return replace(settings, heads=1, kv_heads=1) if few.alone else settings


def _refined(
    natural: Settings, channels: int, few: Problem, close: list[Settings], over: Callable[[], bool]
) -> Iterator[Settings]:
    """The best of every kind, the simple kinds first; of each kind with a rotation the nearest are put to `close`."""
    for kind in _unturned(natural):
        yield from (refined(start, few) for start in _nearest(_scaled(kind), few))
    for variants in _turned(natural, channels, few.operands.rotated):
        tried = [_nearest(_scaled(kind), few) for kind in variants if not over()]
        kinds = sorted(tried, key=lambda starts: few.error(starts[0]))
        turned = []
        for start in (start for starts in kinds[:KINDS] for start in starts):
            turned.append(refined(start, few))
            yield turned[-1]
        close += sorted(turned, key=few.error)[:STARTS]


def _unturned(base: Settings) -> Iterator[list[Settings]]:
    """Kinds of scores without a rotation, the simple ones first."""
    yield [base]
    yield [replace(base, slopes=slopes(base.heads))]
    yield [replace(base, norm=plain_norms("rms"))]
    yield [replace(base, norm=plain_norms("l2"), scale=scale) for scale in (1.0, 10.0)]
    yield [replace(base, softcap=cap) for cap in FIRST_CAPS]


def _turned(base: Settings, channels: int, told: int | None) -> Iterator[list[list[Settings]]]:
    """Kinds of scores with a rotation: plain ones, with normalised queries and keys, and with a softcap."""
    turns = [
        [Rotary(geometric(theta, part), pairing) for theta in COARSE]
        for pairing in PAIRINGS
        for part in parts(channels, told)
    ]
    yield [[replace(base, rotary=turn) for turn in kind] for kind in turns]
    yield [[replace(base, rotary=turn, norm=base.norm or plain_norms("rms")) for turn in kind] for kind in turns]
    yield [[replace(base, rotary=turn, softcap=cap) for turn in kind for cap in FIRST_CAPS] for kind in turns]


def _scaled(kind: Iterable[Settings]) -> Iterator[Settings]:
    return (replace(one, scale=one.scale * times) for one in kind for times in FIRST_SCALES)


def _nearest(starts: Iterable[Settings], few: Problem) -> list[Settings]:
    return sorted(starts, key=few.error)[:STARTS]


def refined(start: Settings, given: Problem) -> Settings:
    """Settings with the scale, the base of the rotation and the softcap fitted."""
    rotary = start.rotary
    theta = None if rotary is None else base_of(rotary.frequencies)

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
