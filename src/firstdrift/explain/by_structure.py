"""What two programs show by their calls alone: a path of a gradient, calls that follow, the few that differ."""

from __future__ import annotations

import numpy as np

from ..program.reruns import Rerun
from . import chains, paths
from .asked import Answer, Asked
from .laid_over import differing_calls
from .naming import CHANGED
from .narrowing import Lined
from .values import line_of


def stays(asked: Asked) -> bool:
    """Whether a step left a tensor as it was: any change that spoils an update gives that."""
    site = asked.site
    if site.phase == "weight_after":
        return not np.any(asked.found)
    before = asked.replays.theirs.array(site._replace(step=site.step - 1)) if site.step else np.zeros_like(asked.found)
    return site.phase == "optim" and before is not None and np.array_equal(before, asked.found)


def by_path(asked: Asked, rerun: Rerun | None) -> Answer | None:
    """A path that only one side's gradient has."""
    replays, site = asked.replays, asked.site
    theirs, own, noise = replays.own_rerun(site), replays.own_site(site), max(asked.noise, paths.LEAST)
    first = replays.theirs.array(replays.first(site)) if rerun is None else rerun.array(rerun.target)
    if theirs is None or own is None or first is None or replays.own is None:
        return None
    said, label = paths.one_path_more(theirs, np.asarray(first, np.float64), noise), "gradient-formula"
    if said is None and rerun is not None:
        said, label = paths.one_path_less(rerun, np.asarray(theirs.array(theirs.target)), noise), "gradient-missing"
    ours = replays.step(site)
    if said is None or ours is None:
        return None
    said += paths.detached(ours, theirs.step, site, own)
    return Answer(label, said, {}, asked.found, 0.0, 6.0, 0, both=True)


def goes_on(asked: Asked, lined: Lined) -> Answer | None:
    """What the candidate makes of what the reference leaves as it is."""
    more = chains.goes_on(lined)
    if more is None:
        return None
    label, said, count = more
    place = line_of(lined.ours, lined.ours.target.node)
    return Answer(
        label, f"{place}: {said}" if place else said, {"more": count}, asked.found, 0.0, 4.0 * count, 0, both=True
    )


def laid_over(asked: Asked, lined: Lined) -> Answer | None:
    """The few calls in which both programs differ, laid over each other."""
    some = differing_calls(lined)
    if not some:
        return None
    first = next((one for one in some if one.label != CHANGED), some[0])
    places = [line_of(lined.ours, one.at) for one in some if one.at in lined.ours.order]
    place = next((one for one in places if one), None)
    said = "; ".join(one.said for one in some)
    count = {"differences": len(some)}
    return Answer(
        first.label, f"{place}: {said}" if place else said, count, asked.found, 0.0, 8.0 * len(some), 0, both=True
    )
