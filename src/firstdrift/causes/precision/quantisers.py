"""Floats made into small integers: round(x / scale) + zero point, within a range, and how else that is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...traces import Array
from ..agreement import Floats, floats, rounded
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from . import dequantised, zero_points

FEWEST = 32  # integers before a rule can be read off them
STEPS_OF_SUMS = 0.05  # of a step: how far sums of rounded products may lie beside whole steps
SHARE = 0.99  # of the elements, where noise moves some over a tie

Rounding = Callable[[Floats], Floats]

ROUNDINGS: dict[str, Rounding] = {
    "ties to even": lambda y: np.round(y),
    "ties away from zero": lambda y: np.sign(y) * np.floor(np.abs(y) + 0.5),
    "ties upwards": lambda y: np.floor(y + 0.5),
    "ties downwards": lambda y: np.ceil(y - 0.5),
    "towards zero": lambda y: np.trunc(y),
    "downwards": lambda y: np.floor(y),
    "upwards": lambda y: np.ceil(y),
    **{f"twice, first to 1/{2**k}": lambda y, k=k: np.round(np.round(y * 2**k) / 2**k) for k in range(1, 9)},  # type: ignore[misc]
}


@dataclass(frozen=True, slots=True)
class Quantiser:
    """The integers of floats."""

    steps: float  # per unit: one over the scale
    zero: int
    low: int
    high: int
    rounding: str = "ties to even"
    bits: int = 0  # of a dtype in which integers wrap round; 0 where they stay at the ends

    signed: bool = True

    def __call__(self, x: Floats) -> Floats:
        """The integers."""
        y = ROUNDINGS[self.rounding](x * self.steps) + self.zero
        if self.bits:
            below = 2 ** (self.bits - 1) if self.signed else 0
            return np.asarray(np.mod(y + below, 2**self.bits) - below)
        return np.clip(y, self.low, self.high)


def quantiser(evidence: Evidence) -> Iterator[Finding]:
    """Integers of floats that are rounded, scaled, or kept within a range otherwise."""
    x, y = evidence.inputs.get("in.0"), evidence.candidate_inputs.get("in.0")
    if (
        x is None or y is None or not x.shape == y.shape == evidence.expected.shape
        or evidence.expected.size < FEWEST or not (_whole(evidence.expected) and _whole(evidence.found))
    ):  # fmt: skip
        return
    ours = read(floats(x), floats(evidence.expected), evidence)
    if ours is None:
        return
    inputs, found = floats(y), floats(evidence.found)
    ours = replace(
        ours, signed=evidence.expected.dtype.kind != "u",
        low=min(ours.low, int(found.min())), high=max(ours.high, int(found.max())),
    )  # fmt: skip
    unexplained = int((ours(inputs) != found).sum())
    tried = [
        (int((one[2](inputs) != found).sum()), number, one) for number, one in enumerate(_others(ours, inputs, found))
    ]
    missed, _, (label, said, other, parameters) = min(tried, key=lambda one: one[:2])
    if missed <= (1 - SHARE) * found.size and missed < unexplained:
        yield Finding(label, said, other(inputs), 0, parameters)


def _whole(array: Array) -> bool:
    """Whether numbers are integers, of whatever dtype."""
    if array.dtype.kind != "f":
        return array.dtype.kind in "iu"
    return bool((array.reshape(-1)[:FEWEST] % 1 == 0).all() and (array % 1 == 0).all())


def read(x: Floats, integers: Floats, evidence: Evidence) -> Quantiser | None:
    """How integers were made of floats; None where no simple rule makes all of them."""
    low, high = int(integers.min()), int(integers.max())
    inside = (integers > low) & (integers < high)
    if inside.sum() < FEWEST // 2 or not np.isfinite(x).all():
        return None
    slope, base = np.polyfit(x[inside], integers[inside], 1)
    for zero in dict.fromkeys((round(base), round(base + 0.25), round(base - 0.25))):
        for steps in _steps(x[inside], integers[inside] - zero, slope, evidence):
            for name in ("ties to even", "ties away from zero", "ties upwards", "towards zero", "downwards"):
                one = Quantiser(steps, zero, low, high, name)
                if (one(x) == integers).mean() >= SHARE:
                    return one
    return None


def _range(x: Floats, counts: Floats) -> tuple[float, float] | None:
    """The least and the most steps per unit that round all numbers to these integers; None where none tells."""
    with np.errstate(all="ignore"):
        ends = np.stack(((counts - 0.5) / x, (counts + 0.5) / x))
    usable = np.isfinite(ends).all(0) & (np.abs(counts) > 2)
    return (float(ends.min(0)[usable].max()), float(ends.max(0)[usable].min())) if usable.any() else None


def _steps(x: Floats, counts: Floats, slope: float, evidence: Evidence) -> Iterator[float]:
    """Steps per unit that fit, first those that are known or have few digits."""
    ends = _range(x, counts)
    if ends is None:
        return
    lowest, highest = ends
    middle = (lowest + highest) / 2 if lowest <= highest else slope
    width = max(abs(highest - lowest) / 2 / abs(middle), 1e-9) if middle else 0.0
    told = [float(one) for one in evidence.attrs.values() if isinstance(one, (int, float)) and one and one is not True]
    told += [float(one.reshape(-1)[0]) for one in evidence.parameters.values() if one.size == 1 and one.reshape(-1)[0]]
    known = [value for one in told for value in (1 / one, one)]
    power = 2.0 ** round(np.log2(abs(middle))) if middle else 1.0
    for one in (*known, power, rounded(middle, width), 1 / rounded(1 / middle, width), middle):
        if abs(one / middle - 1) <= 2 * width:
            yield one


def _others(ours: Quantiser, x: Floats, found: Floats) -> Iterator[tuple[str, str, Quantiser, dict[str, object]]]:
    for name in ROUNDINGS:
        if name != ours.rounding:
            said = f"numbers are rounded {name} instead of {ours.rounding}"
            other = replace(ours, rounding=name)
            yield "rounding-mode", said, other, {"rounding": name, "reference_rounding": ours.rounding}
    for bits in (8, 16):
        said = f"integers beyond {bits} bits wrap round instead of staying at {ours.low} or {ours.high}"
        yield "overflow", said, replace(ours, bits=bits), {"bits": bits}
    low, high = int(found.min()), int(found.max())
    inside = (found > low) & (found < high)
    if inside.sum() >= FEWEST // 2 and np.ptp(x[inside]) > 0:
        for steps in _scales(x[inside], found[inside] - ours.zero):
            factor = ours.steps / steps
            said = f"the scale is {1 / steps:.6g} instead of {1 / ours.steps:.6g}"
            told: dict[str, object] = {"scale": 1 / steps, "reference_scale": 1 / ours.steps, "factor": 1 / factor}
            yield "scale", said, replace(ours, steps=steps), told


def _scales(x: Floats, counts: Floats) -> Iterator[float]:
    ends = _range(x, counts)
    if ends is None:
        return
    lowest, highest = ends
    if 0 < lowest <= highest:
        middle, width = (lowest + highest) / 2, (highest - lowest) / 2
        yield 1 / rounded(1 / middle, width / abs(middle))
        yield rounded(middle, width / abs(middle))
        yield middle


def product_zero_point(evidence: Evidence) -> Iterator[Finding]:
    """A product of integers whose zero point is taken out otherwise: (x - zero) @ weights, times scales."""
    x = evidence.candidate_inputs.get("in.0")
    shape = evidence.expected.shape
    if x is None or evidence.site.phase != "fwd" or x.dtype.kind not in "iu" or not 2 <= x.ndim == len(shape):
        return
    rows = floats(x).reshape(-1, x.shape[-1])
    expected, found = (floats(one).reshape(-1, shape[-1]) for one in (evidence.expected, evidence.found))
    if len(rows) != len(expected) or len(rows) < 4:
        return
    for weight in evidence.candidate_parameters.values():
        if weight.shape != (shape[-1], x.shape[-1]):
            continue
        sums, whole = rows @ floats(weight).T, floats(weight).sum(1)
        ours, theirs = _affine(sums, expected), _affine(sums, found)
        if ours is None or theirs is None or not np.allclose(ours[0], theirs[0], rtol=1e-3):
            continue
        usable = np.abs(ours[0] * whole) > 1e-3 * np.abs(ours[0] * whole).max()
        shift = -(theirs[1] - ours[1])[usable] / (ours[0] * whole)[usable]
        by = round(float(np.median(shift)))
        if by and (np.abs(shift - by) <= STEPS_OF_SUMS).all():
            predicted = (expected - by * ours[0] * whole).reshape(shape)
            said = f"the zero point of the input is {by:+d} off in the sums"
            yield Finding("zero-point", said, predicted, 0, {"steps": by})
            return


def _affine(sums: Floats, made: Floats) -> tuple[Floats, Floats] | None:
    """The factor and the offset of every channel; None where a channel is not its sum times a factor plus an offset."""
    centred, other = sums - sums.mean(0), made - made.mean(0)
    square = (centred * centred).sum(0)
    if not (square > 0).all():
        return None
    factors = (centred * other).sum(0) / square
    missed = float(np.linalg.norm(other - factors * centred))
    return (factors, made.mean(0) - factors * sums.mean(0)) if missed <= 1e-4 * np.linalg.norm(other) else None


HYPOTHESES: tuple[Hypothesis, ...] = (quantiser, product_zero_point, *dequantised.HYPOTHESES, *zero_points.HYPOTHESES)
