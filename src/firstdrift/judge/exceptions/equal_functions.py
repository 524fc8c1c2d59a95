"""The same function, computed or stored otherwise: a permuted basis, a folded norm, a factor or a rotation that stands
elsewhere, a key's bias under a softmax.

Inside such a part much differs, and nothing is wrong. That it is the same function is tried on the inputs of this run
and on inputs that neither side has seen: both programs (or the reference's, with either side's weights) are run in
float64 from the inputs of the part, recorded or drawn at random, to its outputs. They may differ by what storing the
weights once more makes them differ by. A weight is part of this only if every number of it that differs is read: one
that no input reaches is simply wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...core.sites import Site, is_inside
from ...program.cuts import Cuts
from ...program.interpreter import NotReplayableError
from ..case import Case, Chains, decided, is_clean
from ..measure.result import Finding, Verdict, Why
from ..noise import excess_of
from ..replay.introducing import DRIFT, found_at, introduced_at
from ..replay.random_inputs import TRIALS
from ..replay.replays import Replays
from .model_parts import Part, Trials

BY = "equal functions"
HOPS = 3  # modules behind another one that may make up for it
READERS = 64  # modules that may read a tensor which they make up for
DRIFTED = (Why.OTHER_WEIGHT, Why.INTRODUCED, Why.SHORTER_GRID, Why.SHORTER_CALLS)


class EqualFunctions:
    """The parts of a model that were tried, and how far their two sides are apart."""

    def __init__(self, case: Case, chains: Chains, replays: Replays) -> None:
        self._case, self._chains, self._replays = case, chains, replays
        self._weights = frozenset(decided(chains, Why.OTHER_WEIGHT))
        self._tried: dict[tuple[tuple[Site, ...], tuple[Site, ...]], tuple[Trials, float] | None] = {}
        self._first = min((site.step for site in case.items), default=0)

    def proven(self, site: Site) -> dict[Site, Finding]:
        """What differs in the smallest part around a site that computes the same function, the site among it; nothing
        where no part does."""
        if site.phase not in ("weight", "fwd") or site.step != self._first:
            return {}
        for part in self._parts(site):
            same = self._same(part)
            inside = set() if same is None else self._inside(same[0])
            if same is None or site not in inside:
                continue
            weights = frozenset(one for one in part.between if one.phase == "weight")
            modules = sorted({one.name for one in weights})
            facts = {"part": part.name, "modules": modules, "trials": TRIALS, "left": same[1], "proof": "replayed"}
            for unlike in (frozenset[Site](), weights):
                outside = self._as_one(part, unlike)
                if all(self._is_right(output, outside) for output in part.outputs):
                    made = {output for output in part.outputs if unlike and output in decided(self._chains, *DRIFTED)}
                    return {one: _finding(one, facts) for one in inside | made} | self._gradients(part, outside)
        return self._read_as_own(site)

    def _parts(self, site: Site) -> Iterator[Part]:
        """Parts around a site: its module, that with those behind it, and the modules around it, from the inside."""
        path = site.name.split(".") if site.name else []
        is_followed = False
        for length in range(len(path), -1, -1):
            name = ".".join(path[:length])
            part = self._around(name, site.call)
            if part is not None and (site.phase == "weight" or name != site.name):
                yield part
            if not is_followed and part is not None:
                is_followed = True
                yield from self._with_readers(name, site.call)

    def _around(self, name: str, call: int) -> Part | None:
        """A module with all that is inside it."""
        inputs, outputs = self._ports([name], call)
        if not name:
            inputs += [item for item in self._case.items if item.phase == "input" and item.step == self._first]
        return self._part(name, inputs, outputs)

    def _with_readers(self, name: str, call: int) -> Iterator[Part]:
        """A module with what is made of its outputs: up to what the modules that read it are fed, and behind these."""
        modules = [name]
        inputs, made = self._ports(modules, call)
        for _ in range(HOPS):
            readers = {consumer.name for output in made for consumer in self._case.graph.consumers(output)}
            readers = {one for one in readers if not _is_nested(name, one)}
            if not readers:
                return
            read, outputs = self._ports(sorted(readers), call)
            between = [site for site in read if set(made) & set(self._case.graph.producers(site))]
            modules += [one for one in sorted(readers) if one not in modules]
            label = " and ".join(modules)
            yield from filter(None, (self._part(f"what {label} are fed", inputs, between),))
            inputs = [*inputs, *(site for site in read if site not in between)]
            made = outputs
            yield from filter(None, (self._part(label, inputs, made),))

    def _ports(self, names: Sequence[str], call: int) -> tuple[list[Site], list[Site]]:
        """What modules read, and what they give, in the first step."""
        sites = [one for one in self._case.items if (one.phase, one.call, one.step) == ("fwd", call, self._first)]
        found = [one for name in names for one in sites if one.name == name and one.sample is None]
        is_input = [one.port.startswith("in.") for one in found]
        read = [one for one, is_read in zip(found, is_input, strict=True) if is_read]
        return read, [one for one, is_read in zip(found, is_input, strict=True) if not is_read]

    def _part(self, name: str, inputs: Sequence[Site], outputs: Sequence[Site]) -> Part | None:
        between = self._between(inputs, outputs)
        if not inputs or not outputs or between is None:
            return None
        own = frozenset(site for site in inputs if not is_clean(self._chains, site))
        shared = frozenset(site for site in inputs[1:] if self._is_shared(site, between))
        return Part(name, tuple(inputs), tuple(outputs), between, own, shared)

    def _between(self, inputs: Sequence[Site], outputs: Sequence[Site]) -> frozenset[Site] | None:
        """The sites whose values are computed between some and others, and the weights that are read for them."""
        step = self._replays.step(outputs[0]) if outputs else None
        if step is None or any(one not in step.sites for one in (*inputs, *outputs)):
            return None
        cuts = Cuts(step, frozenset(inputs).__contains__)
        nodes = {number for output in outputs if (cut := cuts.at(output)) is not None for number in cut.nodes}
        ends = {step.sites[one] for one in (*inputs, *outputs)}
        inside = (site for site, ref in step.sites.items() if ref.node in nodes and ref not in ends)
        return frozenset(site for site in inside if site.phase in ("fwd", "weight"))

    def _is_shared(self, site: Site, between: frozenset[Site]) -> bool:
        """Whether modules outside a part are handed the very tensor."""
        step = self._replays.step(site)
        if step is None or site.phase == "input":
            return False
        ref, inside = step.sites[site], {one.name for one in between} | {site.name}
        handed = (one for one, other in step.sites.items() if other == ref and one.port.startswith("in."))
        return any(not any(_is_nested(one.name, two) for two in inside) for one in handed)

    def _same(self, part: Part) -> tuple[Trials, float] | None:
        """A part that computes the same function on both sides, and how far it is off; None where it does not."""
        key = part.inputs, part.outputs
        if key not in self._tried:
            try:
                trials = Trials(part, self._case, self._replays)
                left = trials.difference([site for site in self._weights if part.holds(site)])
                self._tried[key] = None if left is None or left > DRIFT else (trials, left)
            except NotReplayableError:
                self._tried[key] = None
        return self._tried[key]

    def _inside(self, trials: Trials) -> set[Site]:
        """What differs inside a part and follows from its function: tensors, and weights of which all is read."""
        part = trials.part
        try:
            found = {one for one in self._weights if part.holds(one) and trials.is_made_up_for(one)}
            if self._replays.own is None:  # nobody knows how the candidate makes what is inside
                return found
            drifted = [one for one in decided(self._chains, *DRIFTED) if one.phase in ("fwd", "agrad")]
            own = (one for one in drifted if part.holds(one) and self._is_own(one))
            return found | {one for one in own if one.phase == "agrad" or trials.shows(one)}
        except NotReplayableError:
            return set()

    def _as_one(self, part: Part, unlike: frozenset[Site]) -> Replays:
        """Replays that start from nothing inside a part; with the candidate's weights, or with those of the reference,
        where the candidate stores them so that the reference could not read them."""
        step = self._replays.program.steps[part.outputs[0].step]
        ends = {step.sites[output] for output in part.outputs}
        ended = {one for one, ref in step.sites.items() if ref in ends}  # a container gives what its last module does

        def is_start(site: Site) -> bool:
            return site not in ended and not (site.phase in ("fwd", "agrad") and part.holds(site))

        return self._replays.starting(is_start, unlike)

    def _is_right(self, site: Site, outside: Replays) -> bool:
        """Whether a tensor is what the part as one operation makes of the candidate's own inputs."""
        pair = self._case.items[site].pair
        own = introduced_at(pair, outside, self._case.unit(pair))
        return own is not None and own.times <= DRIFT and own.undecided in (None, Why.NEXT_TO_NOISE)

    def _gradients(self, part: Part, outside: Replays) -> dict[Site, Finding]:
        """Gradients of a part's own weights, and of what it reads, judged with the part as one operation."""
        drifted = [site for site in decided(self._chains, *DRIFTED) if site.phase in ("grad", "agrad", "grad_scaled")]
        facts = {"part": part.name, "trials": 0, "proof": "replayed"}
        right = (site for site in drifted if not part.holds(site) and self._is_right(site, outside))
        return {site: Finding(BY, Verdict.NOISE, Why.SAME_FUNCTION, facts) for site in right}

    def _read_as_own(self, site: Site) -> dict[Site, Finding]:
        """A tensor that every module which reads it makes the same of, each side with its own: a table in the layout of
        the weights that it is used with."""
        readers = self._case.graph.consumers(site) if site.phase == "fwd" and not site.port.startswith("in.") else []
        if not readers or len(readers) > READERS or self._replays.own is None or not self._is_own(site):
            return {}
        worst = 0.0
        for reader in readers:
            part = self._around(reader.name, reader.call)
            same = None if part is None or reader not in part.own else self._same(part)
            if same is None:
                return {}
            worst = max(worst, same[1])
        names = ", ".join(dict.fromkeys(one.name for one in readers[:3]))
        return {site: _finding(site, {"part": names, "trials": TRIALS, "left": worst, "proof": "replayed"})}

    def _is_own(self, site: Site) -> bool:
        """Whether the candidate's own calls make what it has at a site."""
        pair, replays = self._case.items[site].pair, self._replays
        try:
            own, candidate = replays.run_own(pair.reference.site), found_at(pair, replays)
            if own is None or candidate is None or own.shape != candidate.shape:
                return False
            unit = self._case.unit(pair)
            left = excess_of(own, candidate, unit, lambda seed: replays.own_drawn(pair.reference.site, seed))
        except NotReplayableError:
            return False
        return left is not None and left.times <= DRIFT


def _finding(site: Site, facts: dict[str, Any]) -> Finding:
    return Finding(BY, Verdict.NOISE, Why.GAUGE if site.phase == "weight" else Why.SAME_FUNCTION, facts)


def _is_nested(one: str, other: str) -> bool:
    """Whether one of two modules is inside the other; the model itself holds none."""
    return one == other or (bool(one and other) and (is_inside(one, other) or is_inside(other, one)))
