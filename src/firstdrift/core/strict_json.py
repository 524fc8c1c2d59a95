"""Strict JSON: non-finite numbers are the strings `nan`, `inf` and `-inf`, and a key stands once in an object."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import FormatError
from .sites import first_repeated, shown

Json = Any  # what json.loads returns

NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _refuse_constant(text: str) -> Json:
    raise ValueError(f"{text} is not JSON; write the string {text.lower().replace('infinity', 'inf')!r}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        word = "'inf'" if number > 0 else "'-inf'"
        raise ValueError(f"{text[:40]} is beyond the largest float64; if it is meant, write the string {word}")
    return number


def without_repetition(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """An object of JSON; a key that is there twice is refused, because a reader would lose one of them."""
    said = dict(pairs)
    if len(said) == len(pairs):
        return said
    _, again = first_repeated(key for key, _ in pairs) or (0, 0)
    raise ValueError(f"the key {shown(pairs[again][0])!r} is there twice")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=without_repetition)
# The decoder's own entry, (text, start) -> (value, end): json.loads spends as long around it as in it.
scan: Callable[[str, int], tuple[Json, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


def decode_object(text: str) -> dict[str, Json]:
    """Parse a text that is exactly one JSON object, faster than json.loads; raises FormatError."""
    text = text.strip(" \t\r\n")
    try:
        value, end = scan(text, 0)
        if end != len(text):
            raise ValueError(f"text follows the object: {text[end : end + 20]!r}")
    except StopIteration:
        raise FormatError("it is not a JSON object") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is not JSON ({error})") from None
    if type(value) is not dict:
        raise FormatError(f"it is JSON but a {type(value).__name__}, not an object")
    return value


def encode(value: Json) -> str:
    """One line of strict JSON, ASCII only."""
    _check_keys(value)
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        pass
    try:
        return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it cannot be written as JSON ({error})") from None


def _check_keys(value: Json) -> None:
    """Refuse keys that are two in Python and one in JSON, such as 1 and '1': nobody could read the text."""
    if isinstance(value, Mapping):
        texts = {key if isinstance(key, str) else str(plain(key)) for key in value}
        if len(texts) < len(value):
            raise FormatError(f"two of its keys {', '.join(map(repr, value))[:80]} are one as text; rename one")
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for item in value:
        if isinstance(item, Mapping | list | tuple):
            _check_keys(item)


def plain(value: Json) -> Json:
    """The value in JSON's own types: non-finite floats as strings, numpy scalars and tuples unwrapped."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "tolist"):  # numpy scalars and small arrays
        return plain(value.tolist())
    raise FormatError(f"{value!r} is a {type(value).__name__}, which JSON cannot hold; give numbers, text or lists")


def with_floats(value: Json) -> Json:
    """The inverse of `plain` for non-finite numbers."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: with_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_floats(item) for item in value]
    return value
