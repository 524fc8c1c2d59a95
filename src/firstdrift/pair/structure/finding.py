"""When names do not say which is which: whether to look further, and what is found then.

Equal names win over a coincidence of numbers: weights that a loader has swapped are swapped, and no other names. Only
where numbers and the order of the computation agree on another correspondence, and the names fit neither, they lie.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ...core.records import Record
from ...core.sites import Site
from ...core.traces import Trace
from ..conventions import is_bookkeeping
from ..pairs import Pair
from .correspondence import Correspondence, correspond
from .outline import Outline
from .translated import Translation

NAMED = frozenset({"name", "prefix"})
PROVEN = frozenset({"weights", "numbers"})
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for counterparts whatever their names; `released` are pairs by name that it speaks against."""

    translation: Translation
    released: tuple[Site, ...]
    notes: tuple[str, ...]


def found_by_evidence(
    reference: Trace, candidate: Trace, pairs: Mapping[Site, Pair], waiting: Collection[Site],
    of_candidate: Mapping[Site, Record], used: Collection[Site],
) -> Evidence | None:  # fmt: skip
    """Counterparts by what was computed; None where names have said it all."""
    free = [site for site in of_candidate if site not in used]
    if not (_any(waiting) and _any(free)) and not _crosses(pairs, of_candidate):
        return None
    of_reference, others = Outline(reference), Outline(candidate)
    named = {site.name: pair.candidate[0].site.name for site, pair in pairs.items() if pair.matched in NAMED}
    unnamed = correspond(of_reference, others, names=False) if named.keys() - {""} else None
    lying = frozenset[str]() if unnamed is None else lying_names(named, unnamed)
    if unnamed is not None and lying:
        released = tuple(site for site, pair in pairs.items() if site.name in lying and pair.matched in NAMED)
        return Evidence(Translation(unnamed), released, (_lie(lying, named, unnamed), *unnamed.notes))
    found = correspond(of_reference, others)
    return Evidence(Translation(found), (), (*found.notes, *_said_open(found)))


def _any(sites: Collection[Site]) -> bool:
    """Whether something is left that evidence could speak of."""
    return any(
        site.phase in ("fwd", "weight", "input") and not is_bookkeeping(site.port) for site in sites
    )  # fmt: skip


def _crosses(pairs: Mapping[Site, Pair], candidate: Mapping[Site, Record]) -> bool:
    """Whether modules of one name run in another order."""
    place = {site: number for number, site in enumerate(candidate) if site.phase == "fwd"}
    named = [pair for pair in pairs.values() if pair.matched in NAMED and pair.site.phase == "fwd"]
    order = [place[pair.candidate[0].site] for pair in named if not pair.site.port.startswith("in.")]
    return any(after < before for before, after in pairwise(order))


def _lie(lying: Collection[str], named: Mapping[str, str], found: Correspondence) -> str:
    told = [name for name in lying if found.names.get(name, named[name]) != named[name]]
    some = ", ".join(f"{found.names[name]!r} is the reference's {name!r}" for name in sorted(told)[:SHOWN])
    return f"names lie: by its numbers and order, the candidate's {some}" + (", ..." if len(told) > SHOWN else "")


def _said_open(found: Correspondence) -> list[str]:
    said = []
    for a, several in sorted(found.ambiguous.items()):
        if len(several) > 1:
            names = list(dict.fromkeys(found.candidate.runs[b].name for b in several))
            some = " or ".join(map(repr, names[:SHOWN])) + (
                f" or {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            )
            said.append(f"ambiguous: {found.reference.runs[a].name!r} may be the candidate's {some}")
    more = [f"ambiguous: {len(said) - SHOWN} more; a map can say which"] if len(said) > SHOWN else []
    return [*said[:SHOWN], *more]


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
