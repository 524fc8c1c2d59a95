"""The ways to read a tensor as the output of a norm: of which input, with which weights, over which axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..variants import parameter, telling
from .norm_forms import Case, Form, recognised

Floats = NDArray[np.float64]

PART = 2**17  # elements to try variants on
LARGE = 2**20  # elements above which few variants are tried
FEW_ROWS = 32  # rows on which groups are tried
ROUGHLY = 1e-2  # how well a norm within groups must fit these
SMALLEST = 4  # elements in a group
FEWEST = 5  # different numbers, among the first so many
LOOKED_AT = 1024
WEIGHTS, BIASES = ("weight", "gamma", "scale", "g"), ("bias", "beta", "b")


@dataclass(frozen=True, slots=True)
class Reading:
    """A tensor as a norm of `whole.x`: `part` is what to try on, cut along `along` so that each norm in it is whole."""

    whole: Case
    part: Case
    forms: tuple[Form, ...]
    along: str  # rows, heads, channels or samples


def readings(evidence: Evidence) -> Iterator[Reading]:
    """All readings, the likeliest first; none of a few numbers, which a norm of some eps always gives."""
    shape = evidence.expected.shape
    if len(np.unique(evidence.expected.reshape(-1)[:LOOKED_AT])) < FEWEST:
        return
    weight, bias = parameter(evidence, *WEIGHTS), parameter(evidence, *BIASES)
    weight = _only(evidence) if weight is None and bias is None else weight
    mean, variance = parameter(evidence, "running_mean"), parameter(evidence, "running_var")
    for x, candidate_x in _inputs(evidence):
        case = Case(
            *(np.asarray(one, np.float64).reshape(shape) for one in (x, candidate_x, evidence.expected, evidence.found))
        )
        if mean is None and shape and (count := _trailing(shape, weight)):
            yield _by_row(case, count, weight, bias, evidence.noise)
        if mean is None:
            yield from _by_head(case, weight, bias)
        vectors = (weight, bias, mean, variance)
        if len(shape) > 1 and all(one is None or one.size == shape[1] for one in vectors):
            met = [None if one is None else one.reshape(1, -1, *[1] * (len(shape) - 2)) for one in vectors]
            case = replace(case, weight=met[0], bias=met[1], mean=met[2], variance=met[3])
            yield from _by_channel(case, evidence)


def _only(evidence: Evidence) -> Floats | None:
    """The one parameter of a module, whatever its name."""
    known = [one for one in evidence.parameters.values() if one.dtype.kind == "f" and one.size > 1]
    return np.asarray(known[0], np.float64) if len(known) == 1 else None


def _inputs(evidence: Evidence) -> list[tuple[Floats, Floats]]:
    pairs = [
        (np.asarray(one, np.float64), np.asarray(evidence.candidate_inputs.get(key, one), np.float64))
        for key, one in evidence.inputs.items()
        if one.size == evidence.expected.size and one.dtype.kind == "f"
    ]
    pairs = [(x, y) for x, y in pairs if x.size == y.size]
    if len(evidence.inputs) > 2:
        return []
    if len(pairs) == 2:  # a residual added before the norm
        (a, candidate_a), (b, candidate_b) = ((x.ravel(), y.ravel()) for x, y in pairs)
        pairs.append((a + b, candidate_a + candidate_b))
    return pairs


def _trailing(shape: tuple[int, ...], weight: Floats | None) -> int:
    """How many of the last axes a weight covers, all at once or head by head; 0 where it does not."""
    if weight is None or (weight.size and shape[-1] % weight.size == 0):
        return 1
    sizes = [int(np.prod(shape[len(shape) - count :])) for count in range(1, len(shape) + 1)]
    return sizes.index(weight.size) + 1 if weight.size in sizes else 0


def _by_row(case: Case, count: int, weight: Floats | None, bias: Floats | None, noise: float) -> Reading:
    tail = case.x.shape[case.x.ndim - count :]
    case = replace(case, weight=_tiled(weight, tail), bias=_tiled(bias, tail))
    heads = tail[-1] // weight.size if weight is not None and count == 1 else 1
    axes = tuple(range(-count, 0))
    forms = []
    for gain in ("w", "1+w", "none") if weight is not None else ("w",):
        for centred in (True, False):
            form = Form(axes, centred=centred, deviation=centred, gain=gain)
            forms.append(replace(form, groups=heads))
            if count > 1:  # a weight for all heads, but every head a norm of its own
                forms.append(replace(form, axes=(-1,)))
            if heads > 1:  # or a weight for one head, and one norm for all
                forms.append(form)
    if weight is None:
        forms.append(Form(axes, centred=False, deviation=False, length=True))
    if count == heads == 1:
        forms += _grouped(case, forms, noise)
    return Reading(case, _some_rows(case, tail), tuple(forms), "rows")


def _grouped(case: Case, forms: Iterable[Form], noise: float) -> list[Form]:
    """The same norms within groups of the last axis, such as heads: those that a few rows do not refute."""
    size = case.x.shape[-1]
    counts = [one for one in range(2, size // SMALLEST + 1) if size % one == 0]
    few = _cut(case, lambda one: one.reshape(-1, size)[:FEW_ROWS])
    every = [replace(form, groups=one) for form in forms for one in counts]
    return [one for one in every if recognised(few, [one], (), noise, ROUGHLY, True) is not None]


def _by_head(case: Case, weight: Floats | None, bias: Floats | None) -> Iterator[Reading]:
    """Heads and their channels on two axes, perhaps with another axis between them: a norm of each head or of all."""
    shape, ndim = case.x.shape, case.x.ndim
    axes = range(1, ndim - 1) if weight is None else range(ndim - 2)  # a weight of adjacent axes is one of rows
    for axis in (one for one in axes if shape[one] > 1):
        met = [_spread(one, shape, axis) for one in (weight, bias)]
        if weight is not None and met[0] is None:
            continue
        one, both = replace(case, weight=met[0], bias=met[1]), (axis - ndim, -1)
        forms = []
        for over in ((-1,), both) if weight is not None else (both,):
            for gain in ("w", "1+w") if weight is not None else ("w",):
                rms = Form(over, centred=False, deviation=False, gain=gain)
                forms += [rms, replace(rms, centred=True, deviation=True)]
            forms += [replace(rms, length=True)] if weight is None else []
        yield Reading(one, across(one, both), tuple(forms), "heads")


def _spread(vector: Floats | None, shape: tuple[int, ...], axis: int) -> Floats | None:
    """A number for each channel of each head, as it meets a tensor with heads on an axis and channels on the last."""
    if vector is None or vector.size != shape[axis] * shape[-1]:
        return None
    return vector.reshape(shape[axis], *[1] * (len(shape) - axis - 2), shape[-1])


def _by_channel(case: Case, evidence: Evidence) -> Iterator[Reading]:
    ndim, channels = case.x.ndim, case.x.shape[1]
    channel, space = 1 - ndim, tuple(range(2 - ndim, 0))
    over_batch = Form(axes=(-ndim, *space))
    if case.mean is not None and case.variance is not None:
        yield Reading(case, _some_channels(case), (Form(axes=over_batch.axes, running=True), over_batch), "channels")
        return
    stated = evidence.attrs.get("num_groups")
    divisors = [one for one in range(1, channels + 1) if channels % one == 0]
    counts = dict.fromkeys([stated, *divisors] if stated in divisors else divisors)
    if case.x[:1].size > LARGE:  # one sample is much already
        counts = dict.fromkeys([stated] if stated in divisors else [1, channels])
    if ndim > 2:
        grouped = [Form(axes=(channel, *space), groups=int(one), split=channel) for one in counts if one is not None]
        first = Form(axes=(channel,))  # channels first, each position alone
        forms = (grouped[0], first, replace(first, centred=False, deviation=False), *grouped[1:])
        yield Reading(case, some_samples(case), forms, "samples")
    yield Reading(case, _some_channels(case), (over_batch,), "channels")


def _tiled(vector: Floats | None, tail: tuple[int, ...]) -> Floats | None:
    size = int(np.prod(tail))
    if vector is None or not vector.size or size % vector.size:
        return None
    return np.tile(vector.ravel(), size // vector.size).reshape(tail)


def _some_rows(whole: Case, tail: tuple[int, ...]) -> Case:
    if whole.x.size <= PART:
        return whole
    width = int(np.prod(tail))
    rows = telling(whole.expected.reshape(-1, width), whole.found.reshape(-1, width), max(PART // width, 16))
    return _cut(whole, lambda one: one.reshape(-1, *tail)[rows])


def _some_channels(whole: Case) -> Case:
    if whole.x.size <= PART:
        return whole
    flat = [np.moveaxis(one, 1, 0).reshape(whole.x.shape[1], -1) for one in (whole.expected, whole.found)]
    rows = telling(flat[0], flat[1], max(PART // flat[0].shape[1], 4))
    return thinned(whole, 1 - whole.x.ndim, rows)


def some_samples(whole: Case) -> Case:
    """The first samples."""
    count = max(PART // max(int(np.prod(whole.x.shape[1:])), 1), 1)
    return whole if count >= len(whole.x) else _cut(whole, lambda one: one[:count])


def across(whole: Case, axes: tuple[int, ...]) -> Case:
    """A part of a tensor that is whole along some axes, thinned along the first of the others."""
    kept = whole
    for axis in range(whole.x.ndim):
        size = kept.x.shape[axis]
        if axis - whole.x.ndim not in axes and kept.x.size > PART:
            at = np.unique(np.linspace(0, size - 1, max(size * PART // kept.x.size, 1)).astype(np.intp))
            kept = thinned(kept, axis - whole.x.ndim, at)
    return kept


def thinned(case: Case, axis: int, at: NDArray[np.intp]) -> Case:
    """Some places of a (negative) axis, with the parameters that belong to them."""
    cut = _cut(case, lambda one: np.take(one, at, axis=axis))
    vectors = {name: getattr(case, name) for name in ("weight", "bias", "mean", "variance")}
    met = {name: one for name, one in vectors.items() if one is not None and one.ndim >= -axis and one.shape[axis] > 1}
    return replace(cut, **{name: np.take(one, at, axis=axis) for name, one in met.items()})


def _cut(whole: Case, cut: Callable[[Floats], Floats]) -> Case:
    names = ("x", "candidate_x", "expected", "found")
    return replace(whole, **{name: cut(getattr(whole, name)) for name in names})
