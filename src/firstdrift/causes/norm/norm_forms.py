"""Norms in one form, (x - mean) / sqrt(variance + eps) * gain + bias, and which of them a tensor was made by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..variants import misfit

Floats = NDArray[np.float64]

GAINS = {"w": 0.0, "1+w": 1.0, "2+w": 2.0, "w-1": -1.0}  # what is added to the weight
NATURAL = (1.0, 2.0, 3.0, 5.0)  # digits of an eps that somebody chose
LARGEST_EPS = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """What a norm is computed from, and what came of it, on all of a tensor or a part of it.

    `weight`, `bias`, `mean` and `variance` are shaped to meet `x`; the last two are running statistics.
    """

    x: Floats
    candidate_x: Floats
    expected: Floats
    found: Floats
    weight: Floats | None = None
    bias: Floats | None = None
    mean: Floats | None = None
    variance: Floats | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """A norm: statistics over `axes` (negative), within groups of axis `split` where `groups` is more than one.

    `interleaved` groups take every n-th element. `centred` and `deviation` say whether the mean is taken from the
    numerator and within the variance; `running` takes the running statistics instead. Of a `length`, squares are
    summed and not averaged.
    """

    axes: tuple[int, ...] = (-1,)
    groups: int = 1
    split: int = -1
    interleaved: bool = False
    centred: bool = True
    deviation: bool = True
    running: bool = False
    length: bool = False
    gain: str = "w"
    bias: bool = True
    eps: float = 0.0
    outside: bool = False
    ddof: int = 0

    def __call__(self, x: Floats, case: Case) -> Floats:
        """The norm of `x`, with the parameters of a case."""
        numerator, variance = self.parts(x, case)
        root = np.sqrt(variance) + self.eps if self.outside else np.sqrt(variance + self.eps)
        with np.errstate(all="ignore"):
            y = self.joined(numerator / root, x)
        gain = self.scale(case)
        y = y if gain is None else y * gain
        return y + case.bias if self.bias and case.bias is not None else y

    def scale(self, case: Case) -> Floats | None:
        """What the normalised values are multiplied by."""
        return None if self.gain == "none" or case.weight is None else case.weight + GAINS[self.gain]

    def parts(self, x: Floats, case: Case) -> tuple[Floats, Floats]:
        """The numerator and the variance, split into groups where there are groups."""
        if self.running:
            assert case.mean is not None
            assert case.variance is not None
            return x - case.mean, case.variance
        values, axes = self.parted(x)
        shifted = values - values.mean(axes, keepdims=True) if self.centred or self.deviation else values
        spread = shifted if self.deviation else values
        count = 1 if self.length else np.prod([values.shape[axis] for axis in axes])
        variance = (spread**2).sum(axes, keepdims=True) / max(count - self.ddof, 1)
        return shifted if self.centred else values, variance

    def fit(self, x: Floats, y: Floats, case: Case, noise: float) -> tuple[float, float]:
        """The eps with which `x` becomes `y`, and how uncertain it is."""
        numerator, variance = self.parts(x, case)
        gain, target = self.scale(case), y if not self.bias or case.bias is None else y - case.bias
        if gain is not None:
            with np.errstate(all="ignore"):  # a gain near zero says little
                target, trust = np.where(gain == 0, 0.0, target * gain), np.broadcast_to(gain**2, x.shape)
        else:
            trust = np.ones_like(x)
        if self.running:
            axes: tuple[int, ...] = tuple(a for a in range(-x.ndim, 0) if variance.shape[a] == 1)
            values, trusted = target, trust
        else:
            (values, axes), (trusted, _) = self.parted(target), self.parted(trust)
        with np.errstate(all="ignore"):
            size = (numerator**2 * trusted).sum(axes, keepdims=True)
            scale = (numerator * values).sum(axes, keepdims=True) / size
            raw = 1 / scale - np.sqrt(variance) if self.outside else scale**-2.0 - variance
            weight = scale if self.outside else scale**2
        usable = np.isfinite(raw) & (scale > 0)
        if not usable.any():
            return 0.0, np.inf
        confidence = weight[usable] ** 2
        eps = float((raw[usable] * confidence).sum() / confidence.sum())
        return eps, float((1 if self.outside else 2) * noise / np.sqrt(confidence.sum()))

    def parted(self, x: Floats) -> tuple[Floats, tuple[int, ...]]:
        """A tensor with its groups on an axis of their own, and the axes that statistics go over."""
        if self.groups == 1:
            return x, self.axes
        at = x.ndim + self.split
        inner = x.shape[at] // self.groups
        parts = (inner, self.groups) if self.interleaved else (self.groups, inner)
        within = at if self.interleaved else at + 1
        axes = tuple(a if a > self.split else a - 1 for a in self.axes if a != self.split)
        return x.reshape(*x.shape[:at], *parts, *x.shape[at + 1 :]), (*axes, within - x.ndim - 1)

    def joined(self, y: Floats, x: Floats) -> Floats:
        """What was parted, in the shape of `x` again."""
        return y if self.groups == 1 else y.reshape(x.shape)


def snapped(eps: float, uncertainty: float) -> float:
    """The eps that somebody would have written, if the uncertainty allows one; else three digits of it."""
    if eps <= uncertainty * 3:
        return 0.0
    decade = 10.0 ** np.floor(np.log10(eps))
    near = min((digit * power for digit in NATURAL for power in (decade, 10 * decade)), key=lambda one: abs(one - eps))
    written = float(f"{near:.0e}")
    return written if abs(written - eps) <= max(3 * uncertainty, 1e-3 * eps) else float(f"{eps:.3g}")


def recognised(
    case: Case, forms: Iterable[Form], stated: Sequence[float], noise: float, limit: float, first: bool
) -> Form | None:
    """The form that turns the input into what was expected best, or first, with its eps: stated, else fitted."""
    found: list[tuple[float, Form]] = []
    for form in forms:
        for one in _with_eps(form, case, stated, noise):
            error = misfit(one(case.x, case), case.expected)
            if error <= limit:
                found.append((error, one))
                break
        if found and first:
            break
    return min(found, key=lambda one: one[0])[1] if found else None


def _with_eps(form: Form, case: Case, stated: Sequence[float], noise: float) -> Iterator[Form]:
    both = [replace(form, outside=outside) for outside in (False, True)]
    yield from (replace(one, eps=eps) for eps in stated for one in both)
    for one in both:
        eps, doubt = one.fit(case.x, case.expected, case, noise)
        if np.isfinite(doubt) and eps <= LARGEST_EPS:
            yield replace(one, eps=max(snapped(eps, doubt), 0.0))
