"""Causes in the gradient of a parameter, recomputed from the gradient of the module's output and its input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...traces import Array
from ..agreement import agree, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from .parameter_formulas import Kind, Used, kinds

SIGNS = 0  # seed of the random signs by which terms are kept from cancelling


def other_formula(evidence: Evidence) -> Iterator[Finding]:
    """The gradient of a parameter whose formula is known, with one of the mistakes that are made there."""
    ours, theirs = _used(evidence, False), _used(evidence, True)
    if ours is None or theirs is None:
        return
    for kind in kinds(evidence.op, evidence.site.port, ours):
        if _is_made_by(kind, ours, evidence):
            yield from _transposed(evidence, kind)
            yield from _items_missing(theirs, kind)
            yield from _mistakes(theirs, kind)
            yield from _of_earlier(evidence, theirs, kind)
            return


def one_use_of_a_tied_weight(evidence: Evidence) -> Iterator[Finding]:
    """The gradient of a shared parameter, from one of its uses alone."""
    ours, theirs = _used(evidence, False), _used(evidence, True)
    if ours is None or theirs is None or len(ours.shape) < 2:
        return
    found = [(kind, kind.formula(ours)) for kind in kinds(evidence.op, evidence.site.port, ours)]
    found = [(kind, own) for kind, own in found if own.shape == evidence.expected.shape]
    if any(_is_made_by(kind, ours, evidence) for kind, _ in found):
        return  # one use is all there is
    for kind, own in found:
        if np.any(own):
            mine, rest = kind.formula(theirs), floats(evidence.expected) - own
            name = evidence.site.name or "this module"
            yield Finding("tied-gradient", f"only the use in {name} adds to the gradient of the shared weight", mine)
            yield Finding("tied-gradient", f"the use in {name} adds nothing to the gradient of the shared weight", rest)


def _is_made_by(kind: Kind, used: Used, evidence: Evidence) -> bool:
    """Whether a formula makes what was expected, up to noise: that of its terms, where they cancel."""
    made = kind.formula(used)
    if made.shape != evidence.expected.shape:
        return False
    if agree(evidence, made, evidence.expected):
        return True
    signs = np.random.default_rng(SIGNS).choice((-1.0, 1.0), used.gradient.shape)
    size = float(np.linalg.norm(kind.formula(replace(used, gradient=used.gradient * signs))))
    return float(np.linalg.norm(made - floats(evidence.expected))) <= limit(evidence) * size


def _transposed(evidence: Evidence, kind: Kind) -> Iterator[Finding]:
    expected = floats(evidence.expected)
    if kind.name != "linear layer" or 1 in expected.shape:
        return
    if expected.shape[0] == expected.shape[1]:
        yield Finding("transpose", "the gradient of the weight is transposed", expected.T)
    else:
        sentence = "the gradient of the weight is stored with its two axes exchanged"
        yield Finding("transpose", sentence, expected.T.reshape(expected.shape))


def _items_missing(used: Used, kind: Kind) -> Iterator[Finding]:
    """The sum over items, of one or of all but one of them."""
    count = len(used.gradient)
    if used.gradient.ndim < 2 or count < 2 or len(used.value) != count or not kind.by_item:
        return
    parts = {"the last item": slice(-1, None), "the first item": slice(0, 1)}
    axes = {"batch": 0, "sequence": 1} if used.gradient.ndim > 2 and kind.by_position else {"batch": 0}
    for name, axis in axes.items():
        for word, part in parts.items():
            at = (slice(None),) * axis + (part,)
            only = kind.formula(replace(used, gradient=used.gradient[at], value=used.value[at]))
            said = {"axis": axis}
            yield Finding("gradient-formula", f"the gradient is that of {word} of the {name} alone", only, 0, said)
            sentence = f"the gradient lacks {word} of the {name}"
            yield Finding("gradient-formula", sentence, kind.formula(used) - only, 0, said)


def _mistakes(used: Used, kind: Kind) -> Iterator[Finding]:
    for mistake, formula in kind.mistakes.items():
        made = formula(used)
        if made.shape == used.shape:
            sentence = f"the gradient of the {kind.name}'s {kind.part} {mistake}"
            yield Finding("gradient-formula", sentence, made, 0, {"formula": mistake})


def _of_earlier(evidence: Evidence, used: Used, kind: Kind) -> Iterator[Finding]:
    """The right formula on what the forward pass left at the step before."""
    site = evidence.site._replace(phase="fwd", port="in.0", step=evidence.site.step - 1)
    value = evidence.around.candidate(site) if evidence.site.step else None
    if value is not None and value.shape == used.value.shape and not np.array_equal(value, used.value):
        sentence = f"the gradient of the {kind.name}'s {kind.part} takes the input of the step before"
        yield Finding("stale-buffer", sentence, kind.formula(replace(used, value=value)))


def _used(evidence: Evidence, candidate: bool) -> Used | None:
    inputs = evidence.candidate_inputs if candidate else evidence.inputs
    gradient, value = inputs.get("agrad"), inputs.get("in.0")
    if evidence.site.phase != "grad" or gradient is None or value is None or not gradient.ndim or not value.ndim:
        return None
    buffers: dict[str, Array] = {
        port: item for port, item in evidence.parameters.items() if port.startswith("running_")
    }
    return Used(floats(gradient), value, evidence.expected.shape, evidence.attrs, buffers)


HYPOTHESES: tuple[Hypothesis, ...] = (other_formula, one_use_of_a_tied_weight)
