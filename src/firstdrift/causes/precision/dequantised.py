"""Products with weights that are held as integers: (integers - zero point) * scale, and how else that is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from ...traces import Array
from ..agreement import Floats, agree, floats
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis

FEWEST = 4  # rows


@dataclass(frozen=True, slots=True)
class Held:
    """Weights as integers (out, in), with a scale and a zero point of each row or of all, and a bias."""

    integers: Floats
    scale: Floats
    zero: Floats = field(default_factory=lambda: np.zeros(1))
    bias: Floats = field(default_factory=lambda: np.zeros(1))
    adds: bool = False  # scale * integers + zero: an offset in the units of the weights

    def __call__(self, x: Floats) -> Floats:
        """The product, as a layer with these weights makes it."""
        scale, zero = self.scale[:, None], self.zero[:, None]
        weights = self.integers * scale + zero if self.adds else (self.integers - zero) * scale
        return np.asarray(x @ weights.T + self.bias)


def held_weights(evidence: Evidence) -> Iterator[Finding]:
    """A layer whose integers are scaled, or moved by their zero points, otherwise."""
    x, own = evidence.inputs.get("in.0"), evidence.candidate_inputs.get("in.0")
    shape = evidence.expected.shape
    if (
        x is None or own is None or evidence.site.phase != "fwd" or len(shape) < 2 or x.dtype.kind != "f"
        or x.shape != own.shape or x.shape[:-1] != shape[:-1] or int(np.prod(shape[:-1])) < FEWEST
    ):  # fmt: skip
        return
    rows = floats(x)
    for held in _readings(evidence.parameters, shape[-1], x.shape[-1]):
        if agree(evidence, held(rows), evidence.expected):
            for label, said, other, facts in _others(held):
                yield Finding(label, said, other(floats(own)), 0, facts)
            return


def _readings(parameters: Mapping[str, Array], out: int, width: int) -> Iterator[Held]:
    """What the tensors of a module may be: integers, scales, zero points and a bias, by shape and kind."""
    for name, value in parameters.items():
        if value.dtype.kind not in "iu" or value.shape not in ((out, width), (width, out)):
            continue
        numbers = floats(value)
        rest = {key: row for key, other in parameters.items() if key != name and (row := _row(other, out)) is not None}
        scales = {key: row for key, row in rest.items() if np.all(row > 0)}
        nothing: dict[str, Floats] = {"": np.zeros(1)}
        for turned in (numbers, numbers.T):
            if turned.shape != (out, width):
                continue
            for (scaled, scale), (moved, zero), (added, bias) in product(
                scales.items(), (nothing | rest).items(), (nothing | rest).items()
            ):
                if scaled in (moved, added) or (moved and moved == added):
                    continue
                yield Held(turned, scale, zero, bias)
                if moved:
                    yield Held(turned, scale, zero, bias, adds=True)


def _row(value: Array, out: int) -> Floats | None:
    """One number for each row, or for all: (out,) or (1,)."""
    if value.dtype.kind not in "fiu" or value.size not in (1, out) or not np.isfinite(floats(value)).all():
        return None
    return floats(value).reshape(-1) if sum(n > 1 for n in value.shape) <= 1 else None


def _others(held: Held) -> Iterator[tuple[str, str, Held, dict[str, object]]]:
    """Every single change to how integers become weights."""
    if not held.adds:
        for by in (1, -1):
            yield "zero-point", f"the zero points are {by:+d} off", replace(held, zero=held.zero + by), {"steps": by}
    if np.any(held.zero):
        yield "zero-point", "the zero points are left out", replace(held, zero=np.zeros(1)), {"zero": None}
        yield "zero-point", "the zero points have the opposite sign", replace(held, zero=-held.zero), {"factor": -1}
        after = replace(held, zero=-held.zero, adds=True) if not held.adds else replace(held, adds=False)
        yield "zero-point", "the zero points are taken off after the scale instead of before", after, {}
        if held.zero.size > 1:
            for name, zero in _ones(held.zero).items():
                said = f"one zero point for all rows, {name}, is used instead of one for each"
                yield "zero-point", said, replace(held, zero=zero), {"zero": float(zero[0])}
    if held.scale.size > 1:
        for name, scale in _ones(held.scale).items():
            said = f"one scale for all rows, {name}, is used instead of one for each"
            yield "channel-scale", said, replace(held, scale=scale), {"scale": float(scale[0]), "per": "tensor"}
        for by in (1, -1):
            said = f"each row has the scale of the one {'before' if by > 0 else 'after'} it"
            yield "index-shift", said, replace(held, scale=np.roll(held.scale, by)), {"shift": by}
    if np.any(held.scale != 1):
        yield "scale", "the integers are not scaled", replace(held, scale=np.ones(1)), {"scale": None}


def _ones(numbers: Floats) -> dict[str, Floats]:
    """What may stand for all of some numbers."""
    found = {
        "their mean": numbers.mean(), "the largest": numbers.max(), "the smallest": numbers.min(),
        "the first": numbers[0], "the last": numbers[-1], "their median": np.median(numbers),
    }  # fmt: skip
    return {name: np.array([one]) for name, one in found.items()}


HYPOTHESES: tuple[Hypothesis, ...] = (held_weights,)
