"""Numbers read out of tensors: whether two are the same as far as a program can tell.

Whole numbers and booleans must be equal. A float may differ by noise, because it is data then: by ROUNDINGS times the
unit roundoff of the tensor it was read from, or as many times as far as shaken runs of that tensor spread.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch

from ...core.dtypes import UNIT_ROUNDOFF
from ...core.strict_json import NON_FINITE, Json
from ..calls import Place
from ..control import NumberRead

ROUNDINGS = 8
SEEDS = (1, 2, 3, 4)
MOST_SAID = 80  # characters of a number in a sentence


def is_whole(number: Json) -> bool:
    """Whether a program holds the numbers themselves, not only how many or as what they were read."""
    return not isinstance(number, dict)


def listed(tensor: torch.Tensor) -> Any:
    """A tensor as the numbers in it."""
    if tensor.ndim == 0:
        return plain_number(tensor.item())
    return [listed(one) for one in tensor.resolve_conj().resolve_neg().detach()]


def plain_number(number: Any) -> Any:
    """A number as a program writes it."""
    return [number.real, number.imag] if isinstance(number, complex) else number


def are_same(recorded: Any, found: Any, slack: Callable[[], float], unit: float) -> bool:
    """Whether numbers that were read would be read again."""
    if isinstance(recorded, list | tuple):
        same_length = isinstance(found, list) and len(found) == len(recorded)
        return same_length and all(are_same(*pair, slack, unit) for pair in zip(recorded, found, strict=True))
    if isinstance(recorded, str):
        recorded = NON_FINITE.get(recorded, recorded)
    if type(recorded) is not float or type(found) is not float:
        return type(recorded) is type(found) and bool(recorded == found)
    if recorded == found or (recorded != recorded and found != found):
        return True
    if not (isfinite(recorded) and isfinite(found)):
        return False
    return abs(recorded - found) <= ROUNDINGS * unit * abs(recorded) or abs(recorded - found) <= ROUNDINGS * slack()


def unit_of(dtype: str) -> float:
    """The unit roundoff of a dtype, 0 where it rounds nothing."""
    return UNIT_ROUNDOFF.get(dtype, 0.0)


def sentence(read: NumberRead, recorded: Any, found: Any) -> str:
    """Where control differs, and by what: of many numbers, by the first that is another."""
    while isinstance(recorded, list | tuple) and len(str(recorded)) > MOST_SAID and len(recorded) == len(found):
        at = next((at for at, pair in enumerate(zip(recorded, found, strict=True)) if pair[0] != pair[1]), 0)
        recorded, found = recorded[at], found[at]
    return (
        f"control differs at {where(read.place)}: the run read {str(recorded)[:MOST_SAID]} there, and from these "
        f"tensors it is {str(found)[:MOST_SAID]}; other calls may follow"
    )


def where(place: Place | None) -> str:
    """A line of code."""
    return "a line that is not known" if place is None else f"{place.file}, line {place.line}"
