"""Pools and resizing computed otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import formulas
from ..evidence import Evidence
from ..formulas import Axis, pool_divisor
from ..hypotheses import Finding
from ..variants import Screen, Variant, findings, forward, reproduces, telling
from .points import Points, gathered, points_of
from .unpadded import unpadded

Floats = NDArray[np.float64]

KERNELS = (2, 3, 4, 5, 7)  # to be guessed
PLANES = 8  # images to try ways of resizing on


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool, at some points of the output or at all of them. Zeros in a maximum are padding that takes part."""

    x: Floats
    candidate_x: Floats
    axes: tuple[Axis, ...]
    out: tuple[int, ...]
    kind: str  # max, max with zeros, mean or sum
    count_pad: bool = True
    overhang: bool = False
    points: Points | None = None

    def __call__(self, x: Floats) -> Floats:
        """The output: (points, channels), or the whole tensor."""
        divisor = pool_divisor(x.shape[2:], self.axes, self.out, self.count_pad, self.overhang)
        if self.points is not None:
            seen = gathered(x, self.axes, self.points, -np.inf if self.kind == "max" else 0.0)
            space = tuple(range(2, seen.ndim))
            if self.kind.startswith("max"):
                return np.asarray(seen.max(space))
            at: Any = self.points.places
            return np.asarray(seen.sum(space) / divisor[at][:, None])
        kernel, stride, before = (
            [getattr(axis, name) for axis in self.axes] for name in ("kernel", "stride", "before")
        )
        if self.kind == "max":
            return formulas.max_pool(x, kernel, stride, before, [axis.dilation for axis in self.axes], self.out)
        if self.kind == "max with zeros":
            return self._max_with_zeros(x)
        return formulas.avg_pool(x, kernel, stride, before, self.count_pad, self.out, overhang=self.overhang)

    def _max_with_zeros(self, x: Floats) -> Floats:
        for number, (axis, count) in enumerate(zip(self.axes, self.out, strict=True)):
            sources = axis.sources(np.arange(count), x.shape[2 + number])
            taps = [formulas.pad(x, 2 + number, sources[:, tap]) for tap in range(axis.kernel)]
            x = np.maximum.reduce(taps)
        return x

    def changed(self, **changes: Any) -> Floats:
        """The candidate's output if these fields were others."""
        one = replace(self, **changes)
        return one(one.candidate_x)


def pool(evidence: Evidence) -> Iterable[Finding]:
    """A pool that divides, begins or chooses otherwise."""
    evidence = unpadded(evidence)
    images = _images(evidence)
    if images is None or evidence.parameters:
        return
    points = points_of(evidence)
    expected = points.cut(evidence.expected)
    for one in _pools(evidence, *images):
        part = replace(one, points=points)
        if reproduces(part(part.x), expected, evidence.noise):
            seen = replace(evidence, expected=expected, found=points.cut(evidence.found))
            yield from findings(evidence, Screen(part, seen, one), _variants(one))
            return


def _images(evidence: Evidence) -> tuple[Floats, Floats] | None:
    """The one input that has the output's samples and channels, and space of its own."""
    if not forward(evidence) or len(evidence.inputs) != 1:
        return None
    (key, x), shape = next(iter(evidence.inputs.items())), evidence.expected.shape
    seen = evidence.candidate_inputs.get(key, x)
    if x.ndim < 3 or x.ndim != len(shape) or x.shape[:2] != shape[:2] or x.dtype.kind != "f" or seen.shape != x.shape:
        return None
    return np.asarray(x, np.float64), np.asarray(seen, np.float64)


def _pools(evidence: Evidence, x: Floats, seen: Floats) -> Iterator[Pool]:
    """What is stated first; then what leads to the output's size."""
    out, sizes = evidence.expected.shape[2:], x.shape[2:]
    kinds = ("max", "mean") if "max" in evidence.op.lower() else ("mean", "max")
    for axes, kind in product(_windows(evidence, sizes, out), kinds):
        one = Pool(x, seen, axes, out, kind)
        counts = [evidence.attrs["count_include_pad"]] if "count_include_pad" in evidence.attrs else [True, False]
        for count_pad in counts if kind == "mean" else [True]:
            yield replace(one, count_pad=bool(count_pad))
        if kind == "mean":  # as where zeros were put behind the last element before
            yield replace(one, count_pad=True, overhang=True)


def _windows(evidence: Evidence, sizes: tuple[int, ...], out: tuple[int, ...]) -> Iterator[tuple[Axis, ...]]:
    names = ("kernel_size", "stride", "padding", "dilation")
    kernel, stride, before, dilation = (evidence.attrs.get(name) for name in names)
    if kernel is not None:
        yield tuple(
            Axis(k, s, b, d)
            for k, s, b, d in zip(
                *(_each(one, len(sizes)) for one in (kernel, stride or kernel, before or 0, dilation or 1)), strict=True
            )
        )
        return
    if all(size % count == 0 for size, count in zip(sizes, out, strict=True)):  # as adaptive pools divide it
        yield tuple(Axis(size // count, size // count) for size, count in zip(sizes, out, strict=True))
    for size, stride in product(KERNELS, range(1, 5)):
        for pad in range(size // 2 + 1):
            axis = Axis(size, stride, pad)
            if all(
                count in (formulas.output_size(n, axis, pad), formulas.output_size(n, axis, pad, ceil=True))
                for n, count in zip(sizes, out, strict=True)
            ):
                yield (axis,) * len(sizes)


def _each(said: Any, count: int) -> list[int]:
    return [int(one) for one in said] if isinstance(said, list | tuple) else [int(said)] * count


def _variants(one: Pool) -> Iterator[Variant[Pool]]:
    if one.kind == "mean":
        counted = "is not" if one.count_pad else "is"
        yield _with("pool-count-pad", f"padding {counted} counted in the divisor", count_pad=not one.count_pad)
        yield _with(
            "pool-count-pad", "what hangs over the border is counted in the divisor", count_pad=True, overhang=True
        )
        yield _with("pool-mode", "the maximum is taken instead of the mean", kind="max")
    else:
        for count_pad in (True, False):
            yield _with("pool-mode", "the mean is taken instead of the maximum", kind="mean", count_pad=count_pad)
        yield _with("padding", "the padding's zeros take part in the maximum", kind="max with zeros")
    reach = max(axis.kernel for axis in one.axes)
    for before in range(reach):
        axes = tuple(replace(axis, before=before) for axis in one.axes)
        if axes != one.axes:
            sentence = f"{before} elements of padding stand before the first instead of {one.axes[0].before}"
            for count_pad in (True, False) if one.kind == "mean" else (True,):
                yield _with("padding", sentence, axes=axes, count_pad=count_pad)


def _with(label: str, sentence: str, **changes: Any) -> Variant[Pool]:
    return Variant(label, sentence, methodcaller("changed", **changes))


@dataclass(frozen=True, slots=True)
class Way:
    """A way to resize; see `formulas.interpolate`."""

    mode: str
    align_corners: bool = False
    half_pixel: bool = True
    cubic: float = -0.75
    antialias: bool = False

    def __call__(self, x: Floats, out: tuple[int, ...]) -> Floats:
        """The last axes of a tensor resized in this way."""
        corners = (self.align_corners, None, self.half_pixel)
        return formulas.interpolate(x, out, self.mode, *corners, self.cubic, self.antialias)

    def __str__(self) -> str:
        more = "" if self.half_pixel else " from the left edges of pixels"
        more = " with corners aligned" if self.align_corners else more
        more += " and antialiasing" if more and self.antialias else " with antialiasing" * self.antialias
        return f"{self.mode} interpolation{more}" + (f" (a = {self.cubic})" if self.mode == "cubic" else "")


WAYS = (
    *(Way(mode) for mode in ("nearest", "nearest-exact", "linear", "cubic", "area")),
    Way("linear", align_corners=True), Way("linear", half_pixel=False), Way("cubic", align_corners=True),
    Way("cubic", half_pixel=False), Way("cubic", cubic=-0.5), Way("cubic", align_corners=True, cubic=-0.5),
    Way("linear", antialias=True), Way("cubic", cubic=-0.5, antialias=True), Way("cubic", antialias=True),
    Way("lanczos", antialias=True), Way("linear", align_corners=True, antialias=True),
    Way("cubic", align_corners=True, cubic=-0.5, antialias=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resize:
    """Planes to be resized: (planes, *space)."""

    x: Floats
    candidate_x: Floats
    out: tuple[int, ...]
    shape: tuple[int, ...]

    def by(self, x: Floats, way: Way) -> Floats:
        """The planes resized in one way."""
        return way(x, self.out).reshape(self.shape)

    def found_by(self, way: Way) -> Floats:
        """The candidate's planes resized in one way."""
        return self.by(self.candidate_x, way)


def resized(evidence: Evidence) -> Iterable[Finding]:
    """An image resized by another kind of interpolation, or with other corners."""
    images = _images(evidence)
    if images is None or evidence.parameters or images[0].shape == evidence.expected.shape:
        return
    out, space = evidence.expected.shape[2:], images[0].shape[2:]
    x, seen = (one.reshape(-1, *space) for one in images)
    whole = Resize(x, seen, out, evidence.expected.shape)
    expected, found = (np.asarray(one, np.float64).reshape(len(x), -1) for one in (evidence.expected, evidence.found))
    rows = telling(expected, found, PLANES)
    part = Resize(x[rows], seen[rows], out, (len(rows), expected.shape[1]))
    own = next((way for way in WAYS if reproduces(part.by(part.x, way), expected[rows], evidence.noise)), None)
    if own is None:
        return
    cut = replace(evidence, expected=expected[rows], found=found[rows])
    variants: list[Variant[Resize]] = [
        Variant(
            "interpolation", f"it is resized by {way} instead of {own}", methodcaller("found_by", way), 0, asdict(way)
        )
        for way in WAYS
        if way != own
    ]
    yield from findings(evidence, Screen(part, cut, whole), variants)
