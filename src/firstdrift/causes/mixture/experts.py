"""Causes inside experts whose matrices lie in one tensor: which are used, how they are packed, who is weighed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from ..evidence import Evidence
from ..formulas.activations import ACTIVATIONS
from ..hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
GATES = ("silu", "gelu", "gelu_tanh", "relu", "quick_gelu", "relu_squared", "sigmoid", "identity")
TRIED = 32  # tokens on which a form is recognised
WORK = 1 << 31  # products, up to which all tokens are computed
MOST = 1024  # tokens, where that is too much
PACKINGS = {"halves": "in halves", "interleaved": "in turns", "single": "alone"}


@dataclass(frozen=True, slots=True)
class Form:
    """How an expert computes: `gate(a) * b` of a packed product, or `gate(a)` of a single one; then down."""

    packing: str
    gate: str
    swapped: bool = False
    up_turned: bool = False  # matrices are (in, out)
    down_turned: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Routed:
    """Tokens (tokens, width), the experts of each (tokens, chosen) and their weights, and the packed matrices."""

    tokens: Floats
    chosen: Indices
    weights: Floats
    up: Floats
    down: Floats
    up_bias: Floats | None = None
    down_bias: Floats | None = None

    @property
    def experts(self) -> int:
        """How many experts there are."""
        return len(self.up)

    def at(self, rows: slice | Indices) -> Routed:
        """Some tokens of it."""
        return replace(self, tokens=self.tokens[rows], chosen=self.chosen[rows], weights=self.weights[rows])

    def results(self, form: Form, shift: int = 0) -> Floats | None:
        """What each chosen expert, or the one `shift` places on, makes of its tokens: (tokens, chosen, width)."""
        made = None
        for expert in np.unique(self.chosen):
            rows, slots = np.nonzero(self.chosen == expert)
            one = self._expert(self.tokens[rows], (int(expert) + shift) % self.experts, form)
            if one is None:
                return None
            made = np.zeros((*self.chosen.shape, one.shape[-1])) if made is None else made
            made[rows, slots] = one
        return made

    def _expert(self, x: Floats, expert: int, form: Form) -> Floats | None:
        up = self.up[expert] if form.up_turned else self.up[expert].T
        down = self.down[expert] if form.down_turned else self.down[expert].T
        if x.shape[-1] != len(up) or down.shape[0] * (1 if form.packing == "single" else 2) != up.shape[1]:
            return None
        inner = x @ up if self.up_bias is None else x @ up + self.up_bias[expert]
        made = _gated(inner, form) @ down
        return np.asarray(made if self.down_bias is None else made + self.down_bias[expert])


def packed_experts(evidence: Evidence) -> Iterator[Finding]:
    """The weighted sum of packed experts, with one thing changed."""
    if evidence.site.phase != "fwd" or evidence.expected.ndim < 2 or evidence.expected.shape != evidence.found.shape:
        return
    mine = _routed(evidence.inputs, evidence.parameters, evidence.expected)
    own = _routed(evidence.candidate_inputs, evidence.candidate_parameters, evidence.expected)
    if mine is None or own is None or mine.chosen.shape != own.chosen.shape:
        return
    expected, found = (
        np.asarray(x, np.float64).reshape(len(mine.tokens), -1) for x in (evidence.expected, evidence.found)
    )
    form = _form(mine, expected, EXACT * max(evidence.noise, LEAST_NOISE))
    if form is None:
        return
    rows = _rows(own, np.abs(found - expected).sum(axis=1))
    part, target = own.at(rows), found[rows]
    results = part.results(form)
    if results is None:
        return
    for label, sentence, made, facts in _changes(part, form, results, target):
        if made is None or made.shape != target.shape:
            continue
        if len(part.tokens) == len(own.tokens):
            yield Finding(label, sentence, made.reshape(evidence.expected.shape), 0, facts)
        else:
            left = float(np.linalg.norm(made - target)) / max(float(np.linalg.norm(target)), 1e-300)
            yield Finding(label, sentence, parameters=facts, residual=left)


def _changes(
    given: Routed, form: Form, results: Floats, found: Floats
) -> Iterator[tuple[str, str, Floats | None, dict[str, object]]]:
    """Every single change, and the sum that it gives."""
    weights = given.weights
    for shift in (1, -1):
        made = given.results(form, shift)
        said = f"each expert computes with the matrices of the {'next' if shift > 0 else 'one before'}"
        yield "index-shift", said, None if made is None else _sum(weights, made), {"shift": shift}
    yield "skipped-op", "the routing weights are not applied", results.sum(axis=1), {}
    if weights.shape[1] > 1:
        said = "the weights of the chosen experts are given to them in the reverse order"
        yield "swapped-operands", said, _sum(weights[:, ::-1], results), {}
        sums = weights.sum(axis=1, keepdims=True)
        even = _sum(weights / np.where(sums == 0, 1.0, sums), results)
        yield "router-renorm", "the routing weights are renormalised to sum to one", even, {"renormalised": True}
        for slot in range(weights.shape[1]):
            kept = np.where(np.arange(weights.shape[1]) == slot, 0.0, weights)
            yield (
                "missing-term",
                f"the expert chosen as number {slot + 1} is left out",
                _sum(kept, results),
                {"slot": slot},
            )
    for label, sentence, other in _forms(form):
        made = given.results(other)
        yield label, sentence, None if made is None else _sum(weights, made), {}
    yield from _capacities(given, results, found)


def _forms(form: Form) -> Iterator[tuple[str, str, Form]]:
    if form.packing != "single":
        other = "interleaved" if form.packing == "halves" else "halves"
        said = f"gate and up are read {PACKINGS[other]} instead of {PACKINGS[form.packing]}"
        yield "interleave", said, replace(form, packing=other)
        yield "swapped-halves", "gate and up are exchanged", replace(form, swapped=not form.swapped)
    for gate in GATES:
        if gate != form.gate:
            said = f"the activation of the experts is {gate} instead of {form.gate}"
            yield "activation-variant", said, replace(form, gate=gate)


def _capacities(
    given: Routed, results: Floats, found: Floats
) -> Iterator[tuple[str, str, Floats | None, dict[str, object]]]:
    """Experts that take no more than so many tokens, in their order."""
    place = np.zeros(given.chosen.shape, np.intp)
    for expert in np.unique(given.chosen):
        mine = given.chosen == expert
        place[mine] = np.arange(mine.sum())
    errors = {}
    for most in range(1, int(place.max(initial=0)) + 1):
        made = _sum(np.where(place < most, given.weights, 0.0), results)
        errors[most] = float(np.linalg.norm(made - found))
    if errors:
        best = min(errors, key=errors.__getitem__)
        made = _sum(np.where(place < best, given.weights, 0.0), results)
        yield "missing-term", f"no expert takes more than {best} tokens; the rest is left out", made, {"capacity": best}


def _form(given: Routed, expected: Floats, limit: float) -> Form | None:
    """The form under which the reference is reproduced, seen on some tokens and proven on more."""
    few, target = given.at(slice(TRIED)), expected[:TRIED]
    for packing, up_turned, down_turned, gate, swapped in product(
        PACKINGS, (False, True), (False, True), GATES, (False, True)
    ):
        form = Form(packing, gate, swapped, up_turned, down_turned)
        if packing == "single" and swapped:
            continue
        made = few.results(form)
        if made is None or made.shape[-1] != target.shape[-1] or not _close(_sum(few.weights, made), target, limit):
            continue
        rows = _rows(given, np.zeros(len(expected)))
        whole = given.at(rows).results(form)
        if whole is not None and _close(_sum(given.weights[rows], whole), expected[rows], limit):
            return form
    return None


def _routed(inputs: Mapping[str, Array], parameters: Mapping[str, Array], like: Array) -> Routed | None:
    """Tokens, routes and packed matrices among what there is; None where one is missing or more than one would do."""
    count = int(np.prod(like.shape[:-1]))
    packed = [np.asarray(p, np.float64) for p in parameters.values() if p.ndim == 3]
    if len(packed) != 2 or len(packed[0]) != len(packed[1]) or like.shape[-1] not in packed[1].shape[1:]:
        return None
    up, down = packed
    flat = [v.reshape(-1, v.shape[-1]) for v in inputs.values() if v.ndim > 1 and v.size // v.shape[-1] == count]
    tokens = [v for v in flat if v.dtype.kind == "f" and v.shape[1] in up.shape[1:]]
    routes = _routes(flat, len(up))
    if len(tokens) != 1 or routes is None:
        return None
    biases = [np.asarray(p, np.float64) for p in parameters.values() if p.ndim == 2 and len(p) == len(up)]
    up_bias = next((b for b in biases if b.shape[1] in up.shape[1:] and b.shape[1] != like.shape[-1]), None)
    down_bias = next((b for b in biases if b.shape[1] == like.shape[-1]), None)
    return Routed(np.asarray(tokens[0], np.float64), *routes, up, down, up_bias, down_bias)


def _routes(flat: list[Array], experts: int) -> tuple[Indices, Floats] | None:
    """The chosen experts and their weights: as they are, or as weights of all experts, most of them zero."""
    chosen = [v for v in flat if v.dtype.kind in "iu"]
    if len(chosen) == 1 and chosen[0].min() >= 0 and chosen[0].max() < experts:
        weights = [v for v in flat if v.dtype.kind == "f" and v.shape == chosen[0].shape]
        return (chosen[0].astype(np.intp), np.asarray(weights[0], np.float64)) if len(weights) == 1 else None
    dense = [v for v in flat if v.dtype.kind == "f" and v.shape[1] == experts]
    if chosen or len(dense) != 1:
        return None
    most = int((dense[0] != 0).sum(axis=1).max(initial=1))
    order = np.argsort(-np.abs(dense[0]), axis=1, kind="stable")[:, :most]
    return order, np.take_along_axis(np.asarray(dense[0], np.float64), order, axis=1)


def _rows(given: Routed, differ: Floats) -> Indices:
    """All tokens, or those that differ most where all are too many to compute."""
    work = given.tokens.shape[0] * given.chosen.shape[1] * (given.up[0].size + given.down[0].size)
    count = len(given.tokens)
    return np.arange(count) if work <= WORK else np.sort(np.argsort(-differ, kind="stable")[:MOST])


def _gated(inner: Floats, form: Form) -> Floats:
    if form.packing == "single":
        return ACTIVATIONS[form.gate](inner)
    half = inner.shape[-1] // 2
    a, b = (inner[:, :half], inner[:, half:]) if form.packing == "halves" else (inner[:, 0::2], inner[:, 1::2])
    a, b = (b, a) if form.swapped else (a, b)
    return np.asarray(ACTIVATIONS[form.gate](a) * b)


def _sum(weights: Floats, results: Floats) -> Floats:
    return np.asarray(np.einsum("tk,tkw->tw", weights, results))


def _close(made: Floats, expected: Floats, limit: float) -> bool:
    return float(np.linalg.norm(made - expected)) <= limit * max(float(np.linalg.norm(expected)), 1e-300)


HYPOTHESES: tuple[Hypothesis, ...] = (packed_experts,)
