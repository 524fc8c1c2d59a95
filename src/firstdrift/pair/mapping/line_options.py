"""The options of a line, each from what stands in the file to what it means."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from ...core.records import MAX_DIMS
from ...core.sites import MAX_INDEX, PHASES, check_name
from ...errors import FormatError, SiteError
from ..pairs import Transform
from .lines import PortRule
from .patterns import Pattern, parse_pattern

_FRACTION = re.compile(r"([^/]+)/([^/]+)")


def name_pattern(value: Any, what: str, place: str) -> Pattern:
    """A name with placeholders."""
    if not isinstance(value, str):
        raise FormatError(f"{place}: {what} {value!r} is a {type(value).__name__}, not text; put it in quotes")
    pattern = parse_pattern(value, place)
    try:
        check_name("x".join(pattern.literals), what)  # of the names it can mean, as no escape is part of a name
    except SiteError as error:
        raise FormatError(f"{place}: {error}") from None
    return pattern


def check_placeholders(left: Pattern, right: Pattern, place: str) -> None:
    """Every placeholder on the right takes what one of its kind on the left stood for."""
    for kind in dict.fromkeys(right.placeholders):
        reference, candidate = left.placeholders.count(kind), right.placeholders.count(kind)
        if candidate > reference:
            raise FormatError(
                f"{place}: {right.text!r} has {candidate} {kind} but {left.text!r} has {reference}; "
                "give each on the right one on the left"
            )


def ports(value: Any, place: str) -> tuple[PortRule, ...]:
    """`NAME`, `REFERENCE -> CANDIDATE`, a list of these, or a table of reference ports to candidate ports."""
    if isinstance(value, dict):
        sides = list(value.items())
    else:
        sides = [_port_sides(item, place) for item in _listed(value, "port", place)]
    rules = []
    for left, right in sides:
        rule = PortRule(name_pattern(left, "port", place), name_pattern(right, "port", place))
        check_placeholders(*rule, place)
        rules.append(rule)
    return tuple(rules)


def _port_sides(item: Any, place: str) -> tuple[Any, Any]:
    if not isinstance(item, str) or "->" not in item:
        return item, item
    left, _, right = (part.strip() for part in item.partition("->"))
    if not left or not right or "->" in right:
        raise FormatError(f"{place}: port {item!r} is not 'REFERENCE -> CANDIDATE'; write one name on each side")
    return left, right


def phases(value: Any, place: str) -> tuple[str, ...]:
    """One or several globs, each of which has to fit a phase."""
    globs = _listed(value, "phase", place)
    for glob in globs:
        if not isinstance(glob, str) or not any(fnmatchcase(phase, glob) for phase in PHASES):
            raise FormatError(f"{place}: phase {glob!r} fits none of {', '.join(PHASES)}; use one of these")
    return tuple(globs)


def _listed(value: Any, what: str, place: str) -> list[Any]:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise FormatError(f"{place}: {what} is an empty list; leave it out, or name one")
    return items


def reason(value: Any, place: str, what: str = "ignore") -> str:
    """Why something is ignored, or meant."""
    if not isinstance(value, str) or not value.strip():
        raise FormatError(f"{place}: {what} is {value!r}, which is no reason; say why in a few words")
    return value.strip()


def flag(value: Any, what: str, place: str) -> bool:
    """An option that is either given as true or not at all."""
    if value is not True:
        raise FormatError(f"{place}: {what} is {value!r}; write true, or leave it out")
    return True


def number(value: Any, what: str, place: str) -> float:
    """A finite number; text such as `1/32` and `1e-3` too, which YAML does not read as numbers."""
    parts = _FRACTION.fullmatch(value) if isinstance(value, str) else None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError
        found = float(parts[1]) / float(parts[2]) if parts else float(value)
    except (ValueError, TypeError, ArithmeticError):
        found = math.nan
    if not math.isfinite(found):
        raise FormatError(f"{place}: {what} {value!r} is not a finite number; write one, or a fraction such as 1/32")
    return found


def tolerance(value: Any, place: str) -> float:
    """A limit on the relative L2 error."""
    limit = number(value, "tolerance", place)
    if limit < 0:
        raise FormatError(f"{place}: tolerance {value!r} is below 0, so nothing could pass; write a limit from 0")
    return limit


def axis(value: Any, what: str, place: str) -> int:
    """An axis, counted from the front or, below 0, from the back."""
    if type(value) is not int or not -MAX_DIMS <= value < MAX_DIMS:
        raise FormatError(f"{place}: {what} {value!r} is not an axis; write a whole number such as 0 or -1")
    return value


def _transpose(value: Any, place: str) -> Transform:
    flag(value, "transpose", place)
    return Transform("transpose")


def _permute(value: Any, place: str) -> Transform:
    axes = value if isinstance(value, list) and len(value) <= MAX_DIMS else []
    if not axes or any(type(item) is not int for item in axes) or sorted(axes) != list(range(len(axes))):
        raise FormatError(f"{place}: permute {value!r} does not list every axis from 0 once; write, say, [0, 2, 1]")
    return Transform("permute", axes=tuple(axes))


def _reshape(value: Any, place: str) -> Transform:
    shape: list[Any] = value if isinstance(value, list) and len(value) <= MAX_DIMS else [None]
    if any(type(item) is not int or not -1 <= item <= MAX_INDEX for item in shape) or shape.count(-1) > 1:
        raise FormatError(
            f"{place}: reshape {value!r} is not a list of dimensions with at most one -1; write, say, [-1, 64]"
        )
    return Transform("reshape", shape=tuple(shape))


def _slice(value: Any, place: str) -> Transform:
    known = {"axis": None, "start": 0, "stop": None}
    if not isinstance(value, dict) or "axis" not in value or value.keys() - known.keys():
        raise FormatError(f"{place}: slice {value!r} is not {{axis: A, start: I, stop: J}}; write it so")
    along, start, stop = (known | value).values()
    if type(start) is not int or not 0 <= start < MAX_INDEX:
        raise FormatError(f"{place}: slice starts at {start!r}; write a whole number from 0")
    if stop is not None and (type(stop) is not int or not start < stop <= MAX_INDEX):
        raise FormatError(
            f"{place}: slice goes from {start} to {stop!r} and takes nothing; let it stop after its start"
        )
    return Transform("slice", axes=(axis(along, "slice axis", place),), start=start, stop=stop)


def _scale(value: Any, place: str) -> Transform:
    factor = number(value, "scale", place)
    if factor == 0:
        raise FormatError(f"{place}: scale {value!r} would make every tensor zero; write the factor that is missing")
    return Transform("scale", factor=factor)


TRANSFORMS: dict[str, Callable[[Any, str], Transform]] = {
    "transpose": _transpose, "permute": _permute, "reshape": _reshape, "slice": _slice, "scale": _scale,
}  # fmt: skip
