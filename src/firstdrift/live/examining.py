"""Two live implementations, examined: as they run, in float64, and by replays of one on what the other computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch

from .._kernels import measure
from ..compare.fills import without_fills
from ..compare.measuring import Measured
from ..dtypes import UNIT_ROUNDOFF, roundoff
from ..sites import Site
from ..traces import Array, Trace
from ..verdict.flips import MOST, in_few_places, tied_choices
from ..verdict.graph import Graph
from ..verdict.introduced import Introduced, introduced, is_other_mask
from ..verdict.ladder import LONG_LIMIT, SHORT_LIMIT, is_short
from ..verdict.limits import Limits
from ..verdict.scores import scores_behind
from .forcing import Plan, replay
from .matching import Names
from .perturbing import with_moved_weights
from .precise import dtype_of
from .sides import Side, record

FLOAT32 = LONG_LIMIT * UNIT_ROUNDOFF["f32"]  # what one operation of two correct float32 implementations may differ by
BY_NOISE = "near-ties were decided the other way inside its operation; in float64 both decide alike"
BETWEEN_EQUALS = "it chose otherwise between equals, where no rule says which comes first"
IN_FLOAT64, AS_RUN = "in float64", "as run"
SHORT_TIES = 0.25  # of all choices, those that a 16-bit format may decide otherwise


@dataclass(frozen=True, slots=True)
class Replays:
    """A trace of the candidate, and what the reference makes of it. The noise of a site is how far apart two plain
    replays are: one exact, one in the precision that counts."""

    candidate: Trace
    exact: Trace
    plain: tuple[Trace, Trace]
    how: str

    def introduced_at(self, site: Site, floor: float) -> Introduced | None:
        """What the operation of a site added; None where that cannot be said."""
        found = compared(self.exact, self.candidate, site)
        if found is None:
            return None
        expected, theirs = found
        plain, before = None, None
        if expected.dtype.kind not in "iub":
            plain = compared(*self.plain, site)
        if site.phase == "weight_after":
            unit = roundoff(self.exact[site].dtype, self.candidate[site].dtype)
            before = self.candidate.array(site._replace(phase="weight")).astype(expected.dtype, copy=False), unit
            plain = None if self.how == IN_FLOAT64 else plain  # the weights that these rounded are not the candidate's
        return introduced(expected, theirs, floor, () if plain is None else (plain,), self.how, before)


def compared(expected: Trace, found: Trace, site: Site) -> tuple[Array, Array] | None:
    """Both tensors of a site in one dtype, where both traces have one of the same shape and kind."""
    if site not in expected or site not in found or found[site].at is None or expected[site].at is None:
        return None
    ours, theirs = expected.array(site), found.array(site)
    if ours.shape != theirs.shape or (ours.dtype.kind in "iub") != (theirs.dtype.kind in "iub"):
        return None
    if ours.dtype.kind in "iub":
        return ours, theirs
    ours, theirs = without_fills(ours, theirs)  # the least number of a dtype is another one in float64
    return ours, theirs.astype(ours.dtype, copy=False)


@dataclass(frozen=True)
class Examination:
    """Everything that was run. `precise` is what it shows in float64, where both sides can be run so."""

    reference: Side
    candidate: Side
    names: Names
    folder: Path
    ours: Trace
    as_run: Replays
    precise: Replays | None
    precise_reference: Trace | None
    notes: tuple[str, ...]
    plan: Plan | None = None  # of the replays
    layouts: tuple[str, ...] = ()  # modules whose outputs were put back into the reference's layout

    def introduced(self, measured: Sequence[Measured], graph: Graph) -> dict[Site, Introduced]:
        """What every site's own operation added: in float64 if it shows there, else as it was run."""
        limits = Limits({item.pair.site: item for item in measured}, graph)
        found: dict[Site, Introduced] = {}
        for item in measured:
            site = item.pair.site
            fed = site.phase == "fwd" and site.name == "" and site.port.startswith("in.")
            if fed or site.phase in ("input", "weight"):  # given to a replay, not made by it
                continue
            precise = (
                None if self.precise is None else self.precise.introduced_at(site, self.precise_floor(site, graph))
            )
            if precise is not None and precise.beyond_noise:
                found[site] = replace(
                    precise, decided=BETWEEN_EQUALS if item.is_integer and self.is_tie(site, graph) else ""
                )
                continue
            producers = [other for other in graph.producers(site) if other in limits.items]
            floor = self.floor(item, limits.local(item, producers))
            own = self.as_run.introduced_at(site, floor)
            if own is not None:
                decided = BY_NOISE if precise is not None and self.is_decision(site, own, graph) else ""
                found[site] = replace(own, decided=decided, inherited=self.inherited(item))
            elif precise is not None:
                found[site] = precise
        for site in self.unrepeatable([site for site, own in found.items() if own.beyond_noise]):
            del found[site]
        for site in self.reference_off([site for site, own in found.items() if own.how == IN_FLOAT64]):
            found[site] = replace(found[site], reference_off=True)
        return self.with_other_masks(found) if self.reference.train else found

    def unrepeatable(self, sites: Sequence[Site]) -> list[Site]:
        """Where a replay of the reference on its own tensors does not give what it computed, so that one on the
        candidate's says nothing: a tensor that a module uses inside and returns as well has a gradient from both."""
        if not sites:
            return []
        folder = Path(mkdtemp(prefix="own-", dir=self.folder))
        if self.precise_reference is not None:
            exact = replay(self.reference.as_precise(), self.precise_reference, folder / "exact")
            own = Replays(self.precise_reference, exact, (exact, exact), IN_FLOAT64)
        else:
            own = replays(self.reference, dtype_of(self.reference.model), self.ours, folder, AS_RUN)
        seen = {site: own.introduced_at(site, FLOAT32) for site in sites}
        return [site for site, one in seen.items() if one is not None and one.beyond_noise]

    def with_other_masks(self, found: dict[Site, Introduced]) -> dict[Site, Introduced]:
        """Where dropout took another mask on one side, only which elements are dropped may differ; gradients are
        given that much only where a forward pass was."""
        masked = False
        for site, own in found.items():
            replays = self.precise if self.precise is not None and own.how == self.precise.how else self.as_run
            both = compared(replays.exact, replays.candidate, site) if own.beyond_noise else None
            if both is not None and (masked or site.phase == "fwd") and is_other_mask(*both):
                found[site] = replace(own, error=0.0, worst=0.0)
                masked = True
        return found

    def reference_off(self, sites: Sequence[Site]) -> list[Site]:
        """Where the candidate is what the reference's code means, and only the reference's own casts to shorter
        formats make a difference."""
        suspects = [] if self.precise is None else [s for s in sites if self._beyond_noise(self.precise, s)]
        if self.precise is None or not suspects:
            return []
        place = Path(mkdtemp(prefix="truth-", dir=self.folder)) / "truth"
        try:
            truth = replay(self.reference.as_exact(), self.precise.candidate, place, self.plan)
        except (RuntimeError, TypeError, NotImplementedError):
            return []  # code that insists on a shorter format cannot say what it means without
        against = replace(self.precise, exact=truth, plain=(truth, truth))
        return [site for site in suspects if site in truth and not self._beyond_noise(against, site)]

    def _beyond_noise(self, replays: Replays, site: Site) -> bool:
        own = replays.introduced_at(site, FLOAT32)
        return own is None or own.beyond_noise

    def inherited(self, item: Measured) -> float | None:
        """How far what the reference makes of the candidate's tensors is from what it made of its own."""
        both = compared(self.ours, self.as_run.exact, item.pair.site)
        if both is None or item.is_integer or item.pair.site.phase == "weight_after":
            return None
        return measure(*both, full=False).rel_l2

    def is_decision(self, site: Site, own: Introduced, graph: Graph) -> bool:
        """Whether an error that is not there in float64 sits in few places, or is a choice between near-ties: a
        decision was taken inside a module that replays cannot force."""
        both = compared(self.as_run.exact, self.as_run.candidate, site)
        if both is None or not own.beyond_noise or not isfinite(own.error):
            return False
        if both[0].dtype.kind in "iu":  # a choice: in a short format, many are between near-ties
            unit = torch.finfo(dtype_of(self.candidate.model)).eps / 2
            tied = self.near_ties(site, both, graph, unit)
            return float(np.mean(both[0] != both[1])) <= (SHORT_TIES if is_short(unit) else MOST) or bool(tied)
        return in_few_places(*both, own.limit)

    def near_ties(self, site: Site, choices: tuple[Array, Array], graph: Graph, unit: float) -> bool | None:
        """Whether choices differ between near-ties only, by the scores that they were taken by; None if these are
        unknown. In a replay, both sides choose by what the candidate computed."""
        theirs = self.as_run.candidate

        def load(other: Site) -> tuple[Array, Array] | None:
            return compared(theirs, theirs, other)

        recorded = [both for other in graph.producers(site) if (both := load(other)) and both[0].dtype.kind == "f"]
        made = (scores for _, scores in scores_behind(site, [record.site for record in theirs], load))
        said = (tied_choices(choices, scores, unit) for scores in (*recorded, *made))
        return next((tied for tied in said if tied is not None), None)

    def is_tie(self, site: Site, graph: Graph) -> bool:
        """Whether choices differ, in float64 too, between equals alone: which of them comes first is nobody's rule."""
        choices = None if self.precise is None else compared(self.precise.exact, self.precise.candidate, site)
        if self.precise is None or choices is None:
            return False
        for other in graph.producers(site):
            values = compared(self.precise.exact, self.precise.candidate, other)
            if values is not None and values[0].dtype.kind == "f":
                tied = tied_choices(choices, values, UNIT_ROUNDOFF["f64"])
                if tied is not None:
                    return tied
        return False

    def floor(self, item: Measured, local: float) -> float:
        """What an operation may add by itself; a tensor that is shorter than the candidate's weights, and than the
        reference's, was not meant to be."""
        meant = max(roundoff(item.pair.reference.dtype), torch.finfo(dtype_of(self.candidate.model)).eps / 2)
        stored = roundoff(item.pair.candidate[0].dtype)
        return local * meant / stored if stored > meant > 0 else local

    def with_reference_weights(self, sites: frozenset[Site]) -> Examination:
        """Everything replayed once more, with the reference's own weights at these sites."""
        folder = self.folder / "reference weights"
        folder.mkdir()
        plan = Plan(own_weight=lambda site: site not in sites)
        native = dtype_of(self.candidate.model)
        as_run = replays(self.reference, native, self.as_run.candidate, folder, AS_RUN, plan)
        precise = self.precise
        if precise is not None:
            precise = replays(self.reference, torch.float32, precise.candidate, folder, IN_FLOAT64, plan)
        return replace(self, as_run=as_run, precise=precise, plan=plan)

    @property
    def coarse_floor(self) -> float:
        """What an operation may add by itself in the dtype that the candidate runs in."""
        dtype = dtype_of(self.candidate.model)
        return FLOAT32 * float(torch.finfo(dtype).eps / torch.finfo(torch.float32).eps)

    @property
    def stored_floor(self) -> float:
        """How far two ways to store a function may be apart: weights that are folded into others, or turned with them,
        are rounded once more to the dtype they are stored in."""
        unit = torch.finfo(dtype_of(self.candidate.model)).eps / 2
        return SHORT_LIMIT * unit if is_short(unit) else FLOAT32

    def precise_floor(self, site: Site, graph: Graph) -> float:
        """What an operation may add by itself in float64: next to nothing, but for what is made of a module whose
        weights are in another layout, and were rounded for it."""
        near = {site, *graph.producers(site)}
        near |= {other for one in near if one.port.startswith("in.") for other in graph.producers(one)}
        return self.stored_floor if any(one.name in self.layouts for one in near) else FLOAT32

    def again_as_run(self, plan: Plan) -> Replays:
        """The replays of what was run as it is, with something else forced."""
        folder = Path(mkdtemp(prefix="as-run-", dir=self.folder))
        dtype = dtype_of(self.candidate.model)
        return replays(self.reference, dtype, self.as_run.candidate, folder, AS_RUN, plan)

    def again(self, name: str, plan: Plan) -> Replays:
        """One more replay, with something else forced."""
        now = self.precise or self.as_run
        exact = replay(self.reference.as_precise(), now.candidate, self.folder / name, plan)
        return replace(now, exact=exact)

    def stored_again(self, name: str, plan: Plan) -> Trace:
        """The same with the reference's weights rounded once more: moved by half a step, this way or that."""
        now, unit = self.precise or self.as_run, torch.finfo(dtype_of(self.candidate.model)).eps / 2
        return replay(with_moved_weights(self.reference.as_precise(), unit), now.candidate, self.folder / name, plan)

    @cached_property
    def other_weights(self) -> frozenset[str]:
        """The modules whose weights are not the same on both sides, or are on one side alone."""
        theirs = (self.precise or self.as_run).candidate
        ours = self.ours if self.precise_reference is None else self.precise_reference
        sites = {one.site for trace in (ours, theirs) for one in trace if one.site.phase == "weight"}
        both = {site: compared(ours, theirs, site) for site in sites}
        return frozenset(site.name for site, one in both.items() if one is None or not np.array_equal(*one))


def replays(
    reference: Side, dtype: torch.dtype, theirs: Trace, folder: Path, how: str, plan: Plan | None = None
) -> Replays:
    """What the reference makes of a trace of the candidate, exactly and in a dtype."""
    exact = replay(reference.as_precise(), theirs, folder / f"exact {how}", plan)
    rounded = replay(reference.as_dtype(dtype), theirs, folder / f"rounded {how}", plan)
    return Replays(theirs, exact, (exact, rounded), how)


def examine(reference: Side, candidate: Side, names: Names, ours: Trace, theirs: Trace, folder: Path) -> Examination:
    """Run everything that can be run."""
    # A replay may call modules that a run of the reference does not, where a fused kernel stands for several. They are
    # left alone: the candidate's tensors there belong to no pair, and would hide what is wrong with them.
    reference = replace(reference, sites=ours)
    as_run = replays(reference, dtype_of(candidate.model), theirs, folder, AS_RUN)
    notes: list[str] = []
    precise, precise_ours = None, None
    try:
        found = names.renamed(record(candidate.as_precise(), folder / "candidate-f64"))
        precise_ours = record(reference.as_precise(), folder / "reference-f64")
        precise = replays(reference, torch.float32, found, folder, IN_FLOAT64)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        notes.append(f"the candidate could not be run in float64 ({first}); it was judged as it runs")
    return Examination(reference, candidate, names, folder, ours, as_run, precise, precise_ours, tuple(notes))
