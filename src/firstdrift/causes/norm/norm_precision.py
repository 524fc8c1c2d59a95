"""Norms that round on the way: what is centred, squared, summed or normalised is held in a shorter float for a while,
though what comes in and goes out is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...dtypes import UNIT_ROUNDOFF, numpy_dtype
from ..agreement import limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..variants import ROUNDED, distance, forward, misfit
from .norm_forms import LARGEST_EPS, Case, Form, recognised
from .norm_readings import PART, Reading, readings, thinned

Floats = NDArray[np.float64]

DTYPES = ("bf16", "f16")
LARGEST = 16.0  # roundings of a dtype, which a norm makes no more of
TRIED = 1 << 14  # elements on which the stages are tried
MOST = 0.9  # of the elements, where noise decides some ties otherwise
LONGEST = 1 << 12  # terms of a sum that is followed term by term
SUMS = ("", "result", "running")  # not rounded, rounded in the end, or after every term
ROOTS = ("rsqrt", "sqrt", "1/sqrt")


@dataclass(frozen=True, slots=True)
class Stages:
    """What a norm rounds to `dtype`: its input, what is centred, the squares, their sum, the variance, and what is
    normalised, before its gain. One that is `throughout` in it rounds the mean and the root, too: "sqrt", "rsqrt", or
    "1/sqrt", which rounds twice. With `statistics` only mean and root are computed so, and applied to the input."""

    dtype: str
    input: bool = False
    centred: bool = False
    squares: bool = False
    sum: str = ""
    variance: bool = False
    normalised: bool = False
    throughout: str = ""
    statistics: bool = False

    def __str__(self) -> str:
        if self.throughout:
            return "the statistics" if self.statistics else "all steps"
        names = {"input": "the input", "centred": "the centred values", "squares": "the squares"}
        said = [text for name, text in names.items() if getattr(self, name)]
        if self.sum:
            said.append("the sum of squares" if self.sum == "result" else "the running sum of squares")
        said += ["the variance"] * self.variance + ["the normalised values"] * self.normalised
        return " and ".join(said)

    @property
    def count(self) -> int:
        """How many roundings there are: fewer are likelier."""
        one_by_one = (self.input, self.centred, self.squares, bool(self.sum), self.variance, self.normalised)
        return 1 if self.throughout else sum(one_by_one)

    def rounded(self, values: Floats, really: bool | str = True) -> Floats:
        """Values after one stage."""
        return np.asarray(values.astype(numpy_dtype(self.dtype)), np.float64) if really else values


def rounds_inside(evidence: Evidence) -> Iterator[Finding]:
    """A norm that gives the candidate's numbers where some of its steps are rounded."""
    if not forward(evidence) or not _slight(evidence):
        return
    for reading in readings(evidence):
        form = recognised(
            reading.part, reading.forms, _stated(evidence), evidence.noise,
            max(limit(evidence), ROUNDED), reading.part.x.size > PART,
        )  # fmt: skip
        if form is None:
            continue
        case, few = _tried(reading, form)
        found = _best(case, few, limit(evidence))
        if found is not None:
            whole = _or_tied(_norm(form, reading.whole, found), reading.whole.found, found)
            sums_only = found.sum == "running" and found.count == 1
            label = "accumulator-precision" if sums_only else "dtype-rounding"
            said = f"{found} of the norm {'is' if found.count == 1 and not _plural(found) else 'are'} in {found.dtype}"
            yield Finding(label, said, whole.reshape(evidence.found.shape), 0, {"dtype": found.dtype})
        return


def _plural(stages: Stages) -> bool:
    return stages.centred or stages.squares or stages.normalised or bool(stages.throughout)


def _slight(evidence: Evidence) -> bool:
    """Whether the difference is as large as rounding to a short float may make it, and larger than noise."""
    error = misfit(np.asarray(evidence.found, np.float64), np.asarray(evidence.expected, np.float64))
    return limit(evidence) < error <= LARGEST * UNIT_ROUNDOFF["bf16"]


def _stated(evidence: Evidence) -> list[float]:
    said = [value for name, value in evidence.attrs.items() if "eps" in name.lower()]
    return [float(one) for one in said if isinstance(one, int | float) and 0 <= one <= LARGEST_EPS]


def _tried(reading: Reading, form: Form) -> tuple[Case, Form]:
    """A few norms of the part that was recognised, each of them whole: rows, or the groups of a sample, or channels."""
    part = reading.part
    if part.x.size <= TRIED:
        return part, form
    if reading.along == "rows" and part.weight is not None:
        tail = part.weight.shape
        rows = max(TRIED // max(part.weight.size, 1), 4)
        return _cut(part, lambda one: one.reshape(-1, *tail)[:rows]), form
    if reading.along == "samples" and form.split in form.axes:
        part = _cut(part, lambda one: one[:1])
        groups = min(max(TRIED * form.groups // part.x.size, 1), form.groups)
        kept = np.arange(groups * (part.x.shape[form.split] // form.groups))
        return thinned(part, form.split, kept), replace(form, groups=groups)
    if reading.along == "channels":
        channels = part.x.shape[1]
        return thinned(part, 1 - part.x.ndim, np.arange(max(TRIED * channels // part.x.size, 1))), form
    return part, form


def _cut(case: Case, cut: Callable[[Floats], Floats]) -> Case:
    names = ("x", "candidate_x", "expected", "found")
    return replace(case, **{name: cut(getattr(case, name)) for name in names})


def _best(case: Case, form: Form, enough: float) -> Stages | None:
    """The roundings that give what was found, the fewest that do; else those that give most elements of it."""
    size = max(float(np.linalg.norm(case.found)), 1e-300)
    nearest: tuple[float, Stages] | None = None
    for stages in _all_stages(case, form):
        made = _norm(form, case, stages)
        left = distance(case.found, made, size)
        if left <= enough:
            return stages
        if nearest is None or left < nearest[0]:
            nearest = left, stages
    if nearest is None or _share(case.expected, case.found, enough) > 1 - MOST:
        return None
    return nearest[1] if _share(_norm(form, case, nearest[1]), case.found, enough) >= MOST else None


def _share(made: Floats, found: Floats, enough: float) -> float:
    """How many elements agree."""
    return float(np.mean(np.abs(made - found) <= enough * _usual(found)))


def _usual(found: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(found))))


def _or_tied(made: Floats, found: Floats, stages: Stages) -> Floats:
    """What was made, but what was found where one step went to the other side of a tie: noise decides those."""
    near = np.abs(made - found) <= LARGEST * UNIT_ROUNDOFF[stages.dtype] * np.maximum(np.abs(found), _usual(found))
    return np.where(near, found, made)


def _all_stages(case: Case, form: Form) -> list[Stages]:
    """The ways of rounding, the fewest roundings first; no running sums where they would take long."""
    values, axes = form.parted(case.x)
    sums = SUMS if np.prod([values.shape[axis] for axis in axes]) <= LONGEST and not form.running else SUMS[:2]
    flags = (False, True)
    ways = [
        Stages(dtype, *one)
        for dtype in DTYPES
        for one in product(flags, flags, flags, sums, flags, flags)
        if any(one)
    ]  # fmt: skip
    ways += [
        Stages(dtype, True, True, squares, total, True, not statistics, root, statistics)
        for dtype, statistics, root, total, squares in product(DTYPES, flags, ROOTS, SUMS[:2], flags)
    ]
    return sorted(ways, key=lambda one: one.count)


def _norm(form: Form, case: Case, stages: Stages) -> Floats:
    """A norm with some of its steps rounded."""
    values, axes = form.parted(case.candidate_x)
    x = stages.rounded(values, stages.input)
    mean, centred, variance = (_recorded if form.running else _measured)(form, case, x, axes, stages)
    if stages.statistics:
        centred = values - mean if form.centred else values
    with np.errstate(all="ignore"):
        y = form.joined(stages.rounded(_divided(form, centred, variance, stages), stages.normalised), case.candidate_x)
    gain = form.scale(case)
    y = y if gain is None else y * gain
    return y + case.bias if form.bias and case.bias is not None else y


def _measured(
    form: Form, case: Case, x: Floats, axes: tuple[int, ...], stages: Stages
) -> tuple[Floats, Floats, Floats]:
    """The mean, what is centred by it, and the variance of what goes in."""
    size = 1 if form.length else int(np.prod([x.shape[axis] for axis in axes]))
    whole = stages.rounded(x.sum(axes, keepdims=True), stages.throughout and stages.sum)
    mean = stages.rounded(whole / size, stages.throughout)
    centred = stages.rounded(x - mean if form.centred else x, stages.centred)
    spread = centred if form.deviation == form.centred else x - mean if form.deviation else x
    squares = stages.rounded(spread**2, stages.squares)
    count = max(size - form.ddof, 1)
    total = _running(squares, axes, stages) if stages.sum == "running" else squares.sum(axes, keepdims=True)
    return mean, centred, stages.rounded(stages.rounded(total, stages.sum) / count, stages.variance)


def _recorded(
    form: Form, case: Case, x: Floats, axes: tuple[int, ...], stages: Stages
) -> tuple[Floats, Floats, Floats]:
    """The same of running statistics."""
    assert case.mean is not None
    assert case.variance is not None
    mean = stages.rounded(case.mean, stages.throughout)
    return mean, stages.rounded(x - mean, stages.centred), stages.rounded(case.variance, stages.variance)


def _divided(form: Form, centred: Floats, variance: Floats, stages: Stages) -> Floats:
    """What is centred by the root of the variance, or times one over it."""
    if form.outside:
        root = stages.rounded(stages.rounded(np.sqrt(variance), stages.throughout) + form.eps, stages.throughout)
    else:
        root = np.sqrt(stages.rounded(variance + form.eps, stages.throughout))
    if stages.throughout == "1/sqrt":
        root = stages.rounded(root)
    if stages.throughout in ("rsqrt", "1/sqrt"):
        return centred * stages.rounded(1 / root)
    return centred / stages.rounded(root, stages.throughout)


def _running(squares: Floats, axes: tuple[int, ...], stages: Stages) -> Floats:
    """Sums that are rounded after every term, in the order of memory."""
    kept = [axis for axis in range(squares.ndim) if axis - squares.ndim not in axes]
    summed = [axis + squares.ndim for axis in sorted(axes)]
    terms = squares.transpose(*summed, *kept).reshape(-1, *(squares.shape[axis] for axis in kept))
    total = np.zeros(terms.shape[1:])
    for term in terms:
        total = stages.rounded(total + term)
    shape = [1 if axis in summed else size for axis, size in enumerate(squares.shape)]
    return total.reshape(shape)


HYPOTHESES: tuple[Hypothesis, ...] = (rounds_inside,)
