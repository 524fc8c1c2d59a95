"""Causes that change every element alike: a factor, an offset, a clamp, a soft cap, a factor per channel."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import Floats, distance, floats, limit, rounded
from .factors import names_of, told
from .hypotheses import DOMINANT, FEW, Finding, Hypothesis
from .screening import positions, sampled

FACTORS_NAMED_ELSEWHERE = frozenset({"loss", "lossgrad", "agrad", "grad", "grad_scaled"})
TELLING = 4  # elements that must weigh in before a number fitted to them means anything
FEWEST = 3  # different numbers with one difference, which is no accident
PLAIN = 25.0  # times the slack of noise: what stands out so far is plain to see
ROWS = 8  # per fitted number of a channel
STOPPED = 4  # elements at a bound that make it a clamp
CAPS = 96  # caps tried before the best is refined
PART = 1 << 16  # elements by which factors of channels are tried
GOLDEN, GOLDEN_STEPS = (math.sqrt(5) - 1) / 2, 40


def scale(evidence: Evidence) -> Iterator[Finding]:
    """found = a * expected."""
    if evidence.site.phase in FACTORS_NAMED_ELSEWHERE:
        return
    e, f = _sample(evidence)
    if not _varied(e) or not promising(evidence, e, f, _factor(e, f) * e):
        return
    expected, found = _finite(evidence)
    a = _factor(expected, found)
    if a == 0.0 or not math.isfinite(a):
        return
    names = names_of(a, evidence)
    label = "attention-scale" if _is_read_by_softmax(evidence) else "scale"
    yield Finding(
        label, f"found is {told(a, names)} times expected", a * floats(evidence.expected), 1,
        {"factor": a, "equals": list(names)},
    )  # fmt: skip


def _is_read_by_softmax(evidence: Evidence) -> bool:
    """Whether a tensor is the scores of a softmax, whose factor is its temperature."""
    site = evidence.site
    fed = site.phase == "fwd" and site.port.startswith("in.")
    return fed and "softmax" in evidence.around.op(site._replace(port="out")).lower()


def offset(evidence: Evidence) -> Iterator[Finding]:
    """found = expected + b, or found = a * expected + b where neither alone is enough."""
    e, f = _sample(evidence)
    yield from _whole_offset(evidence, e, f)
    if not _varied(e) or e.size < 2 * TELLING:
        yield from _constant_offset(evidence)
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
    alone = float(np.linalg.norm(f - _factor(e, f) * e))
    if promising(evidence, e, f, a * e + b) and float(np.linalg.norm(f - a * e - b)) < 0.25 * alone:
        a, b = _line(*_finite(evidence))
        sentence = f"found is {a:.6g} times expected plus {b:.6g}"
        yield Finding("offset", sentence, a * floats(evidence.expected) + b, 2, {"factor": a, "offset": b})


def _whole_offset(evidence: Evidence, e: Floats, f: Floats) -> Iterator[Finding]:
    """Few whole numbers, as positions and times are, that are all off by the same whole number."""
    if not 2 <= e.size < 2 * TELLING or len(np.unique(e)) < 2 or e.size != evidence.expected.size:
        return
    by = np.unique(f - e)
    if len(by) == 1 and by[0] and (e == np.round(e)).all() and by[0] == round(by[0]):
        said = f"{by[0]:+.0f} is added to every element"
        yield Finding("offset", said, floats(evidence.expected) + by[0], 0, {"offset": float(by[0])})


def _constant_offset(evidence: Evidence) -> Iterator[Finding]:
    """Few numbers, or some that one outweighs, as one per sample: all are off by the same, far above the noise."""
    e, f = _finite(evidence)
    if not FEWEST <= e.size <= PART or e.size != evidence.expected.size:
        return
    by = f - e
    b = float(by.mean())
    slack = 2 * limit(evidence) * float(max(np.abs(e).max(), np.abs(f).max()))
    if abs(b) < PLAIN * slack or float(np.abs(by - b).max()) > slack or _apart(e, PLAIN * slack) < FEWEST:
        return
    yield Finding("offset", f"{b:.6g} is added to every element", floats(evidence.expected) + b, 1, {"offset": b})


def _apart(values: Floats, least: float) -> int:
    """How many of some numbers lie further from the one below than that, with the lowest."""
    return 1 + int((np.diff(np.sort(values)) > least).sum())


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


def softcap(evidence: Evidence) -> Iterator[Finding]:
    """One side is cap * tanh(x / cap) of the other."""
    e, f = _sample(evidence)
    if not _varied(e):
        return
    cap = _cap(evidence, e, f)
    if cap is not None and promising(evidence, e, f, cap * np.tanh(e / cap)):
        predicted = cap * np.tanh(floats(evidence.expected) / cap)
        yield Finding("softcap", f"found is capped by {cap:.6g} * tanh(x / {cap:.6g})", predicted, 1, {"cap": cap})
    cap = _cap(evidence, f, e)
    if cap is not None and promising(evidence, f, e, cap * np.tanh(f / cap)):
        left = distance(cap * np.tanh(floats(evidence.found) / cap), evidence.expected)
        sentence = f"the soft cap {cap:.6g} * tanh(x / {cap:.6g}) is missing"
        yield Finding("softcap", sentence, None, 1, {"reference_cap": cap}, left)


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


def _factor(a: Floats, b: Floats) -> float:
    square = float(a @ a)
    return float(a @ b) / square if square > 0 else math.nan


def _line(a: Floats, b: Floats) -> tuple[float, float]:
    """The slope and intercept that bring `a` closest to `b`."""
    x, y = a - a.mean(), b - b.mean()
    slope = _factor(x, y)
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


def _cap(evidence: Evidence, x: Floats, capped: Floats) -> float | None:
    """The cap that makes one from the other, if there is one: a soft cap makes nothing larger."""
    top = float(np.abs(capped).max())
    slack = limit(evidence) * _rms(x)
    if top == 0.0 or not (np.abs(capped) <= np.abs(x) + slack).mean() > 0.9:
        return None

    def error(cap: float) -> float:
        return float(np.linalg.norm(cap * np.tanh(x / cap) - capped))

    tried = top * np.geomspace(1 + 1e-9, 1e3, CAPS)
    errors = [error(cap) for cap in tried]
    best = int(np.argmin(errors))
    if best == CAPS - 1 or errors[best] > 0.5 * float(np.linalg.norm(x - capped)):  # no cap at all fits as well
        return None
    low, high = float(tried[max(best - 1, 0)]), float(tried[best + 1])
    for _ in range(GOLDEN_STEPS):
        a, b = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, b) if error(a) < error(b) else (a, high)
    cap = (low + high) / 2
    short = rounded(cap, 1e-3)  # people choose 30 or 50; believed where it fits as well
    enough = max(1.5 * error(cap), limit(evidence) * float(np.linalg.norm(capped)) / 2)
    return short if error(short) <= enough else cap


IN_PART: tuple[Hypothesis, ...] = (few_channels,)
HYPOTHESES: tuple[Hypothesis, ...] = (scale, offset, channel_scale, clamp, softcap)
