"""Verdicts where the reference could be replayed on the candidate's own tensors: what a site's operation added is
then known, and need not be told from what it inherited."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._kernels import Measurement, measure
from ..compare.result import CLEAN, PairResult, Verdict
from ..compare.scales import PART, profile_of, worst_part
from ..compare.updates import NOISIER, update_of
from ..dtypes import roundoff
from ..sites import BACKWARD_PHASES, Site
from ..traces import Array
from .equal_maxima import SHARED
from .graph import Graph
from .ladder import SHORT_LIMIT, is_short
from .noise import GAIN_MARGIN
from .reasons import AMPLIFIED, REFERENCE_OFF

MASKED = 64  # elements, below which nothing is said of masks
SIGMAS = 6.0  # by which what two random masks drop may differ
_DIRTY = frozenset({Verdict.DRIFT, Verdict.PRECISION, Verdict.INHERITED})
_LATE = BACKWARD_PHASES | {"loss", "lossgrad", "optim", "weight_after"}


@dataclass(frozen=True, slots=True)
class Introduced:
    """What the operation of a site added, relative to what the reference makes of the same inputs.

    `limit` is what noise explains. `size` is the norm that both are relative to, and `how` says in which precision
    it was found out.
    """

    error: float
    limit: float
    size: float
    how: str
    worst: float = 0.0  # error of the worst row, column or element for its size, and what noise explains of it
    worst_limit: float = inf
    where: str = ""  # that part
    decided: str = ""  # how, where that was a near-tie inside the operation
    inherited: float | None = None  # how far what was expected is from the reference's own tensor
    reference_off: bool = False  # the candidate is what the reference would be without casts to shorter formats
    undecided: str = ""  # why a replay cannot say
    source: Site | None = None  # of what is only handed on, where it comes from
    between: str = ""  # where several modules may have made it, of which the candidate recorded none: which

    @property
    def beyond_noise(self) -> bool:
        return not (self.error <= self.limit and self.worst <= self.worst_limit)


def introduced(
    expected: Array,
    found: Array,
    floor: float,
    rounded: Sequence[tuple[Array, Array]],
    how: str,
    before: tuple[Array, float] | None = None,
) -> Introduced:
    """Compare what a site holds with what it should hold.

    `floor` is the relative error that is always allowed; `rounded` what correct computations of the same inputs make of
    them, each with what it should make: an operation that is ill-conditioned shows it there, in the rows and columns in
    which it is. `before` are the weights that an update was added to, and the roundoff of what they are stored in.
    """
    numbers = measure(expected, found)
    size = numbers.norm_reference
    if not numbers.nonfinite_agree:
        return Introduced(inf, floor, size, how)
    error = distance(numbers)
    if error == 0:  # nor is any part of it off
        return Introduced(0.0, floor, size, how, 0.0, PART * floor)
    if before is not None:
        noise_alone = [_wide(expected) + (_wide(made) - _wide(meant)) for meant, made in rounded]
        return _update(expected, found, *before, noise_alone, floor, how)
    noise = max((distance(measure(*both, full=False)) for both in rounded), default=0.0)
    allowed = max(floor * size, GAIN_MARGIN * noise)
    scale = size or allowed or 1.0
    if not size:
        return Introduced(error / scale, allowed / scale, scale, how)
    found_parts = profile_of(expected, found, least=floor)
    if found_parts is None:
        return Introduced(error / scale, allowed / scale, scale, how)
    noises = [profile for both in rounded if (profile := profile_of(*both, least=floor)) is not None]
    part = worst_part(found_parts, noises, floor)
    return Introduced(error / scale, allowed / scale, scale, how, part.error, part.limit, where=part.where)


def _update(
    expected: Array, found: Array, before: Array, unit: float, noise: Sequence[Array], floor: float, how: str
) -> Introduced:
    """The same of weights after a step: the update is what may be off."""
    update = update_of((before, before), (expected, found), unit, noise=noise)
    size = distance(measure(before, expected, full=False))
    error = distance(measure(expected, found, full=False)) / (size or 1.0)
    if update.is_gross or (update.is_apart and error > PART * floor):
        return Introduced(error, min(max(PART * floor, NOISIER * update.noise), error / 2), size, how)
    if update.is_hidden and not any(np.array_equal(found, one) for one in noise):
        return Introduced(0.0, update.open, size, how, undecided="the update is lost in the rounding of the weights")
    return Introduced(error, max(error, update.open), size, how)


def _wide(array: Array) -> NDArray[Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def distance(numbers: Measurement) -> float:
    """The L2 distance of two tensors, over the elements that are finite on both sides."""
    return (numbers.rms or 0.0) * sqrt(numbers.compared)


def is_other_mask(expected: Array, found: Array) -> bool:
    """Whether two tensors differ only in which elements dropout has set to zero, about as many on each side."""
    if expected.dtype.kind != "f" or expected.size < MASKED:
        return False
    ours, theirs = expected == 0, found == 0
    lost, gained = int(np.sum(theirs & ~ours)), int(np.sum(ours & ~theirs))
    if min(lost, gained) == 0 or abs(lost - gained) > SIGMAS * sqrt(lost + gained):
        return False
    both = ~ours & ~theirs
    return bool(np.allclose(expected[both], found[both], rtol=1e-6, atol=0.0))


def settle(
    judged: Sequence[PairResult], found: Mapping[Site, Introduced], graph: Graph, excused: Mapping[Site, str]
) -> list[PairResult]:
    """The verdicts of two traces, corrected by what replays say; `excused` sites differ for a reason that is none to
    worry about."""
    results: dict[Site, PairResult] = {}
    drifted: dict[Site, str] = {}  # forward drifts so far, and who made them
    for result in judged:
        own = found.get(result.site)
        if result.site in excused:  # what is bit-equal there is so because the layout was undone before it
            error = None if own is None else own.error
            if result.verdict is not Verdict.SAME:
                result = replace(result, verdict=Verdict.NOISE, reason=excused[result.site], introduced_by=None)
            result = replace(result, introduced=error)
        elif own is not None:
            result = _decided(result, own, graph, results, drifted)
        results[result.site] = result
        if result.verdict in (Verdict.DRIFT, Verdict.PRECISION) and result.site.phase == "fwd":
            drifted[result.site] = result.introduced_by or result.site.name
    right = {site for site, own in found.items() if not own.beyond_noise and not own.undecided}
    return _without_source(list(results.values()), right)


def _without_source(results: list[PairResult], right: Container[Site]) -> list[PairResult]:
    """Where no drift is left, what a replay has found right follows from noise; of other pairs nobody knows what they
    have inherited."""
    if any(result.verdict in (Verdict.DRIFT, Verdict.PRECISION) for result in results):
        return results
    return [_sourceless(one, right) if one.verdict is Verdict.INHERITED else one for one in results]


def _sourceless(result: PairResult, right: Container[Site]) -> PairResult:
    if result.site in right:
        return replace(result, verdict=Verdict.NOISE, reason="follows from noise")
    return replace(result, verdict=Verdict.INCONCLUSIVE, reason=f"{result.reason}, and none of these drifts")


def _decided(
    result: PairResult, own: Introduced, graph: Graph, results: Mapping[Site, PairResult], drifted: Mapping[Site, str]
) -> PairResult:
    if own.reference_off:
        reason = f"{REFERENCE_OFF}: it computes in a shorter format; without its casts it agrees with the candidate"
        result = replace(result, verdict=Verdict.NOISE, reason=reason, introduced_by=None)
    elif own.undecided:
        if result.verdict not in CLEAN:
            result = replace(result, verdict=Verdict.INCONCLUSIVE, reason=own.undecided, introduced_by=None)
        return result
    elif own.decided:
        result = replace(result, verdict=Verdict.FLIP, reason=own.decided, introduced_by=None)
    elif result.verdict is Verdict.FLIP and SHARED in result.reason:
        pass  # a choice that the reference's own backward makes otherwise, whatever it is given
    elif own.beyond_noise:
        result = result if _is_undecidable(result) else _drifting(result, own, graph, drifted)
    elif result.verdict not in CLEAN and result.measurement is not None:
        behind = own.source in results and results[own.source].verdict in _DIRTY if own.source else False
        result = _explained(result, own, behind or _is_behind_drift(result.site, graph, results))
    inherited = result.inherited if own.inherited is None else own.inherited
    return replace(result, introduced=own.error, inherited=inherited)


def _is_undecidable(result: PairResult) -> bool:
    """Whether nothing could be said of a gradient in a short format: its masks rest on more digits than were recorded,
    in a replay, too."""
    unit = roundoff(result.pair.reference.dtype, result.pair.candidate[0].dtype)
    return result.verdict is Verdict.INCONCLUSIVE and result.site.phase in BACKWARD_PHASES and is_short(unit)


def _drifting(result: PairResult, own: Introduced, graph: Graph, drifted: Mapping[Site, str]) -> PairResult:
    """The verdict of a site whose own operation adds more than noise."""
    if result.verdict is Verdict.PRECISION:
        return result  # which says more: in which precision
    if (source := _cause_in_forward(result.site, graph, drifted)) is not None:
        reason = f"follows from the drift of fwd {source.name or 'the model'}"
        return replace(result, verdict=Verdict.INHERITED, reason=reason, introduced_by=None)
    shown, limit = f"an error of {own.error:.1e}", own.limit
    if own.error == inf:
        shown = "a non-finite value"
    elif own.error <= own.limit:
        shown, limit = f"an error of {own.worst:.1e} to {own.where or 'a part'}", own.worst_limit
    reason = f"its own operation adds {shown} ({own.how}), where noise explains {limit:.1e}"
    verdict = Verdict.PRECISION if _is_shorter(result, own) else Verdict.DRIFT
    by = own.between or graph.introducer(result.site)
    return replace(result, verdict=verdict, reason=reason, introduced_by=by, limit=limit)


def _explained(result: PairResult, own: Introduced, behind_drift: bool) -> PairResult:
    """The verdict of a site that differs, and whose own operation is right."""
    if result.verdict is Verdict.DRIFT and own.worst_limit == inf and (result.error or 0.0) <= (result.limit or 0.0):
        return result  # a part of it drifts, of which the replay of the whole says nothing
    if result.verdict is Verdict.INHERITED or behind_drift:
        return replace(result, verdict=Verdict.INHERITED, reason="follows from its inputs", introduced_by=None)
    if (result.error or 0.0) <= max(own.limit, result.limit or 0.0):
        return replace(result, verdict=Verdict.NOISE, reason="within noise", introduced_by=None)
    reason = f"{AMPLIFIED}: its own operation adds {own.error:.1e}"
    if result.inherited and own.inherited:
        times = own.inherited / result.inherited
        reason += (
            f", and what goes in, off by {result.inherited:.1e}, is amplified {times:.2g} times (condition number)"
        )
    return replace(result, verdict=Verdict.NOISE, reason=reason, introduced_by=None)


def _is_shorter(result: PairResult, own: Introduced) -> bool:
    """Whether an error is what storing a tensor in a shorter dtype than the reference's makes it."""
    unit = roundoff(result.pair.candidate[0].dtype)
    return unit > roundoff(result.pair.reference.dtype) and own.error <= SHORT_LIMIT * unit


def _is_behind_drift(site: Site, graph: Graph, results: Mapping[Site, PairResult]) -> bool:
    return any(other in results and results[other].verdict in _DIRTY for other in graph.producers(site))


def _cause_in_forward(site: Site, graph: Graph, drifted: Mapping[Site, str]) -> Site | None:
    """The forward drift that makes this gradient wrong as well: of the module whose backward made it."""
    if site.phase not in _LATE:
        return None
    makers = {site.name, *(other.name for other in graph.consumers(site))}
    makers |= {name.rpartition(".")[0] for name in makers}
    for other, by in drifted.items():
        if other.step == site.step and ({other.name, by} & makers):
            return other
    return None
