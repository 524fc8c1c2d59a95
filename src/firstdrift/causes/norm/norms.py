"""Norms that normalise otherwise: by another eps, gain, mean, set of axes, or statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis
from ..variants import ROUNDED, Screen, Variant, findings, forward, misfit
from . import row_factors
from .norm_forms import LARGEST_EPS, NATURAL, Case, Form, recognised, snapped
from .norm_readings import LARGE, PART, Reading, across, readings
from .running_statistics import running_statistics

Floats = NDArray[np.float64]

SURE = 0.01  # of an eps: how well it must be known where a constant factor would explain the same
GAIN_CHANGES = {"w": ("1+w", "w-1"), "1+w": ("w", "2+w")}


def norm(evidence: Evidence) -> Iterable[Finding]:
    """A layer, RMS, group, instance or batch norm, a module or between modules, that is computed otherwise."""
    if not forward(evidence):
        return
    stated = _stated(evidence)
    for reading in readings(evidence):
        limit, first = max(EXACT * evidence.noise, ROUNDED), reading.part.x.size > PART
        form = recognised(reading.part, reading.forms, stated, evidence.noise, limit, first)
        if form is not None:
            yield from _explained(evidence, reading, form)
            return


def _explained(evidence: Evidence, reading: Reading, form: Form) -> Iterator[Finding]:
    variants = [*_eps(form, reading.part, evidence.noise), *_formulas(form, reading.part)]
    screen = _screen(evidence, reading.part, reading.whole)
    if reading.along != "channels":
        variants += _groups(form, reading.part)
    yield from findings(evidence, screen, variants)
    if reading.along in ("rows", "heads"):  # other axes reach across rows
        for axes, variant in _axes(form, reading.whole):
            if np.prod([reading.whole.x.shape[axis] for axis in axes]) <= LARGE:
                part = across(reading.whole, axes)
                yield from findings(evidence, _screen(evidence, part, reading.whole), [variant])


def _screen(evidence: Evidence, part: Case, whole: Case) -> Screen[Case]:
    return Screen(part, replace(evidence, expected=part.expected, found=part.found), whole)


def _stated(evidence: Evidence) -> list[float]:
    """What the module itself says its eps is."""
    return [
        float(said)
        for name, said in evidence.attrs.items()
        if "eps" in name.lower() and isinstance(said, int | float) and 0 <= said <= LARGEST_EPS
    ]


def _variant(label: str, sentence: str, form: Form, free: int = 0, **parameters: float) -> Variant[Case]:
    return Variant(label, sentence, lambda case: form(case.candidate_x, case), free, dict(parameters))


def _eps(form: Form, part: Case, noise: float) -> Iterator[Variant[Case]]:
    """Another eps, where the rows tell it from the reference's."""
    eps, doubt = form.fit(part.candidate_x, part.found, part, noise)
    if not np.isfinite(doubt) or eps < -3 * doubt or eps > LARGEST_EPS:
        return
    value = snapped(eps, doubt)
    if _only_scaled(part, noise) and (doubt > SURE * max(eps, form.eps) or not _natural(value)):
        return
    sentence = f"the eps is {value:g} instead of {form.eps:g}"
    yield _variant("norm-eps", sentence, replace(form, eps=value), 1, eps=value, reference_eps=form.eps)


def _only_scaled(part: Case, noise: float) -> bool:
    """Whether one factor for all turns what was expected into what was found."""
    with np.errstate(all="ignore"):
        factor = float((part.expected * part.found).sum() / (part.expected**2).sum())
    return misfit(factor * part.expected, part.found) <= EXACT * max(noise, LEAST_NOISE)


def _natural(value: float) -> bool:
    return value == 0 or any(f"{value:.2e}".startswith(f"{digit:.2f}") for digit in NATURAL)


def _formulas(form: Form, part: Case) -> Iterator[Variant[Case]]:
    """Everything but the axes."""
    if form.eps > 0:
        where = "inside" if form.outside else "outside"
        yield _variant("norm-eps-placement", f"the eps is added {where} the square root",
                       replace(form, outside=not form.outside), eps=form.eps)  # fmt: skip
    if part.weight is not None:
        for gain in GAIN_CHANGES.get(form.gain, ()):
            sentence = f"the norm is multiplied by {gain} instead of {form.gain}, with w its weight"
            yield _variant("norm-plus-one", sentence, replace(form, gain=gain))
        yield _variant("channel-scale", "the norm's weight is not applied", replace(form, gain="none"))
    if form.running:
        yield _variant("batchnorm-mode", "the statistics are those of the batch, not the running ones",
                       replace(form, running=False))  # fmt: skip
        yield _variant("norm-axis", "every sample is normalised by statistics of its own",
                       replace(form, running=False, axes=form.axes[1:] or (-1,)))  # fmt: skip
    else:
        yield from _statistics(form, part)
    yield Variant("norm-missing", "the norm is not applied", lambda case: case.candidate_x)
    if part.weight is not None:
        yield Variant(
            "norm-missing", "only the weight and bias of the norm are applied", lambda case: _affine(form, case)
        )


def _affine(form: Form, case: Case) -> Floats:
    gain = form.scale(case)
    y = case.candidate_x if gain is None else case.candidate_x * gain
    return y if case.bias is None else y + case.bias


def _statistics(form: Form, part: Case) -> Iterator[Variant[Case]]:
    """The mean and variance, otherwise."""
    for centred, deviation in ((False, False), (True, True), (False, True), (True, False)):
        if (centred, deviation) == (form.centred, form.deviation):
            continue
        more = "not subtracted" if centred < form.centred else "subtracted" if centred > form.centred else ""
        sentence = f"the mean is {more}" if more else "the mean is treated otherwise within the variance"
        changed = replace(form, centred=centred, deviation=deviation)
        yield _variant("rms-vs-layernorm", sentence, changed)
        if part.bias is not None:
            yield _variant("rms-vs-layernorm", f"{sentence}, nor is the bias added", replace(changed, bias=False))
    over_batch = part.x.ndim > 1 and -part.x.ndim in form.axes
    yield _variant("batchnorm-unbiased" if over_batch else "scale",
                   "the variance is divided by n - 1 instead of n", replace(form, ddof=1))  # fmt: skip
    if part.mean is not None and part.variance is not None:
        yield _variant("batchnorm-mode", "the running statistics are used, not those of the batch",
                       replace(form, running=True))  # fmt: skip


def _axes(form: Form, whole: Case) -> Iterator[tuple[tuple[int, ...], Variant[Case]]]:
    """The same norm over other axes."""
    ndim = whole.x.ndim
    wide = [axis for axis in range(-ndim, 0) if whole.x.shape[axis] > 1]
    own = {axis for axis in form.axes if axis in wide}
    for count in range(1, min(len(wide), 3) + 1):
        for axes in combinations(wide, count):
            if set(axes) != own:
                sentence = f"the norm is taken over the axes {_named(axes, ndim)} instead of {_named(form.axes, ndim)}"
                yield axes, _variant("norm-axis", sentence, replace(form, axes=axes, groups=1))


def _groups(form: Form, part: Case) -> Iterator[Variant[Case]]:
    """The same norm within other groups."""
    split = form.split if form.groups > 1 or form.split in form.axes else form.axes[-1]
    size = part.x.shape[split]
    axes = tuple(dict.fromkeys((*form.axes, split)))
    counts = [one for one in range(1, size + 1) if size % one == 0]
    if part.x.size > LARGE:
        counts = [one for one in counts if one in (1, form.groups // 2, form.groups * 2, size)]
    for groups in counts:
        for interleaved in (False, True):
            if (groups, interleaved) == (form.groups, form.interleaved) or (interleaved and groups in (1, size)):
                continue
            how = "interleaved groups" if interleaved else "groups"
            sentence = f"the norm is taken within {groups} {how} instead of {form.groups}"
            changed = replace(form, axes=axes, split=split, groups=groups, interleaved=interleaved)
            yield _variant("norm-axis", sentence, changed, 1, groups=groups, reference_groups=form.groups)


def _named(axes: tuple[int, ...], ndim: int) -> str:
    return ", ".join(str(axis + ndim) for axis in sorted(axes))


HYPOTHESES: tuple[Hypothesis, ...] = (norm, running_statistics, *row_factors.HYPOTHESES)
