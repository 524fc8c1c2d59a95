"""Tables of JSON that a run has written, checked key by key when they are read again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..errors import FormatError
from ..strict_json import Json

# What may stand under a key, in the words of an error.
KINDS: Mapping[str, Callable[[Json], bool]] = {
    "a text": lambda value: type(value) is str,
    "a count": lambda value: type(value) is int and value >= 0,
    "a number": lambda value: type(value) in (int, float),
    "a finite number": lambda value: type(value) in (int, float) and math.isfinite(value),
    "a finite number or null": lambda value: value is None or (type(value) in (int, float) and math.isfinite(value)),
    "true or false": lambda value: type(value) is bool,
    "a table": lambda value: type(value) is dict,
    "a text or null": lambda value: value is None or type(value) is str,
    "a table or null": lambda value: value is None or type(value) is dict,
}


def check_fields(said: Json, kinds: Mapping[str, str], place: object) -> dict[str, Json]:
    """The table, whose keys are of the kinds they should be; raises FormatError with the first that is not."""
    if type(said) is not dict:
        raise FormatError(f"{place}: is no table; it was changed")
    for key, kind in kinds.items():
        if key not in said or not KINDS[kind](said[key]):
            found = f"is {said[key]!r}"[:60] if key in said else "is missing"
            raise FormatError(f"{place}: {key} {found}, and has to be {kind}; it was changed")
    return said
