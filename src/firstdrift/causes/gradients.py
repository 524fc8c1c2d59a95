"""Causes in the backward pass: a wrong formula, a gradient that is missing, scaled or another's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..sites import Site
from . import gradient_clipping, parameter_gradients
from .agreement import agree, factor, floats, limit, rounded, snapped
from .backward_formulas import TRANSPOSED, Backward, Mistakes, known
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis

PHASES = ("agrad", "grad", "grad_scaled")
MOST_COMPARED = 24  # tensors that are asked whether all gradients have one factor


def wrong_formula(evidence: Evidence) -> Iterator[Finding]:
    """A backward pass of a known operation, with one of the mistakes that are made there."""
    if evidence.site.phase != "agrad" or not np.isfinite(evidence.found).all():
        return
    ours, theirs = _backward(evidence, False), _backward(evidence, True)
    if ours is None or theirs is None:
        return
    for name, formula, mistakes in known(evidence.op, ours):
        made = formula(ours)
        if made.shape == evidence.expected.shape and agree(evidence, made, evidence.expected):
            yield from _mistaken(name, theirs, mistakes)
            return


def nothing_flows(evidence: Evidence) -> Iterator[Finding]:
    """A gradient that is zero where the reference's is not."""
    if evidence.site.phase in PHASES and not np.any(evidence.found) and np.any(evidence.expected):
        sentence = "no gradient arrives here: it is zero, as after detach() or a frozen parameter"
        yield Finding("gradient-missing", sentence, np.zeros_like(floats(evidence.expected)))


def path_cut(evidence: Evidence) -> Iterator[Finding]:
    """A gradient that lacks what one of several consumers sends back."""
    if evidence.site.phase != "agrad":
        return
    sent = {key[6:]: item for key, item in evidence.candidate_inputs.items() if key.startswith("agrad ")}
    for name, gradient in sent.items() if len(sent) > 1 else ():
        if gradient.shape == evidence.found.shape and np.any(gradient):
            sentence = f"the gradient that {name} sends back is missing"
            yield Finding("gradient-missing", sentence, floats(evidence.expected) - floats(gradient), 0, {"from": name})
            sentence = f"only the gradient that {name} passes on arrives; the other paths are cut"
            yield Finding("gradient-missing", sentence, floats(gradient), 0, {"only": name})


def opposite_sign(evidence: Evidence) -> Iterator[Finding]:
    """A gradient of the opposite sign."""
    if evidence.site.phase in ("agrad", "grad") and np.isfinite(evidence.found).all():
        sentence = "the gradient has the opposite sign"
        yield Finding("gradient-formula", sentence, -floats(evidence.expected), 0, {"factor": -1.0})


def one_factor(evidence: Evidence) -> Iterator[Finding]:
    """A gradient by one factor: of all gradients, or of this one alone."""
    if evidence.site.phase not in PHASES or evidence.found.size < 2:
        return
    times = factor(evidence.expected, evidence.found)
    if not np.isfinite(times) or times <= 0 or abs(times - 1) <= limit(evidence):
        return
    predicted = floats(evidence.expected) * times
    if not agree(evidence, predicted, evidence.found):
        return
    value = rounded(times, limit(evidence))
    if _everywhere(evidence, times):
        sentence = f"all gradients are {value:.6g} times what they should be{_reason(evidence, times)}"
        yield Finding("gradient-scale", sentence, predicted, 1, {"factor": value})
    else:
        summed = _summed_over(evidence, times)
        if summed:
            sentence = f"this gradient is {value:.6g} times what it should be: {summed}"
            yield Finding("reduction-scale", sentence, predicted, 0, {"factor": value})
        sentence = f"this gradient alone is {value:.6g} times what it should be"
        yield Finding("gradient-formula", sentence, predicted, 1, {"factor": value})


def not_zeroed(evidence: Evidence) -> Iterator[Finding]:
    """A gradient to which that of the step before was added."""
    site = evidence.site
    if site.phase not in ("grad", "grad_scaled") or site.step == 0:
        return
    before = evidence.around.candidate(site._replace(step=site.step - 1))
    if before is not None and before.shape == evidence.found.shape:
        sentence = "the gradient of the step before was added: gradients are not set to zero"
        yield Finding("stale-buffer", sentence, floats(evidence.expected) + floats(before), 0, {"step": site.step - 1})


def _mistaken(name: str, backward: Backward, mistakes: Mistakes) -> Iterator[Finding]:
    for mistake, formula in mistakes.items():
        predicted = formula(backward)
        if predicted.shape == backward.value.shape:
            label = "transpose" if mistake == TRANSPOSED else "gradient-formula"
            yield Finding(label, f"the backward of {name} {mistake}", predicted, 0, {"formula": mistake})


def _backward(evidence: Evidence, candidate: bool) -> Backward | None:
    """What the one consumer's backward started from; None where several send gradients."""
    inputs = evidence.candidate_inputs if candidate else evidence.inputs
    sent = [item for key, item in inputs.items() if key.startswith("agrad ")]
    if len(sent) != 1 or "fwd" not in inputs or inputs["fwd"].shape != evidence.expected.shape:
        return None
    parameters = evidence.candidate_parameters if candidate and evidence.candidate_parameters else evidence.parameters
    gradient, value = floats(sent[0]), floats(inputs["fwd"])
    weight = parameters.get("weight")
    if gradient.shape != value.shape and (weight is None or np.ndim(weight) != 2):
        return None
    return Backward(gradient, value, parameters, evidence.attrs)


def _everywhere(evidence: Evidence, times: float) -> bool:
    """Whether every gradient recorded has this factor: those of activations count where this is one."""
    phases = ("agrad", "grad") if evidence.site.phase == "agrad" else (evidence.site.phase,)
    others = [site for phase in phases for site in evidence.around.sites(phase) if site.step == evidence.site.step]
    compared = [one for site in _spread(others) if (one := _factor_of(evidence, site)) is not None]
    tolerance = max(8 * limit(evidence), 1e-3 * abs(times - 1))
    return len(compared) > 1 and all(abs(one - times) <= tolerance * times for one in compared)


def _spread(sites: list[Site]) -> list[Site]:
    """Some sites, from the first to the last."""
    stride = -(-len(sites) // MOST_COMPARED) or 1
    return [*sites[::stride], *sites[-1:]]


def _factor_of(evidence: Evidence, site: Site) -> float | None:
    a, b = evidence.around.reference(site), evidence.around.candidate(site)
    if a is None or b is None or a.shape != b.shape or not np.any(a):
        return None
    return factor(a, b)


def _reason(evidence: Evidence, times: float) -> str:
    batch = evidence.around.facts.get("batch")
    size = batch.get("size") if isinstance(batch, dict) else batch
    if isinstance(size, int) and size > 1 and snapped(times, (float(size), 1 / size), limit(evidence)) is not None:
        return f", the batch being of {size}"
    return ""


def _summed_over(evidence: Evidence, times: float) -> str:
    """A factor that is a number of items of this module: a mean where a sum belongs, or the other way round."""
    gradient = evidence.inputs.get("agrad")
    if gradient is None or evidence.site.phase != "grad":
        return ""
    counts = {*gradient.shape[:-1], int(np.prod(gradient.shape[:-1]))} - {0, 1}
    if snapped(times, [1 / count for count in counts], limit(evidence)) is not None:
        return "the mean over items, not their sum"
    return "the sum over items, not their mean" if snapped(times, map(float, counts), limit(evidence)) else ""


HYPOTHESES: tuple[Hypothesis, ...] = (
    nothing_flows,
    one_factor,
    opposite_sign,
    path_cut,
    wrong_formula,
    not_zeroed,
    *parameter_gradients.HYPOTHESES,
    *gradient_clipping.HYPOTHESES,
)
