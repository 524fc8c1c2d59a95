"""Parts that compute the same function in another layout: a permuted basis, a folded norm, migrated scales.

Inside such a part nearly everything differs, and nothing is wrong. It is recognised from outside: the reference's
part, with the reference's weights, makes of the candidate's inputs what the candidate makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial

from .._kernels import measure
from ..sites import Site
from ..traces import Trace
from ..verdict.flips import in_few_places
from ..verdict.introduced import introduced
from .examining import FLOAT32, Examination, Replays, compared
from .forcing import Plan

STORED = 2.0  # times what moving all weights by half a step does, which is more than rounding them does
NOTHING = 1e-12  # relative: what rounding leaves in float64


def equivalent_parts(
    examination: Examination, drifts: Sequence[Site], outputs: Mapping[str, Sequence[Site]]
) -> list[str]:
    """The smallest modules around drifts whose function is the reference's, although what is inside them differs.

    `outputs` are the compared outputs of every module, by name.
    """
    found: list[str] = []
    around = {name for site in drifts for name in _around(site, outputs)}
    for depth in sorted({_depth(name) for name in around}, reverse=True):
        level = {name for name in around if _depth(name) == depth and not any(is_inside(name, one) for one in found)}
        level = {name for name in level if any(_holds(name, site) and not _in_any(site, found) for site in drifts)}
        if not level:
            continue
        plan = Plan(opaque=level.__contains__, own_weight=partial(_outside, parts=frozenset(level)))
        replays = examination.again(f"opaque-{depth}", plan)
        stored = _rounded_once_more(examination, level, depth, plan)
        for name in sorted(level):
            seen = [
                replays.introduced_at(site, _floor(site, replays, stored.get(name), examination.stored_floor))
                for site in outputs[name]
            ]
            clean = bool(seen) and all(one is not None and not one.beyond_noise for one in seen)
            inner = [site for site in drifts if _holds(name, site)]
            if clean and _matters(examination, replays, inner[0], name, outputs[name]):
                found.append(name)
    return _same_as_run(examination, found, outputs) if found and examination.precise is not None else found


def _rounded_once_more(examination: Examination, level: Set[str], depth: int, plan: Plan) -> dict[str, Trace]:
    """For parts whose weights are stored in another way, in a short format: what rounding weights once more does."""
    other = {name for name in level if any(is_inside(one, name) for one in examination.other_weights)}
    if not other or examination.stored_floor <= FLOAT32:
        return {}
    return dict.fromkeys(other, examination.stored_again(f"stored-{depth}", plan))


def _floor(site: Site, replays: Replays, stored: Trace | None, most: float) -> float:
    """How far a part may be from the reference's in float64, and still be the same function."""
    both = None if stored is None else compared(replays.exact, stored, site)
    return FLOAT32 if both is None else min(most, max(FLOAT32, STORED * (measure(*both).rel_l2 or 0.0)))


def _same_as_run(examination: Examination, parts: Sequence[str], outputs: Mapping[str, Sequence[Site]]) -> list[str]:
    """The parts that are the reference's as they are run too: what shows there alone is no matter of layout."""
    plan = Plan(opaque=frozenset(parts).__contains__, own_weight=partial(_outside, parts=frozenset(parts)))
    replays = examination.again_as_run(plan)

    def differs(site: Site) -> bool:
        own = replays.introduced_at(site, examination.coarse_floor)
        both = compared(replays.exact, replays.candidate, site)
        beyond = own is not None and own.beyond_noise and both is not None
        return beyond and not (own is not None and both is not None and in_few_places(*both, own.limit))

    return [name for name in parts if not any(differs(site) for site in outputs[name])]


def is_inside(name: str, part: str) -> bool:
    """Whether a module lies in a part of the model, or is it."""
    return name == part or not part or name.startswith(f"{part}.")


def _matters(examination: Examination, whole: Replays, site: Site, part: str, outputs: Iterable[Site]) -> bool:
    """Whether the reference's part would show this drift at its outputs, if nothing in it made up for it.

    What it would only dilute is a drift, and so is what it hides, as a norm does; but for weights that have no effect
    at all, as the bias of all keys has none on a softmax.
    """

    def outside(other: Site) -> bool:
        return not is_inside(other.name, part) or (other.name == part and other.port.startswith("in."))

    plan = Plan(
        own_weight=lambda other: other == site or not is_inside(other.name, part),
        only=lambda other: other == site or outside(other),
    )
    name = f"alone-{len(list(examination.folder.iterdir()))}"
    alone = examination.again(name, plan)
    effects = [
        introduced(*both, examination.stored_floor, (), alone.how).error
        for other in outputs
        if (both := compared(whole.exact, alone.exact, other)) is not None
    ]
    without_effect = site.phase == "weight" and all(effect <= NOTHING for effect in effects)
    return any(effect > examination.stored_floor for effect in effects) or without_effect


def _around(site: Site, outputs: Mapping[str, Sequence[Site]]) -> list[str]:
    """The modules that a drift happened in, from the inside out, of which outputs were compared."""
    parts = site.name.split(".") if site.name else []
    names = [".".join(parts[:length]) for length in range(len(parts), -1, -1)]
    return [name for name in names if name in outputs and _holds(name, site)]


def _holds(part: str, site: Site) -> bool:
    """Whether a drift lies behind a module's inputs and before its outputs."""
    if site.phase == "weight":
        return is_inside(site.name, part)
    return is_inside(site.name, part) and site.name != part


def _in_any(site: Site, parts: Iterable[str]) -> bool:
    return any(_holds(part, site) for part in parts)


def _outside(site: Site, parts: Iterable[str]) -> bool:
    return not _in_any(site, parts)


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0
