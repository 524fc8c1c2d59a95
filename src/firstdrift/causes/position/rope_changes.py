"""The single changes that turn one rotation into another: its pairs, positions, precision and frequencies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..attention.positions import BASES, FACTORS, LENGTHS
from ..attention.rotary import LOW, PAIRINGS, STAGES, Floats, Rotary, base_of, first_pairs, geometric, llama3, yarn

SHIFTS = tuple(sorted(range(-8, 9), key=abs))[1:]


@dataclass(frozen=True, eq=False, slots=True)
class Change:
    """One way in which a rotation differs from the reference's; None where nothing is rotated."""

    label: str
    sentence: str
    rotary: Rotary | None
    parameters: dict[str, Any] = field(default_factory=dict)
    free: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Retuned:
    """Other frequencies, and what they are."""

    label: str
    sentence: str
    frequencies: Floats
    parameters: dict[str, Any]
    free: int = 0


def changes(rotary: Rotary, width: int, measured: Floats | None = None) -> Iterator[Change]:
    """Every single change to a rotation of heads of a width; `measured` are the candidate's own frequencies."""
    other = PAIRINGS[1 - PAIRINGS.index(rotary.pairing)]
    pairs = {"pairing": other, "reference_pairing": rotary.pairing}
    yield Change(
        "rope-interleave", f"pairs are {other} instead of {rotary.pairing}", replace(rotary, pairing=other), pairs
    )
    yield Change("skipped-op", "the rotation is not applied", None)
    for step in SHIFTS:
        moved = replace(rotary, shift=rotary.shift + step)
        yield Change("position-shift", f"positions are off by {step:+d}", moved, {"shift": step})
    for dtype in LOW:
        for stage in STAGES:
            coarse = replace(rotary, rounding=(dtype, stage))
            facts = {"dtype": dtype, "stage": stage}
            yield Change("rope-precision", f"the {stage} of the rotation are held in {dtype}", coarse, facts)
    if rotary.factor != 1.0:
        amplitude: dict[str, Any] = {"factor": 1.0, "reference_factor": rotary.factor}
        said = f"the factor {rotary.factor:.6g} on rotated channels is missing"
        yield Change("scale", said, replace(rotary, factor=1.0), amplitude)
    pairs_turned = len(rotary.frequencies)
    for count in sorted({pairs_turned // 4, pairs_turned // 2, 3 * pairs_turned // 4} - {0, pairs_turned}):
        part: dict[str, Any] = {"rotary_dims": 2 * count, "reference_rotary_dims": rotary.channels}
        fewer = replace(rotary, frequencies=first_pairs(rotary.frequencies, count))
        yield Change("rope-partial", f"only the first {count} of {pairs_turned} pairs are rotated", fewer, part)
    for one in retuned(rotary.frequencies, width, measured):
        changed = replace(rotary, frequencies=one.frequencies)
        yield Change(one.label, one.sentence, changed, one.parameters, one.free)
        if one.label == "rope-scaling" and rotary.factor != 1.0:
            yield Change(one.label, one.sentence, replace(changed, factor=1.0), one.parameters, one.free)


def retuned(given: Floats, width: int, measured: Floats | None) -> Iterator[Retuned]:
    """Other frequencies: of another base, of another number of channels, scaled in another way, or as measured."""
    theta = base_of(given, 1e-3)
    if theta is not None:
        yield from _bases(given, theta)
        yield from _parts(given, theta, width)
        yield from _scalings(given, theta)
    elif len(given) > 1 and given[0] > given[1] > 0:
        plain = geometric(float((given[0] / given[1]) ** len(given)), 2 * len(given))
        yield Retuned("rope-scaling", "the scaling of the rotary frequencies is missing", plain, {"kind": "none"})
        if given[0] < 1:
            whole = {"factor": 1.0, "reference_factor": float(1 / given[0])}
            said = f"positions are not divided by {1 / given[0]:.6g}"
            yield Retuned("rope-scaling", said, given / given[0], whole)
    if measured is not None and measured.shape == given.shape:
        yield from _read(given, measured, theta)


def _bases(given: Floats, theta: float) -> Iterator[Retuned]:
    for base in BASES:
        if abs(base / theta - 1) > 1e-6:
            facts = {"theta": base, "reference_theta": float(f"{theta:.8g}")}
            yield Retuned(
                "rope-theta", f"theta is {base:g} instead of {theta:.6g}", geometric(base, 2 * len(given)), facts
            )


def _parts(given: Floats, theta: float, width: int) -> Iterator[Retuned]:
    channels = 2 * len(given)
    for part in sorted({width, width // 2, width // 4, 3 * width // 4, channels}):
        if part < 2 or part % 2:
            continue
        for over in sorted({part, width, channels}):
            if (part, over) != (channels, channels):
                facts = {"rotary_dims": part, "reference_rotary_dims": channels, "exponent_dims": over}
                said = f"the frequencies are those of {part} channels, of {over} in the exponent, not of {channels}"
                yield Retuned("rope-partial", said, geometric(theta, part, over), facts)


def _scalings(given: Floats, theta: float) -> Iterator[Retuned]:
    for factor in FACTORS:
        kinds = {"linear": given / factor, "llama3": llama3(given, factor)}
        kinds |= {f"yarn of {length:g}": yarn(given, factor, length, theta) for length in LENGTHS}
        for kind, made in kinds.items():
            facts = {"factor": factor, "kind": kind.split()[0]}
            yield Retuned("rope-scaling", f"the frequencies are scaled ({kind}, factor {factor:g})", made, facts)


def _read(given: Floats, measured: Floats, theta: float | None) -> Iterator[Retuned]:
    """What frequencies that were measured on the candidate are."""
    base, pairs = base_of(measured, 1e-3), len(given)
    if base is not None and theta is None:
        near = next((one for one in BASES if abs(one / base - 1) < 1e-2), None)
        said = "the scaling of the rotary frequencies is missing"
        plain = geometric(near or base, 2 * pairs)
        yield Retuned("rope-scaling", said, plain, {"kind": "none", "theta": near or base}, 0 if near else 1)
    if theta is not None:
        bases = [base] if base is not None else [measured[i] ** (-pairs / i) for i in (pairs // 4, pairs // 2) if i]
        for one in bases:
            if abs(one / theta - 1) > 1e-4:
                facts: dict[str, Any] = {"theta": float(one), "reference_theta": float(f"{theta:.8g}")}
                made = geometric(float(one), 2 * pairs)
                yield Retuned("rope-theta", f"theta is {one:.6g} instead of {theta:.6g}", made, facts, 1)
    ratio = measured / given
    if abs(ratio[0] - 1) > 1e-3:
        factor = float(1 / ratio[0])  # of the fastest pair, which is measured best
        facts = {"factor": factor, "kind": "linear"}
        yield Retuned("rope-scaling", f"positions are divided by {factor:.6g}", given / factor, facts, 1)
    if base is None or theta is None:
        yield from _banded(given, ratio)


def _banded(given: Floats, ratio: Floats) -> Iterator[Retuned]:
    """Short waves as they are, long ones slowed down by one factor, and perhaps some between."""
    kept, slowed = np.abs(ratio - 1) < 1e-3, np.abs(ratio / ratio[-1] - 1) < 1e-3
    between = ~kept & ~slowed
    if kept[-1] or not kept[0] or between.sum() > len(given) // 2:
        return
    if (np.diff(np.where(kept, 0, np.where(slowed, 2, 1))) < 0).any():
        return
    last = float(np.median(ratio[slowed]))
    made = given * np.where(kept, 1.0, np.where(slowed, last, ratio))
    said = f"the frequencies from number {int(np.argmin(kept))} on are slowed down, in the end by {1 / last:.4g} times"
    facts = {"factor": 1 / last, "ratios": [float(one) for one in ratio]}
    yield Retuned("rope-scaling", said, made, facts, 1 + int(between.sum()))
