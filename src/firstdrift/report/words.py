"""Words and numbers that fit: shortened names, wrapped sentences, numbers people can compare, places in a tensor."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from math import isfinite, isnan, prod
from unicodedata import combining, east_asian_width

from ..core.sites import Site
from ..kernels import Measurement, Region
from ..pair.pairs import Pair

Number = int | float
ELLIPSIS = "..."
HALF = 0.5  # share of the squared error from which on a region is worth naming
SMALL_REGION = 4  # such a region is at most one in so many elements of the tensor
_WIDE = frozenset("FW")


def number(value: Number | None) -> str:
    """A size at a glance: two digits and an exponent, so that columns compare by eye."""
    if value is None:
        return "-"
    if not value:
        return "0"
    if isinstance(value, int) and abs(value) < 10**7:
        return str(value)
    return f"{value:.1e}"


def exact(value: Number | None, dtypes: Iterable[str | None]) -> str:
    """A value with all the digits its dtype has, so that two different values never read alike."""
    if value is None:
        return "none"
    if isinstance(value, int):
        return str(value)
    return f"{value:.{17 if {'f64', 'c128'} & set(dtypes) else 9}g}"


def percent(share: float) -> str:
    """A share of a whole, never rounded up to all of it."""
    return "100%" if share >= 1 else f"{int(100 * share)}%"


def number_of(count: int, what: str) -> str:
    """`1 site`, `2,000 sites`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Names are data: what would move a terminal's cursor or colour it is spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in _WIDE else 1 for c in text)


def fit(text: str, width: int) -> str:
    """The text, with its middle left out where it is longer than `width`: names differ at their ends."""
    if columns(text) <= width:
        return text
    keep = max(0, width - len(ELLIPSIS))
    tail = (keep * 2 + 2) // 3  # the end of a name says which tensor it is
    left, right = text[: keep - tail], text[len(text) - tail :]
    while columns(left) + columns(right) > keep:  # of wide characters fewer fit
        left, right = (left[:-1], right) if columns(left) > keep - tail else (left, right[1:])
    return left + ELLIPSIS[:width] + right


def pad(text: str, width: int) -> str:
    """The text, fitted and filled to exactly `width` columns."""
    text = fit(text, width)
    return text + " " * (width - columns(text))


def wrap(text: str, width: int, first: str, indent: str) -> list[str]:
    """A sentence as lines of at most `width` columns; `first` begins the first of them, `indent` the others."""
    said = printable(" ".join(text.split()))
    return textwrap.wrap(
        said, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
    ) or [first.rstrip()]


def place(site: Site) -> str:
    """Where in the model: name, port, and call or sample where there are several."""
    _, _, name, port, call, sample = site
    text = f"{name or '(root)'}:{port}"
    if call:
        text += f" call {call}"
    if sample is not None:
        text += f" sample {sample}"
    return printable(text)


def position(index: int | None, shape: Sequence[int] | None) -> str:
    """A flat index as the index of each axis, where the shape is known."""
    if index is None:
        return ""
    if not shape:
        return f"[{index}]" if shape is None else "[]"
    return "[" + ", ".join(map(str, _unravel(index, shape))) + "]"


def _unravel(index: int, shape: Sequence[int]) -> list[int]:
    found = []
    for length in reversed(shape):
        index, along = divmod(index, length)
        found.append(along)
    return found[::-1]


def measured_shape(pair: Pair, measurement: Measurement) -> tuple[int, ...] | None:
    """The shape that flat indices of a measurement refer to; None where reconciling the two sides changed it."""
    shape = pair.reference.shape
    if shape is None or any(step.kind != "scale" for step in pair.reference_steps):
        return None
    if pair.reference.dtype in ("c64", "c128"):
        shape = (*shape, 2)  # real and imaginary parts are measured as numbers of their own
    return shape if prod(shape) == measurement.count else None


def concentration(pair: Pair, measurement: Measurement) -> str:
    """The smallest part of the tensor that holds most of the squared error, in words; empty when it is spread."""
    detail = measurement.detail
    if detail is None or not measurement.rel_l2 or not isfinite(measurement.rel_l2):
        return ""
    named = [("row", detail.worst_row), ("column", detail.worst_column), ("block", detail.worst_block)]
    found = []
    for kind, region in named:
        if region is None or not isfinite(region.error):
            continue
        area = prod(region.shape)
        share = round((region.error / measurement.rel_l2) ** 2 * area / measurement.compared, 9)  # sums are rounded
        if share >= HALF and area * SMALL_REGION <= measurement.count:
            found.append((area, kind, region, share))
    if not found:
        return ""
    _, kind, region, share = min(found, key=lambda item: item[0])
    where = _region(kind, region, detail.matrix, measured_shape(pair, measurement))
    return f"{percent(share)} of the squared error is in {where}"


def _region(kind: str, region: Region, matrix: tuple[int, int], shape: tuple[int, ...] | None) -> str:
    row, column = divmod(region.start, matrix[1])
    if kind == "block":
        return f"the {region.shape[0]}x{region.shape[1]} block at {position(region.start, shape or matrix)}"
    if shape is None:
        return f"row {row} of {matrix[0]}" if kind == "row" else f"column {column} of {matrix[1]}"
    leading = next(axes for axes in range(len(shape) + 1) if prod(shape[:axes]) == matrix[0])
    index = [str(along) for along in _unravel(region.start, shape)]
    axes = index[:leading] + [":"] * (len(shape) - leading) if kind == "row" else [":"] * leading + index[leading:]
    return f"{kind} [{', '.join(axes)}]"


def finiteness(measurement: Measurement) -> str:
    """NaNs and infinities of both sides, in words; empty when there are none."""
    m = measurement
    if not (m.nan_reference or m.nan_candidate or m.inf_reference or m.inf_candidate):
        return ""
    return (
        f"reference has {m.nan_reference:,} NaN and {m.inf_reference:,} Inf, "
        f"candidate {m.nan_candidate:,} and {m.inf_candidate:,}"
    )


def confidence(value: float) -> str:
    """How sure a cause is, or nothing where nobody said."""
    return "" if not value or isnan(value) else f" (confidence {value:.2f})"
