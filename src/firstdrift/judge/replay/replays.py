"""The reference's program on the candidate's own tensors: what a site should hold, given its inputs.

A replay starts from what the candidate recorded nearest before a site. Where it recorded outputs only, the reference's
calls lead there from its output at the reference's producer; where it recorded no weights, the reference's stand in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...core.dtypes import roundoff
from ...core.sites import Site
from ...core.traces import Array, Trace
from ...pair.pairs import Pair
from ...program.calls import Call, Earlier, Leaf, Program, Ref, Step, reads
from ...program.casts import meant_casts
from ...program.costs import Limits, cost_of
from ...program.cuts import Cut, Cuts
from ...program.interpreter import Interpreter, NotReplayableError
from ...program.process_settings import as_recorded
from ...program.reruns import Piece, Rerun, rerun_of, samples_of
from ...program.running.op_kinds import decisions, is_kinked
from ...program.running.shaking import Shake, Unmoved
from ...program.written.read_program import read_program
from ..measure.measuring import unit_of
from .counterparts import Counterparts

LIMITS = Limits(calls=50_000, elements=1 << 32, bytes=512 << 20)  # of one replay; a larger one runs in parts
MOST_ELEMENTS = 1 << 26  # that the replays of a pass read or make, where it asks of many sites
DRAWN_BYTES = 128 << 20  # of one site's draws that are kept

# What a run makes: numbers of one side say nothing of the other.
MADE = frozenset({"fwd", "loss", "lossgrad", "agrad", "grad", "grad_scaled", "optim", "weight_after"})

Tensors = Callable[[Site], Array | None]


@dataclass(frozen=True, slots=True)
class Own:
    """The candidate's own program, the trace that it reads, and the sites there of what the candidate is compared
    under, where these are others."""

    program: Program
    trace: Trace
    original: Mapping[Site, Site] | None = None

    def site(self, site: Site) -> Site:
        """A site as the candidate's program calls it."""
        return site if self.original is None else self.original.get(site, site)


def own_of(candidate: Trace) -> Own | None:
    """The program beside a candidate's trace."""
    program = read_program(candidate)
    return None if program is None else Own(program, candidate)


class _Draws:
    """What was drawn at one site, while it is small, and what draws share that differ in their seeds alone."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._found: dict[tuple[Hashable, int], Array | None] = {}
        self._unmoved: dict[Hashable, Unmoved] = {}
        self._left = DRAWN_BYTES

    def get(self, asked: Hashable, seed: int, make: Callable[[], Array | None]) -> Array | None:
        """The draw of a seed, made if nobody has made it."""
        if (asked, seed) in self._found:
            return self._found[asked, seed]
        found = make()
        size = 0 if found is None else found.nbytes
        if size <= self._left:
            self._left -= size
            self._found[asked, seed] = found
        return found

    def unmoved(self, asked: Hashable, step: Step) -> Unmoved:
        """What is the same for every seed."""
        return self._unmoved.setdefault(asked, Unmoved(step))


class Replays:
    """Two aligned traces of which the reference has a program. All sites are those under which the reference recorded
    a tensor. `starts` tells which of the candidate's tensors may be taken as given."""

    def __init__(
        self, reference: Trace, candidate: Trace, pairs: Sequence[Pair], program: Program, own: Own | None = None,
        starts: Callable[[Site], bool] = lambda site: True, finest: float = 0.0, unlike: frozenset[Site] = frozenset(),
    ) -> None:  # fmt: skip
        self.reference, self.candidate, self.program = reference, candidate, program
        self.finest = finest  # a unit roundoff that no noise is drawn more finely by
        self.unlike = unlike  # weights that are the reference's, because the candidate stores them otherwise
        self.own = own  # the candidate's program, where it recorded one
        self.counterparts = Counterparts(reference, candidate, pairs)
        self._pairs = pairs
        self._starts = list(dict.fromkeys([*(site for site in self.counterparts.sites if starts(site)), *unlike]))
        self._first_step = min((site.step for site in self.counterparts.sites), default=0)
        self._cuts: dict[int, Cuts] = {}
        self._parts: dict[Site, Cut | None] = {}
        self._own_cuts: dict[int, Cuts] = {}
        self._firsts: dict[int, dict[Ref, Site]] = {}
        self._kept: tuple[object, Array] | None = None  # samples of one tensor are asked for one after the other
        self._draws: _Draws | None = None  # and so are draws

    def starting(self, starts: Callable[[Site], bool], unlike: frozenset[Site]) -> Replays:
        """The same programs, started from other tensors."""
        both = self.reference, self.candidate
        return Replays(*both, self._pairs, self.program, self.own, starts, self.finest, unlike)

    @contextmanager
    def running(self) -> Iterator[None]:
        """As the reference ran: its threads, its default dtype, its denormals."""
        with as_recorded(self.program.header), np.errstate(all="ignore"):
            yield

    # What the reference's calls make

    def step(self, site: Site) -> Step | None:
        """The program of a site's step."""
        return self.program.steps.get(site.step)

    def cut(self, site: Site) -> Cut | None:
        """The part of the program that makes a site; None if it does not say."""
        if site not in self._parts:
            self._parts[site] = self._part(site)
        return self._parts[site]

    def _part(self, site: Site) -> Cut | None:
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
        sources = [leaf.source.site if isinstance(leaf.source, Earlier) else leaf.source for leaf in leaves]
        sites = [source for source in sources if isinstance(source, Site)]
        return any(site.phase in MADE and site not in self.counterparts for site in sites)

    def made(self, site: Site) -> tuple[Step, Cut] | None:
        """The calls that make a site of what the candidate recorded; None if the program does not say."""
        step, cut = self.step(site), self.cut(site)
        return None if step is None or cut is None else (step, cut)

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

    def tensors(self, site: Site) -> Array | None:
        """The candidate's tensor of a site; None where it has none, or the reference's is to be taken."""
        return None if site in self.unlike else self.counterparts.array(site)

    def with_reference_weights(self, site: Site) -> Array | None:
        """The candidate's tensors; but the weights that the model starts from are the reference's."""
        return None if site.phase == "weight" and site.step == self._first_step else self.counterparts.array(site)

    def expected(self, site: Site, *, own_weights: bool = True) -> Array | None:
        """What the reference's calls make of the candidate's tensors, in float64; None where the program does not say.

        Without `own_weights` the model starts from the reference's; what a step has made of them is the candidate's.
        Raises NotReplayableError where a call cannot be made.
        """
        if (first := self.first(site)) != site:
            return self.counterparts.array(first)
        key = site, own_weights
        if self._kept is not None and self._kept[0] == key:
            return self._kept[1]
        found = self.run(site, self.tensors if own_weights else self.with_reference_weights)
        self._kept = None if found is None else (key, found)
        return found

    def run(self, site: Site, tensors: Tensors, *, exact: bool = True, shaken: Shake | None = None) -> Array | None:
        """What the reference's calls make of tensors that are given by site; its own, where none is given."""
        made = self.made(site)
        if made is None or made[1].is_empty:
            return None
        step, cut = made
        kept = meant_casts(step, cut, self._stored(site)) if exact else frozenset[int]()
        run = Interpreter(step, self.reference, tensors=tensors, exact=exact, shaken=shaken, limits=LIMITS, kept=kept)
        return run.array_of(cut)

    def _stored(self, site: Site) -> float:
        """The coarser roundoff of what both sides record a tensor in."""
        own = unit_of(self.counterparts.first(site)) if site in self.counterparts else 0.0
        return max(self.finest, roundoff(self.reference[site].dtype), own)

    def drawn(
        self, site: Site, seed: int, *, as_recorded: bool = True, times: float = 1.0, free: bool = False,
        tensors: Tensors | None = None,
    ) -> Array | None:  # fmt: skip
        """What correct code may make of the candidate's tensors, or of others, drawn by a seed.

        Without `as_recorded` it may have had more digits than it recorded. `times` as many roundings may be asked for,
        and that every run is `free` to decide.
        """
        made = self.made(site)
        if made is None:
            return None
        step, cut = made
        draws, asked = self._draws_of(site), (as_recorded, times, free, tensors)
        whole = as_recorded and not free
        known = {ref: other for ref, other in cut.given.items() if other not in self.unlike}  # else stored once more
        steady = frozenset(ref for ref, other in known.items() if whole or self._is_whole(other))
        target = cut.target if site.phase == "weight_after" else None
        unmoved = draws.unmoved(asked, step) if len(steady) == len(cut.given) else None
        shake = Shake(seed, steady, max(self.finest, self._coarsest(site, cut)), target, times, free, unmoved)
        return draws.get(asked, seed, lambda: self.run(site, tensors or self.tensors, shaken=shake))

    def _draws_of(self, site: Site) -> _Draws:
        """Those of one site, until another is asked for."""
        if self._draws is None or self._draws.site != site:
            self._draws = _Draws(site)
        return self._draws

    def _coarsest(self, site: Site, cut: Cut) -> float:
        """The roundoff of what the candidate stores in a shorter dtype than the reference, at a site or before it."""
        pairs = [self.counterparts.first(one) for one in (site, *cut.given.values()) if one in self.counterparts]
        units = [(roundoff(*(one.dtype for one in pair.candidate)), roundoff(pair.reference.dtype)) for pair in pairs]
        return max((candidate for candidate, reference in units if candidate > reference > 0), default=0.0)

    def rerun(self, site: Site, *, exact: bool = True, piece: Piece | None = None) -> Rerun | None:
        """The reference's calls that make a site, on the candidate's tensors, to be run with changes."""
        made = self.made(site)
        if made is None or made[1].is_empty or self.first(site) != site:
            return None
        kept = meant_casts(*made, self._stored(site))
        return rerun_of(*made, self.reference, self.tensors, kept=kept, exact=exact, piece=piece)

    # What the reference's calls are

    def calls(self, site: Site) -> list[Call]:
        """The calls that make a site of what the candidate recorded."""
        made = self.made(site)
        nodes = [] if made is None else [made[0].nodes[number] for number in made[1].nodes]
        return [node for node in nodes if isinstance(node, Call)]

    def samples(self, site: Site) -> int:
        """How many samples the calls that make a site treat one by one."""
        made = self.made(site)
        return 1 if made is None else samples_of(*made)

    def work(self, site: Site) -> int:
        """The elements that a replay of a site reads or makes."""
        made = self.made(site)
        return 0 if made is None else cost_of(*made, exact=True).elements

    def draws(self, site: Site) -> bool:
        """Whether random numbers were drawn on the way to a site."""
        return any(bool(call.drawn) for call in self.calls(site))

    def decides(self, site: Site) -> bool:
        """Whether something is decided on the way to a site: a choice, or a side of a kink."""
        made = self.made(site)
        if made is None:
            return False
        return bool(decisions(made[0], made[1].nodes)) or any(is_kinked(call) for call in self.calls(site))

    def given(self, site: Site) -> list[Site]:
        """The recorded tensors that a replay of a site starts from, in causal order."""
        cut = self.cut(site)
        given = {self.first(site)} - {site} or set(() if cut is None else cut.given.values())
        return [other for other in self.counterparts.sites if other in given]

    def unseen(self, site: Site) -> list[Site]:
        """What the reference recorded on the way to a site and the candidate did not: any of it may be wrong there."""
        made = self.made(site)
        if made is None or self.first(site) != site:
            return []
        step, cut = made
        calls = {number for number in cut.nodes if isinstance(step.nodes[number], Call)}
        used = {ref for number in calls for ref in reads(step.nodes[number]) if ref.node in calls} - {cut.target}
        return [other for other, ref in step.sites.items() if ref in used]

    def readers(self, site: Site) -> list[Site]:
        """The sites that are computed from the candidate's tensor of a site, in causal order."""
        step = self.step(site)
        sites = [] if step is None else [one for one in self.counterparts.sites if one in step.sites]
        found = [one for one in sites if one.step == site.step and one != site and self.first(one) == one]
        return [one for one in found if (cut := self.cut(one)) is not None and site in cut.given.values()]

    def inputs(self, site: Site) -> dict[str, Array]:
        """What the module of an output reads, by port, where the candidate did not record all of it: what the
        reference's calls make of what it did record."""
        step = self.step(site)
        if step is None or site.phase != "fwd" or site.port.startswith("in."):
            return {}
        read = [one for one in step.sites if one.port.startswith("in.") and one._replace(port=site.port) == site]
        if all(one in self.counterparts for one in read):
            return {}
        found = {one.port: self._given(one) for one in read}
        return {port: array for port, array in found.items() if array is not None}

    def _given(self, site: Site) -> Array | None:
        own = self.counterparts.array(self.first(site))
        try:
            return self.run(site, self.counterparts.array) if own is None else own
        except NotReplayableError:
            return None

    # The candidate's own program

    def own_site(self, site: Site) -> Site | None:
        """The site of a tensor in the candidate's own program; None where it had to be cut, joined or scaled."""
        own = self.counterparts.own_site(site)
        return None if own is None or self.own is None else self.own.site(own)

    def _own_value(self, site: Site) -> tuple[Step, Site, Ref] | None:
        """Where the candidate's own program has a tensor."""
        own = self.own_site(site)
        step = None if self.own is None or own is None else self.own.program.steps.get(own.step)
        return None if step is None or own is None or own not in step.sites else (step, own, step.sites[own])

    def own_cut(self, site: Site) -> tuple[Step, Cut] | None:
        """The part of the candidate's own program that makes a site; None where it does not say."""
        there = self._own_value(site)
        if there is None:
            return None
        step, own, _ = there
        if step.number not in self._own_cuts:
            starts = {self.own_site(other) for other in self._starts}
            self._own_cuts[step.number] = Cuts(step, starts.__contains__)
        cut = self._own_cuts[step.number].at(own)
        return None if cut is None or cut.is_empty else (step, cut)

    def own_first(self, site: Site) -> Site | None:
        """The reference's name of the first recorded tensor that the candidate hands on to a site; None where that is
        none that both sides recorded, or the site's own."""
        there = self._own_value(site)
        if there is None:
            return None
        step, own, value = there
        others = ((other, self.own_site(other)) for other in self._starts if other != site)
        return next((other for other, mine in others if mine and mine != own and step.sites.get(mine) == value), None)

    def is_whole(self, site: Site) -> bool:
        """Whether the candidate recorded all digits of what a replay of a site starts from."""
        cut = self.cut(site)
        return cut is not None and all(self._is_whole(given) for given in cut.given.values())

    def _is_whole(self, site: Site) -> bool:
        """Whether the candidate recorded all digits that it had."""
        there = self._own_value(site)
        if there is None or self.own is None:
            return False
        step, own, value = there
        had = step.type_of(value)
        return had is not None and roundoff(had.dtype) >= roundoff(self.own.trace[own].dtype)

    def run_own(self, site: Site, tensors: Tensors | None = None) -> Array | None:
        """What the candidate's own calls make of its own tensors, or of others that are given by its own sites, in
        float64; None where it recorded no program. Numbers that were read out of its own are the same again, and are
        not looked at."""
        own = self.own_cut(site)
        if own is None or self.own is None:
            return None
        return Interpreter(own[0], self.own.trace, tensors=tensors, exact=True, limits=LIMITS).array_of(own[1])

    def own_drawn(self, site: Site, seed: int) -> Array | None:
        """What they make of its own tensors, rounded at random as its dtypes say."""
        own = self.own_cut(site)
        if own is None or self.own is None:
            return None
        step, cut = own
        draws = self._draws_of(site)
        shake = Shake(seed, frozenset(cut.given), self.finest, unmoved=draws.unmoved("own", step))
        run = Interpreter(step, self.own.trace, exact=True, shaken=shake, limits=LIMITS)
        return draws.get("own", seed, lambda: run.array_of(cut))

    def own_rerun(self, site: Site, *, exact: bool = True) -> Rerun | None:
        """The candidate's own calls that make a site, to be looked into; None where it recorded no program."""
        own = self.own_cut(site)
        if own is None or self.own is None:
            return None
        return Rerun(*own, self.own.trace, None, kept=meant_casts(*own, self._stored(site)), exact=exact)
