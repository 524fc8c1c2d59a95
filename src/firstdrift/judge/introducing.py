"""What the operation of a site added, by replay: the candidate against what the reference makes of the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import numpy as np

from .._kernels import measure
from ..compare.measuring import load_recorded
from ..compare.pairs import Pair, ReconcileError, apply_all
from ..dtypes import roundoff
from ..errors import FirstdriftError
from ..program.calls import Call, Step, reads
from ..program.cuts import Cut, type_of
from ..program.interpreter import ControlDiffersError, NotReplayableError, operation
from ..program.running.shaking import moves
from ..sites import Site
from ..traces import Array
from ..verdict.introduced import Introduced, introduced, is_other_mask
from ..verdict.ladder import is_short
from .replays import Replays

HOW = "replayed in float64"
SEEDS = (1, 2)  # of runs whose spread is the noise of calls
CASTS = frozenset({"_to_copy", "to", "copy_"})
WRITTEN_CASTS = frozenset({"to", "type", "type_as", "half", "bfloat16", "float", "copy_"})


def introduced_at(pair: Pair, replays: Replays, floor: float) -> Introduced | None:
    """What the operation of a pair's site added to what came in; None where that cannot be said.

    `floor` is the relative error that any implementation may add; what the operation is noisier by on these numbers is
    found by rounding as the program does. A gradient that rests on decisions of which the candidate did not record
    every digit is acquitted or left alone, never blamed.
    """
    try:
        found, expected = _found(pair, replays), _expected(pair, replays)
        if found is None or expected is None or not _are_alike(expected, found):
            return None
        if found.dtype.kind in "iub":
            return _discrete(pair, replays, expected, found)
        return _floats(pair, replays, expected, found, floor)
    except ControlDiffersError as error:
        return Introduced(0.0, floor, 1.0, HOW, undecided=f"control differs here: {error}")
    except NotReplayableError:
        return None


def _floats(pair: Pair, replays: Replays, expected: Array, found: Array, floor: float) -> Introduced | None:
    site = pair.reference.site
    if replays.draws(site) and is_other_mask(expected, found):
        return None  # the candidate drew other numbers, and which is not on record
    before, how = _before(pair, replays), _how(site, replays)
    floor *= sqrt(1 + len(replays.unseen(site)))  # what they add by themselves adds up like a random walk
    own = introduced(expected, found, floor, (), how, before)
    if own.beyond_noise:
        own = introduced(expected, found, floor, _rounded(pair, replays, expected), how, before)
    if own.beyond_noise and (_is_guess(site, replays) or (site.phase != "fwd" and _may_have_flipped(pair, replays))):
        return None
    if not own.beyond_noise and _casts(site, replays) and _is_reference_off(site, replays, floor):
        return None
    own = replace(own, inherited=_inherited(pair, replays, expected))
    source = replays.first(site)
    return own if source == site else replace(own, source=source._replace(sample=pair.site.sample))


def _found(pair: Pair, replays: Replays) -> Array | None:
    try:
        return load_recorded(pair, replays.reference, replays.candidate)[1]
    except (FirstdriftError, ReconcileError):
        return None


def _expected(pair: Pair, replays: Replays) -> Array | None:
    """What is expected of a pair: of the whole tensor, the part and the unit that it has."""
    return _part_of(pair, replays.expected(pair.reference.site))


def _part_of(pair: Pair, whole: Array | None) -> Array | None:
    try:
        return None if whole is None else apply_all(whole, pair.reference_steps)
    except ReconcileError:
        return None


def _discrete(pair: Pair, replays: Replays, expected: Array, found: Array) -> Introduced | None:
    """Integers and truth values: what is made of the candidate's tensors exactly, or as they round."""
    site = pair.reference.site
    equal = np.array_equal(expected, found)
    if not equal and replays.first(site) == site:
        rounded = _part_of(pair, replays.run(site, replays.theirs.array, exact=False))
        equal = rounded is not None and np.array_equal(rounded, found)
    return Introduced(0.0, 0.0, 1.0, HOW) if equal else None  # else a near-tie, perhaps: others see the margins


def _rounded(pair: Pair, replays: Replays, expected: Array) -> list[tuple[Array, Array]]:
    """The same calls exactly and as they round, and as they do when every number moves within its rounding: the
    reference's on the candidate's tensors; and, where these are noisier, the candidate's own, unless its code casts
    more: whoever does is not noisier but less precise.
    """
    site, both = pair.reference.site, []
    if replays.first(site) == site:
        runs = [replays.run(site, replays.theirs.array, exact=False), *(replays.shaken(site, seed) for seed in SEEDS)]
        both = [(expected, made) for one in runs if (made := _part_of(pair, one)) is not None]
    casts = _casts(site, replays)
    own = replays.own_rounding(site, lambda step, cut: _written_casts(step, cut) <= casts)
    if own is not None and own[0].shape == expected.shape:
        both.append(own)
    return both


def _inherited(pair: Pair, replays: Replays, expected: Array) -> float | None:
    """How far what the reference makes of the candidate's tensors is from what it made of its own."""
    ours = apply_all(replays.reference.array(pair.reference), pair.reference_steps)
    if pair.site.phase == "weight_after" or ours.shape != expected.shape:
        return None
    return measure(ours, expected, full=False).rel_l2


def _before(pair: Pair, replays: Replays) -> tuple[Array, float] | None:
    """Of weights after a step, the candidate's before it, and the roundoff of what they are stored in."""
    if pair.site.phase != "weight_after":
        return None
    before = replays.theirs.array(pair.reference.site._replace(phase="weight"))
    unit = roundoff(pair.reference.dtype, *(record.dtype for record in pair.candidate))
    return None if before is None else (before, unit)


def _how(site: Site, replays: Replays) -> str:
    return f"{HOW}, operation: inferred" if _is_inferred(site, replays) else HOW


def _is_inferred(site: Site, replays: Replays) -> bool:
    step, cut = replays.step(site), replays.cut(site)
    return step is not None and cut is not None and replays.program.is_inferred(step, cut)


def _is_guess(site: Site, replays: Replays) -> bool:
    """Whether a tensor seems to be only handed on, and no run says so: two that are equal by chance look alike."""
    return _is_inferred(site, replays) and all(moves(operation(call.op)[0]) for call in replays.calls(site))


def _may_have_flipped(pair: Pair, replays: Replays) -> bool:
    """Whether near-ties may have been decided otherwise on the way to a gradient: between recorded tensors, or by
    digits that a short format has lost, where no program says that the candidate had no more."""
    stored = roundoff(*(record.dtype for record in pair.candidate))
    return bool(replays.unseen(pair.reference.site)) or (replays.own is None and is_short(stored))


def _is_reference_off(site: Site, replays: Replays, floor: float) -> bool:
    """Whether the reference's own casts take it further from what its code means than noise explains: a candidate
    without them is right, and still not the same."""
    exact, ours = replays.run(site, lambda wanted: None), replays.reference.array(site)
    return exact is not None and introduced(exact, ours, floor, (), HOW).beyond_noise


def _casts(site: Site, replays: Replays) -> set[str]:
    step, cut = replays.step(site), replays.cut(site)
    return set() if step is None or cut is None else _written_casts(step, cut)


def _written_casts(step: Step, cut: Cut) -> set[str]:
    """The shorter formats that the model's own code casts to, in a part of a step; what autocast casts is not there."""
    found = set()
    for number in cut.nodes:
        node = step.nodes[number]
        if not isinstance(node, Call) or node.op.split(".")[1] not in CASTS or not node.results[0]:
            continue
        written = step.as_written(number).op.split(".")[-1] if number in step.function_of else ""
        before = [type_of(step, ref) for ref in reads(node)]
        lost = [one for one in before if one is not None and roundoff(one.dtype) < roundoff(node.results[0].dtype)]
        if lost and (not written or written in WRITTEN_CASTS):
            found.add(node.results[0].dtype)
    return found


def _are_alike(expected: Array, found: Array) -> bool:
    return expected.shape == found.shape and (expected.dtype.kind in "iub") == (found.dtype.kind in "iub")


def between(site: Site, replays: Replays, shown: Callable[[Site], str]) -> str:
    """What is to blame where the candidate did not record all that the reference did on the way to a site."""
    if not any(other.phase == site.phase for other in replays.unseen(site)):
        return ""
    start = replays.given(site)
    whence = shown(start[-1]) if start else "what the model was fed"
    return f"something between {whence} and {shown(site)}"
