"""Causes that change every element alike: a factor and what it stands for, an offset, a clamp, a factor per channel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import Floats, distance, factor, floats, limit
from .hypotheses import DOMINANT, FEW, Finding, Hypothesis
from .regions import heads_of
from .screening import positions, sampled

FACTORS_NAMED_ELSEWHERE = frozenset({"loss", "lossgrad", "agrad", "grad", "grad_scaled"})
TELLING = 4  # elements that must weigh in before a number fitted to them means anything
ROWS = 8  # per fitted number of a channel
STOPPED = 4  # elements at a bound that make it a clamp
PART = 1 << 16  # elements by which factors of channels are tried


def scale(evidence: Evidence) -> Iterator[Finding]:
    """found = a * expected."""
    if evidence.site.phase in FACTORS_NAMED_ELSEWHERE:
        return
    e, f = _sample(evidence)
    if not _varied(e) or not promising(evidence, e, f, factor(e, f) * e):
        return
    expected, found = _finite(evidence)
    a = factor(expected, found)
    if a == 0.0 or not math.isfinite(a):
        return
    names = names_of(a, evidence)
    label = "attention-scale" if _is_read_by_softmax(evidence) else "scale"
    yield Finding(
        label, _said(evidence, a, names), a * floats(evidence.expected), 1,
        {"factor": a, "equals": list(names)},
    )  # fmt: skip


def _said(evidence: Evidence, a: float, names: tuple[str, ...]) -> str:
    if evidence.site.phase == "weight":
        return f"the weights are {a:.6g} times what they should be"
    return f"found is {told(a, names)} times expected"


def _is_read_by_softmax(evidence: Evidence) -> bool:
    """Whether a tensor is the scores of a softmax, whose factor is its temperature."""
    site = evidence.site
    fed = site.phase == "fwd" and site.port.startswith("in.")
    return fed and "softmax" in evidence.around.op(site._replace(port="out")).lower()


def offset(evidence: Evidence) -> Iterator[Finding]:
    """found = expected + b, or found = a * expected + b where neither alone is enough."""
    e, f = _sample(evidence)
    if not _varied(e) or e.size < 2 * TELLING:
        return
    if promising(evidence, e, f, e + (f - e).mean()):
        expected, found = _finite(evidence)
        b = float((found - expected).mean())
        if abs(b) > 8 * evidence.noise * _rms(e):
            sentence = f"{b:.6g} is added to every element"
            yield Finding("offset", sentence, floats(evidence.expected) + b, 1, {"offset": b})
    if evidence.site.phase in FACTORS_NAMED_ELSEWHERE:
        return
    a, b = _line(e, f)
    alone = float(np.linalg.norm(f - factor(e, f) * e))
    if promising(evidence, e, f, a * e + b) and float(np.linalg.norm(f - a * e - b)) < 0.25 * alone:
        a, b = _line(*_finite(evidence))
        sentence = f"found is {a:.6g} times expected plus {b:.6g}"
        yield Finding("offset", sentence, a * floats(evidence.expected) + b, 2, {"factor": a, "offset": b})


def channel_scale(evidence: Evidence) -> Iterator[Finding]:
    """One or more channels of found are those of expected times a factor each."""
    shape = evidence.expected.shape
    for axis in _channel_axes(shape, evidence.site.phase == "weight"):
        channels = shape[axis]
        rows = evidence.expected.size // channels
        if channels < 2 or rows < ROWS or (axis and not _scales(evidence, axis)):
            continue
        others = tuple(number for number in range(len(shape)) if number != axis)
        expected, found = floats(evidence.expected), floats(evidence.found)
        square = (expected * expected).sum(axis=others)
        factors = np.divide((expected * found).sum(axis=others), square, np.ones(channels), where=square > 0)
        scaled = np.flatnonzero(np.abs(factors - 1) > 2 * limit(evidence))
        if not np.isfinite(factors).all() or not len(scaled):
            continue
        spread = np.where(np.isin(np.arange(channels), scaled), factors, 1.0)
        predicted = expected * spread.reshape([channels if number == axis else 1 for number in range(len(shape))])
        yield Finding(
            "channel-scale", _scaled_sentence(scaled, factors, channels, axis), predicted, len(scaled),
            {"axis": axis, "channels": scaled[:16].tolist(), "factors": factors[scaled[:16]].tolist()},
        )  # fmt: skip


def few_channels(evidence: Evidence) -> Iterator[Finding]:
    """Few channels of many are scaled, which says more than that something is."""
    for finding in channel_scale(evidence):
        if finding.free <= FEW and 4 * finding.free <= evidence.expected.shape[finding.parameters["axis"]]:
            yield finding


def clamp(evidence: Evidence) -> Iterator[Finding]:
    """Found stops at a bound that expected exceeds, or the other way round; elsewhere they agree."""
    expected, found = evidence.expected, evidence.found
    low, high = _bounds(evidence, found, expected)
    if (low, high) != (0.0, None) and (low is not None or high is not None):  # zero is a ReLU's, which says no more
        predicted = np.clip(floats(expected), low, high)
        yield Finding(
            "clamp", f"found is clamped {_between(low, high)}, expected is not", predicted, _count(low, high),
            {"low": low, "high": high},
        )  # fmt: skip
    low, high = _bounds(evidence, expected, found)
    if (low, high) != (0.0, None) and (low is not None or high is not None):
        left = distance(np.clip(floats(found), low, high), expected)
        sentence = f"expected is clamped {_between(low, high)}, found is not"
        yield Finding("clamp", sentence, None, _count(low, high), {"reference_low": low, "reference_high": high}, left)


def promising(evidence: Evidence, expected: Floats, found: Floats, predicted: Floats) -> bool:
    """Whether a prediction for some elements explains them well enough to be made for all."""
    usable = np.isfinite(expected) & np.isfinite(found)
    error = float(np.linalg.norm((found - predicted)[usable]))
    difference = float(np.linalg.norm((found - expected)[usable]))
    size = max(float(np.linalg.norm(expected[usable])), float(np.linalg.norm(found[usable])))
    return error <= 2 * max(limit(evidence) * size, DOMINANT * difference)


def _sample(evidence: Evidence) -> tuple[Floats, Floats]:
    at = positions(evidence.expected.size)
    return _both_finite(sampled(evidence.expected, at), sampled(evidence.found, at))


def _finite(evidence: Evidence) -> tuple[Floats, Floats]:
    return _both_finite(floats(evidence.expected).reshape(-1), floats(evidence.found).reshape(-1))


def _both_finite(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    if math.isfinite(float(a.sum() + b.sum())):
        return a, b
    usable = np.isfinite(a) & np.isfinite(b)
    return a[usable], b[usable]


def _varied(values: Floats) -> bool:
    """Whether several elements weigh in, with different values: else a factor and an offset look the same."""
    square = values * values
    total = float(square.sum())
    if values.size < TELLING or total == 0.0:
        return False
    return total * total / float(square @ square) >= TELLING and float(values.std()) > 1e-3 * _rms(values)


def _rms(values: Floats) -> float:
    return math.sqrt(float(values @ values) / max(values.size, 1))


def _line(a: Floats, b: Floats) -> tuple[float, float]:
    """The slope and intercept that bring `a` closest to `b`."""
    x, y = a - a.mean(), b - b.mean()
    slope = factor(x, y)
    return slope, float(b.mean() - slope * a.mean())


def _channel_axes(shape: tuple[int, ...], weights: bool = False) -> tuple[int, ...]:
    """The axes that may hold channels: the last and, where samples come first, the second; both of a matrix.

    Weights begin with the channels that they make, then those that they read.
    """
    if len(shape) < 2:
        return ()
    if weights:
        return (0, 1)
    if len(shape) == 2:
        return (1, 0)
    return (len(shape) - 1,) if len(shape) == 3 else (1, len(shape) - 1)


def _scales(evidence: Evidence, axis: int) -> bool:
    """Whether some leading slices look like it."""
    shape = evidence.expected.shape
    kept = max(1, min(shape[0], PART // max(evidence.expected.size // shape[0], 1)))
    expected, found = floats(evidence.expected[:kept]), floats(evidence.found[:kept])
    others = tuple(number for number in range(len(shape)) if number != axis)
    square = (expected * expected).sum(axis=others, keepdims=True)
    factors = (expected * found).sum(axis=others, keepdims=True) / np.where(square > 0, square, 1.0)
    return promising(evidence, expected, found, factors * expected)


def _scaled_sentence(scaled: Array, factors: Floats, channels: int, axis: int) -> str:
    if len(scaled) == 1:
        return f"channel {scaled[0]} of {channels} (axis {axis}) is multiplied by {factors[scaled[0]]:.6g}"
    low, high = factors[scaled].min(), factors[scaled].max()
    return f"{len(scaled)} of {channels} channels (axis {axis}) are multiplied by {low:.6g} to {high:.6g}"


def _bounds(evidence: Evidence, stopped: Array, free: Array) -> tuple[float | None, float | None]:
    """Where one side stops and the other goes on: a lower and an upper bound."""
    return _bound(evidence, stopped, free, -1), _bound(evidence, stopped, free, 1)


def _bound(evidence: Evidence, stopped: Array, free: Array, sign: int) -> float | None:
    top = float(stopped.max() if sign > 0 else stopped.min()) if stopped.size else math.nan
    if not math.isfinite(top):
        return None
    beyond = sign * (floats(free[stopped == top]) - top)
    slack = 2 * limit(evidence) * abs(top)
    if beyond.size < STOPPED or not (beyond >= -slack).all() or float(beyond.max()) <= slack:
        return None
    return top


def _between(low: float | None, high: float | None) -> str:
    if low is None:
        return f"to at most {high:.6g}"
    return f"to at least {low:.6g}" if high is None else f"to {low:.6g} .. {high:.6g}"


def _count(low: float | None, high: float | None) -> int:
    return (low is not None) + (high is not None)


IN_PART: tuple[Hypothesis, ...] = (few_channels,)
HYPOTHESES: tuple[Hypothesis, ...] = (scale, offset, channel_scale, clamp)


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
