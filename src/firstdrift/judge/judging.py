"""The judge: an explicit list of passes over the pairs, each a function of what is known so far.

No pass takes back what another decided without saying so: a pair's chain holds what every pass has said of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.sites import Site, in_words
from ..core.traces import Trace
from ..pair.pairs import Alignment
from .apriori.limits import limits_for
from .case import Case, Chain, Chains, Findings, Pass, decided, fold, limit_of
from .exceptions.shorter import shorter
from .graph import Graph
from .measure.measuring import Measured, measure_pairs
from .measure.result import DIRTY, Finding, PairResult, Verdict, Why
from .measure.storage import as_stored
from .passes.by_bytes import comparable, given, local, refuse_nan
from .passes.closing import cancelled, edges, untested, without_source
from .passes.inheritance import inheritance
from .passes.statements import settings_of, stating
from .replay.programs import is_torch_here, replays_for
from .truth import Truth
from .unexercised import unexercised

BY_BYTES: tuple[Pass, ...] = (comparable, given, local)


def case_of(
    reference: Trace, candidate: Trace, alignment: Alignment, measured: Sequence[Measured], graph: Graph,
    truths: Mapping[Site, Truth] | None = None, finest: float = 0.0,
) -> Case:  # fmt: skip
    """Two aligned traces and their measurements, ready to be judged."""
    items = {item.pair.site: item for item in measured}
    return Case(reference, candidate, alignment, items, graph, limits_for(items, graph), truths or {}, None, finest)


def judge(
    case: Case, allow_nan: tuple[str, ...] = (), meant: tuple[str, ...] = ()
) -> tuple[Case, dict[Site, Chain]]:  # fmt: skip
    """What is decided of every pair; and the case as it was judged: with the settings that differ, with the program
    that was asked, if one was, and with weights turned that turned out to be the same along other axes."""
    case = replace(case, settings=settings_of(case, meant))
    judged, chains = _judge(case, allow_nan)
    vouched = [site for site in decided(chains, Why.GAUGE) if site in case.items]
    pairs = as_stored(case.alignment.pairs, case.reference, case.candidate, vouched) if vouched else ()
    if not vouched or pairs == case.alignment.pairs:
        return judged, chains
    measured = measure_pairs(pairs, case.reference, case.candidate)
    alignment = replace(case.alignment, pairs=pairs)
    turned = case_of(case.reference, case.candidate, alignment, list(measured), case.graph, case.truths, case.finest)
    return _judge(replace(turned, own=case.own, settings=case.settings), allow_nan)


def _judge(case: Case, allow_nan: tuple[str, ...]) -> tuple[Case, dict[Site, Chain]]:
    chains = fold(case, {}, BY_BYTES)
    doubts = decided(chains, Why.DOUBT)
    suspects = decided(chains, Why.OTHER_WEIGHT, Why.NON_FINITE)
    asked = [*doubts, *([site for site in case.items if site.phase == "fwd"] if suspects else [])]
    replays = replays_for(case.reference, case.candidate, case.alignment.pairs, asked, finest=case.finest, own=case.own)
    case = replace(case, replays=replays)
    closing = of_other_shapes, unexercised, without_source, stating(case.settings), refuse_nan(allow_nan)
    last = inheritance, cancelled, untested, shorter, edges, *closing
    return case, fold(case, chains, (*_by_program(case), *last))


def of_other_shapes(case: Case, chains: Chains) -> Findings:
    """Tensors that cannot be compared because of their shapes; torch is loaded if there are any."""
    if not is_torch_here() or not decided(chains, Why.PROBLEM):
        return {}
    from .exceptions.other_shapes import other_shapes

    return other_shapes(case, chains)


def _by_program(case: Case) -> tuple[Pass, ...]:
    """The passes that run programs; torch is loaded with them."""
    if case.replays is None:
        return ()
    from .passes.by_program import excepted, replayed

    return replayed, excepted


def results_of(case: Case, chains: Chains) -> list[PairResult]:
    """The pairs with their verdicts, in causal order; what decided is put into words elsewhere."""
    return [_result(item, case, chains[site]) for site, item in case.items.items()]


def _result(item: Measured, case: Case, chain: Chain) -> PairResult:
    last, site, measured = chain[-1], item.pair.site, item.measurement
    replayed: Mapping[str, Any] = next((one.facts for one in reversed(chain) if one.by == "replay"), {})
    inherited = _number(replayed, "inherited")
    if inherited is None and measured is not None:
        before = [case.items[producer] for producer in case.limits.producers(site)]
        inherited = max((_error(one, case) for one in before if one.measurement is not None), default=0.0)
    return PairResult(
        item.pair, last.verdict, "", measured, None if measured is None else _error(item, case), inherited,
        limit_of(chain), _introducer(last, site, case), _number(replayed, "error"), chain,
    )  # fmt: skip


def _error(item: Measured, case: Case) -> float:
    return case.limits.error_of(item, case.limits.producers(item.pair.site))


def _number(facts: Mapping[str, Any], key: str) -> float | None:
    return None if facts.get(key) is None else float(facts[key])


def _introducer(last: Finding, site: Site, case: Case) -> str | None:
    if last.verdict not in DIRTY or last.verdict is Verdict.INHERITED:
        return None
    match last.why:
        case Why.OTHER_INPUT:
            return "the data fed in"
        case Why.OTHER_WEIGHT:
            return "the loading of weights"
        case Why.UPDATES_BETWEEN:
            return f"the updates between steps {last.facts['from']} and {last.facts['to']}"
    between = last.facts.get("between")
    if between is not None:
        whence = in_words(between[0]) if between[0] is not None else "what the model was fed"
        return f"something between {whence} and {in_words(between[1])}"
    return case.graph.introducer(last.facts.get("edge", site))
