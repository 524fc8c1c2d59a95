"""Another activation function: both sides are known functions of the same input, and not the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...traces import Array
from ..agreement import Floats, distance, floats, limit, rounded
from ..elementwise import promising
from ..evidence import Evidence
from ..formulas import ACTIVATIONS
from ..hypotheses import FEW, Finding, Hypothesis, relative
from ..screening import positions, sampled
from ..variants import forward

Function = Callable[[Floats], Floats]

FUNCTIONS: dict[str, Function] = {
    **{name: function for name, function in ACTIVATIONS.items() if name != "identity"},
    "leaky_relu(0.1)": lambda x: np.where(x > 0, x, 0.1 * x),
    "leaky_relu(0.2)": lambda x: np.where(x > 0, x, 0.2 * x),
    "log_sigmoid": lambda x: -np.logaddexp(0.0, -x),
}
INVERTIBLE = ("tanh", "sigmoid", "softplus", "softsign", "elu", "selu", "leaky_relu", "log_sigmoid")
CURVE = 256  # elements that a curve needs to be seen
SMOOTH = 1e-2  # of the difference: what interpolation along a curve may miss
HALF = 0.5  # of the difference: what leaves more explains as little as no change at all
TOUCHED = 0.05  # of the elements, at least: decisions between near-ties change fewer


def variant(evidence: Evidence) -> Iterator[Finding]:
    """expected is one activation of in.0 and found another."""
    x, y = evidence.inputs.get("in.0"), evidence.candidate_inputs.get("in.0")
    if x is None or y is None or not x.shape == y.shape == evidence.expected.shape or x.size < FEW:
        return
    if not forward(evidence):  # only what the forward pass computes is activated
        return
    at = positions(x.size)
    e, f, xs, ys = (sampled(one, at) for one in (evidence.expected, evidence.found, x, y))
    reference = which(evidence, xs, e)
    if reference is None:
        return
    for name, function in FUNCTIONS.items():
        if name != reference and promising(evidence, e, f, function(ys)):
            yield Finding(
                "activation-variant", f"the activation is {name} instead of {reference}", function(floats(y)),
                parameters={"activation": name, "reference_activation": reference},
            )  # fmt: skip
    yield from _other_slope(evidence, reference, e, f, y, ys)
    yield from _other_curve(evidence, reference, e, f, ys)


def which(evidence: Evidence, x: Floats, y: Floats) -> str | None:
    """The activation that makes one tensor from another, up to noise."""
    errors = {name: distance(function(x), y) for name, function in FUNCTIONS.items()}
    best = min(errors, key=lambda name: errors[name])
    if errors[best] <= limit(evidence):
        return best
    slope = _slope(evidence, x, y)
    if slope is None or distance(np.where(x < 0, slope * x, x), y) > limit(evidence):
        return None
    return f"a leaky ReLU of slope {slope:.6g}"


def _slope(evidence: Evidence, x: Floats, y: Floats) -> float | None:
    """The slope of a function for negative inputs, if there are enough of them."""
    negative = x < 0
    square = float(x[negative] @ x[negative])
    if negative.sum() < FEW or square == 0:
        return None
    return rounded(float(x[negative] @ y[negative]) / square, max(evidence.noise, 1e-6))


def extra(evidence: Evidence) -> Iterator[Finding]:
    """found is an activation of expected: one too many."""
    at = positions(evidence.expected.size)
    e, f = sampled(evidence.expected, at), sampled(evidence.found, at)
    if e.size < FEW or not np.isfinite(e).all() or not forward(evidence):
        return
    for name, function in FUNCTIONS.items():
        if _changes(evidence, e, f, function(e)):
            yield Finding(
                "activation-variant", f"{name} is applied where the reference applies nothing",
                function(floats(evidence.expected)),
                parameters={"activation": name, "reference_activation": "identity"},
            )  # fmt: skip


def _changes(evidence: Evidence, before: Floats, after: Floats, activated: Floats) -> bool:
    """Whether an activation explains what became of some elements: it changes more of them than noise decides
    otherwise, and leaves little of the difference. Where noise is as large as that, any function would fit."""
    if not promising(evidence, before, after, activated):
        return False
    usable = np.isfinite(after)
    size = float(np.sqrt(np.mean(np.square(after[usable])))) if usable.any() else 0.0
    touched = np.abs(activated - before)[usable] > limit(evidence) * size
    left, difference = (float(np.linalg.norm((after - one)[usable])) for one in (activated, before))
    return left <= HALF * difference and float(touched.mean() if touched.size else 0.0) >= TOUCHED


def missing(evidence: Evidence) -> Iterator[Finding]:
    """expected is an activation of found. Only of those that lose nothing: a ReLU makes one of many tensors alike."""
    at = positions(evidence.expected.size)
    e, f = sampled(evidence.expected, at), sampled(evidence.found, at)
    if e.size < FEW or not np.isfinite(f).all() or not forward(evidence):
        return
    for name in INVERTIBLE:
        if _changes(evidence, f, e, FUNCTIONS[name](f)):
            left = distance(FUNCTIONS[name](floats(evidence.found)), evidence.expected)
            yield Finding("skipped-op", f"{name} is not applied", None, 0, {"operation": name}, left)


def softmax_axis(evidence: Evidence) -> Iterator[Finding]:
    """expected is the softmax of in.0 over one axis; found is over another, or its logarithm, or a sigmoid."""
    expected = evidence.expected
    x, y = (next(iter(fed.values()), None) for fed in (evidence.inputs, evidence.candidate_inputs))
    if x is None or y is None or not x.shape == y.shape == expected.shape or not expected.ndim:
        return
    axes = [axis for axis in range(expected.ndim) if expected.shape[axis] > 1]
    if not expected.size or not np.isfinite(expected[:1]).all():
        return
    made = (("softmax", axis) for axis in axes if _sums_to_one(floats(expected[:64] if axis else expected), axis))
    logs = (("log_softmax", axis) for axis in axes if float(np.max(expected)) <= 0)
    for kind, axis in (*made, *logs):
        if relative(_softmax(kind, axis, x), floats(expected), evidence) > limit(evidence):
            continue
        for other, over in [("softmax", one) for one in axes] + [("log_softmax", one) for one in axes]:
            if (other, over) != (kind, axis):
                yield Finding(
                    "activation-variant", f"{other} over axis {over} instead of {kind} over axis {axis}",
                    _softmax(other, over, y),
                    parameters={"activation": other, "axis": over, "reference_activation": kind,
                                "reference_axis": axis},
                )  # fmt: skip
        yield Finding(
            "activation-variant", f"sigmoid instead of {kind} over axis {axis}", ACTIVATIONS["sigmoid"](floats(y)),
            parameters={"activation": "sigmoid", "reference_activation": kind, "reference_axis": axis},
        )  # fmt: skip
        if kind == "softmax":
            yield from _temperature(evidence, axis, y)
        return


def _temperature(evidence: Evidence, axis: int, y: Array) -> Iterator[Finding]:
    """A softmax of a multiple of its input, as to another base."""
    x, found = floats(y), floats(evidence.found)
    if not (found > 0).all():
        return
    logits, logs = (one - one.mean(axis=axis, keepdims=True) for one in (x, np.log(found)))
    square = float((logits * logits).sum())
    if square == 0:
        return
    factor = rounded(float((logits * logs).sum()) / square, max(evidence.noise, 1e-6))
    base = f", which is a softmax to base {np.exp(factor):.4g}" if factor > 0 else ""
    said = f"the softmax is of {factor:.6g} times its input{base}"
    yield Finding("attention-scale", said, _softmax("softmax", axis, factor * x), 1, {"factor": factor})


def _softmax(kind: str, axis: int, x: Array) -> Floats:
    shifted = floats(x) - np.max(floats(x), axis=axis, keepdims=True)
    raised = np.exp(shifted)
    total = raised.sum(axis=axis, keepdims=True)
    return np.asarray(raised / total if kind == "softmax" else shifted - np.log(total))


def _sums_to_one(values: Floats, axis: int) -> bool:
    return bool((values >= 0).all() and np.allclose(values.sum(axis=axis), 1.0, rtol=1e-2))


def _other_slope(evidence: Evidence, reference: str, e: Floats, f: Floats, y: Array, ys: Floats) -> Iterator[Finding]:
    """The same function for positive inputs, another slope for negative ones."""
    slope = _slope(evidence, ys, f)
    if slope is not None and promising(evidence, e, f, np.where(ys < 0, slope * ys, ys)):
        yield Finding(
            "activation-variant", f"the activation is a leaky ReLU of slope {slope:.6g} instead of {reference}",
            np.where(floats(y) < 0, slope * floats(y), floats(y)), 1,
            {"activation": "leaky_relu", "negative_slope": slope, "reference_activation": reference},
        )  # fmt: skip


def _other_curve(evidence: Evidence, reference: str, e: Floats, f: Floats, ys: Floats) -> Iterator[Finding]:
    """Found is a function of the input, but of no name: its values lie on one smooth curve."""
    if ys.size < CURVE or not np.isfinite(f).all():
        return
    order = np.argsort(ys)
    x, y = ys[order], (f - e)[order]
    inner = np.flatnonzero(x[2:] > x[:-2]) + 1
    weight = (x[inner] - x[inner - 1]) / (x[inner + 1] - x[inner - 1])
    between = y[inner - 1] + weight * (y[inner + 1] - y[inner - 1])
    missed, difference = float(np.linalg.norm(y[inner] - between)), float(np.linalg.norm(y[inner]))
    if len(inner) * 2 > len(x) and missed <= SMOOTH * difference:
        left = missed / max(float(np.linalg.norm(f)), float(np.linalg.norm(e)))
        yield Finding(
            "activation-variant", f"the activation is another function of its input than {reference}", None, FEW + 1,
            {"reference_activation": reference}, min(left, limit(evidence)),
        )  # fmt: skip


HYPOTHESES: tuple[Hypothesis, ...] = (variant, extra, missing, softmax_axis)
