"""The right numbers in the wrong place: an operation left out, an old buffer, exchanged tensors, a call too many."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import agree, limit
from .hypotheses import Finding, Hypothesis
from .screening import positions, sampled

COMPARED_PHASES = frozenset({"fwd", "agrad"})
TRIED = 1024  # elements by which another tensor is tried
NAMED_ELSEWHERE = 2  # numbers that a finding is charged where the glue's own formula may say more


def skipped_op(evidence: Evidence) -> Iterator[Finding]:
    """found is what went into the operation. A gradient that passes unchanged is another formula, told elsewhere."""
    if evidence.site.phase != "fwd":
        return
    for key, value in evidence.candidate_inputs.items():
        if value.size != evidence.found.size or not _told_apart(evidence, value):
            continue
        same = value.reshape(evidence.found.shape)
        if agree(evidence, same, evidence.found) and not agree(evidence, same, evidence.expected):
            what = evidence.op or "the operation"
            yield Finding(
                "skipped-op", f"found is {key} unchanged: {what} is not applied", same,
                0 if key.startswith("in.") else NAMED_ELSEWHERE, {"input": key},
            )  # fmt: skip


def stale_buffer(evidence: Evidence) -> Iterator[Finding]:
    """found is what the same site gave earlier, or what a part like it in a layer before gave."""
    site = evidence.site
    if site.phase not in COMPARED_PHASES or not _told_apart(evidence, evidence.found):
        return
    sites = list(evidence.around.sites(site.phase))
    before = sites[: sites.index(site)] if site in sites else []
    own = [one for one in before if (one.name, one.port) == (site.name, site.port)]
    for earlier in (*reversed(own), *(one for one in reversed(before) if one not in own)):
        if earlier.port.startswith("in.") and not site.port.startswith("in."):
            continue
        value = _equal_tensor(evidence, earlier)
        if value is None or _handed_on(evidence, earlier):
            continue
        if earlier in own:
            said = f"found is the output of {_when(earlier)}, which came before"
        elif _role(earlier) == _role(site):
            said = f"found is the tensor of {earlier}, which came before"
        else:  # an old buffer, a branch not taken or operations not applied: all look like this
            said = f"found is the tensor of {earlier}, which does not belong here"
            yield Finding("unknown", said, value, NAMED_ELSEWHERE, {"site": list(earlier)})
            return
        free = 0 if earlier in own else NAMED_ELSEWHERE
        yield Finding("stale-buffer", said, value, free, {"site": list(earlier)})
        return


def exchanged(evidence: Evidence) -> Iterator[Finding]:
    """found is what the reference has at another site in the same call, and the other way round."""
    site = evidence.site
    if site.phase not in COMPARED_PHASES or not _told_apart(evidence, evidence.found):
        return
    now = site.step, site.call, site.sample
    for other in evidence.around.sites(site.phase):
        if other == site or other.port != site.port or (other.step, other.call, other.sample) != now:
            continue
        candidate = evidence.around.reference(other)
        if candidate is None or not agree(evidence, candidate, evidence.found):
            continue
        back = evidence.around.candidate(other)
        if back is not None and agree(evidence, back, evidence.expected):
            said = f"found is the reference's {other.name}, and the candidate's {other.name} is what was expected here"
            yield Finding("swapped-operands", said, candidate, 0, {"site": list(other)})


def call_count(evidence: Evidence) -> Iterator[Finding]:
    """The candidate's calls are those of the reference, one early or one late."""
    site = evidence.site
    following = site._replace(call=site.call + 1)
    if site.phase not in COMPARED_PHASES or following not in evidence.around.sites(site.phase):
        return
    if not _told_apart(evidence, evidence.found) or not _told_apart(evidence, evidence.expected):
        return
    candidate, reference = evidence.around.reference(following), evidence.around.candidate(following)
    if candidate is not None and agree(evidence, candidate, evidence.found):
        said = f"call {site.call} is the reference's call {following.call}: a call is missing before it"
        yield Finding("call-count", said, candidate, 0, {"call": site.call, "reference_call": following.call})
    if reference is not None and agree(evidence, reference, evidence.expected):
        said = f"what was expected of call {site.call} comes in call {following.call}: there is one call more"
        yield Finding("call-count", said, None, 0, {"call": following.call, "reference_call": site.call}, 0.0)


def not_run(evidence: Evidence) -> Iterator[Finding]:
    """found is what went into a call that the candidate does not make; or expected is what went into one too many."""
    if evidence.site.phase != "fwd" or not _told_apart(evidence, evidence.found):
        return
    for site in _first_calls(evidence, "reference_only"):
        value = evidence.around.reference(site)
        if value is not None and agree(evidence, value, evidence.found):
            if site.call:
                said = f"{site.name} is not called a {_ordinal(site.call)} time"
                yield Finding("call-count", said, value, 0, {"calls": site.call, "module": site.name})
            else:
                yield Finding("skipped-op", f"{site.name} is not run", value, 0, {"module": site.name})
            return
    for site in _first_calls(evidence, "candidate_only"):
        value = evidence.around.candidate(site)
        if site.call and value is not None and agree(evidence, value, evidence.expected):
            said = f"{site.name} is called a {_ordinal(site.call)} time"
            yield Finding("call-count", said, None, 0, {"reference_calls": site.call, "module": site.name}, 0.0)
            return


def _first_calls(evidence: Evidence, which: str) -> list[Site]:
    """The inputs of the first call of every module that one side does not make, outer modules first."""
    now = evidence.site.step, "fwd"
    alone = [site for site in evidence.around.facts.get(which, ()) if (site.step, site.phase) == now]
    first: dict[str, Site] = {}
    for site in sorted((site for site in alone if site.port.startswith("in.")), key=lambda site: site.call):
        first.setdefault(site.name, site)
    return sorted(first.values(), key=lambda site: site.name.count("."))


def _ordinal(call: int) -> str:
    number = call + 1
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"


def _equal_tensor(evidence: Evidence, site: Site) -> Array | None:
    for value in (evidence.around.candidate(site), evidence.around.reference(site)):
        if value is not None and agree(evidence, value, evidence.found):
            return value
    return None


def _told_apart(evidence: Evidence, value: Array) -> bool:
    """Whether a tensor has enough different numbers to be recognised by them: zeros and ones are everywhere."""
    some = sampled(value, positions(value.size, TRIED))
    if some.size < 4 or not np.isfinite(some).all():
        return False
    spread = float(some.std()) > 2 * limit(evidence) * float(np.abs(some).max(initial=0.0))
    return len(np.unique(some)) >= 4 and spread


def _handed_on(evidence: Evidence, site: Site) -> bool:
    """Whether a site has the drift too, as a module's input has that was handed to its first part."""
    reference, candidate = evidence.around.reference(site), evidence.around.candidate(site)
    if reference is None or candidate is None:
        return False
    return agree(evidence, reference, evidence.expected) and agree(evidence, candidate, evidence.found)


def _role(site: Site) -> tuple[str, str]:
    """What a site is, whatever layer it is in."""
    return re.sub(r"\d+", "#", site.name), site.port


def _when(site: Site) -> str:
    return f"step {site.step}, call {site.call}" + ("" if site.sample is None else f", sample {site.sample}")


CALLS: tuple[Hypothesis, ...] = (call_count, not_run)
HYPOTHESES: tuple[Hypothesis, ...] = (skipped_op, stale_buffer, exchanged)
