"""Settings are data: what the two sides state differently, and whether that changes what is computed.

A candidate that states another function is wrong even where its effect is too small to be seen here, unless its own
numbers show that it computes the reference's, or its own program that it undoes elsewhere what the setting changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from ...core.sites import Site
from ..case import Case, Chains, Findings, Pass, decided, last
from ..measure.result import CLEAN, Effect, Finding, SettingResult, Verdict, Why
from ..measure.stated import OPTIMIZER, UNSAID, Stated, stated_otherwise
from ..replay.programs import is_torch_here

if TYPE_CHECKING:
    from ..replay.restated import Restated

BY = "settings"
_PROVEN = frozenset({Why.GAUGE, Why.SAME_FUNCTION})


def settings_of(case: Case, meant: Sequence[str] = ()) -> tuple[SettingResult, ...]:
    """What the two sides state differently, and what a program says of it; `meant` are globs of `where.key`."""
    found = stated_otherwise(case.alignment.pairs, case.reference, case.candidate)
    if not found:
        return ()
    if not is_torch_here():
        said = [stated for stated in found if UNSAID not in (stated.reference, stated.candidate)]
        return tuple(_result(stated, _is_meant(stated, meant) or Effect.UNKNOWN, stated.sites) for stated in said)
    from ..replay.exchanged import settled
    from ..replay.restated import Restated

    known = settled(found)
    asked = Restated(case, known)
    return tuple(result for stated in known for result in _asked(stated, asked, meant))


def stating(settings: Sequence[SettingResult]) -> Pass:
    """A pass: pairs that are clean, of which the candidate states another function."""
    return partial(_stating, settings)


def _asked(stated: Stated, asked: Restated, meant: Sequence[str]) -> list[SettingResult]:
    from ..replay.exchanged import is_known

    if (effect := _is_meant(stated, meant)) is not None:
        return [_result(stated, effect, stated.sites)]
    effects = asked.effects(stated)
    by_effect = {effect: tuple(s for s, own in effects.items() if own is effect) for effect in effects.values()}
    if not by_effect:
        is_open = is_known(stated) and not asked.is_read_otherwise(stated)
        return [_result(stated, Effect.UNKNOWN if is_open else Effect.UNREAD, stated.sites)]
    told = [effect for effect in by_effect if effect is not Effect.UNREAD]
    return [_result(stated, effect, by_effect[effect]) for effect in told or by_effect]


def _result(stated: Stated, effect: Effect, sites: tuple[Site, ...]) -> SettingResult:
    return SettingResult(stated.where, stated.key, stated.reference, stated.candidate, stated.op, effect, sites)


def _is_meant(stated: Stated, meant: Sequence[str]) -> Effect | None:
    names = stated.key, f"{stated.where}.{stated.key}"
    return Effect.MEANT if any(fnmatchcase(name, glob) for name in names for glob in meant) else None


def _stating(settings: Sequence[SettingResult], case: Case, chains: Chains) -> Findings:
    found: dict[Site, Finding] = {}
    otherwise = _made_otherwise(chains)
    for setting in settings:
        if setting.effect not in (Effect.CHANGES, Effect.UNKNOWN):
            continue
        facts = {key: getattr(setting, key) for key in ("where", "key", "reference", "candidate", "op")}
        for site in setting.sites or _bearers(setting, case):
            now = last(chains, site)
            if site in found or now is None or now.verdict not in CLEAN or now.why in _PROVEN:
                continue
            if setting.effect is Effect.UNKNOWN:
                found[site] = Finding(BY, Verdict.INCONCLUSIVE, Why.UNKNOWN_SETTING, facts)
            elif not _is_undone(site, case, otherwise):
                found[site] = Finding(BY, Verdict.DRIFT, Why.SETTING, facts)
    return found


def _made_otherwise(chains: Chains) -> frozenset[Site]:
    """Where something was proven to be the same function, whatever is not plainly the same; nothing else."""
    proven = decided(chains, *_PROVEN)
    own = [chain for chain in chains if chain.phase == "fwd" and chains[chain][0].verdict not in CLEAN]
    return frozenset([*proven, *own]) if proven else frozenset()


def _is_undone(site: Site, case: Case, otherwise: frozenset[Site]) -> bool:
    """Whether what is made otherwise makes up for the setting."""
    if case.replays is None or not otherwise:
        return False
    from ..exceptions.undone import is_undone

    return is_undone(case.items[site].pair.reference.site, case, otherwise)


def _bearers(result: SettingResult, case: Case) -> list[Site]:
    """The pair that bears what a header says, and no line: the first of its kind that was compared."""
    wanted = "weight_after" if result.where == OPTIMIZER else "fwd"
    measured = [site for site, item in case.items.items() if item.measurement is not None]
    return ([site for site in measured if site.phase == wanted] or measured)[:1]
