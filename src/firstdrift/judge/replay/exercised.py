"""Both sides' calls of one site, run on random numbers in the place of those on record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import wide
from ...dtypes import UNIT_ROUNDOFF
from ...program.calls import Call, Program
from ...program.interpreter import NotReplayableError, operation
from ...program.running.rounding import moves
from ...sites import Site
from ...traces import Array
from ..case import Case
from ..noise import excess_of
from ..unexercised import constants_of
from .exchanged import calls
from .replays import Own, Replays, Tensors

MOST_ELEMENTS = 1 << 26  # that are read or made, of all sites together
APART = 64.0  # times what draws of correct code come to: less than that is what noise hides on any numbers
SIZES = (1.0, 64.0)  # times as large as those on record, numbers are tried
FEW_VALUES = 4  # different numbers of a tensor that is a mask, and is left as it is
WEIGHTS = ("weight", "optim")  # what stays what it is
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

    def __init__(self, case: Case, program: Program, own: Own) -> None:
        self._case = case
        self.replays = Replays(
            case.reference, case.candidate, case.alignment.pairs, program, own, finest=case.finest
        )  # fmt: skip
        self._known: set[tuple[Written, Written]] = set()
        self._order = {site: at for at, site in enumerate(self.replays.theirs.sites)}
        self._left = MOST_ELEMENTS

    def apart(self, site: Site) -> dict[str, Any] | None:
        """The operations of both sides, where these would give different numbers of other inputs."""
        ours, theirs = self._ours(site), self._theirs(site)
        if ours is None or theirs is None or ours.written == theirs.written:
            return None
        if (ours.written, theirs.written) in self._known:
            return None
        self._known.add((ours.written, theirs.written))
        self._left -= self.replays.work(site)
        try:
            differs = self._left >= 0 and self._differs(site, ours, theirs)
        except NotReplayableError:
            return None
        names = _names(ours.written, theirs.written), _names(theirs.written, ours.written)
        return {"reference": names[0], "candidate": names[1]} if differs else None

    def _ours(self, site: Site) -> _Side | None:
        replays = self.replays
        step, cut, first = replays.step(site), replays.cut(site), replays.first(site)
        if first != site:
            return _Side((), frozenset({first}), lambda tensors: tensors(first))
        if step is None or cut is None or cut.is_empty:
            return None
        read = frozenset(one for one in cut.given.values() if one.phase not in WEIGHTS)
        return _Side(_written(calls(step, cut)), read, lambda tensors: replays.run(site, tensors))

    def _theirs(self, site: Site) -> _Side | None:
        """What the candidate's calls read, by the reference's sites."""
        replays = self.replays
        own, handed = replays.own_cut(site), replays.own_first(site)
        if handed is not None and self._order[handed] < self._order.get(site, 0):
            return _Side((), frozenset({handed}), lambda tensors: tensors(handed))
        if own is None:
            return None
        mine = {replays.own_site(one): one for one in replays.theirs.sites}
        given = [one for one in own[1].given.values() if one.phase not in WEIGHTS]
        if any(one not in mine for one in given):
            return None
        own_tensors = {mine[one]: one for one in given}

        def run(tensors: Tensors) -> Array | None:
            drawn = {theirs: tensors(ours) for ours, theirs in own_tensors.items()}
            return replays.run_own(site, drawn.get)

        return _Side(_written(calls(*own)), frozenset(own_tensors), run)

    def _differs(self, site: Site, ours: _Side, theirs: _Side) -> bool:
        """Whether either side's calls give other numbers of random inputs, which both read."""
        return any(self._differs_on(site, ours, theirs, size) for size in SIZES)

    def _differs_on(self, site: Site, ours: _Side, theirs: _Side, size: float) -> bool:
        """The same of numbers so many times as large as those on record."""
        replays, rng = self.replays, np.random.default_rng(0)
        firsts = {replays.first(one) for one in ours.reads}
        if firsts != {replays.first(one) for one in theirs.reads}:
            return False
        drawn = {one: _random(replays.theirs.array(one), size, rng) for one in sorted(firsts)}

        def tensors(wanted: Site) -> Array | None:
            return drawn[first] if (first := replays.first(wanted)) in drawn else replays.tensors(wanted)

        expected, found = ours.run(tensors), theirs.run(tensors)
        if expected is None or found is None or expected.shape != found.shape or expected.dtype.kind in "iub":
            return False
        if not np.array_equal(np.isfinite(expected), np.isfinite(found)):  # numbers that it is not made for
            return False
        unit = max(self._case.unit(self._case.items[site].pair), UNIT_ROUNDOFF["f32"])

        def draw(seed: int) -> Array | None:
            return replays.drawn(site, seed, tensors=tensors) if ours.written else expected

        excess = excess_of(expected, found, unit, draw)
        return excess is not None and not excess.times <= APART


def _written(made: dict[int, Call]) -> Written:
    """What is computed, call by call, whatever tensors are computed with and moved."""
    return tuple(
        (call.op, tuple(constants_of(call))) for call in made.values() if not moves(operation(call.op)[0])
        or call.op.split(".")[1].rstrip("_") in _BENDING
    )  # fmt: skip


# What computes no new number, and yet is no move: it chooses.
_BENDING = frozenset({
    "abs", "amax", "amin", "clamp", "clamp_max", "clamp_min", "hardtanh", "masked_fill", "max", "maximum", "min",
    "minimum", "neg", "relu", "sort", "threshold", "topk", "tril", "triu", "where",
})  # fmt: skip


def _names(ours: Written, theirs: Written) -> str:
    """The operations of one side that the other has not."""
    others = [name for name, _ in theirs]
    own = dict.fromkeys(_plain(one) for one, _ in ours if one not in others)
    own = own or dict.fromkeys(
        f"{_plain(one)} {list(said)}" for one, said in ours if said and (one, said) not in theirs
    )
    return ", ".join(list(own)[:NAMED]) or "nothing"


def _plain(op: str) -> str:
    return op.split(".")[1].strip("_")


def _random(array: Array | None, size: float, rng: np.random.Generator) -> Array | None:
    """Numbers so many times as large as those on record, of all signs; what is equal, or equal but for its sign, stays
    so, as in a table that holds everything twice. Whole numbers and masks stay what they are."""
    if array is None or array.dtype.kind in "iub" or not array.size:
        return array
    numbers = wide(array)
    if numbers.dtype.kind != "f" or not np.isfinite(numbers).all():
        return array
    known, place = np.unique(np.abs(numbers), return_inverse=True)
    if len(known) <= FEW_VALUES:
        return array
    drawn = size * float(np.sqrt(np.mean(numbers**2))) * rng.standard_normal(known.shape)
    found: Array = np.sign(numbers) * drawn[place].reshape(numbers.shape)
    return found
