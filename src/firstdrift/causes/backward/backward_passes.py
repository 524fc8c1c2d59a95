"""Causes in the gradient of a tensor, recomputed from the gradients of all that read it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from ...sites import Site
from ...traces import Array
from ..agreement import Floats, agree, distance, factor, floats, limit, rounded
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from ..screening import SAMPLE, sampled
from .arrivals import Arrival, Arrivals, Few, arrivals
from .backward_formulas import TRANSPOSED, Known

PROMISING = 0.15  # of a difference: what a mistake may leave of it on a few elements to be tried on all
MOST_READERS = 6  # of which all parts are tried
FEWEST = 4  # elements that are what came in by no accident


def wrong_formula(evidence: Evidence) -> Iterator[Finding]:
    """The backward of one reader with a mistake, the others being right."""
    known = arrivals(evidence)
    if known is None:
        return
    for one in known.all:
        sent = one.sent
        if sent is None or one.settled is None:
            continue
        yield from _mistakes(evidence, one, one.settled, sent, known)
        yield from _of_earlier(evidence, one, one.settled, sent, known)


def let_through(evidence: Evidence) -> Iterator[Finding]:
    """A gradient that is what came in, where the reference's backward changes it."""
    if evidence.site.phase != "agrad" or evidence.found.size < FEWEST:
        return
    of = f" of {evidence.op}" if evidence.op else ""
    for key, gradient in evidence.candidate_inputs.items():
        if not key.startswith("agrad ") or gradient.size != evidence.found.size or not np.any(gradient):
            continue
        same = floats(gradient).reshape(evidence.found.shape)
        if agree(evidence, same, evidence.found) and not agree(evidence, same, evidence.expected):
            sentence = f"the backward{of} lets the gradient of {key[6:] or 'the whole model'} pass unchanged"
            yield Finding("gradient-formula", sentence, same, 1, {"formula": "passes on"})


def path_cut(evidence: Evidence) -> Iterator[Finding]:
    """A gradient that lacks what one of several readers sends back, or has more or less of it."""
    if evidence.site.phase != "agrad":
        return
    yield from _passed_on(evidence)
    several = sum(key.startswith("agrad ") for key in evidence.inputs) > 1
    known = arrivals(evidence) if several else None
    for names, sent in _parts(known) if known is not None else ():
        rest = floats(evidence.expected) - sent
        sentence = f"the gradient that {names} sends back is missing"
        yield Finding("gradient-missing", sentence, rest, 0, {"from": names})
        times = factor(sent, floats(evidence.found) - rest)
        if np.isfinite(times) and abs(times) > limit(evidence) and abs(times - 1) > limit(evidence):
            value = rounded(times, limit(evidence) * _share(evidence, sent))
            sentence = f"the gradient that {names} sends back is {value:.6g} times what it should be"
            yield Finding("gradient-formula", sentence, rest + value * sent, 1, {"factor": value, "from": names})
    if known is not None and not known.complete:
        yield from _all_but_one(known)


def _parts(known: Arrivals) -> Iterator[tuple[str, Floats]]:
    """What one reader sends back, or some of them together, as those behind one sum."""
    sent = {one.name: item for one in known.all if (item := one.sent) is not None and np.any(item)}
    for count in range(1, len(known.all)) if len(known.all) <= MOST_READERS else ():
        for names in combinations(sent, count):
            yield " and ".join(names), np.sum([sent[name] for name in names], axis=0)


def _all_but_one(known: Arrivals) -> Iterator[Finding]:
    """What all readers but one send back, where only that one is not understood."""
    sent = {one.name: one.sent for one in known.all}
    unknown = [name for name, item in sent.items() if item is None]
    if len(unknown) == 1 and len(sent) > 1:
        total = sum((item for item in sent.values() if item is not None), np.zeros(()))
        sentence = f"the gradient that {unknown[0]} sends back is missing"
        yield Finding("gradient-missing", sentence, np.asarray(total), 0, {"from": unknown[0]})


def _share(evidence: Evidence, sent: Floats) -> float:
    """By how much noise weighs more against a part of a gradient than against all of it."""
    whole, part = float(np.linalg.norm(floats(evidence.expected))), float(np.linalg.norm(sent))
    return max(1.0, whole / part) if part else 1.0


def _passed_on(evidence: Evidence) -> Iterator[Finding]:
    """Readers that hand on the gradient of their output as it is, such as sums."""
    sent = {key[6:]: item for key, item in evidence.candidate_inputs.items() if key.startswith("agrad ")}
    for name, gradient in sent.items() if len(sent) > 1 else ():
        if gradient.shape == evidence.found.shape and np.any(gradient):
            sentence = f"the gradient that {name} sends back is missing"
            yield Finding("gradient-missing", sentence, floats(evidence.expected) - floats(gradient), 0, {"from": name})
            sentence = f"only the gradient that {name} passes on arrives; the other paths are cut"
            yield Finding("gradient-missing", sentence, floats(gradient), 0, {"only": name})


def _mistakes(evidence: Evidence, one: Arrival, way: Known, sent: Floats, known: Arrivals) -> Iterator[Finding]:
    few = Few.of(evidence.expected, SAMPLE)
    expected, found, right = (sampled(item, few.at) for item in (evidence.expected, evidence.found, sent))
    whole, noise = np.linalg.norm(found - expected), limit(evidence) * np.linalg.norm(expected)
    for mistake, formula in way.mistakes.items():
        head = few.made(way, formula, one.theirs)
        if head.shape != right.shape:
            continue
        left = np.linalg.norm(found - expected - head + right)
        gated = distance(found * right, expected * head)
        if left > PROMISING * whole + noise and gated > PROMISING:
            continue
        made = formula(one.theirs)
        if made.shape == sent.shape:
            label = "transpose" if mistake == TRANSPOSED else "gradient-formula"
            sentence = f"the backward of {way.name} {mistake}"
            yield from _instead(evidence, label, sentence, made, sent, known, {"formula": mistake})


def _instead(
    evidence: Evidence, label: str, sentence: str, made: Floats, sent: Floats, known: Arrivals, said: dict[str, str]
) -> Iterator[Finding]:
    """What was made instead of what should have been sent, the rest being as expected.

    Where the only reader's right formula does not make what was expected, elements were multiplied on the way by
    numbers that the reference tells, such as a gate's.
    """
    if known.complete or len(known.all) > 1:
        yield Finding(label, sentence, floats(evidence.expected) + (made - sent), 0, dict(said))
        return
    ours, theirs = floats(evidence.found) * sent, floats(evidence.expected) * made
    yield Finding(label, sentence, None, 0, dict(said), residual=distance(ours, theirs))


def _of_earlier(evidence: Evidence, one: Arrival, way: Known, sent: Floats, known: Arrivals) -> Iterator[Finding]:
    """The right formula on what the forward pass left at an earlier sample, call or step."""
    for word, value in _earlier(evidence, one.name):
        if value.shape == one.theirs.value.shape and not np.array_equal(value, one.theirs.value):
            made = way.formula(one.theirs.on(floats(value)))
            if not agree(evidence, made, sent):
                sentence = f"the backward of {way.name} takes what the forward pass left at {word}"
                yield from _instead(evidence, "stale-buffer", sentence, made, sent, known, {"of": word})


def _earlier(evidence: Evidence, reader: str) -> Iterator[tuple[str, Array]]:
    site = evidence.site
    places: dict[str, Site] = {}
    if site.sample:
        places[f"sample {site.sample - 1}"] = site._replace(sample=site.sample - 1)
        places["sample 0"] = site._replace(sample=0)
    if site.call:
        places[f"call {site.call - 1}"] = site._replace(call=site.call - 1)
    if site.step:
        places[f"step {site.step - 1}"] = site._replace(step=site.step - 1)
    for word, place in places.items():
        values = (evidence.around.candidate(other) for other in _values(place, reader))
        value = next((one for one in values if one is not None), None)
        if value is not None:
            yield word, value


def _values(site: Site, reader: str) -> tuple[Site, Site]:
    """Where a reader's input is found: as such, or as the output that it reads."""
    return site._replace(phase="fwd", name=reader, port="in.0"), site._replace(phase="fwd")


HYPOTHESES: tuple[Hypothesis, ...] = (let_through, path_cut, wrong_formula)
