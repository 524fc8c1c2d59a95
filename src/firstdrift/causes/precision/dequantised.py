"""Products with weights that are held as integers: (integers - zero point) * scale, and how else that is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product

import numpy as np

from ...traces import Array
from ..agreement import Floats, agree, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis

FEWEST = 4  # rows
SOME = 128  # rows, of the input and of the weights, on which readings are tried
MOST_READINGS = 64


@dataclass(frozen=True, slots=True)
class Held:
    """Weights as integers (out, in), with scales and zero points (out, groups of a row), or one for all, and a bias."""

    integers: Floats
    scale: Floats
    zero: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    bias: Floats = field(default_factory=lambda: np.zeros(1))
    adds: bool = False  # scale * integers + zero: an offset in the units of the weights

    def __call__(self, x: Floats) -> Floats:
        """The product, as a layer with these weights makes it."""
        scale, zero = (self._wide(one) for one in (self.scale, self.zero))
        weights = self.integers * scale + zero if self.adds else (self.integers - zero) * scale
        return np.asarray(x @ weights.T + self.bias)

    def some(self) -> Held:
        """The same for the first rows of the weights."""
        numbers = {name: getattr(self, name) for name in ("integers", "scale", "zero", "bias")}
        return replace(self, **{name: one[:SOME] for name, one in numbers.items()})

    def _wide(self, numbers: Floats) -> Floats:
        """A number for each group, as it meets the integers."""
        return np.repeat(numbers, self.integers.shape[1] // numbers.shape[1], axis=1)


def held_weights(evidence: Evidence) -> Iterator[Finding]:
    """A layer whose integers are scaled, or moved by their zero points, otherwise."""
    x, own = evidence.inputs.get("in.0"), evidence.candidate_inputs.get("in.0")
    shape = evidence.expected.shape
    if (
        x is None or own is None or evidence.site.phase != "fwd" or len(shape) < 2 or x.dtype.kind != "f"
        or x.shape != own.shape or x.shape[:-1] != shape[:-1] or int(np.prod(shape[:-1])) < FEWEST
    ):  # fmt: skip
        return
    some, seen = (floats(one).reshape(-1, x.shape[-1])[:SOME] for one in (x, own))
    wanted, found = (floats(one).reshape(-1, shape[-1])[:SOME, :SOME] for one in (evidence.expected, evidence.found))
    for held in islice(_readings(evidence.parameters, shape[-1], x.shape[-1]), MOST_READINGS):
        if agree(evidence, held.some()(some), wanted):
            for label, said, other, facts in _others(held):
                if distance(other.some()(seen), found) <= max(limit(evidence), distance(wanted, found)):
                    yield Finding(label, said, other(floats(own)), 0, facts)
            return


def _readings(parameters: Mapping[str, Array], out: int, width: int) -> Iterator[Held]:
    """What the tensors of a module may be: integers, scales, zero points and a bias, by shape and kind."""
    for name, value in parameters.items():
        if value.dtype.kind not in "iu" or value.shape not in ((out, width), (width, out)):
            continue
        numbers = floats(value)
        rest = {key: one for key, value in parameters.items() if key != name for one in per_group(value, out, width)}
        scales = {key: one for key, one in rest.items() if np.all(one > 0)}
        biases = {key: one[:, 0] for key, one in rest.items() if one.shape[1] == 1}
        nothing: dict[str, Floats] = {"": np.zeros((1, 1))}
        for turned in (numbers, numbers.T):
            if turned.shape != (out, width):
                continue
            for (scaled, scale), (moved, zero), (added, bias) in product(
                scales.items(), (nothing | rest).items(), ({"": np.zeros(1)} | biases).items()
            ):
                if scaled in (moved, added) or (moved and moved == added):
                    continue
                yield Held(turned, scale, zero, bias)
                if moved:
                    yield Held(turned, scale, zero, bias, adds=True)


def per_group(value: Array, out: int, width: int) -> list[Floats]:
    """A tensor as one number for each group of each row, (out, groups), for each row, or for all."""
    if value.dtype.kind not in "fiu" or not value.size or not np.isfinite(floats(value)).all():
        return []
    numbers = floats(value)
    if sum(n > 1 for n in numbers.shape) <= 1:
        return [numbers.reshape(-1, 1)] if numbers.size in (1, out) else []
    if numbers.ndim == 3 and 1 in numbers.shape:
        numbers = numbers.squeeze()
    if numbers.ndim != 2:
        return []
    ways = (one for one in (numbers, numbers.T) if len(one) == out and one.shape[1] < width)
    return [one for one in ways if width % one.shape[1] == 0][:1]


def _others(held: Held) -> Iterator[tuple[str, str, Held, dict[str, object]]]:
    """Every single change to how integers become weights."""
    if not held.adds:
        for by in (1, -1):
            yield "zero-point", f"the zero points are {by:+d} off", replace(held, zero=held.zero + by), {"steps": by}
    if np.any(held.zero):
        yield "zero-point", "the zero points are left out", replace(held, zero=np.zeros((1, 1))), {"zero": None}
        yield "zero-point", "the zero points have the opposite sign", replace(held, zero=-held.zero), {"factor": -1}
        after = replace(held, zero=-held.zero, adds=True) if not held.adds else replace(held, adds=False)
        yield "zero-point", "the zero points are taken off after the scale instead of before", after, {}
        if held.zero.size > 1:
            for name, zero in _ones(held.zero).items():
                said = f"one zero point for all rows, {name}, is used instead of one for each"
                yield "zero-point", said, replace(held, zero=zero), {"zero": float(zero[0, 0])}
    if held.scale.size > 1:
        for name, scale in _ones(held.scale).items():
            said = f"one scale for all rows, {name}, is used instead of one for each"
            yield "channel-scale", said, replace(held, scale=scale), {"scale": float(scale[0, 0]), "per": "tensor"}
        for by in (1, -1):
            said = f"each row has the scale of the one {'before' if by > 0 else 'after'} it"
            yield "index-shift", said, replace(held, scale=np.roll(held.scale, by, axis=0)), {"shift": by}
    if np.any(held.scale != 1):
        yield "scale", "the integers are not scaled", replace(held, scale=np.ones((1, 1))), {"scale": None}


def _ones(numbers: Floats) -> dict[str, Floats]:
    """What may stand for all of some numbers."""
    found = {
        "their mean": numbers.mean(), "the largest": numbers.max(), "the smallest": numbers.min(),
        "the first": numbers[0, 0], "the last": numbers[-1, -1], "their median": np.median(numbers),
    }  # fmt: skip
    return {name: np.full((1, 1), one) for name, one in found.items()}


HYPOTHESES: tuple[Hypothesis, ...] = (held_weights,)
