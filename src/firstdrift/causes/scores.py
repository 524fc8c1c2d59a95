"""What a loss reads: the output whose gradient is the loss's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from ..sites import Site
from ..traces import Array

Both = tuple[Array, Array]


class Looked(Protocol):
    """Both runs, as far as scores are looked for in them."""

    def sites(self, phase: str) -> Iterable[Site]:
        """The compared sites of a phase, in causal order."""

    def both(self, site: Site) -> Both | None:
        """Both tensors of a site."""


def scores(site: Site, runs: Looked) -> Both | None:
    """Both sides' scores of a loss, or of its gradient; all samples in one tensor where a loss is over all of them."""
    gradients = gradients_of(site, runs.sites("lossgrad"))
    found = [_read(one, runs) for one in gradients]
    known = [one for one in found if one is not None]
    if not known or len(known) != len(found):
        return None
    return np.concatenate([one[0] for one in known]), np.concatenate([one[1] for one in known])


def gradients_of(site: Site, sites: Iterable[Site]) -> list[Site]:
    """The gradient of a loss, or those of every sample where they were recorded one by one."""
    found = [other for other in sites if other.step == site.step]
    same = [other for other in found if other.sample == site.sample]
    return same[:1] or (sorted(found, key=lambda other: other.sample or 0) if site.sample is None else [])


def whole(sites: Iterable[Site], look: Callable[[Site], Array | None]) -> Array | None:
    """The tensors of some sites behind each other; None where one is not there."""
    found = [look(site) for site in sites]
    known = [one for one in found if one is not None and one.ndim]
    if not known or len(known) != len(found):
        return None
    return known[0] if len(known) == 1 else np.concatenate(known)


def _read(gradient: Site, runs: Looked) -> Both | None:
    both = runs.both(gradient)
    if both is None or not both[0].ndim:
        return None
    for site in runs.sites("agrad"):
        if (site.step, site.sample) == (gradient.step, gradient.sample):
            own = runs.both(site)
            if own is not None and own[0].shape == both[0].shape and np.array_equal(own[0], both[0]):
                return runs.both(site._replace(phase="fwd"))
    return None
