"""What two programs show by their calls alone: a path of a gradient, and calls that follow."""

from __future__ import annotations

import numpy as np

from ...program.reruns import Rerun
from ..asked import Answer, Asked
from ..one_program.narrowing import Lined
from ..one_program.values import line_of
from . import chains, paths


def stays(asked: Asked) -> bool:
    """Whether a step left a tensor as it was: any change that spoils an update gives that."""
    site = asked.site
    if site.phase == "weight_after":
        return not np.any(asked.found)
    before = (
        asked.replays.counterparts.array(site._replace(step=site.step - 1)) if site.step else np.zeros_like(asked.found)
    )
    return site.phase == "optim" and before is not None and np.array_equal(before, asked.found)


def by_path(asked: Asked, rerun: Rerun | None) -> Answer | None:
    """A path that only one side's gradient has."""
    replays, site = asked.replays, asked.site
    candidate, own, noise = replays.own_rerun(site), replays.own_site(site), max(asked.noise, paths.LEAST)
    first = replays.counterparts.array(replays.first(site)) if rerun is None else rerun.array(rerun.target)
    if candidate is None or own is None or first is None or replays.own is None:
        return None
    said, label = paths.one_path_more(candidate, np.asarray(first, np.float64), noise), "gradient-formula"
    if said is None and rerun is not None:
        said, label = (
            paths.one_path_less(rerun, np.asarray(candidate.array(candidate.target)), noise),
            "gradient-missing",
        )
    reference = replays.step(site)
    if said is None or reference is None:
        return None
    said += paths.detached(reference, candidate.step, site, own)
    return Answer(label, said, {}, asked.found, 0.0, 6.0, 0, both=True)


def goes_on(asked: Asked, lined: Lined) -> Answer | None:
    """What the candidate makes of what the reference leaves as it is."""
    more = chains.goes_on(lined)
    if more is None:
        return None
    label, said, count = more
    place = line_of(lined.reference, lined.reference.target.node)
    return Answer(
        label, f"{place}: {said}" if place else said, {"more": count}, asked.found, 0.0, 4.0 * count, 0, both=True
    )
