"""Both sides' calls of one site, run on random numbers in the place of those on record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays import wide
from ...core.dtypes import UNIT_ROUNDOFF
from ...core.sites import Site
from ...core.traces import Array
from ...program.calls import Call, Program
from ...program.interpreter import NotReplayableError, operation
from ...program.running.op_kinds import moves
from ..case import Case
from ..noise import excess_of
from ..unexercised import constants_of
from .exchanged import calls
from .introducing import DRIFT
from .random_inputs import FEW_VALUES, TRIALS, random_like
from .replays import MOST_ELEMENTS, Own, Replays, Tensors

APART = 64.0  # times what draws of correct code come to: less than that is what noise hides on any numbers
SIZES = (1.0, 8.0)  # times as large as those on record, numbers are tried
_WEIGHTS = ("weight", "optim")  # what stays what it is
NAMED = 4  # operations that are named of each side

Written = tuple[tuple[str, tuple[Any, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side computes at a site, the recorded tensors that it reads, and how it is run on others."""

    written: Written
    reads: frozenset[Site]
    run: Callable[[Tensors], Array | None]


class Exercised:
    """Both programs; calls that are written alike on either side are asked once."""

    def __init__(self, case: Case, program: Program, own: Own, alike: Collection[Site]) -> None:
        self._case = case
        self._alike = alike  # the sites at which both sides have the same; what was moved elsewhere is not
        self.replays = Replays(
            case.reference, case.candidate, case.alignment.pairs, program, own, finest=case.finest
        )  # fmt: skip
        self._known: set[tuple[Written, Written]] = set()
        self._order = {site: at for at, site in enumerate(self.replays.counterparts.sites)}
        self._left = MOST_ELEMENTS

    def apart(self, site: Site) -> dict[str, Any] | None:
        """The operations of both sides, where these would give different numbers of other inputs."""
        reference, candidate = self._sides(site)
        if reference is None or candidate is None:
            return None
        written = reference.written, candidate.written
        if written[0] == written[1] or written in self._known or _goes_smoothly_on(*written):
            return None
        self._known.add(written)
        self._left -= self.replays.work(site)
        found = (self._times(site, reference, candidate, size) for size in (SIZES if self._left >= 0 else ()))
        if not any(value is not None and not value <= APART for value in found):
            return None
        return {"reference": _names(*written), "candidate": _names(*written[::-1])}

    def is_same(self, site: Site) -> bool:
        """Whether both sides' calls make the same of random numbers, from what both recorded before it."""
        reference, candidate = self._sides(site)
        if reference is None or candidate is None:
            return False
        found = [self._times(site, reference, candidate, 1.0, seed + 1) for seed in range(TRIALS)]
        return all(value is not None and value <= DRIFT for value in found)

    def _sides(self, site: Site) -> tuple[_Side | None, _Side | None]:
        """Both sides of a site, as far as their calls can be made again."""
        try:
            return self._reference(site), self._candidate(site)
        except NotReplayableError:
            return None, None

    def _reference(self, site: Site) -> _Side | None:
        replays = self.replays
        made, first = replays.made(site), replays.first(site)
        if first != site:
            return _Side((), frozenset({first}), lambda tensors: tensors(first))
        if made is None or made[1].is_empty:
            return None
        read = frozenset(one for one in made[1].given.values() if one.phase not in _WEIGHTS)
        return _Side(_written(calls(*made)), read, lambda tensors: replays.run(site, tensors))

    def _candidate(self, site: Site) -> _Side | None:
        """What the candidate's calls read, by the reference's sites."""
        replays = self.replays
        own, handed = replays.own_cut(site), replays.own_first(site)
        if handed is not None and self._order[handed] < self._order.get(site, 0):
            return _Side((), frozenset({handed}), lambda tensors: tensors(handed))
        if own is None:
            return None
        mine = {replays.own_site(one): one for one in replays.counterparts.sites}
        given = [one for one in own[1].given.values() if one.phase not in _WEIGHTS]
        if any(one not in mine for one in given):
            return None
        own_tensors = {mine[one]: one for one in given}

        def run(tensors: Tensors) -> Array | None:
            drawn = {candidate: tensors(reference) for reference, candidate in own_tensors.items()}
            return replays.run_own(site, drawn.get)

        return _Side(_written(calls(*own)), frozenset(own_tensors), run)

    def _times(self, site: Site, reference: _Side, candidate: _Side, size: float, seed: int = 0) -> float | None:
        """How far both sides' calls are apart on random numbers, in units of noise; None where nobody can tell. What
        one side alone reads may be whole numbers. Without a seed, numbers that are equal stay so."""
        replays, rng = self.replays, np.random.default_rng(seed)
        firsts = [{replays.first(read) for read in side.reads} for side in (reference, candidate)]
        if any(one not in self._alike for one in (*reference.reads, *candidate.reads)):
            return None
        arrays = {one: replays.counterparts.array(one) for one in sorted(firsts[0] | firsts[1])}
        if any((array := arrays[one]) is None or array.dtype.kind not in "iub" for one in firsts[0] ^ firsts[1]):
            return None
        drawn = {one: _random(array, size, rng, alike=not seed) for one, array in arrays.items()}

        def tensors(wanted: Site) -> Array | None:
            return drawn[first] if (first := replays.first(wanted)) in drawn else replays.tensors(wanted)

        def draw(seed: int) -> Array | None:
            return replays.drawn(site, seed, tensors=tensors) if reference.written else expected

        try:
            expected, found = reference.run(tensors), candidate.run(tensors)
            if expected is None or found is None or expected.shape != found.shape or expected.dtype.kind in "iub":
                return None
            if not np.array_equal(np.isfinite(expected), np.isfinite(found)):  # numbers that it is not made for
                return None
            unit = max(self._case.unit(self._case.items[site].pair), UNIT_ROUNDOFF["f32"])
            excess = excess_of(expected, _without_tails(expected, found, unit), unit, draw)
        except NotReplayableError:
            return None
        return None if excess is None else excess.times


def _written(made: dict[int, Call]) -> Written:
    """What is computed, call by call, whatever tensors are computed with and moved."""
    return tuple(
        (call.op, tuple(constants_of(call))) for call in made.values() if not moves(operation(call.op)[0])
        or call.op.split(".")[1].rstrip("_") in _BENDING
    )  # fmt: skip


# What computes no new number, and yet is no move: it chooses.
_BENDING = frozenset({
    "abs", "amax", "amin", "clamp", "clamp_max", "clamp_min", "eq", "ge", "gt", "hardsigmoid", "hardswish", "hardtanh",
    "le", "leaky_relu", "lt", "masked_fill", "max", "maximum", "min", "minimum", "ne", "neg", "prelu", "relu", "sign",
    "sort", "threshold", "topk", "tril", "triu", "where",
})  # fmt: skip


def _without_tails(expected: Array, found: Array, unit: float) -> Array:
    """What was found, as expected where it differs by less than a rounding of the tensor's usual numbers: of a tail,
    such as GELU's, one correct formula keeps the digits (erfc) and another cancels them (1 + erf)."""
    usual = float(np.sqrt(np.mean(np.square(np.abs(expected)), where=np.isfinite(expected))))
    with np.errstate(invalid="ignore"):
        is_near: Any = np.abs(np.subtract(found, expected)) <= unit * usual
    return np.where(is_near, expected, found)


def _goes_smoothly_on(reference: Written, candidate: Written) -> bool:
    """Whether one side computes what the other does, and then something without a kink: that has no part which numbers
    of any size would not have shown, as a second norm of what has been normed."""
    more, less = sorted(
        (Counter(name for name, _ in reference), Counter(name for name, _ in candidate)), key=Counter.total
    )[::-1]
    further = more - less
    return bool(further) and not less - more and not any(_plain(name).rstrip("_") in _BENDING for name in further)


def _names(reference: Written, candidate: Written) -> str:
    """The operations of one side that the other has not."""
    others = [name for name, _ in candidate]
    own = dict.fromkeys(_plain(one) for one, _ in reference if one not in others)
    own = own or dict.fromkeys(
        f"{_plain(one)} {list(said)}" for one, said in reference if said and (one, said) not in candidate
    )
    return ", ".join(list(own)[:NAMED]) or "nothing"


def _plain(op: str) -> str:
    return op.split(".")[1].strip("_")


def _random(array: Array | None, size: float, rng: np.random.Generator, alike: bool) -> Array | None:
    """Random numbers like those on record; if `alike`, what is equal, or equal but for its sign, stays so, as in a
    table that holds everything twice, and masks stay as they are."""
    if array is None:
        return None
    drawn = random_like(array, rng, size)
    if not alike or drawn is array or array.dtype.kind in "iu":
        return drawn
    numbers = wide(array)
    known, place = np.unique(np.abs(numbers), return_inverse=True)
    if len(known) <= FEW_VALUES:
        return array
    again: Array = np.sign(numbers) * drawn.reshape(-1)[: len(known)][place].reshape(numbers.shape)
    return again
