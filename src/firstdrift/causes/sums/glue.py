"""What is computed between modules: sums of the tensors before, and of products of them.

How the reference makes its tensor of these is found first. Only what then makes the candidate's, with one thing
changed, is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from ..activations.activation_variants import FUNCTIONS
from ..agreement import Floats, floats, limit
from ..evidence import Evidence
from ..hypotheses import MARGIN, Finding, Hypothesis
from ..wiring import another_source
from .branches import goes_around
from .mixtures import GATES, Mixture, Part, fitted, gated, independent, mixture, plain
from .terms import Glue, glue


def sums(evidence: Evidence) -> Iterator[Finding]:
    """A summand is missing, counted otherwise, gated otherwise, activated, or taken from elsewhere."""
    made = glue(evidence)
    ours = None if made is None else mixture(made)
    if made is None or ours is None:
        return
    others = [plain(made, index) for index in range(len(made.terms))]
    parts = independent(made, [*ours.parts, *(one for one in others if one.words not in _words(ours))], made.candidate)
    theirs = fitted(made, parts, made.candidate, made.found)
    if theirs is not None:
        yield from _other_weights(made, ours, theirs)
    yield from _exchanged_terms(made, ours)
    for index, part in enumerate(ours.parts):
        yield from _other_part(made, ours, index)
        if len(ours.parts) > 1 and part.is_plain:
            yield from _other_source(made, ours, index)


@dataclass(frozen=True, slots=True)
class _Change:
    """The summands that the candidate lost, gained or counts otherwise."""

    lost: tuple[Part, ...]
    gained: tuple[Part, ...]
    counted: tuple[tuple[Part, float, float], ...]  # with the reference's weight and the candidate's
    kept: tuple[Part, ...]


def _words(one: Mixture) -> dict[str, float]:
    return {part.words: weight for part, weight in zip(one.parts, one.weights, strict=True)}


def _change(ours: Mixture, theirs: Mixture) -> _Change:
    before, after = _words(ours), _words(theirs)
    both = [part for part in ours.parts if part.words in after]
    counted = tuple((one, before[one.words], after[one.words]) for one in both if before[one.words] != after[one.words])
    changed = {one.words for one, _, _ in counted}
    return _Change(
        tuple(one for one in ours.parts if one.words not in after),
        tuple(one for one in theirs.parts if one.words not in before),
        counted,
        tuple(one for one in both if one.words not in changed),
    )


def _other_weights(made: Glue, ours: Mixture, theirs: Mixture) -> Iterator[Finding]:
    change = _change(ours, theirs)
    before, after = _words(ours), _words(theirs)
    changed = [one.words for one in (*change.lost, *change.gained, *(part for part, _, _ in change.counted))]
    parameters: dict[str, Any] = {
        "weights": {one: after.get(one, 0.0) for one in changed},
        "reference_weights": {one: before.get(one, 0.0) for one in changed},
    }
    if len(changed) == 1 and before.get(changed[0]):
        parameters["factor"] = after.get(changed[0], 0.0) / before[changed[0]]
    verdict = _lost(made, change) or _exchanged(change, before, after) or _counted(made, ours, change)
    if verdict is not None:
        label, said, free = verdict
        yield Finding(label, said, _everywhere(made, theirs), free, parameters)


def _lost(made: Glue, change: _Change) -> tuple[str, str, int] | None:
    if not change.lost or change.gained or change.counted or not change.kept:
        return None
    names = [one.words for one in change.lost]
    said = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not added"
    full = all(one.is_plain and made.is_full(one.terms[0]) for one in change.lost)
    if not full or any(one.terms[0] in kept.terms for one in change.lost for kept in change.kept):
        return ("missing-term", said, 0) if len(names) == 1 else None
    kept = [made.terms[index].name for one in change.kept for index in one.terms if made.is_full(index)]
    first = [one for one in kept if goes_around(made.evidence, [one], names)]
    if goes_around(made.evidence, names, kept):
        if first and len(names) == 1:
            return "residual-source", f"the sum goes on from {first[0]}, to which {names[0]} has not been added", 0
        return "missing-residual", said, 0
    return ("missing-term", said, 0) if len(names) == 1 else None


def _exchanged(change: _Change, before: dict[str, float], after: dict[str, float]) -> tuple[str, str, int] | None:
    if len(change.lost) == len(change.gained) == 1 and change.kept and not change.counted:
        lost, gained = change.lost[0].words, change.gained[0].words
        ungated = not change.lost[0].is_plain and change.gained[0].terms[0] in change.lost[0].terms
        if before[lost] == after[gained] and not ungated:
            return "residual-source", f"{gained} is added instead of {lost}", 0
    if len(change.counted) == 2 and not change.lost and not change.gained:
        (a, ours_a, theirs_a), (b, ours_b, theirs_b) = change.counted
        if (ours_a, ours_b) == (theirs_b, theirs_a):
            return "swapped-operands", f"{a.words} and {b.words} are exchanged", 0
    return None


def _exchanged_terms(made: Glue, ours: Mixture) -> Iterator[Finding]:
    """Two tensors have each other's place in the formula."""
    used = sorted({index for part in ours.parts for index in part.terms})
    for a, b in combinations(used, 2):
        order = list(range(len(made.terms)))
        order[a], order[b] = b, a
        theirs = ours.of([made.candidate[index] for index in order])
        if made.near(theirs, ours.of(made.candidate)) or not made.near(theirs, made.found):
            continue
        one, other = made.terms[a], made.terms[b]
        label = "swapped-halves" if one.whole and one.whole == other.whole else "swapped-operands"
        yield Finding(
            label, f"{one.name} and {other.name} are exchanged", _everywhere(made, ours, order), 0,
            {"exchanged": [one.name, other.name]},
        )  # fmt: skip


def _counted(made: Glue, ours: Mixture, change: _Change) -> tuple[str, str, int] | None:
    if not change.counted or change.lost or change.gained:
        return None
    if not change.kept:
        return _alone(made, change)
    names = [part.words for part, _, _ in change.counted]
    if len(set(ours.weights)) == 1 and all(after == 1 for _, _, after in change.counted):
        factor = ours.weights[0]
        return "op-order", f"the factor {factor:.6g} is not applied to {' and '.join(names)}, as if before the sum", 0
    said = ", ".join(
        f"{part.words} counts {after:.6g} times instead of {before:.6g}" for part, before, after in change.counted
    )
    part, once, twice = change.counted[0]
    if len(names) == 1 and part.is_plain and not made.is_full(part.terms[0]) and twice == 2 * once:
        return "double-bias", said, 0
    return "scale", said, len(names)


def _alone(made: Glue, change: _Change) -> tuple[str, str, int] | None:
    """One term by itself, with another factor; where another term is nearly the same, either may be missing."""
    every = [plain(made, index) for index in range(len(made.terms))]
    if len(independent(made, every, made.reference)) < len(every):
        return None
    part, before, after = change.counted[0]
    if len(change.counted) > 1 or before == 1:  # a factor where the reference has none is anything's
        return None
    said = f"{part.words} is multiplied by {after:.6g} instead of {before:.6g}"
    return "scale", said, 0 if after == 1 else 1


def _other_part(made: Glue, ours: Mixture, index: int) -> Iterator[Finding]:
    """One summand is computed otherwise: its gate is not applied or another one, or it is activated."""
    rest = ours.without(index).of(made.candidate)
    wanted = (made.found - rest) / ours.weights[index]
    part = ours.parts[index]
    now = float(np.linalg.norm(wanted - part.formula(made.candidate)))
    enough = 2 * limit(made.evidence) * float(np.linalg.norm(made.found)) / abs(ours.weights[index])
    tried = [
        (float(np.linalg.norm(other.formula(made.candidate) - wanted)), number, label, said, other)
        for number, (label, said, other) in enumerate(_alternatives(made, part, len(ours.parts) > 1))
    ]
    fitting = [one for one in tried if one[0] <= enough and MARGIN * one[0] < now]
    if fitting:
        _, _, label, said, other = min(fitting, key=lambda one: one[:2])
        yield Finding(
            label, f"{said} instead of {part.words}", _everywhere(made, ours.replacing(index, other)),
            parameters={"candidate": other.words, "reference": part.words},
        )  # fmt: skip


def _alternatives(made: Glue, part: Part, among_others: bool) -> Iterator[tuple[str, str, Part]]:
    if part.is_plain:
        if not among_others:  # alone, an activation of it is one too many, which is said elsewhere
            return
        a = part.terms[0]
        for name in FUNCTIONS:
            words = f"{name}({part.words})"
            yield "op-order", f"{words} is added", Part(words, (a,), partial(_activated, name, a), name)
        return
    a, b = part.terms
    if part.gate != "identity":
        yield "swapped-operands", gated(made, part.gate, b, a).words, gated(made, part.gate, b, a)
        yield "skipped-op", gated(made, "identity", a, b).words, gated(made, "identity", a, b)
    for name in FUNCTIONS:
        if name != part.gate:
            yield "activation-variant", gated(made, name, a, b).words, gated(made, name, a, b)
    if part.gate != "identity":
        words = f"{part.gate}({made.terms[a].name})"
        yield "skipped-op", words, Part(words, (a,), partial(_activated, part.gate, a), part.gate)
    else:
        yield "skipped-op", made.terms[a].name, plain(made, a)
    yield "skipped-op", made.terms[b].name, plain(made, b)


def _activated(name: str, index: int, terms: Sequence[Floats]) -> Floats:
    return GATES[name](terms[index])


def _other_source(made: Glue, ours: Mixture, index: int) -> Iterator[Finding]:
    """The term is another tensor of the run."""
    rest = ours.without(index)
    wanted = (made.found - rest.of(made.candidate)) / ours.weights[index]
    term = made.terms[ours.parts[index].terms[0]]
    if made.near(wanted, ours.parts[index].formula(made.candidate), 1.0):
        return
    for site, value in another_source(made.evidence, wanted, made.at):
        if site.name == term.name:
            continue
        predicted = _everywhere(made, rest) + ours.weights[index] * floats(value)
        yield Finding(
            "residual-source", f"{site.name or 'the model'} ({site.port}) is added instead of {term.name}",
            predicted, 0, {"site": list(site), "reference_term": term.name},
        )  # fmt: skip
        return


def _everywhere(made: Glue, one: Mixture, order: Sequence[int] | None = None) -> Floats:
    """A formula of the candidate's terms, everywhere; in another order, each term takes another one's place."""
    used = {index for part in one.parts for index in part.terms}
    source = order or range(len(made.terms))
    terms = [made.whole(source[index]) if index in used else np.zeros(()) for index in range(len(made.terms))]
    return np.broadcast_to(one.of(terms), made.evidence.expected.shape)


HYPOTHESES: tuple[Hypothesis, ...] = (sums,)
