"""A tensor that one side makes in another shape: padded before and not inside, once for a batch or once a sample.

It cannot be compared. What is made of it can: where both sides' own calls, from what both recorded before it, make the
same of random inputs, and the same was recorded, such a tensor hides nothing. One that nothing compared is made of, or
that the model gives, stays what it is.
"""

from __future__ import annotations

from ...core.sites import Site
from ...errors import FormatError
from ...program.calls import Step, reads
from ...program.cuts import Cut
from ...program.written.read_program import read_program
from ..case import Case, Chains, Findings, is_clean, last
from ..measure.result import DRIFTS, Finding, Verdict, Why
from ..replay.exercised import Exercised
from ..replay.random_inputs import TRIALS
from ..replay.replays import Replays, own_of
from ..unexercised import alike

BY = "other shapes"


def other_shapes(case: Case, chains: Chains) -> Findings:
    """Tensors of other shapes of which both sides make the same."""
    asked = [site for site in chains if _is_of_another_shape(site, case, chains)]
    if not asked or any(chain[-1].verdict in DRIFTS for chain in chains.values()):
        return {}
    try:
        reference, own = read_program(case.reference), case.own or own_of(case.candidate)
    except FormatError:
        return {}
    if reference is None or own is None:
        return {}
    functions = Exercised(case, reference, own, alike(case, chains))
    with functions.replays.running():
        made = _made_of(functions.replays, case, asked)
        forward = [site for site in asked if site.phase == "fwd"]
        readers = {one for site in forward for one in made[site] if one.phase == "fwd"}
        proven = {reader for reader in readers if is_clean(chains, reader) and functions.is_same(reader)}
    # Gradients that are what they should be need no proof: their function follows from that of the forward pass.
    right = proven | {one for site in asked for one in made[site] if one.phase != "fwd" and is_clean(chains, one)}
    shown = [site for site in forward if made[site] and made[site] <= right]
    shown += [site for site in asked if site._replace(phase="fwd") in shown and site.phase == "agrad"
              and made[site] and all(is_clean(chains, one) for one in made[site])]  # fmt: skip
    used = {one for site in shown for one in made[site] if one in proven}
    return {site: _finding(sorted(made[site] & proven)) for site in shown} | {site: _finding([site]) for site in used}


def _is_of_another_shape(site: Site, case: Case, chains: Chains) -> bool:
    pair, now = case.items[site].pair, last(chains, site)
    shapes = pair.reference.shape, pair.candidate[0].shape if len(pair.candidate) == 1 else None
    is_inner = site.phase in ("fwd", "agrad") and bool(site.name) and pair.reference.site == site
    return is_inner and now is not None and now.why is Why.PROBLEM and None not in shapes and shapes[0] != shapes[1]


def _made_of(replays: Replays, case: Case, asked: list[Site]) -> dict[Site, set[Site]]:
    """The compared tensors that either side makes of each."""
    found: dict[Site, set[Site]] = {site: set() for site in asked}
    own_site = replays.own.site if replays.own is not None else None
    candidate = {own_site(case.items[site].pair.candidate[0].site): site for site in asked if own_site}
    for site in replays.counterparts.sites:
        own = replays.own_cut(site) if site in case.items else None
        inside = [one for one in candidate if own is not None and _is_inside(one, *own)]
        for one in {*replays.unseen(site), *(candidate[one] for one in inside)} if site in case.items else ():
            if one in found:
                found[one].add(site)
    return found


def _is_inside(site: Site, step: Step, cut: Cut) -> bool:
    """Whether a tensor is made on the way to another, and read there."""
    ref = step.sites.get(site)
    return ref is not None and ref != cut.target and any(ref in reads(step.nodes[number]) for number in cut.nodes)


def _finding(readers: list[Site]) -> Finding:
    modules = sorted({reader.name for reader in readers})
    facts = {"part": ", ".join(modules), "modules": modules, "trials": TRIALS, "proof": "replayed"}
    return Finding(BY, Verdict.NOISE, Why.SAME_FUNCTION, facts)
