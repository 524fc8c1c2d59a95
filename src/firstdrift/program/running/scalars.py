"""Numbers that an optimizer computes with, as correct code may have rounded them.

One library computes them in float64 before it calls anything, another in the precision of its weights: a rate over
1 - beta^t is off by as much as that difference cancels, which is far more than a rounding. How a number was derived is
found by its value: a product of an optimizer's settings, of 1 less these and of 1 less their powers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations, product
from math import inf, isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from ...core.strict_json import Json
from ...kernels.noises import key_of
from ..calls import Step

EXPONENTS = (1.0, -1.0, 0.5, -0.5)
MOST_FACTORS = 3
KEPT = 256  # constants whose factors are remembered
SAME = 2.0**-51  # relative: a few roundings of float64, in which the number was computed


class Factor(NamedTuple):
    """A number derived from a setting, and how many roundings of the setting, and of its power, it is off by."""

    value: float
    setting: float
    settings: float
    power: float = 0.0


class Scalars:
    """Constants of an optimizer's calls, each moved by what one seed draws: anew in every call, because code may derive
    one of them in float64 and the next in the precision of its weights."""

    def __init__(self, step: Step, seed: int) -> None:
        self._factors = tuple(dict.fromkeys(factor for said in step.optimizers for factor in _factors(said)))
        self._seed = seed

    def moved(self, item: Any, unit: float, call: int) -> Any:
        """Arguments of a call with every float in them moved; those that a format has as they are stay."""
        if isinstance(item, dict):
            return {key: self.moved(one, unit, call) for key, one in item.items()}
        if isinstance(item, list):
            return [self.moved(one, unit, call) for one in item]
        if type(item) is not float or not item or not isfinite(item):
            return item
        off = _rounds(item) * self._drawn(call, item)
        for one, times in _derived(abs(item), self._factors):
            off += times * one.settings * _rounds(one.setting) * self._drawn(call, one.setting)
            off += times * one.power * self._drawn(call, one.value)
        return item * (1 + unit * off)

    def _drawn(self, call: int, number: float) -> float:
        """What is drawn for a number in a call."""
        key = key_of(self._seed, call, int(np.float64(number).view(np.uint64)))
        return 2 * float(np.random.Generator(np.random.Philox(key=key)).random()) - 1


def _rounds(number: float) -> bool:
    """Whether float32 has a number otherwise."""
    return float(np.float32(number)) != number


def _factors(said: Mapping[str, Json]) -> Iterator[Factor]:
    """What may be derived from the settings of an optimizer's groups."""
    groups = said.get("groups")
    for group in groups if isinstance(groups, list | tuple) else ():
        if isinstance(group, Mapping):
            count = group.get("step")
            steps = count + 1.0 if isinstance(count, int | float) else 1.0
            for setting in _floats(list(group.values())):
                yield from _factors_of(setting, steps)


def _factors_of(setting: float, steps: float) -> Iterator[Factor]:
    yield Factor(setting, setting, 1.0)
    if setting < 1:
        yield Factor(1 - setting, setting, -setting / (1 - setting))
        power = setting**steps
        if steps > 1 and 0 < power < 1:
            yield Factor(1 - power, setting, -steps * power / (1 - power), steps**0.5 * power / (1 - power))


def _floats(item: Json) -> Iterator[float]:
    if isinstance(item, tuple | list):
        for one in item:
            yield from _floats(one)
    elif type(item) is float and 0 < item < inf:
        yield item


@lru_cache(maxsize=KEPT)
def _derived(number: float, factors: tuple[Factor, ...]) -> tuple[tuple[Factor, float], ...]:
    """The factors whose product a number is, as few as will do, with their exponents; none where no product is it."""
    for count in range(1, MOST_FACTORS + 1):
        found = min(_products(factors, count), key=lambda one: abs(one[0] - number), default=(inf, ()))
        if abs(found[0] - number) <= SAME * number:
            return found[1]
    return ()


def _products(factors: tuple[Factor, ...], count: int) -> Iterator[tuple[float, tuple[tuple[Factor, float], ...]]]:
    for some in combinations(factors, count):
        for exponents in product(EXPONENTS, repeat=count):
            pairs = tuple(zip(some, exponents, strict=True))
            yield prod(one.value**times for one, times in pairs), pairs
