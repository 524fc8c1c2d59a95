"""Causes in the routing of a mixture of experts: how logits become weights, and which experts they weigh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from . import experts
from .evidence import Evidence
from .hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis

Floats = NDArray[np.float64]
SCORES = ("softmax", "sigmoid", "logits")
MOST_EXPERTS = 1024
FEW = 64  # tokens
WORDS = {
    "softmax": "a softmax over all experts", "sigmoid": "sigmoids", "logits": "the logits themselves",
    "softmax of the chosen": "a softmax over the chosen experts",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Router:
    """How logits become weights: scores, the best `chosen` of them, renormalised or not, times a factor."""

    scores: str
    chosen: int
    renormalised: bool = False
    factor: float = 1.0


def weights(logits: Floats, router: Router) -> Floats:
    """The weights of all experts, zero for those that are not chosen: (tokens, experts)."""
    values = _scores(logits, router.scores)
    if router.chosen < logits.shape[-1]:
        best = np.argsort(-logits, axis=-1, kind="stable")[:, : router.chosen]
        kept = np.zeros(logits.shape, bool)
        np.put_along_axis(kept, best, True, axis=-1)
        values = np.where(kept, values, 0.0)
    if router.renormalised:
        sums = values.sum(axis=-1, keepdims=True)
        values = values / np.where(sums == 0, 1.0, sums)
    return np.asarray(router.factor * values)


def best_first(logits: Floats, router: Router) -> Floats:
    """The weights of the chosen experts, the best first: (tokens, chosen)."""
    order = np.argsort(-logits, axis=-1, kind="stable")[:, : router.chosen]
    return np.take_along_axis(weights(logits, router), order, axis=-1)


def router_weights(evidence: Evidence) -> Iterator[Finding]:
    """The weights themselves, computed from recorded logits."""
    if evidence.site.phase != "fwd" or evidence.expected.shape != evidence.found.shape:
        return
    for name, given in evidence.inputs.items():
        logits, own = (_rows(x) for x in (given, evidence.candidate_inputs.get(name, given)))
        expected = _rows(evidence.expected)
        if (
            logits is None
            or own is None
            or expected is None
            or _rows(evidence.found) is None
            or own.shape != logits.shape
        ):
            continue
        if len(expected) != len(logits) or expected.shape[1] > logits.shape[1] or logits.shape[1] > MOST_EXPERTS:
            continue
        limit = EXACT * max(evidence.noise, LEAST_NOISE)
        for made in (weights, best_first):
            shaped = [one for one in _routers(logits.shape[1]) if made is weights or one.chosen == expected.shape[1]]
            few = np.unique(np.linspace(0, len(logits) - 1, FEW).astype(np.intp))  # of all, to try every router on
            likely = [one for one in shaped if _close(made(logits[few], one), expected[few], 4 * limit)]
            fitting = [one for one in likely if _close(made(logits, one), expected, limit)]
            if fitting:
                for label, sentence, router, facts in _changes(fitting[0], logits.shape[1]):
                    predicted = made(own, router)
                    if predicted.shape == expected.shape:
                        yield Finding(label, sentence, predicted.reshape(evidence.expected.shape), 0, facts)
                return


def mixture(evidence: Evidence) -> Iterator[Finding]:
    """The output of a mixture, computed from recorded logits and the outputs of the experts."""
    if evidence.site.phase != "fwd" or evidence.expected.ndim < 2 or evidence.expected.shape != evidence.found.shape:
        return
    expected = _rows(evidence.expected)
    reference, candidate = (_Experts.of(x, evidence.expected) for x in (evidence.inputs, evidence.candidate_inputs))
    if expected is None or reference is None or candidate is None or _rows(evidence.found) is None:
        return
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    for router in _routers(reference.logits.shape[1]):
        for by_slot, extra in ((False, False), (True, False), (False, True), (True, True)):
            made = reference.mixed(router, by_slot, extra)
            if made is None or not _close(made, expected, limit):
                continue
            for label, sentence, changed, facts in _changes(router, reference.logits.shape[1]):
                predicted = candidate.mixed(changed, by_slot, extra, router)
                if predicted is not None:
                    yield Finding(label, sentence, predicted.reshape(evidence.expected.shape), 0, facts)
            yield from _experts_changed(evidence, candidate, router, by_slot, extra)
            return


def _experts_changed(
    evidence: Evidence, given: _Experts, router: Router, by_slot: bool, extra: bool
) -> Iterator[Finding]:
    shape = evidence.expected.shape
    if extra and (made := given.mixed(router, by_slot, False)) is not None:
        yield Finding("missing-term", "the expert that is shared by all tokens is left out", made.reshape(shape))
    if not extra and given.shared is not None and (made := given.mixed(router, by_slot, True)) is not None:
        yield Finding(
            "missing-term", "the shared expert is added, which the reference does not do", made.reshape(shape)
        )
    if router.chosen > 1 and (made := given.exchanged(router, by_slot, extra)) is not None:
        said = "the weights of the chosen experts are given to them in the reverse order"
        yield Finding("swapped-operands", said, made.reshape(shape))
    for slot in range(router.chosen if router.chosen > 1 else 0):
        made = given.without(router, by_slot, extra, slot)
        if made is not None:
            said = f"the expert chosen as number {slot + 1} is left out"
            yield Finding("missing-term", said, made.reshape(shape), 0, {"slot": slot})


@dataclass(frozen=True, eq=False, slots=True)
class _Experts:
    """Recorded logits (tokens, experts), what each expert returned for all tokens or for its own, and a shared one."""

    logits: Floats
    outputs: tuple[Floats, ...]
    tokens: int
    shared: Floats | None = None

    @classmethod
    def of(cls, inputs: Mapping[str, NDArray[np.generic]], like: NDArray[np.generic]) -> _Experts | None:
        """The logits and outputs among what a mixture was computed from."""
        width, tokens = like.shape[-1], int(np.prod(like.shape[:-1]))
        rows = {name: made for name, value in inputs.items() if (made := _rows(value)) is not None}
        wide = {name: value for name, value in rows.items() if value.shape[1] == width}
        gates = [v for n, v in rows.items() if n not in wide and len(v) == tokens and v.shape[1] > 1]
        if len(gates) != 1 or len(wide) < 2:
            return None
        count = gates[0].shape[1]
        shared = [n for n in wide if "shared" in n.lower()]
        own = [v for n, v in wide.items() if n not in shared]
        if len(own) != count or len(shared) > 1:
            return None
        return cls(gates[0], tuple(own), tokens, wide[shared[0]] if shared else None)

    def mixed(self, router: Router, by_slot: bool, extra: bool, routed: Router | None = None) -> Floats | None:
        """The weighted sum of the experts; `routed` says who got which tokens, if that is another router."""
        return self._sum(weights(self.logits, router), routed or router, by_slot, extra)

    def exchanged(self, router: Router, by_slot: bool, extra: bool) -> Floats | None:
        """The sum with the weights of the chosen experts in the reverse order."""
        order = np.argsort(-self.logits, axis=-1, kind="stable")[:, : router.chosen]
        given = weights(self.logits, router)
        changed = np.zeros_like(given)
        np.put_along_axis(changed, order, np.take_along_axis(given, order[:, ::-1], axis=-1), axis=-1)
        return self._sum(changed, router, by_slot, extra)

    def without(self, router: Router, by_slot: bool, extra: bool, slot: int) -> Floats | None:
        """The sum without the expert that was chosen as a certain one."""
        order = np.argsort(-self.logits, axis=-1, kind="stable")[:, slot : slot + 1]
        given = weights(self.logits, router).copy()
        np.put_along_axis(given, order, 0.0, axis=-1)
        return self._sum(given, router, by_slot, extra)

    def _sum(self, given: Floats, router: Router, by_slot: bool, extra: bool) -> Floats | None:
        if extra and (self.shared is None or len(self.shared) != self.tokens):
            return None
        total = (
            self.shared.copy()
            if extra and self.shared is not None
            else np.zeros((self.tokens, self.outputs[0].shape[1]))
        )
        order = np.argsort(-self.logits, axis=-1, kind="stable")[:, : router.chosen]
        for expert, output in enumerate(self.outputs):
            if len(output) == self.tokens:
                total += given[:, expert, None] * output
                continue
            token = np.nonzero((order == expert).T)[1]
            rows = token if by_slot else np.sort(token)
            if len(rows) != len(output):
                return None
            total[rows] += given[rows, expert, None] * output
        return total


def _routers(experts: int) -> Iterator[Router]:
    counts = [*range(1, min(experts, 9)), experts]
    for chosen in dict.fromkeys(counts):
        for scores in SCORES:
            yield Router(scores, chosen)
            if chosen > 1 and not (chosen == experts and scores == "softmax"):
                yield Router(scores, chosen, True)


def _changes(router: Router, experts: int) -> Iterator[tuple[str, str, Router, dict[str, object]]]:
    """Every single change to a router."""
    if router.chosen > 1 or router.renormalised:
        now = not router.renormalised
        said = "renormalised, which the reference does not do" if now else "not renormalised to sum to one"
        facts: dict[str, object] = {"renormalised": now}
        yield "router-renorm", f"the weights of the chosen experts are {said}", replace(router, renormalised=now), facts
    for scores in SCORES:
        if scores == router.scores:
            continue
        label = "skipped-op" if scores == "logits" else "activation-variant"
        for renormalised in dict.fromkeys(
            (router.renormalised, False) if scores == "logits" else (router.renormalised,)
        ):
            said = f"the weights are {WORDS[scores]} instead of {WORDS[router.scores]}"
            other = replace(router, scores=scores, renormalised=renormalised)
            yield label, said, other, {"scores": scores, "reference_scores": router.scores}
    for chosen in (router.chosen - 1, router.chosen + 1):
        if 0 < chosen <= experts:
            facts = {"chosen": chosen, "reference_chosen": router.chosen}
            said = f"{chosen} experts are chosen instead of {router.chosen}"
            yield "missing-term", said, replace(router, chosen=chosen), facts


def _scores(logits: Floats, kind: str) -> Floats:
    if kind == "logits":
        return logits
    if kind == "sigmoid":
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _rows(value: NDArray[np.generic]) -> Floats | None:
    """A tensor as (tokens, width), or None where it holds no finite numbers."""
    if value.ndim < 2 or not np.issubdtype(value.dtype, np.floating) or not value.size:
        return None
    rows = np.asarray(value, np.float64).reshape(-1, value.shape[-1])
    return rows if np.isfinite(rows).all() else None


def _close(made: Floats, expected: Floats, limit: float) -> bool:
    if made.shape != expected.shape:
        return False
    size = max(float(np.linalg.norm(expected)), float(np.linalg.norm(made)), 1e-300)
    return float(np.linalg.norm(made - expected)) <= limit * size


HYPOTHESES: tuple[Hypothesis, ...] = (router_weights, mixture, *experts.HYPOTHESES)
