"""Settings that an attention may have: those that are stated first, then those that are usual."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from ...strict_json import Json
from .formula import Settings
from .problem import Problem
from .rotary import PAIRINGS, Floats, Rotary, geometric, llama3
from .sources import Sources
from .structure import number

THETAS = (10000.0, 500000.0, 1000000.0, 100000.0)
FARTHEST = 64  # keys that a network may look to each side
STATED = {
    "theta": ("theta", "rope_theta", "base", "rope_base", "rotary_base"),
    "scale": ("scale", "scaling", "softmax_scale", "attention_scale", "sm_scale", "attention_multiplier"),
    "pre": ("query_pre_attn_scalar",),
    "cap": ("softcap", "attn_logit_softcapping", "logit_cap", "attn_softcap", "softcapping"),
    "window": ("window", "sliding_window", "window_size"),
}


def scales(heads: int, channels: int) -> dict[str, float]:
    """Factors on the scores that an implementation may have, by what they are."""
    return {
        "1/sqrt(head_dim)": channels**-0.5, "1": 1.0, "1/head_dim": 1.0 / channels,
        "1/sqrt(width)": (heads * channels) ** -0.5, "sqrt(head_dim)": channels**0.5,
    }  # fmt: skip


def channels_of(settings: Settings, whole: Problem) -> int:
    """The width of one head of the queries."""
    return int(whole.operands.q.shape[-1]) // settings.heads


def slopes(heads: int) -> Floats:
    """ALiBi's slopes, also for a number of heads that is no power of two."""
    power = 2 ** int(np.floor(np.log2(heads)))
    first = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    more = 2.0 ** (-4.0 * np.arange(1, 2 * (heads - power), 2) / power)
    return np.concatenate([first, more])[:heads]


def even_slopes(heads: int) -> Floats:
    """Slopes that fall by one factor from head to head, as if the number of heads were a power of two."""
    return np.asarray(2.0 ** (-8.0 * np.arange(1, heads + 1) / heads))


def plain(base: Settings, whole: Problem, given: Sources, attrs: Mapping[str, Json]) -> Iterator[Settings]:
    """Settings without a rotation, with the numbers that are stated or usual."""
    for extra, scale in product(_extras(base, whole, attrs), _usual(base, whole, attrs)):
        yield replace(extra, scale=scale)
    for falling, scale in product((slopes(base.heads), even_slopes(base.heads)), _usual(base, whole, attrs)[:2]):
        yield replace(base, slopes=falling, scale=scale)


def turned(base: Settings, whole: Problem, given: Sources, attrs: Mapping[str, Json]) -> Iterator[Settings]:
    """Settings with a rotation, with the numbers that are stated or usual, the likely ones first."""
    theta = number(attrs, STATED["theta"])
    channels = channels_of(base, whole)
    rotated = parts(channels, whole.operands.rotated)
    turns = list(_rotaries(channels, rotated, given, [theta] if theta else THETAS))
    for extra, rotary, scale in product(_extras(base, whole, attrs), turns, _usual(base, whole, attrs)[:2]):
        yield replace(extra, rotary=rotary, scale=scale)


def kinds(base: Settings, whole: Problem, given: Sources, attrs: Mapping[str, Json]) -> Iterator[Settings]:
    """The likely kinds of scores, as starts for fitting their numbers."""
    theta, channels = number(attrs, STATED["theta"]), channels_of(base, whole)
    rotated = parts(channels, whole.operands.rotated)
    turns = [] if given.rotary is not None else [Rotary(geometric(theta or THETAS[0], n)) for n in rotated]
    pairs = [replace(turn, pairing=pairing) for pairing in PAIRINGS for turn in turns]
    turned = list(_rotaries(channels, rotated, given, ())) if given.rotary is not None else pairs
    for extra, rotary in product(_extras(base, whole, attrs), (None, *turned)):
        yield replace(extra, rotary=rotary, scale=_usual(base, whole, attrs)[0])


def local(base: Settings, whole: Problem, given: Sources, attrs: Mapping[str, Json]) -> Iterator[Settings]:
    """Settings of a network that looks both ways, but not far."""
    if base.diagonal is None:
        for extra in _extras(base, whole, attrs):
            for reach in range(1, min(whole.keys, FARTHEST)):
                yield replace(extra, scale=_usual(base, whole, attrs)[0], reach=reach)


def _usual(base: Settings, whole: Problem, attrs: Mapping[str, Json]) -> list[float]:
    stated, pre = number(attrs, STATED["scale"]), number(attrs, STATED["pre"])
    usual = list(scales(base.heads, channels_of(base, whole)).values())[:4]
    return [value for value in (stated, pre and pre**-0.5) if value] + usual


def _extras(base: Settings, whole: Problem, attrs: Mapping[str, Json]) -> list[Settings]:
    cap = number(attrs, STATED["cap"])
    extras = [replace(base, softcap=cap), base] if cap else [base]
    return extras if whole.operands.bias is None else [replace(base, biased=True), *extras]


def _rotaries(channels: int, rotated: list[int], given: Sources, thetas: Iterable[float]) -> Iterator[Rotary]:
    if given.rotary is not None:
        frequencies, factor = given.rotary
        for pairing in PAIRINGS if 2 * len(frequencies) <= channels else ():
            yield Rotary(frequencies, pairing, factor=factor)
        return
    for theta, pairing, part in product(thetas, PAIRINGS, rotated):
        yield Rotary(geometric(theta, part), pairing)
    if not rotated:
        return
    for theta, factor in product(thetas, (8.0, 32.0, 16.0, 4.0)):
        yield Rotary(llama3(geometric(theta, rotated[0]), factor))
    for theta, pairing, factor in product(thetas, PAIRINGS, (2.0, 4.0, 8.0)):
        yield Rotary(geometric(theta, rotated[0]) / factor, pairing)


def parts(channels: int, told: int | None = None) -> list[int]:
    """How many channels of a head may be rotated, where the structure does not tell."""
    if told is not None:
        return [told]
    return [part for part in (channels, channels // 2, channels // 4, 3 * channels // 4) if part >= 2 and part % 2 == 0]
