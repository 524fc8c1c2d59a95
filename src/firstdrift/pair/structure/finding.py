"""When names do not say which is which: whether to look further, and what is found then."""

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
from .lying_names import lying_names
from .outline import Outline
from .translated import Translation

NAMED = frozenset({"name", "prefix"})
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
