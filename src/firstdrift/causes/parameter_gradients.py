"""Causes in the gradient of a parameter, recomputed from the gradient of the module's output and its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..traces import Array
from .agreement import Floats, agree, floats
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis


@dataclass(frozen=True, slots=True)
class Used:
    """One use of a parameter: the gradient of the module's output, and the module's input."""

    gradient: Floats
    value: Array
    shape: tuple[int, ...]
    attrs_eps: float = 1e-5

    @property
    def rows(self) -> Floats:
        """The gradient, one row an item."""
        return self.gradient.reshape(-1, self.gradient.shape[-1])

    @property
    def inputs(self) -> Floats:
        """The input, one row an item."""
        return floats(self.value).reshape(-1, self.value.shape[-1])


Contribution = Callable[[Used], Floats]


def _of_linear(used: Used) -> Floats:
    return np.asarray(used.rows.T @ used.inputs, np.float64)


def _of_channels(used: Used) -> Floats:
    return np.asarray(np.moveaxis(used.gradient, 1, -1).reshape(-1, used.shape[0]).sum(0), np.float64)


def _of_embedding(used: Used) -> Floats:
    made = np.zeros(used.shape)
    np.add.at(made, np.asarray(used.value, np.int64).ravel(), used.rows)
    return made


def _normalized(used: Used, centred: bool) -> Floats:
    x = floats(used.value)
    axes = tuple(range(-len(used.shape), 0))
    x = x - x.mean(axes, keepdims=True) if centred else x
    return np.asarray(x / np.sqrt((x * x).mean(axes, keepdims=True) + used.attrs_eps), np.float64)


def _of_norm(centred: bool) -> Contribution:
    return lambda used: _over_items(used, used.gradient * _normalized(used, centred))


def _over_items(used: Used, array: Floats) -> Floats:
    return np.asarray(array.reshape(-1, *used.shape).sum(0), np.float64)


def _kinds(evidence: Evidence, used: Used) -> Iterator[tuple[str, Contribution]]:
    """What a parameter's gradient may be made of, by what its shape and its module allow."""
    width = used.gradient.shape[-1]
    if used.value.dtype.kind in "iu":
        if len(used.shape) == 2 and used.shape[1] == width:
            yield "embedding", _of_embedding
        return
    if used.shape == (width, used.value.shape[-1]) and used.gradient.shape[:-1] == used.value.shape[:-1]:
        yield "linear", _of_linear
    if evidence.site.port.startswith("bias") and used.gradient.ndim > 2 and used.shape == used.gradient.shape[1:2]:
        yield "bias", _of_channels
    if used.shape and used.shape == used.gradient.shape[-len(used.shape) :]:
        if evidence.site.port.startswith("bias"):
            yield "bias", lambda one: _over_items(one, one.gradient)
        elif used.gradient.shape == used.value.shape:
            yield "LayerNorm", _of_norm(True)
            yield "RMSNorm", _of_norm(False)


def other_formula(evidence: Evidence) -> Iterator[Finding]:
    """The gradient of a parameter whose formula is known, with one of the mistakes that are made there."""
    ours, theirs = _used(evidence, False), _used(evidence, True)
    if ours is None or theirs is None:
        return
    for kind, contribution in _kinds(evidence, ours):
        if agree(evidence, contribution(ours), evidence.expected):
            yield from _transposed(evidence, kind)
            yield from _items_missing(theirs, contribution)
            yield from _mistakes(theirs, kind)
            return


def one_use_of_a_tied_weight(evidence: Evidence) -> Iterator[Finding]:
    """The gradient of a shared parameter, from one of its uses alone."""
    ours, theirs = _used(evidence, False), _used(evidence, True)
    if ours is None or theirs is None or len(ours.shape) != 2:
        return
    for _, contribution in _kinds(evidence, ours):
        own = contribution(ours)
        if not agree(evidence, own, evidence.expected) and np.any(own):
            mine, rest = contribution(theirs), floats(evidence.expected) - own
            name = evidence.site.name or "this module"
            yield Finding("tied-gradient", f"only the use in {name} adds to the gradient of the shared weight", mine)
            yield Finding("tied-gradient", f"the use in {name} adds nothing to the gradient of the shared weight", rest)


def _transposed(evidence: Evidence, kind: str) -> Iterator[Finding]:
    expected = floats(evidence.expected)
    if kind == "linear" and expected.shape[0] != 1 != expected.shape[1]:
        if expected.shape[0] == expected.shape[1]:
            yield Finding("transpose", "the gradient of the weight is transposed", expected.T)
        else:
            sentence = "the gradient of the weight is stored as [in, out]"
            yield Finding("transpose", sentence, expected.T.reshape(expected.shape))


def _items_missing(used: Used, contribution: Contribution) -> Iterator[Finding]:
    """The sum over items, of one or of all but one of them."""
    count = len(used.gradient)
    if used.gradient.ndim < 2 or count < 2 or len(used.value) != count:
        return
    parts = {"the last item": slice(-1, None), "the first item": slice(0, 1)}
    sequences = used.gradient.ndim > 2 and contribution is not _of_channels
    axis = {"batch": 0, "sequence": 1} if sequences else {"batch": 0}
    for name, number in axis.items():
        for word, part in parts.items():
            at = (slice(None),) * number + (part,)
            some = Used(used.gradient[at], used.value[at], used.shape, used.attrs_eps)
            only = contribution(some)
            yield Finding(
                "missing-term", f"the gradient is that of {word} of the {name} alone", only, 0, {"axis": number}
            )
            sentence = f"the gradient lacks {word} of the {name}"
            yield Finding("missing-term", sentence, contribution(used) - only, 0, {"axis": number})


def _mistakes(used: Used, kind: str) -> Iterator[Finding]:
    if kind in ("LayerNorm", "RMSNorm"):
        centred = kind == "LayerNorm"
        for mistake, taken in (
            ("takes its input, not the normalized one", floats(used.value)),
            ("is that of its bias", np.ones(1)),
            (f"takes the input with{'out' if centred else ''} its mean taken off", _normalized(used, not centred)),
        ):
            sentence = f"the gradient of the {kind}'s weight {mistake}"
            yield Finding("gradient-formula", sentence, _over_items(used, used.gradient * taken))
    if kind == "embedding":
        overwritten = np.zeros(used.shape)
        overwritten[np.asarray(used.value, np.int64).ravel()] = used.rows
        sentence = "rows that occur more than once get the gradient of their last occurrence, not the sum"
        yield Finding("gradient-formula", sentence, overwritten)


def _used(evidence: Evidence, candidate: bool) -> Used | None:
    inputs = evidence.candidate_inputs if candidate else evidence.inputs
    gradient, value = inputs.get("agrad"), inputs.get("in.0")
    if evidence.site.phase != "grad" or gradient is None or value is None or not gradient.ndim or not value.ndim:
        return None
    eps = evidence.attrs.get("eps", evidence.attrs.get("variance_epsilon", 1e-5))
    return Used(floats(gradient), value, evidence.expected.shape, float(eps) if isinstance(eps, int | float) else 1e-5)


HYPOTHESES: tuple[Hypothesis, ...] = (other_formula, one_use_of_a_tied_weight)
