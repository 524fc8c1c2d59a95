"""Causes in the routing of a mixture of experts: how logits become weights, and which experts they weigh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from ..evidence import Evidence
from ..hypotheses import DOMINANT, EXACT, LEAST_NOISE, Finding, Hypothesis
from . import experts, row_sums
from .expert_sums import Experts, Floats, Router, best_first, other_norms, rows, weights

SCORES = ("softmax", "sigmoid", "logits")
MOST_EXPERTS = 1024
FEW = 64  # tokens
_WAYS = ((False, False), (True, False), (False, True), (True, True))  # by slot, and with the shared expert
WORDS = {
    "softmax": "a softmax over all experts", "sigmoid": "sigmoids", "logits": "the logits themselves",
    "softmax of the chosen": "a softmax over the chosen experts",
}  # fmt: skip


def router_weights(evidence: Evidence) -> Iterator[Finding]:
    """The weights themselves, computed from recorded logits."""
    if evidence.site.phase != "fwd" or evidence.expected.shape != evidence.found.shape:
        return
    for name, given in evidence.inputs.items():
        logits, own = (rows(x) for x in (given, evidence.candidate_inputs.get(name, given)))
        expected = rows(evidence.expected)
        if (
            logits is None
            or own is None
            or expected is None
            or rows(evidence.found) is None
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
                for label, sentence, router, facts in _every_change(fitting[0], logits.shape, evidence.expected.shape):
                    predicted = made(own, router)
                    if predicted.shape == expected.shape:
                        yield Finding(label, sentence, predicted.reshape(evidence.expected.shape), 0, facts)
                return


def mixture(evidence: Evidence) -> Iterator[Finding]:
    """The output of a mixture, computed from recorded logits and the outputs of the experts."""
    if evidence.site.phase != "fwd" or evidence.expected.ndim < 2 or evidence.expected.shape != evidence.found.shape:
        return
    expected = rows(evidence.expected)
    if expected is None or rows(evidence.found) is None:
        return
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    for reference, candidate in _bases(evidence):
        few = np.unique(np.linspace(0, len(expected) - 1, FEW).astype(np.intp))
        some = reference.at(few)  # of all, to try every router on
        for router, (by_slot, extra) in product(_routers(reference.logits.shape[1]), _WAYS):
            tried = None if some is None else some.mixed(router, by_slot, extra)
            if some is not None and (tried is None or not _close(tried, expected[few], 4 * limit)):
                continue
            made = reference.mixed(router, by_slot, extra)
            if made is None or not _close(made, expected, limit):
                continue
            found, own = rows(evidence.found), candidate.at(few)
            for label, sentence, changed, facts in _every_change(
                router, reference.logits.shape, evidence.expected.shape
            ):
                given = weights(candidate.logits, changed)
                tried = None if own is None else own.weighed(given[few], router, by_slot, extra)
                if tried is not None and found is not None and not _close(tried, found[few], max(4 * limit, DOMINANT)):
                    continue
                predicted = candidate.weighed(given, router, by_slot, extra)
                if predicted is not None:
                    yield Finding(label, sentence, predicted.reshape(evidence.expected.shape), 0, facts)
            yield from _experts_changed(evidence, candidate, router, by_slot, extra)
            return


def _bases(evidence: Evidence) -> Iterator[tuple[Experts, Experts]]:
    """The experts of both sides; with what else may be added to their sum, as the stream beside a block is."""
    reference, candidate = (Experts.of(x, evidence.expected) for x in (evidence.inputs, evidence.candidate_inputs))
    if reference is None or candidate is None or reference.beside.keys() != candidate.beside.keys():
        return
    names = tuple(reference.beside)
    for some in dict.fromkeys([(), *((name,) for name in names), names]):
        yield reference.upon(some), candidate.upon(some)


def _experts_changed(
    evidence: Evidence, given: Experts, router: Router, by_slot: bool, extra: bool
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


def _routers(experts: int) -> Iterator[Router]:
    counts = [*range(1, min(experts, 9)), experts]
    for chosen in dict.fromkeys(counts):
        for scores in SCORES:
            yield Router(scores, chosen)
            if chosen > 1 and not (chosen == experts and scores == "softmax"):
                yield Router(scores, chosen, True)
        if chosen == 1:  # whatever its score is, the weight of the one is one
            yield Router("softmax", 1, True)


def _every_change(
    router: Router, logits: tuple[int, ...], shape: tuple[int, ...]
) -> Iterator[tuple[str, str, Router, dict[str, object]]]:
    """Every single change to a router of logits (tokens, experts) whose result has a shape."""
    yield from _changes(router, logits[1])
    unread = router.chosen == 1 and router.renormalised  # the scores of the reference do not show
    for scores in ("softmax", "sigmoid") if unread else (router.scores,):
        if unread and scores != router.scores:
            said = f"the weight of the chosen expert is not renormalised to one, but {WORDS[scores]}"
            yield "router-renorm", said, replace(router, scores=scores, renormalised=False), {"renormalised": False}
        for norm in other_norms(logits[0], shape[-2] if len(shape) > 2 else 0):
            usual = "their sum for each token" if router.renormalised else "nothing"
            said = f"the weights of the chosen experts are divided by {norm.words} instead of {usual}"
            other = replace(router, scores=scores, renormalised=True, norm=norm)
            yield "router-renorm", said, other, {"over": norm.over, "power": norm.power}


def _changes(router: Router, experts: int) -> Iterator[tuple[str, str, Router, dict[str, object]]]:
    """Every single change to a router."""
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


def _close(made: Floats, expected: Floats, limit: float) -> bool:
    if made.shape != expected.shape:
        return False
    size = max(float(np.linalg.norm(expected)), float(np.linalg.norm(made)), 1e-300)
    return float(np.linalg.norm(made - expected)) <= limit * size


HYPOTHESES: tuple[Hypothesis, ...] = (
    router_weights, mixture, *row_sums.HYPOTHESES, *experts.HYPOTHESES,
)  # fmt: skip
