"""Operations that differ although their results do not: what this batch never asked of them is not known.

A ReLU on positive numbers gives what no ReLU at all gives. Where the two sides' own calls differ, both are run on
random numbers like those on record; what then differs is left open, with the names of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.sites import Site
from ..core.strict_json import Json
from ..core.traces import Trace
from ..errors import FormatError
from ..pair.arrangements import NEAR
from ..store.layout import PROGRAM
from .case import Case, Chains, Findings
from .measure.measuring import Measured
from .measure.result import CLEAN, DRIFTS, Finding, Verdict, Why
from .replay.programs import is_torch_here

if TYPE_CHECKING:
    from ..program.calls import Call, Program, Step
    from .replay.replays import Own

_PROVEN = frozenset({
    Why.SAME_FUNCTION, Why.GAUGE, Why.EMPTY, Why.ABSENT_ON_BOTH, Why.WITHIN_TOLERANCE, Why.NEAR_TRUTH, Why.FILL,
})  # fmt: skip


def unexercised(case: Case, chains: Chains) -> Findings:
    """Clean pairs whose calls would part on other numbers; nothing where a run has drifted anyway."""
    if not is_torch_here() or any(chain[-1].verdict in DRIFTS for chain in chains.values()):
        return {}
    same, first = alike(case, chains), min((site.step for site in case.items), default=0)
    made = (site for site in case.items if site.phase in ("fwd", "loss") and (site.step, site.sample) == (first, None))
    sites = [site for site in made if site in same and case.items[site].pair.reference.site == site]
    try:
        programs = _programs(case, sites)
    except FormatError:  # of a program that is damaged; the tensors are still compared
        return {}
    if programs is None:
        return {}
    from .replay.exercised import Exercised

    asked = Exercised(case, *programs, same)
    with asked.replays.running():
        apart = {site: asked.apart(site) for site in sites}
    found = {site: facts for site, facts in apart.items() if facts}
    return {site: Finding("unexercised", Verdict.INCONCLUSIVE, Why.UNEXERCISED, facts) for site, facts in found.items()}


def alike(case: Case, chains: Chains) -> frozenset[Site]:
    """The sites at which both sides have the same up to noise, and not by a proof that rests on other sites."""
    clean = (site for site, chain in chains.items() if chain[-1].verdict in CLEAN and chain[-1].why not in _PROVEN)
    return frozenset(site for site in clean if _is_near(case.items[site]))


def _is_near(item: Measured) -> bool:
    if item.measurement is None:
        return False
    error = item.measurement.rel_l2
    return item.measurement.bit_equal or (error is not None and error <= NEAR)


def _programs(case: Case, sites: list[Site]) -> tuple[Program, Own] | None:
    """Both sides' programs, where their calls differ: as recorded, else of the operations that both name."""
    named_alike = all(_is_named_alike(case, site) for site in sites)
    if named_alike and case.own is None and not has_program(case.candidate) and not has_program(case.reference):
        return None
    from ..program.library import library_program
    from ..program.written.read_program import read_program

    reference = read_program(case.reference)
    candidate = case.own.program if case.own is not None else read_program(case.candidate)
    if reference is not None and candidate is not None:
        steps = {site.step for site in sites} & reference.steps.keys() & candidate.steps.keys()
        if all(_written(reference.steps[step]) == _written(candidate.steps[step]) for step in steps):
            return None
    elif reference is not None or candidate is not None or named_alike:
        return None
    from .replay.replays import Own

    reference, candidate = reference or library_program(case.reference), candidate or library_program(case.candidate)
    return None if reference is None or candidate is None else (reference, case.own or Own(candidate, case.candidate))


def has_program(trace: Trace) -> bool:
    """Whether a trace has a program; what reads it need not be loaded where there is none."""
    return trace.format == "trace" and (trace.path / PROGRAM).is_file()


def _is_named_alike(case: Case, site: Site) -> bool:
    pair = case.items[site].pair
    return None in (pair.reference.op, pair.candidate[0].op) or pair.reference.op == pair.candidate[0].op


def _written(step: Step) -> list[tuple[str, Json]]:
    """The calls of a step, one after the other, and the numbers that they were passed."""
    return [(call.op, constants_of(call)) for _, call in step.calls() if call.part in ("forward", "loss")]


def constants_of(call: Call) -> list[Json]:
    """What a call was passed that is no tensor and no size: floats."""
    return [item for item in (*call.args, *call.kwargs.values()) if isinstance(item, float)]
