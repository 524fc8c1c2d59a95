"""What a fitted factor stands for: powers of two, sizes of the tensors at hand and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from ..evidence import Evidence
from .regions import heads_of

SINGLE = 2.0**-23  # a factor of two float32 numbers is known no better than this
SHOWN = 3  # names given to one number

CONSTANTS = {
    "log2(e)": math.log2(math.e), "ln(2)": math.log(2), "sqrt(2)": math.sqrt(2), "1/sqrt(2)": math.sqrt(0.5),
    "255": 255.0, "1/255": 1 / 255, "127": 127.0, "1/127": 1 / 127,
}  # fmt: skip


def names_of(value: float, evidence: Evidence) -> tuple[str, ...]:
    """What a factor equals up to noise, simplest first; empty where it equals nothing that is at hand."""
    tolerance = max(0.5 * evidence.noise, SINGLE)
    sign = "-" if value < 0 else ""
    names: list[str] = []
    for name, one in _menu(evidence, abs(value)):
        if one > 0 and abs(abs(value) / one - 1) <= tolerance and sign + name not in names:
            names.append(sign + name)
    return tuple(names[:SHOWN])


def told(value: float, names: tuple[str, ...]) -> str:
    """A number with what it equals."""
    plain = f"{value:.6g}" if abs(value - 1) > 1e-4 else f"1 {'+' if value > 1 else '-'} {abs(value - 1):.3g}"
    others = [name for name in names if name != plain]
    return f"{plain} ({' = '.join(others)})" if others else plain


def _menu(evidence: Evidence, value: float) -> Iterator[tuple[str, float]]:
    for key, number in evidence.attrs.items():
        if isinstance(number, (int, float)) and not isinstance(number, bool) and number > 0 and number != 1:
            yield key, float(number)
            yield f"1/{key}", 1 / float(number)
    power = round(math.log2(value)) if 0 < value < math.inf else 0
    if power:
        yield f"2^{power}", 2.0**power
    sizes = _sizes(evidence)
    for size in sizes:
        yield str(size), float(size)
        yield f"1/{size}", 1 / size
        yield f"sqrt({size})", math.sqrt(size)
        yield f"1/sqrt({size})", 1 / math.sqrt(size)
    yield from CONSTANTS.items()
    near = Fraction(value).limit_denominator(16) if 1 / 16 <= value <= 16 else Fraction(0)
    if near.denominator > 1:
        yield str(near), float(near)
    for size in sizes:
        yield f"{size - 1}/{size}", (size - 1) / size
        yield f"{size}/{size - 1}", size / (size - 1)
    for one in sizes:
        for other in sizes:
            if one != other:
                yield f"{one}/{other}", one / other
                yield f"sqrt({one}/{other})", math.sqrt(one / other)


def _sizes(evidence: Evidence) -> list[int]:
    """The sizes of the axes at hand, of one head, and of all rows together."""
    shapes = [evidence.expected.shape, *(array.shape for array in evidence.inputs.values())]
    sizes = {size for shape in shapes for size in shape}
    heads = heads_of(evidence)
    if heads is not None:
        sizes |= {heads, *(size // heads for size in sizes if size % heads == 0)}
    batch = evidence.around.facts.get("batch")
    if isinstance(batch, int):
        sizes.add(batch)
    return sorted(size for size in sizes if size > 1)
