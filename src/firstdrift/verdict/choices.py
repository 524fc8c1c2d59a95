"""Integers that differ: choices between near-ties, handed on or taken, or numbers that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._kernels import Measurement
from ..compare.measuring import Measured
from ..compare.pairs import Pair
from ..compare.result import PairResult, Verdict
from ..dtypes import roundoff
from ..sites import Site
from ..traces import Array
from .behind_flips import BehindFlips
from .flips import MANY, MOST, tied_choices
from .handed_on import is_handed_on
from .readers import described
from .scores import scores_behind


def differing(measurement: Measurement) -> str:
    """How many integers differ."""
    return f"{measurement.differing} of {measurement.count} integers differ"


@dataclass(frozen=True, slots=True)
class Choices:
    """What was measured and judged so far, and how to fetch both tensors of a pair."""

    items: Mapping[Site, Measured]
    results: Mapping[Site, PairResult]
    error: Callable[[Site], float]
    load: Callable[[Pair], tuple[Array, Array]]
    behind_flips: BehindFlips

    def about(self, judged: PairResult, producers: Sequence[Site]) -> tuple[Verdict, str]:
        """Integers are equal or not; choices may differ between near-ties, however many those are."""
        measurement = judged.measurement
        assert measurement is not None
        reason = differing(measurement)
        indices = self.load(judged.pair)
        if (source := self._source(judged.site, indices, producers)) is not None:
            return Verdict.FLIP, f"{reason}, as chosen at {described(source)}"
        rest = self.behind_flips.without_moved(indices, (*producers, *self._beside(judged.site)))
        if rest is not None and np.array_equal(*rest):
            self.behind_flips.begin(judged.site, indices)
            return Verdict.FLIP, f"{reason}, all in rows that were chosen otherwise at a near-tie before"
        error = self.error if rest is None else self.behind_flips.error_of_others
        tied = self._tied(judged.site, rest or indices, producers, error)
        if tied:
            self.behind_flips.begin(judged.site, indices)
            return Verdict.FLIP, f"{reason}, each at a near-tie"
        if tied is not None:
            return Verdict.DRIFT, f"{reason}, not at a near-tie"
        if all(self.error(site) == 0 for site in producers):
            return Verdict.DRIFT, reason
        if measurement.differing >= MANY and measurement.differing > MOST * measurement.count:
            return Verdict.DRIFT, f"{reason}, too many for near-ties"
        return (
            Verdict.INCONCLUSIVE,
            f"{reason}, and its inputs differ by noise: a near-tie may have been decided the other way",
        )

    def _source(self, choice: Site, indices: tuple[Array, Array], producers: Sequence[Site]) -> Site | None:
        """Where a choice was taken that is only handed on here."""
        for site in (*producers, *self._beside(choice)):
            if self.items[site].measurement is None or self.results[site].verdict is not Verdict.FLIP:
                continue
            if is_handed_on(indices, self.load(self.items[site].pair)):
                self.behind_flips.begin(choice, indices)
                return site
        return None

    def _tied(
        self, choice: Site, indices: tuple[Array, Array], producers: Sequence[Site], error: Callable[[Site], float]
    ) -> bool | None:  # fmt: skip
        """Whether choices differ at near-ties only, by the scores that they were taken by; None if these are unknown.

        Equal scores may be chosen from either way. What a module makes itself of what it is fed, it rounds.
        """
        for site in (*producers, *self._beside(choice)):
            if self.items[site].measurement is None or self.items[site].is_integer:
                continue
            tied = tied_choices(indices, self.load(self.items[site].pair), max(error(site), 1e-300))
            if tied is not None:
                return tied
        for site, scores in scores_behind(choice, self.results, self._compared):
            tied = tied_choices(indices, scores, error(site) + self._unit(site))
            if tied is not None:
                return tied
        return None

    def _compared(self, site: Site) -> tuple[Array, Array] | None:
        """Both tensors of a site, where they could be compared."""
        return None if self.items[site].measurement is None else self.load(self.items[site].pair)

    def _unit(self, site: Site) -> float:
        """The rounding of the coarser side of a site."""
        pair = self.items[site].pair
        return roundoff(pair.reference.dtype, pair.candidate[0].dtype)

    def _beside(self, site: Site) -> list[Site]:
        """What a module returned together with a tensor: a router's scores with its choices."""
        return [other for other in self.results if other._replace(port="") == site._replace(port="") and other != site]
