"""What the passes of the judge are told: two traces, how they line up, what was measured, and the program to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.dtypes import roundoff
from ..core.sites import Site
from ..core.traces import Array, Trace
from ..pair.pairs import Alignment, Pair
from .apriori.limits import Limits
from .graph import Graph
from .measure.measuring import Measured, load_recorded
from .measure.result import CLEAN, Finding, SettingResult, Why

if TYPE_CHECKING:
    from .replay.replays import Own, Replays
    from .truth import Truth

Chain = tuple[Finding, ...]
Chains = Mapping[Site, Chain]  # what was decided of every pair so far, in causal order of pairs
Findings = Mapping[Site, Finding]
Pass = Callable[["Case", Chains], Findings]


@dataclass(frozen=True)
class Case:
    """Two aligned traces with their measurements. `replays` runs the reference's program, where there is one and a pair
    is in doubt; `finest` is a unit roundoff that nothing is judged more finely by."""

    reference: Trace
    candidate: Trace
    alignment: Alignment
    items: Mapping[Site, Measured]  # in causal order
    graph: Graph
    limits: Limits
    truths: Mapping[Site, Truth] = field(default_factory=dict)
    replays: Replays | None = None
    finest: float = 0.0
    own: Own | None = None  # the candidate's program, where it is not beside its trace
    settings: tuple[SettingResult, ...] = ()  # that the two sides state differently

    def load(self, pair: Pair) -> tuple[Array, Array]:
        """Both tensors of a pair, brought together."""
        return load_recorded(pair, self.reference, self.candidate)

    def unit(self, pair: Pair) -> float:
        """The roundoff of what the candidate stores."""
        return max(self.finest, roundoff(*(record.dtype for record in pair.candidate)))


def last(chains: Chains, site: Site) -> Finding | None:
    """The last word on a site."""
    chain = chains.get(site, ())
    return chain[-1] if chain else None


def limit_of(chain: Chain) -> float | None:
    """What noise explains, as far as whoever said something of it last knew."""
    limits = (finding.facts.get("limit") for finding in reversed(chain))
    return next((float(limit) for limit in limits if limit is not None), None)


def is_clean(chains: Chains, site: Site) -> bool:
    """Whether the last word on a site is that it is right."""
    finding = last(chains, site)
    return finding is not None and finding.verdict in CLEAN


def undecided(case: Case, chains: Chains) -> list[Measured]:
    """The measured pairs of which no pass has said anything yet, in causal order."""
    return [item for site, item in case.items.items() if site not in chains]


def decided(chains: Chains, *whys: Why) -> list[Site]:
    """The sites whose last word is one of these."""
    return [site for site, chain in chains.items() if chain[-1].why in whys]


def fold(case: Case, chains: Chains, passes: Iterable[Pass]) -> dict[Site, Chain]:
    """Everything that passes decide, one after the other; each sees what those before it have decided."""
    now = dict(chains)
    for judge_pass in passes:
        for site, finding in judge_pass(case, now).items():
            now[site] = (*now.get(site, ()), finding)
    return now
