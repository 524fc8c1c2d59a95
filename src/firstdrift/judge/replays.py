"""The reference's program on the candidate's own tensors: what a site should hold, given its inputs.

A replay starts from what the candidate recorded nearest before a site. Where it recorded outputs only, the reference's
calls lead there from its output at the reference's producer; where it recorded no weights, the reference's stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ..compare.pairs import Pair
from ..dtypes import roundoff
from ..program.calls import Call, Leaf, Program, Ref, Step, reads
from ..program.costs import Limits
from ..program.cuts import Cut, Cuts, type_of
from ..program.interpreter import Interpreter, NotReplayableError
from ..program.process_settings import as_recorded
from ..program.running.shaking import Shake
from ..sites import Site
from ..traces import Array, Trace
from .counterparts import Counterparts

LIMITS = Limits(calls=50_000, elements=1 << 32, bytes=512 << 20)  # of one replay; a larger one runs in parts

FLOWING = frozenset({"fwd", "loss", "lossgrad", "agrad", "grad", "grad_scaled"})  # what other numbers are made of

Tensors = Callable[[Site], Array | None]


class Replays:
    """Two aligned traces of which the reference has a program. All sites are those under which the reference recorded
    a tensor. `starts` tells which of the candidate's tensors may be taken as given."""

    def __init__(
        self, reference: Trace, candidate: Trace, pairs: Sequence[Pair], program: Program, own: Program | None = None,
        starts: Callable[[Site], bool] = lambda site: True,
    ) -> None:  # fmt: skip
        self.reference, self.candidate, self.program = reference, candidate, program
        self.own = own  # the candidate's program, where it recorded one
        self.theirs = Counterparts(reference, candidate, pairs)
        self._starts = [site for site in self.theirs.sites if starts(site)]
        self._first_step = min((site.step for site in self.theirs.sites), default=0)
        self._cuts: dict[int, Cuts] = {}
        self._own_cuts: dict[int, Cuts] = {}
        self._firsts: dict[int, dict[Ref, Site]] = {}
        self._kept: tuple[object, Array] | None = None  # samples of one tensor are asked for one after the other

    @property
    def traces(self) -> tuple[Trace, Trace]:
        """Both sides."""
        return self.reference, self.candidate

    @contextmanager
    def running(self) -> Iterator[None]:
        """As the reference ran: its threads, its default dtype, its denormals."""
        with as_recorded(self.program.header), np.errstate(all="ignore"):
            yield

    def expected(self, site: Site, *, own_weights: bool = True) -> Array | None:
        """What the reference's calls make of the candidate's tensors, in float64; None where the program does not say.

        Without `own_weights` the model starts from the reference's; what a step has made of them is the candidate's.
        Raises NotReplayableError where a call cannot be made.
        """
        if (first := self.first(site)) != site:
            return self.theirs.array(first)
        key = site, own_weights
        if self._kept is not None and self._kept[0] == key:
            return self._kept[1]
        found = self.run(site, self.theirs.array if own_weights else self.with_reference_weights)
        self._kept = None if found is None else (key, found)
        return found

    def run(self, site: Site, tensors: Tensors, *, exact: bool = True, shaken: Shake | None = None) -> Array | None:
        """What the reference's calls make of tensors that are given by site; its own, where none is given."""
        step, cut = self.step(site), self.cut(site)
        if step is None or cut is None or cut.is_empty:
            return None
        run = Interpreter(step, self.reference, tensors=tensors, exact=exact, shaken=shaken, limits=LIMITS)
        return run.array_of(cut)

    def shaken(self, site: Site, seed: int) -> Array | None:
        """What the reference's calls make of the candidate's tensors when every number moves within its rounding.

        A candidate without a program may have added sums one by one, and may have had more digits than it recorded.
        """
        cut = self.cut(site)
        steady = frozenset(ref for ref, given in cut.given.items() if self._is_whole(given)) if cut is not None else ()
        return self.run(site, self.theirs.array, shaken=Shake(seed, self.own is None, frozenset(steady)))

    def _is_whole(self, site: Site) -> bool:
        """Whether the candidate recorded all digits that it had."""
        own = self.theirs.own_site(site)
        step = None if self.own is None or own is None else self.own.steps.get(own.step)
        if step is None or own is None or own not in step.sites:
            return False
        had = type_of(step, step.sites[own])
        return had is not None and roundoff(had.dtype) >= roundoff(self.candidate[own].dtype)

    def own_rounding(self, site: Site, allowed: Callable[[Step, Cut], bool]) -> tuple[Array, Array] | None:
        """What the candidate's own calls make of its own tensors, exactly and as they round; None where it recorded no
        program, or not one that is allowed."""
        own = self.theirs.own_site(site)
        step = None if self.own is None or own is None else self.own.steps.get(own.step)
        if own is None or step is None:
            return None
        if step.number not in self._own_cuts:
            starts = {self.theirs.own_site(other) for other in self._starts}
            self._own_cuts[step.number] = Cuts(step, starts.__contains__)
        cut = self._own_cuts[step.number].at(own)
        if cut is None or cut.is_empty or not allowed(step, cut):
            return None
        try:
            exact, rounded = (Interpreter(step, self.candidate, exact=one, limits=LIMITS) for one in (True, False))
            return exact.array_of(cut), rounded.array_of(cut)
        except NotReplayableError:
            return None

    def with_reference_weights(self, site: Site) -> Array | None:
        """The candidate's tensors; but the weights that the model starts from are the reference's."""
        return None if site.phase == "weight" and site.step == self._first_step else self.theirs.array(site)

    def inputs(self, site: Site) -> dict[str, Array]:
        """What the module of an output reads, by port, where the candidate did not record all of it: what the
        reference's calls make of what it did record."""
        step = self.step(site)
        if step is None or site.phase != "fwd" or site.port.startswith("in."):
            return {}
        read = [one for one in step.sites if one.port.startswith("in.") and one._replace(port=site.port) == site]
        if all(one in self.theirs for one in read):
            return {}
        found = {one.port: self._given(one) for one in read}
        return {port: array for port, array in found.items() if array is not None}

    def _given(self, site: Site) -> Array | None:
        own = self.theirs.array(self.first(site))
        try:
            return self.run(site, self.theirs.array) if own is None else own
        except NotReplayableError:
            return None

    def given(self, site: Site) -> list[Site]:
        """The recorded tensors that a replay of a site starts from, in causal order."""
        cut = self.cut(site)
        given = {self.first(site)} - {site} or set(() if cut is None else cut.given.values())
        return [other for other in self.theirs.sites if other in given]

    def unseen(self, site: Site) -> list[Site]:
        """What the reference recorded on the way to a site and the candidate did not: any of it may be wrong there."""
        step, cut = self.step(site), self.cut(site)
        if step is None or cut is None or self.first(site) != site:
            return []
        made = {number for number in cut.nodes if isinstance(step.nodes[number], Call)}
        used = {ref for number in made for ref in reads(step.nodes[number]) if ref.node in made} - {cut.target}
        return [other for other, ref in step.sites.items() if ref in used]

    def calls(self, site: Site) -> list[Call]:
        """The calls that make a site of what the candidate recorded."""
        step, cut = self.step(site), self.cut(site)
        nodes = [] if step is None or cut is None else [step.nodes[number] for number in cut.nodes]
        return [node for node in nodes if isinstance(node, Call)]

    def draws(self, site: Site) -> bool:
        """Whether random numbers were drawn on the way to a site."""
        return any(bool(call.drawn) for call in self.calls(site))

    def cut(self, site: Site) -> Cut | None:
        """The part of the program that makes a site; None if it does not say."""
        step = self.step(site)
        if step is None:
            return None
        if step.number not in self._cuts:
            self._cuts[step.number] = Cuts(step, frozenset(self._starts).__contains__)
        cut = self._cuts[step.number].at(site)
        if cut is None or self.program.why_not_cut(step, cut) is not None or self._starts_inside(step, cut):
            return None
        return cut

    def _starts_inside(self, step: Step, cut: Cut) -> bool:
        """Whether calls begin with what flowed through the reference and the candidate has not recorded: what they
        give tells nothing of the candidate's own operation."""
        leaves = [node for number in cut.nodes if isinstance(node := step.nodes[number], Leaf)]
        sites = [leaf.source for leaf in leaves if isinstance(leaf.source, Site)]
        return any(site.phase in FLOWING and site not in self.theirs for site in sites)

    def first(self, site: Site) -> Site:
        """The first site at which a value may be taken as given: at all later ones it is only handed on."""
        step = self.step(site)
        if step is None or site not in step.sites:
            return site
        if step.number not in self._firsts:
            found = self._firsts[step.number] = {}
            for other in self._starts:  # in causal order
                if other.step == step.number and other in step.sites:
                    found.setdefault(step.sites[other], other)
        return self._firsts[step.number].get(step.sites[site], site)

    def step(self, site: Site) -> Step | None:
        """The program of a site's step."""
        return self.program.steps.get(site.step)
