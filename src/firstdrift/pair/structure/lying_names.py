"""Names that lie: `layers.3` on one side is `layers.4` on the other.

Equal names win over a coincidence of numbers: weights that a loader has swapped are swapped, and no other names. Only
where numbers and the order of the computation agree on another correspondence, and the names fit neither, they lie.
"""

from __future__ import annotations

from collections.abc import Mapping

from .correspondence import Correspondence
from .outline import Outline

PROVEN = frozenset({"weights", "numbers"})


def lying_names(by_name: Mapping[str, str], found: Correspondence) -> frozenset[str]:
    """Our names whose counterpart by name is not the one by numbers and order; none where that is worse a fit."""
    reference, candidate = found.reference, found.candidate
    named = {
        run.place: candidate.by_key[by_name[run.name], run.call].place
        for run in reference.runs
        if (by_name.get(run.name, ""), run.call) in candidate.by_key and run.name in by_name
    }
    told = {a: one.to for a, one in found.runs.items()}
    other = {a for a, b in named.items() if candidate.groups[told.get(a, b)] != candidate.groups[b]}
    if not any(found.runs[a].how in PROVEN for a in other):
        return frozenset()
    taken = set(named.values())
    whole = named | {a: b for a, b in told.items() if a not in named and b not in taken}  # what names leave to evidence
    if kept(reference, candidate, told) <= kept(reference, candidate, whole) or len(told) < len(whole):
        return frozenset()
    taken = {told[a] for a in other}
    return frozenset(reference.runs[a].name for a, b in named.items() if a in other or b in taken)


def kept(reference: Outline, candidate: Outline, pairs: Mapping[int, int]) -> int:
    """How many times what one run makes is read by another on both sides."""
    return sum(
        pairs[before] in candidate.runs[pairs[run.place]].before
        for run in reference.runs
        if run.place in pairs
        for before in run.before
        if before in pairs
    )
