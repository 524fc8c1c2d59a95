"""What the reference's program makes of the candidate's own tensors: what a site should hold, given its inputs.

A replay starts from what the candidate recorded nearest before a site. Where it recorded outputs only, the reference's
calls lead there from its output at the reference's producer; where it recorded no weights, the reference's stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np

from .._kernels import measure
from ..compare.measuring import load_recorded
from ..compare.pairs import Pair, ReconcileError
from ..dtypes import roundoff
from ..errors import FirstdriftError
from ..program.calls import Call, Program, Ref, Step, reads
from ..program.costs import Limits
from ..program.cuts import Cut, Cuts, type_of
from ..program.interpreter import Interpreter, NotReplayableError
from ..program.process_settings import as_recorded
from ..program.running.allowed import operation
from ..program.running.not_replayable import ControlDiffersError
from ..program.running.shaking import moves
from ..sites import Site
from ..traces import Array, Trace
from ..verdict.introduced import Introduced, distance, introduced, is_other_mask
from ..verdict.ladder import is_short

LIMITS = Limits(calls=50_000, elements=1 << 32, bytes=512 << 20)  # of one replay; a larger one runs in parts
HOW = "replayed in float64"
CASTS = frozenset({"_to_copy", "to", "copy_"})
WRITTEN_CASTS = frozenset({"to", "type", "type_as", "half", "bfloat16", "float", "copy_"})

Tensors = Callable[[Site], Array | None]


@dataclass(frozen=True)
class Run:
    """One side's trace and program. `sites` are those of its own, by the reference's, that a replay may start from."""

    trace: Trace
    program: Program
    sites: Mapping[Site, Site]

    @cached_property
    def starts(self) -> frozenset[Site]:
        """The same, by its own names."""
        return frozenset(self.sites.values())


class Replays:
    """Two aligned traces of which the reference has a program; the candidate's own, where there is one, says how its
    operations round. `starts` tells which of the candidate's tensors may be taken as given."""

    def __init__(
        self, reference: Trace, candidate: Trace, pairs: Sequence[Pair], program: Program, own: Program | None = None,
        starts: Callable[[Site], bool] = lambda site: True,
    ) -> None:  # fmt: skip
        self.pairs = {pair.site: pair for pair in pairs if _is_usable(pair)}
        self._candidate = candidate
        self._reference = Run(reference, program, {site: site for site in self.pairs if starts(site)})
        plain = {site: pair.candidate[0].site for site, pair in self.pairs.items() if starts(site) and _is_plain(pair)}
        self._own = None if own is None else Run(candidate, own, plain)
        self._first_step = min((site.step for site in self.pairs), default=0)
        self._cuts: dict[tuple[bool, int], Cuts] = {}
        self._firsts: dict[int, dict[Ref, Site]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """As the reference ran: its threads, its default dtype, its denormals."""
        with as_recorded(self._reference.program.header), np.errstate(all="ignore"):
            yield

    def introduced(self, site: Site, floor: float) -> Introduced | None:
        """What the operation of a site added to what came in; None where that cannot be said.

        `floor` is the relative error that any implementation may add; what the operation is noisier by on these
        numbers is found by rounding as the program does. A gradient that rests on decisions of which the candidate did
        not record every digit is acquitted or left alone, never blamed.
        """
        found = self.found(site)
        try:
            expected = None if found is None else self.expected(site)
            if found is None or expected is None or not _are_alike(expected, found):
                return None
            if found.dtype.kind in "iub":
                return self._discrete(site, expected, found)
            if self.draws(site) and is_other_mask(expected, found):
                return None  # the candidate drew other numbers, and which is not on record
            size, source, how = self._size(site, expected), self._first(site), self.how(site)
            floor *= sqrt(1 + len(self.unseen(site)))  # what they add by themselves adds up like a random walk
            own = introduced(expected, found, floor, None, how, size)
            if own.beyond_noise:
                own = introduced(expected, found, floor, self._rounded(site, expected), how, size)
            if not own.beyond_noise and self._casts(site) and self._is_reference_off(site, floor):
                return None
            if own.beyond_noise and (self._is_guess(site) or (site.phase != "fwd" and self._may_have_flipped(site))):
                return None
            return own if source == site else replace(own, source=source)
        except ControlDiffersError as error:
            return Introduced(0.0, floor, 1.0, HOW, undecided=f"control differs here: {error}")
        except NotReplayableError:
            return None

    def expected(self, site: Site, *, own_weights: bool = True) -> Array | None:
        """What the reference's calls make of the candidate's tensors, in float64; None where the program does not say.

        Without `own_weights` the model starts from the reference's; what a step has made of them is the candidate's.
        Raises NotReplayableError where a call cannot be made.
        """
        if (first := self._first(site)) != site:
            return self.found(first)
        return self.run(site, self.found if own_weights else self.with_reference_weights)

    def run(self, site: Site, tensors: Tensors, *, exact: bool = True) -> Array | None:
        """What the reference's calls make of tensors that are given by site; its own, where none is given."""
        step, cut = self._step(site), self.cut(site)
        if step is None or cut is None or cut.is_empty:
            return None
        return Interpreter(step, self._reference.trace, tensors=tensors, exact=exact, limits=LIMITS).array_of(cut)

    def inputs(self, site: Site) -> dict[str, Array]:
        """What the module of an output reads, by port, where the candidate did not record all of it: what the
        reference's calls make of what it did record."""
        step = self._step(site)
        if step is None or site.phase != "fwd" or site.port.startswith("in."):
            return {}
        read = [one for one in step.sites if one.port.startswith("in.") and one._replace(port=site.port) == site]
        if all(one in self.pairs for one in read):
            return {}
        found = {one.port: self._given(one) for one in read}
        return {port: array for port, array in found.items() if array is not None}

    def inherited(self, site: Site) -> float | None:
        """How far what the reference makes of the candidate's tensors is from what it made of its own."""
        try:
            expected = None if site.phase == "weight_after" else self.expected(site)
        except NotReplayableError:
            return None
        if expected is None or expected.dtype.kind in "iub":
            return None
        ours = self._reference.trace.array(self.pairs[site].reference)
        return measure(ours, expected, full=False).rel_l2 if ours.shape == expected.shape else None

    def given(self, site: Site) -> list[Site]:
        """The recorded tensors that a replay of a site starts from, in causal order."""
        cut = self.cut(site)
        given = {self._first(site)} - {site} or set(() if cut is None else cut.given.values())
        return [other for other in self.pairs if other in given]

    def unseen(self, site: Site) -> list[Site]:
        """What the reference recorded on the way to a site and the candidate did not: any of it may be wrong there."""
        step, cut = self._step(site), self.cut(site)
        if step is None or cut is None or self._first(site) != site:
            return []
        made = {number for number in cut.nodes if isinstance(step.nodes[number], Call)}
        used = {ref for number in made for ref in reads(step.nodes[number]) if ref.node in made} - {cut.target}
        return [other for other, ref in step.sites.items() if ref in used]

    def draws(self, site: Site) -> bool:
        """Whether random numbers were drawn on the way to a site."""
        return any(bool(call.drawn) for call in self.calls(site))

    def functions(self, site: Site) -> list[str]:
        """The same as the model's code calls them, each once."""
        step, cut = self._step(site), self.cut(site)
        calls = [] if step is None or cut is None else [n for n in cut.nodes if isinstance(step.nodes[n], Call)]
        written = [(number, step.as_written(number)) for number in calls] if step is not None else []
        return list(dict.fromkeys(getattr(one, "function", None) or one.op for _, one in written))

    def calls(self, site: Site) -> list[Call]:
        """The calls that make a site of what the candidate recorded."""
        step, cut = self._step(site), self.cut(site)
        nodes = [] if step is None or cut is None else [step.nodes[number] for number in cut.nodes]
        return [node for node in nodes if isinstance(node, Call)]

    def cut(self, site: Site) -> Cut | None:
        """The part of the program that makes a site; None if it does not say."""
        step = self._step(site)
        cut = None if step is None else self._cuts_of(step, own=False).at(self._recorded(site))
        if step is None or cut is None:
            return None
        return cut if self._reference.program.why_not_cut(step, cut) is None else None

    def _is_reference_off(self, site: Site, floor: float) -> bool:
        """Whether the reference's own casts take it further from what its code means than noise explains: a candidate
        without them is right, and still not the same."""
        exact, ours = self.run(site, lambda wanted: None), self._reference.trace.array(self._recorded(site))
        return exact is not None and introduced(exact, ours, floor, None, HOW).beyond_noise

    def _may_have_flipped(self, site: Site) -> bool:
        """Whether near-ties may have been decided otherwise on the way to a gradient: between recorded tensors, or by
        digits that a short format has lost, where no program says that the candidate had no more."""
        stored = roundoff(*(record.dtype for record in self.pairs[site].candidate))
        return bool(self.unseen(site)) or (self._own is None and is_short(stored))

    def _is_guess(self, site: Site) -> bool:
        """Whether a tensor seems to be only handed on, and no run says so: two that are equal by chance look alike."""
        step, cut = self._step(site), self.cut(site)
        if step is None or cut is None or not self._reference.program.is_inferred(step, cut):
            return False
        return all(moves(operation(call.op)[0]) for call in self.calls(site))

    def how(self, site: Site) -> str:
        """In which precision a site was replayed, and whether its operation was only inferred."""
        step, cut = self._step(site), self.cut(site)
        guessed = step is not None and cut is not None and self._reference.program.is_inferred(step, cut)
        return f"{HOW}, operation: inferred" if guessed else HOW

    def found(self, site: Site) -> Array | None:
        """The candidate's tensor at a site, in the reference's layout."""
        if site not in self.pairs:
            return None
        try:
            return load_recorded(self.pairs[site], self._reference.trace, self._candidate)[1]
        except (FirstdriftError, ReconcileError):
            return None

    def _given(self, site: Site) -> Array | None:
        own = self.found(self._first(site))
        try:
            return self.run(site, self.found) if own is None else own
        except NotReplayableError:
            return None

    def with_reference_weights(self, site: Site) -> Array | None:
        """The same; but the weights that the model starts from are the reference's."""
        return None if site.phase == "weight" and site.step == self._first_step else self.found(site)

    def _rounded(self, site: Site, expected: Array) -> tuple[Array, Array] | None:
        """The same calls exactly and as they round: the reference's on the candidate's tensors or, where these are
        noisier, the candidate's own."""
        rounded = self.run(site, self.found, exact=False) if self._first(site) == site else None
        both = [] if rounded is None else [(expected, rounded)]
        if (own := self._own_rounding(site)) is not None and own[0].shape == expected.shape:
            both.append(own)
        return max(both, key=lambda pair: distance(measure(*pair, full=False)), default=None)

    def _casts(self, site: Site) -> set[str]:
        step, cut = self._step(site), self.cut(site)
        return set() if step is None or cut is None else _written_casts(step, cut)

    def _own_rounding(self, site: Site) -> tuple[Array, Array] | None:
        """The candidate's own calls; None where its code asks for a shorter format than the reference's: whoever casts
        more is not noisier but less precise. What autocast casts was asked for."""
        run = self._own
        own = None if run is None else run.sites.get(site)
        step = None if run is None or own is None else run.program.steps.get(own.step)
        if run is None or own is None or step is None:
            return None
        cut = self._cuts_of(step, own=True).at(own)
        if cut is None or cut.is_empty or _written_casts(step, cut) - self._casts(site):
            return None
        try:
            exact, rounded = (Interpreter(step, run.trace, exact=one, limits=LIMITS) for one in (True, False))
            return exact.array_of(cut), rounded.array_of(cut)
        except NotReplayableError:
            return None

    def _discrete(self, site: Site, expected: Array, found: Array) -> Introduced | None:
        """Integers and truth values: what is made of the candidate's tensors exactly, or as they round."""
        equal = np.array_equal(expected, found)
        if not equal and self._first(site) == site:
            rounded = self.run(site, self.found, exact=False)
            equal = rounded is not None and np.array_equal(rounded, found)
        return Introduced(0.0, 0.0, 1.0, HOW) if equal else None  # else a near-tie, perhaps: others see the margins

    def _size(self, site: Site, expected: Array) -> float:
        """What errors are relative to, where it is not the tensor itself: of weights, how far they went."""
        before = self.found(site._replace(phase="weight")) if site.phase == "weight_after" else None
        return 0.0 if before is None else distance(measure(before, expected, full=False))

    def _first(self, site: Site) -> Site:
        """The first site at which a value may be taken as given: at all later ones it is only handed on."""
        step, recorded = self._step(site), self._recorded(site)
        if step is None or recorded not in step.sites:
            return site
        if step.number not in self._firsts:
            found = self._firsts[step.number] = {}
            for other in self._reference.sites:  # in causal order
                if other.step == step.number and other in step.sites:
                    found.setdefault(step.sites[other], other)
        return self._firsts[step.number].get(step.sites[recorded], site)

    def _recorded(self, site: Site) -> Site:
        """The site under which the reference recorded a tensor: of a tied one, under its first name."""
        return self.pairs[site].reference.site if site in self.pairs else site

    def _step(self, site: Site) -> Step | None:
        return self._reference.program.steps.get(site.step)

    def _cuts_of(self, step: Step, *, own: bool) -> Cuts:
        if (own, step.number) not in self._cuts:
            run = self._own if own and self._own is not None else self._reference
            self._cuts[own, step.number] = Cuts(step, run.starts.__contains__)
        return self._cuts[own, step.number]


def _is_usable(pair: Pair) -> bool:
    """Whether the candidate's tensor can stand for the reference's: with values, in the reference's own layout."""
    has_values = pair.reference.at is not None and all(record.at is not None for record in pair.candidate)
    return has_values and bool(pair.candidate) and not pair.reference_steps


def _is_plain(pair: Pair) -> bool:
    return len(pair.candidate) == 1 and not pair.candidate_steps


def _written_casts(step: Step, cut: Cut) -> set[str]:
    """The shorter formats that the model's own code casts to, in a part of a step."""
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
