"""Parameters of the reference that nothing of the candidate stands for.

A replay shows what a parameter does for these inputs. An adapter that adds nothing yet does nothing, and training would
change that: such a parameter may be left out only where its numbers stand in one of the candidate's own, or where its
module is in a part whose other weights were proven to make up for it, as a folded norm's are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import wide
from ..core.sites import PARAMETER_PHASES, Site
from ..core.traces import Trace
from ..judge.case import Chains, decided
from ..judge.measure.result import Why
from ..pair.pairs import Alignment, Unmatched


def lost_parameters(
    alignment: Alignment, reference: Trace, candidate: Trace, learned: Collection[str], chains: Chains
) -> frozenset[Site]:
    """The sites, in all phases, of parameters without a counterpart that nothing makes up for; `learned` are the paths
    of the reference's parameters, as opposed to its buffers."""
    proven = _proven_modules(chains)
    unmatched = (one.site for one in alignment.reference_only if one.site.name not in proven)
    missing = [site for site in unmatched if _path(site) in learned]
    of_candidate = _numbers(candidate, alignment.candidate_only)
    kept = {_path(site) for site in _weights(missing) if _is_among(wide(reference.array(site)), of_candidate)}
    return frozenset(site for site in missing if site.phase in PARAMETER_PHASES and _path(site) not in kept)


def _proven_modules(chains: Chains) -> set[str]:
    """The modules of parts that compute the same function with other weights."""
    gauges = (chains[site][-1] for site in decided(chains, Why.GAUGE))
    return {name for finding in gauges for name in finding.facts.get("modules", ())}


def _path(site: Site) -> str:
    return f"{site.name}.{site.port}" if site.name else site.port


def _weights(sites: Iterable[Site]) -> list[Site]:
    return [site for site in sites if site.phase == "weight"]


def _numbers(trace: Trace, unmatched: Iterable[Unmatched]) -> NDArray[np.float64]:
    """Every number of the weights that are left over, once and in order."""
    found = [wide(trace.array(site)).ravel() for site in _weights(one.site for one in unmatched)]
    return np.unique(np.concatenate(found)) if found else np.empty(0)


def _is_among(array: NDArray[np.float64], numbers: NDArray[np.float64]) -> bool:
    places = np.searchsorted(numbers, array)
    return bool(len(numbers)) and bool(np.all(numbers[np.minimum(places, len(numbers) - 1)] == array))
