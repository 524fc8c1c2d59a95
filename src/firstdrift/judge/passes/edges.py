"""A tensor that changed on its way into a module changed for the innermost module that reads it."""

from __future__ import annotations

import numpy as np

from ...core.sites import Site
from ..case import Case, Chains, Findings
from ..measure.result import Finding, Verdict, Why

BY = "edges"


def edges(case: Case, chains: Chains) -> Findings:
    """Drifts of what modules are fed, named at the modules that read it."""
    found: dict[Site, Finding] = {}
    for site, chain in chains.items():
        now = chain[-1]
        if now.verdict is not Verdict.DRIFT or site.phase != "fwd" or not site.port.startswith("in."):
            continue
        reader = _innermost(site, case, chains)
        if reader is None:
            continue
        if chains[reader][-1].verdict is not Verdict.DRIFT:
            found[reader] = Finding(BY, now.verdict, now.why, {**now.facts, "edge": site})
        found[site] = Finding(BY, Verdict.INHERITED, Why.READ_INSIDE, {**now.facts, "from": reader})
    return found


def _innermost(site: Site, case: Case, chains: Chains) -> Site | None:
    """The innermost module inside another that is handed the other's input as it is; the first of several."""
    inside = [
        other
        for other, chain in chains.items()
        if chain[-1].verdict in (Verdict.DRIFT, Verdict.INHERITED) and other.phase == "fwd"
        and other.port.startswith("in.") and other.step == site.step and _is_inside(other.name, site.name)
        and case.items[other].measurement is not None
        and case.items[other].pair.reference.shape == case.items[site].pair.reference.shape
    ]  # fmt: skip
    return next((one for one in sorted(inside, key=_depth) if _is_handed_on(one, site, case)), None)


def _is_handed_on(reader: Site, site: Site, case: Case) -> bool:
    """Whether both sides hand on the same numbers."""
    pairs = zip(case.load(case.items[reader].pair), case.load(case.items[site].pair), strict=True)
    return all(np.array_equal(read.ravel(), given.ravel()) for read, given in pairs)


def _is_inside(name: str, container: str) -> bool:
    return name != container and (not container or name.startswith(f"{container}."))


def _depth(site: Site) -> int:
    return -site.name.count(".")
