"""Whether a setting changes what is computed: the calls with either side's value, in float64, on recorded numbers and
on random ones. No list says which settings matter.

The calls are those of the library where it knows the operation, else those that the reference recorded, with what they
were passed by that name or as that number in its place. Where both sides recorded the same calls with other constants,
these are what is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core.arrays import wide
from ...core.sites import Site
from ...core.traces import Array
from ...errors import FirstdriftError
from ...pair.pairs import Pair
from ...program.building.library_updates import STATISTICS
from ...program.calls import Call, Program, Step
from ...program.edits import with_changes
from ...program.interpreter import NotReplayableError
from ...program.library import library_program
from ...program.written.read_program import read_program
from ..case import Case
from ..measure.result import Effect
from ..measure.stated import HEADER, OPTIMIZER, UNSAID, Stated
from ..noise import excess_of
from .exchanged import alike, calls, setting_of, stating, with_constants_of, with_value
from .introducing import DRIFT, before, draw_of, found_at, part_of
from .random_inputs import TRIALS, are_apart, random_like
from .replays import Replays, own_of

MOST_SITES = 256  # of one setting that are asked


@dataclass(frozen=True, slots=True)
class _Variant:
    """The reference's calls as they are, and with the candidate's value; `is_own` where the candidate's own calls say
    that they have it, or that they have not."""

    reference: Program
    candidate: Program
    is_own: bool | None = None


class Restated:
    """The programs of both sides, asked about settings."""

    def __init__(self, case: Case, asked: Sequence[Stated]) -> None:
        self._case = case
        self._together: dict[str, set[Site]] = {}  # the lines that state the same, whose calls are changed together
        for stated in asked:
            self._together.setdefault(alike(stated), set()).update(stated.sites)
        self._pairs = {pair.site: pair for pair in case.alignment.pairs}
        self._recorded = read_program(case.reference)
        self._library = library_program(case.reference)
        self._own = case.own or own_of(case.candidate)
        self._changed: dict[str, Program | None] = {}
        self._bases: dict[int, Replays] = {}

    def effects(self, stated: Stated) -> dict[Site, Effect]:
        """What a setting does, site by site."""
        found: dict[Site, Effect] = {}
        for site in self._sites(stated)[:MOST_SITES]:
            effect = self._effect(stated, site)
            if effect is not None:
                found[site] = effect
        return found

    def is_read_otherwise(self, stated: Stated) -> bool:
        """Whether what a header says is read from elsewhere: from the constants of recorded calls, or from lines."""
        if stated.where != HEADER:
            return False
        lines = (record.attrs for record in self._case.reference if record.op is not None)
        ends = stated.key.rpartition(".")[2]
        return self._recorded is not None or any(ends == k or ends.endswith(f"_{k}") for attrs in lines for k in attrs)

    def _sites(self, stated: Stated) -> list[Site]:
        """What a setting may show in: what its module gives, and what it has of its own after a step; of what a header
        says, whatever is made by calls that are passed it."""
        if stated.where == OPTIMIZER and not stated.sites:
            return [site for site in self._pairs if site.phase == "weight_after"]
        if stated.where == HEADER:
            made = [site for site in self._pairs if site.phase == "fwd" and not site.port.startswith("in.")]
            return [site for site in made if self._changes(stated, self._pairs[site].reference.site)]
        own = {(site.step, site.name) for site in stated.sites}
        left = [site for site in self._pairs if site.phase == "weight_after" and (site.step, site.name) in own]
        return list(dict.fromkeys([*(site for site in stated.sites if site in self._pairs), *left]))

    def _effect(self, stated: Stated, site: Site) -> Effect | None:
        found = None
        for variant in self._variants(stated, self._pairs[site].reference.site):
            try:
                found = self._of(variant, self._pairs[site])
            except (NotReplayableError, FirstdriftError):
                continue
            if found is not Effect.UNREAD:
                break
        return found

    def _variants(self, stated: Stated, site: Site) -> Iterator[_Variant]:
        own = self._by_own_calls(site)
        if own is not None and own.is_own:
            yield own
            return
        contradicts = None if own is None else False
        by_library = self._by_library(stated, site)
        if by_library is not None:
            yield replace(by_library, is_own=contradicts)
        by_calls = self._by_calls(stated, site)
        if by_calls is not None:
            yield replace(by_calls, is_own=contradicts)

    def _replays(self, program: Program) -> Replays:
        if id(program) not in self._bases:
            case = self._case
            pairs = case.alignment.pairs
            found = Replays(case.reference, case.candidate, pairs, program, self._own, finest=case.finest)
            if not any(program is one for one in (self._recorded, self._library, *self._changed.values())):
                return found
            self._bases[id(program)] = found
        return self._bases[id(program)]

    def _by_library(self, stated: Stated, site: Site) -> _Variant | None:
        is_read = stated.where == OPTIMIZER or site.port in STATISTICS or setting_of(stated) is not None
        if self._library is None or not is_read or self._library.why_not(site) is not None:
            return None
        key = alike(stated)
        if key not in self._changed:
            made = library_program(stating(stated, self._together[key], self._case.reference))
            self._changed[key] = None if made is None else Program(made.header, made.steps)
        changed = self._changed[key]
        return None if changed is None else _Variant(self._library, changed)

    def _by_own_calls(self, site: Site) -> _Variant | None:
        """The reference's calls with the candidate's constants, where they are the same calls otherwise."""
        if self._recorded is None or self._own is None:
            return None
        replays = self._replays(self._recorded)
        made, own = replays.made(site), replays.own_cut(site)
        if made is None or own is None:
            return None
        reference, candidate = calls(*made), calls(*own)
        if [call.op for call in reference.values()] != [call.op for call in candidate.values()]:
            return None
        changes: dict[int, Call] = {}
        for (number, call), other in zip(reference.items(), candidate.values(), strict=True):
            changed = with_constants_of(call, other)
            if changed is None:
                return None
            if changed != call:
                changes[number] = changed
        return self._variant(made[0], changes, is_own=bool(changes))

    def _by_calls(self, stated: Stated, site: Site) -> _Variant | None:
        """The recorded calls with the candidate's value where they were passed the reference's."""
        if self._recorded is None:
            return None
        made = self._replays(self._recorded).made(site)
        return None if made is None else self._variant(made[0], self._changes(stated, site))

    def _changes(self, stated: Stated, site: Site) -> dict[int, Call]:
        """The recorded calls of a site that were passed the reference's value, passed the candidate's."""
        if self._recorded is None or UNSAID in (stated.reference, stated.candidate):
            return {}
        made = self._replays(self._recorded).made(site)
        changed = {number: with_value(call, stated) for number, call in (calls(*made) if made else {}).items()}
        return {number: call for number, call in changed.items() if call is not None}

    def _variant(self, step: Step, changes: Mapping[int, Call], is_own: bool | None = None) -> _Variant:
        assert self._recorded is not None
        if not changes:
            return _Variant(self._recorded, self._recorded, is_own)
        steps = {**self._recorded.steps, step.number: with_changes(step, changes)}
        return _Variant(self._recorded, Program(self._recorded.header, steps), is_own)

    def _of(self, variant: _Variant, pair: Pair) -> Effect:
        """What a variant does at a site, and whose value the candidate's numbers follow."""
        if variant.candidate is variant.reference:
            return Effect.UNREAD
        reference, candidate = self._replays(variant.reference), self._replays(variant.candidate)
        site = pair.reference.site
        with reference.running():
            expected, stated = reference.run(site, reference.tensors), candidate.run(site, reference.tensors)
            if expected is None or stated is None:
                raise NotReplayableError("nothing says how it was made")
            if not are_apart(expected, stated) and not any(
                _apart_on_random(reference, candidate, site, seed) for seed in range(TRIALS)
            ):
                return Effect.UNREAD
            if variant.is_own is not None:
                return Effect.CHANGES if variant.is_own else Effect.CONTRADICTED
            return self._followed(pair, reference, expected, stated)

    def _followed(self, pair: Pair, replays: Replays, reference: Array, candidate: Array) -> Effect:
        """Whether the candidate's numbers are those of the reference's value, and not of its own."""
        found, unit = found_at(pair, replays), self._case.unit(pair)
        expected, stated = part_of(pair, reference), part_of(pair, candidate)
        if found is None or expected is None or stated is None or expected.shape != found.shape:
            return Effect.CHANGES

        draw, start = draw_of(pair, replays), before(pair, replays)

        def moved(seed: int) -> Array | None:
            drawn = draw(seed)
            return None if drawn is None else wide(stated) + (wide(drawn) - wide(expected))

        as_reference = excess_of(expected, found, unit, draw, start)
        as_stated = excess_of(stated, found, unit, moved, start)
        if as_reference is None or as_stated is None:
            return Effect.CHANGES
        is_candidate = as_reference.times <= 1 and not as_stated.times <= DRIFT
        return Effect.CONTRADICTED if is_candidate else Effect.CHANGES


def _apart_on_random(reference: Replays, candidate: Replays, site: Site, seed: int) -> bool:
    """Whether either value gives other numbers where a site's inputs are drawn at random."""
    rng = np.random.default_rng(seed)
    drawn: dict[Site, Array | None] = {}

    def tensors(wanted: Site) -> Array | None:
        if wanted not in drawn:
            array = reference.tensors(wanted)
            kept = array is None or wanted.phase in ("weight", "optim") or array.dtype.kind in "iu"
            drawn[wanted] = array if array is None or kept else random_like(array, rng)
        return drawn[wanted]

    try:
        one, other = reference.run(site, tensors), candidate.run(site, tensors)
    except NotReplayableError:
        return False
    return one is not None and other is not None and are_apart(one, other)
