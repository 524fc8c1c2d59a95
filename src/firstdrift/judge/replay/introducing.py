"""What the operation of a site added, by replay: the candidate against what the reference makes of the same inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

from ...core.arrays import wide
from ...core.dtypes import roundoff
from ...core.sites import Site
from ...core.traces import Array
from ...errors import FirstdriftError
from ...kernels import measure
from ...pair.pairs import Pair, ReconcileError, apply_all
from ...program.interpreter import ControlDiffersError, NotReplayableError, operation
from ...program.running.op_kinds import is_kinked, moves
from ..measure.measuring import load_recorded
from ..measure.result import Why
from ..measure.scales import CLEAR, is_clear, parts_of
from ..measure.updates import SIGMAS
from ..noise import Draw, Excess, excess_of
from .replays import Replays

DRIFT = 1.5  # times what draws of correct code come to, an error is a drift; up to there nobody can tell
MASKED = 64  # elements, below which nothing is said of masks


@dataclass(frozen=True, slots=True)
class Introduced:
    """What the operation of a site added, relative to what the reference makes of the same inputs.

    `error` and `limit` are of the part `where` it is furthest beyond noise, by so many `times`. `undecided` is why a
    replay cannot say. `inherited` is how far what was expected is from the reference's own tensor, and `source` where
    something comes from that is only handed on.
    """

    error: float
    limit: float
    where: str = ""
    times: float = 0.0
    draws: int = 0
    inferred: bool = False
    inherited: float | None = None
    source: Site | None = None
    undecided: Why | None = None
    said: str = ""
    seen: float | None = None  # the factor on all of it, less one, that would have been a drift
    noise: float = 0.0  # what noise explains of the whole tensor

    @property
    def beyond(self) -> bool:
        """Whether noise does not explain it."""
        return not self.times <= DRIFT and self.undecided is None


def introduced_at(pair: Pair, replays: Replays, unit: float) -> Introduced | None:
    """What the operation of a pair's site added to what came in; None where that cannot be said.

    `unit` is the roundoff that counts. A gradient that rests on decisions of which the candidate did not record every
    digit is acquitted or left alone, never blamed.
    """
    try:
        found, expected = found_at(pair, replays), expected_at(pair, replays)
        if found is None or expected is None or expected.shape != found.shape:
            return None
        if (expected.dtype.kind in "iub") != (found.dtype.kind in "iub"):
            return None
        if found.dtype.kind in "iub":
            return _discrete(pair, replays, expected, found)
        return _floats(pair, replays, expected, found, unit)
    except ControlDiffersError as error:
        return Introduced(0.0, 0.0, undecided=Why.CONTROL_DIFFERS, said=str(error))
    except NotReplayableError:
        return None


def found_at(pair: Pair, replays: Replays) -> Array | None:
    """What the candidate has."""
    try:
        return load_recorded(pair, replays.reference, replays.candidate)[1]
    except (FirstdriftError, ReconcileError):
        return None


def expected_at(pair: Pair, replays: Replays) -> Array | None:
    """What is expected of a pair: of the whole tensor, the part and the unit that it has."""
    return part_of(pair, replays.expected(pair.reference.site))


def part_of(pair: Pair, whole: Array | None) -> Array | None:
    """The part of a reference's tensor that a pair is about."""
    try:
        return None if whole is None else apply_all(whole, pair.reference_steps)
    except ReconcileError:
        return None


def draw_of(pair: Pair, replays: Replays, *, as_recorded: bool = True, times: float = 1.0) -> Draw:
    """What correct code may make of a pair's tensor, by a seed."""
    site = pair.reference.site
    return lambda seed: part_of(pair, replays.drawn(site, seed, as_recorded=as_recorded, times=times))


def before(pair: Pair, replays: Replays) -> Array | None:
    """Of weights after a step, the candidate's before it."""
    if pair.site.phase != "weight_after":
        return None
    return part_of(pair, replays.counterparts.array(pair.reference.site._replace(phase="weight")))


def _floats(pair: Pair, replays: Replays, expected: Array, found: Array, unit: float) -> Introduced | None:
    site = pair.reference.site
    if replays.draws(site) and is_other_mask(expected, found):
        return Introduced(0.0, 0.0, undecided=Why.OTHER_DRAWS)
    source, inferred = replays.first(site), _is_inferred(site, replays)
    if not measure(expected, found, full=False).nonfinite_agree:
        return Introduced(inf, 0.0, "the whole", inf, inferred=inferred)
    if source != site:
        roundings = 1 + _rescaled(pair) + _rescaled(replays.counterparts.first(source))
        excess: Excess | None = excess_of(expected, found, roundings * unit, lambda seed: expected)
    else:
        excess = _excess(pair, replays, expected, found, unit)
    if excess is None:
        return None
    own = Introduced(
        excess.error, excess.limit, excess.where, excess.times, excess.draws, inferred,
        _inherited(pair, replays, expected), None if source == site else source._replace(sample=pair.site.sample),
        seen=DRIFT * excess.seen if 0 < excess.seen < inf else None, noise=excess.whole,
    )  # fmt: skip
    if not excess.beyond:
        return own if excess.whole < 1 else replace(own, limit=excess.whole, undecided=Why.INVISIBLE)
    if inferred and not _holds_for_reference(pair, replays):
        return None
    if excess.times <= DRIFT:
        return replace(own, undecided=Why.NEXT_TO_NOISE)
    if source == site and not replays.is_whole(site):  # the candidate may have had more digits than it recorded
        draw = draw_of(pair, replays, as_recorded=False)
        wider = excess_of(expected, found, unit, draw, before(pair, replays))
        if wider is not None and wider.times <= DRIFT:
            return replace(own, undecided=Why.MORE_DIGITS)
    return own


def _rescaled(pair: Pair) -> int:
    """How many factors stand between what was recorded and what is compared: each rounds once more."""
    return sum(step.kind == "scale" for step in (*pair.reference_steps, *pair.candidate_steps))


def _holds_for_reference(pair: Pair, replays: Replays) -> bool:
    """Whether an inferred operation computes something, or cuts something off, and makes the reference's own tensor as
    closely as it is asked of the candidate: two tensors may be equal by chance, and a constant may be nearly right."""
    site = pair.reference.site
    if all(moves(operation(call.op)[0]) and not is_kinked(call) for call in replays.calls(site)):
        return False
    recorded, made = replays.reference.array(pair.reference), replays.run(site, _their_own)
    if made is None or made.shape != recorded.shape:
        return False
    unit = roundoff(pair.reference.dtype)
    left = excess_of(made, recorded, unit, lambda seed: replays.drawn(site, seed, tensors=_their_own))
    return left is not None and not left.beyond


def _their_own(site: Site) -> Array | None:
    """No tensor but the reference's."""
    return None


def _excess(pair: Pair, replays: Replays, expected: Array, found: Array, unit: float) -> Excess | None:
    start = before(pair, replays)
    # Any call that computes something rounds; copies are equal to the last digit.
    rounds = not all(moves(operation(call.op)[0]) for call in replays.calls(pair.reference.site))
    parts = parts_of(expected, found, least=unit) if start is None and rounds else None
    if parts is not None and is_clear(parts, unit):
        return Excess("most rows", parts.usual, CLEAR * unit, parts.usual / (CLEAR * unit), 0)
    draw = draw_of(pair, replays)
    excess = excess_of(expected, found, unit, draw, start)
    if excess is None or not excess.beyond or start is not None or roundoff(pair.reference.dtype) > unit:
        return excess
    return _beside_reference(pair, replays, expected, found, unit, draw, excess)


def _beside_reference(
    pair: Pair, replays: Replays, expected: Array, found: Array, unit: float, draw: Draw, excess: Excess
) -> Excess:
    """An error beyond the draws, held against one more: what the reference's own tensor is off by from its own calls,
    whose kernels may be further off than draws. A reference that is far beyond them itself, as where what it draws
    depends on the dtype, says nothing of what noise is: an error like its own is left open."""
    made = part_of(pair, replays.run(pair.reference.site, _their_own))
    recorded = part_of(pair, replays.reference.array(pair.reference))
    if made is None or recorded is None or made.dtype.kind in "iub" or made.shape != expected.shape:
        return excess
    right = expected + (wide(recorded) - made)
    own = excess_of(expected, right, unit, draw)
    left = excess_of(expected, found, unit, lambda seed: right if seed == 1 else draw(seed - 1))
    if own is None or left is None:
        return excess
    return left if own.times <= DRIFT or left.beyond else replace(excess, times=min(excess.times, DRIFT))


def _discrete(pair: Pair, replays: Replays, expected: Array, found: Array) -> Introduced | None:
    """Integers and truth values: what is made of the candidate's tensors exactly, or as they round."""
    site = pair.reference.site
    source, differing = replays.first(site), int(np.count_nonzero(expected != found))
    if differing and source == site:
        rounded = part_of(pair, replays.run(site, replays.counterparts.array, exact=False))
        differing = differing if rounded is None else min(differing, int(np.count_nonzero(rounded != found)))
    return Introduced(
        differing / max(1, found.size), 0.0, "the whole", inf if differing else 0.0,
        inferred=_is_inferred(site, replays),
        source=None if source == site else source._replace(sample=pair.site.sample),
    )  # fmt: skip


def _inherited(pair: Pair, replays: Replays, expected: Array) -> float | None:
    """How far what the reference makes of the candidate's tensors is from what it made of its own."""
    reference = apply_all(replays.reference.array(pair.reference), pair.reference_steps)
    if pair.site.phase == "weight_after" or reference.shape != expected.shape:
        return None
    return measure(reference, expected, full=False).rel_l2


def _is_inferred(site: Site, replays: Replays) -> bool:
    made = replays.made(site)
    return made is not None and replays.program.is_inferred(*made)


def is_other_mask(expected: Array, found: Array) -> bool:
    """Whether two tensors differ only in which elements dropout has set to zero, about as many on each side."""
    if expected.dtype.kind != "f" or expected.size < MASKED:
        return False
    reference, candidate = expected == 0, found == 0
    lost, gained = int(np.sum(candidate & ~reference)), int(np.sum(reference & ~candidate))
    if min(lost, gained) == 0 or abs(lost - gained) > SIGMAS * sqrt(lost + gained):
        return False
    both = ~reference & ~candidate
    return bool(np.allclose(expected[both], found[both], rtol=1e-6, atol=0.0))
