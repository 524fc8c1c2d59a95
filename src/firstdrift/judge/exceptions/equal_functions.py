"""The same function, computed or stored otherwise: a permuted basis, a folded norm, a factor or a rotation that stands
elsewhere, a key's bias under a softmax.

Inside such a part much differs, and nothing is wrong. That it is the same function is tried on the inputs of this run
and on inputs that neither side has seen: both programs (or the reference's, with either side's weights) are run in
float64 from the inputs of the part, recorded or drawn at random, to its outputs. They may differ by what storing the
weights once more makes them differ by. A weight is part of this only if every number of it that differs is read: one
that no input reaches is simply wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import wide
from ...core.dtypes import UNIT_ROUNDOFF, roundoff
from ...core.sites import Site
from ...core.traces import Array, Trace
from ...program.calls import Call, Ref, Step
from ...program.casts import meant_casts
from ...program.cuts import Cuts
from ...program.interpreter import Interpreter, NotReplayableError
from ...program.running.op_kinds import decisions
from ..case import Case, Chains, decided, last
from ..measure.result import CLEAN, Finding, Verdict, Why
from ..noise import excess_of
from ..replay.introducing import DRIFT, found_at, introduced_at
from ..replay.replays import LIMITS, Replays

BY = "equal functions"
TRIALS = 3  # random inputs that a function is tried on
HOPS = 3  # modules behind another one that may make up for it
PROBES = 256  # numbers of a weight without a derivative that are moved one by one
OUTWEIGHED = 8.0  # times what is left of it, what a difference that is made up for does by itself
LEAST_EFFECT = 1e-9  # more than none
FURTHER = 64.0  # times its weight's size, a difference on the way to a decision has no effect on it either
NOTHING = 1e-12  # of a tensor, what rounding leaves in float64
READERS = 64  # modules that may read a tensor which is excused by them
FEW_VALUES = 4  # different numbers of a tensor that is a mask, and is left as it is
ROUNDED = 0.42 * 12.0**0.5  # of a unit roundoff: as far apart as evenly drawn numbers are that are as far off
FLOAT32 = UNIT_ROUNDOFF["f32"]
DRIFTED = (Why.OTHER_WEIGHT, Why.INTRODUCED, Why.SHORTER_GRID, Why.SHORTER_RUNG, Why.SHORTER_CALLS)

Tensors = Callable[[Site], Array | None]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the model: what it is called, the sites it begins and ends with, and those that lie between. `own` are
    inputs that differ between the sides, and `shared` those that other parts are given as well, as tables and masks
    are: both stay what they are."""

    name: str
    inputs: tuple[Site, ...]
    outputs: tuple[Site, ...]
    between: frozenset[Site]  # tensors, and the weights that they are made with
    own: frozenset[Site]
    shared: frozenset[Site]

    def holds(self, site: Site) -> bool:
        """Whether a tensor, its gradient or a weight lies behind the part's inputs and before its outputs."""
        return (site._replace(phase="fwd") if site.phase == "agrad" else site) in self.between


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's program of a step, and its sites of a part's inputs and outputs."""

    step: Step
    trace: Trace
    inputs: tuple[Site, ...]
    outputs: tuple[Site, ...]
    weights: Tensors  # in the place of what the trace holds


class EqualFunctions:
    """The parts of a model that were tried, and how far their two sides are apart."""

    def __init__(self, case: Case, chains: Chains) -> None:
        self._case, self._chains = case, chains
        self._weights = frozenset(decided(chains, Why.OTHER_WEIGHT))
        self._tried: dict[tuple[tuple[Site, ...], tuple[Site, ...]], float | None] = {}

    def excused(self, site: Site) -> dict[Site, Finding]:
        """What differs in the smallest part around a site that computes the same function, the site among it; nothing
        where no part does."""
        replays = self._case.replays
        if replays is None or site.phase not in ("weight", "fwd") or site.step != self._first:
            return {}
        for part in self._parts(site):
            left = self._difference(part, replays)
            if left is None or left > DRIFT:
                continue
            modules = sorted({one.name for one in part.between if one.phase == "weight"})
            facts = {"part": part.name, "modules": modules, "trials": TRIALS, "left": left}
            inside = self._inside(part, replays)
            if site not in inside:
                continue
            for granted in (frozenset[Site](), frozenset(one for one in part.between if one.phase == "weight")):
                outside = self._as_one(part, replays, granted)
                if all(self._is_right(output, outside) for output in part.outputs):
                    made = {output for output in part.outputs if granted and output in decided(self._chains, *DRIFTED)}
                    found = {one: _finding(one, {**facts, "proof": "replayed"}) for one in inside | made}
                    return found | self._gradients(part, outside)
        return self._read_as_own(site, replays)

    @property
    def _first(self) -> int:
        return min((site.step for site in self._case.items), default=0)

    def _parts(self, site: Site) -> Iterator[Part]:
        """Parts around a site: its module, that with those behind it, and the modules around it, from the inside."""
        path = site.name.split(".") if site.name else []
        names = [".".join(path[:length]) for length in range(len(path), -1, -1)]
        chained = False
        for name in names:
            part = self._around(name, site.call)
            if part is not None and (site.phase == "weight" or name != site.name):
                yield part
            if not chained and part is not None:
                chained = True
                yield from self._chains_of(name, site.call)

    def _around(self, name: str, call: int) -> Part | None:
        """A module with all that is inside it."""
        compared = self._ports(name, call)
        inputs = [site for site in compared if site.port.startswith("in.")]
        if not name:
            inputs += [item for item in self._case.items if item.phase == "input" and item.step == self._first]
        return self._part(name, inputs, [site for site in compared if not site.port.startswith("in.")])

    def _chains_of(self, name: str, call: int) -> Iterator[Part]:
        """A module with what is made of its outputs: up to what the modules that read it are fed, and behind these."""
        modules, ports = [name], self._ports(name, call)
        inputs, made = ([port for port in ports if port.port.startswith("in.") is fed] for fed in (True, False))
        for _ in range(HOPS):
            readers = {consumer.name for output in made for consumer in self._case.graph.consumers(output)}
            readers = {one for one in readers if not _is_inside(name, one)}
            if not readers:
                return
            ports = [port for reader in sorted(readers) for port in self._ports(reader, call)]
            fed = [port for port in ports if port.port.startswith("in.")]
            between = [site for site in fed if set(made) & set(self._case.graph.producers(site))]
            modules += [one for one in sorted(readers) if one not in modules]
            label = " and ".join(modules)
            yield from filter(None, (self._part(f"what {label} are fed", inputs, between),))
            inputs = [*inputs, *(site for site in fed if site not in between)]
            made = [port for port in ports if not port.port.startswith("in.")]
            yield from filter(None, (self._part(label, inputs, made),))

    def _part(self, name: str, inputs: Sequence[Site], outputs: Sequence[Site]) -> Part | None:
        between = self._between(inputs, outputs)
        if not inputs or not outputs or between is None:
            return None
        own = frozenset(site for site in inputs if not self._is_clean(site))
        shared = frozenset(site for site in inputs[1:] if self._is_shared(site, between))
        return Part(name, tuple(inputs), tuple(outputs), between, own, shared)

    def _between(self, inputs: Sequence[Site], outputs: Sequence[Site]) -> frozenset[Site] | None:
        """The sites whose values are computed between some and others, and the weights that are read for them."""
        replays = self._case.replays
        step = None if replays is None or not outputs else replays.step(outputs[0])
        if step is None or any(one not in step.sites for one in (*inputs, *outputs)):
            return None
        cuts = Cuts(step, frozenset(inputs).__contains__)
        nodes = {number for output in outputs if (cut := cuts.at(output)) is not None for number in cut.nodes}
        ends = {step.sites[one] for one in (*inputs, *outputs)}
        inside = (site for site, ref in step.sites.items() if ref.node in nodes and ref not in ends)
        return frozenset(site for site in inside if site.phase in ("fwd", "weight"))

    def _is_shared(self, site: Site, between: frozenset[Site]) -> bool:
        """Whether modules outside a part are handed the very tensor."""
        replays = self._case.replays
        step = None if replays is None else replays.step(site)
        if step is None or site.phase == "input":
            return False
        ref, inside = step.sites[site], {one.name for one in between} | {site.name}
        fed = (one for one, other in step.sites.items() if other == ref and one.port.startswith("in."))
        return any(not any(_is_inside(one.name, two) for two in inside) for one in fed)

    def _ports(self, name: str, call: int) -> list[Site]:
        sites = (item for item in self._case.items if (item.phase, item.name, item.call) == ("fwd", name, call))
        return [site for site in sites if site.step == self._first and site.sample is None]

    def _is_clean(self, site: Site) -> bool:
        finding = last(self._chains, site)
        return finding is not None and finding.verdict in CLEAN

    def _difference(self, part: Part, replays: Replays) -> float | None:
        key = part.inputs, part.outputs
        if key not in self._tried:
            others = [site for site in self._weights if part.holds(site)]
            self._tried[key] = _difference(part, self._case, replays, others)
        return self._tried[key]

    def _inside(self, part: Part, replays: Replays) -> set[Site]:
        """What differs inside a part and is excused by its function: tensors, and weights of which all is read."""
        weights = {
            weight for weight in self._weights if part.holds(weight) and self._is_made_up_for(weight, part, replays)
        }
        if replays.own is None:  # nobody knows how the candidate makes what is inside
            return weights
        made = [site for site in decided(self._chains, *DRIFTED) if site.phase in ("fwd", "agrad") and part.holds(site)]
        own = (site for site in made if _is_own(site, self._case, replays))
        return weights | {site for site in own if site.phase == "agrad" or _shows(site, part, self._case, replays)}

    def _is_made_up_for(self, weight: Site, part: Part, replays: Replays) -> bool:
        """Whether a weight that differs is read, and its difference alone would show, or has no effect on anything."""
        alone = _effect(weight, part, self._case, replays)
        if alone is None or (alone < OUTWEIGHED and alone != 0):
            return False
        is_gauge = alone > 0 or not _decides(part, replays) or _effect(weight, part, self._case, replays, FURTHER) == 0
        return is_gauge and _is_read(weight, part, self._case, replays)

    def _as_one(self, part: Part, replays: Replays, granted: frozenset[Site]) -> Replays:
        """Replays that start from nothing inside a part; with the candidate's weights, or with those of the reference,
        where the candidate stores them so that the reference could not read them."""
        case, step = self._case, replays.program.steps[part.outputs[0].step]
        ends = {step.sites[output] for output in part.outputs}
        ended = {one for one, ref in step.sites.items() if ref in ends}  # a container gives what its last module does

        def is_start(site: Site) -> bool:
            return site not in ended and not (site.phase in ("fwd", "agrad") and part.holds(site))

        return Replays(
            case.reference, case.candidate, case.alignment.pairs, replays.program, replays.own, is_start,
            replays.finest, granted,
        )  # fmt: skip

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

    def _read_as_own(self, site: Site, replays: Replays) -> dict[Site, Finding]:
        """A tensor that every module which reads it makes the same of, each side with its own: a table in the layout of
        the weights that it is used with."""
        readers = self._case.graph.consumers(site) if site.phase == "fwd" and not site.port.startswith("in.") else []
        if not readers or len(readers) > READERS or replays.own is None or not _is_own(site, self._case, replays):
            return {}
        worst = 0.0
        for reader in readers:
            part = self._around(reader.name, reader.call)
            left = None if part is None or reader not in part.own else self._difference(part, replays)
            if left is None or left > DRIFT:
                return {}
            worst = max(worst, left)
        names = ", ".join(dict.fromkeys(one.name for one in readers[:3]))
        return {site: _finding(site, {"part": names, "trials": TRIALS, "left": worst, "proof": "replayed"})}


def _finding(site: Site, facts: dict[str, Any]) -> Finding:
    return Finding(BY, Verdict.NOISE, Why.GAUGE if site.phase == "weight" else Why.SAME_FUNCTION, facts)


def _is_inside(name: str, container: str) -> bool:
    """Whether one of two modules is inside the other."""
    return name == container or name.startswith(f"{container}.") or container.startswith(f"{name}.")


def _is_own(site: Site, case: Case, replays: Replays) -> bool:
    """Whether the candidate's own calls make what it has at a site."""
    pair = case.items[site].pair
    try:
        own, candidate = replays.own_expected(pair.reference.site), found_at(pair, replays)
        if own is None or candidate is None or own.shape != candidate.shape:
            return False
        left = excess_of(own, candidate, case.unit(pair), lambda seed: replays.own_drawn(pair.reference.site, seed))
    except NotReplayableError:
        return False
    return left is not None and left.times <= DRIFT


def _difference(part: Part, case: Case, replays: Replays, others: Sequence[Site]) -> float | None:
    """How far two sides of a part are apart on recorded and on random inputs, in units of what storing weights once
    more does; None where they cannot be run."""
    sides = _sides(part, case, replays)
    if sides is None:
        return None
    reference, candidate = sides
    unit = max((case.unit(case.items[site].pair) for site in others), default=FLOAT32)
    worst = 0.0
    try:
        for trial in range(1 + TRIALS):
            inputs = (
                _random_inputs(part, reference, candidate, trial - 1)
                if trial
                else _recorded_inputs(part, reference, candidate)
            )
            for at in range(len(reference.outputs)):
                both = zip(sides, inputs, strict=True)
                expected, found = (_run(side, at, given, side.weights) for side, given in both)
                if expected.shape != found.shape or expected.dtype.kind in "iub":
                    return None

                def draw(
                    number: int, at: int = at, same: Array = expected, sequence: Sequence[Array] = inputs[0]
                ) -> Array:
                    return _run(reference, at, sequence, _moved(reference, unit, number)) if others else same

                excess = excess_of(expected, found, max(unit, FLOAT32), draw)
                if excess is None:
                    return None
                worst = max(worst, excess.times)
                if worst > DRIFT:  # which no further trial takes back
                    return worst
    except NotReplayableError:
        return None
    return worst


def _decides(part: Part, replays: Replays) -> bool:
    """Whether something is decided between a part's inputs and its outputs: which hides what is too little to be
    decided otherwise."""
    step = replays.program.steps[part.outputs[0].step]
    cuts = Cuts(step, frozenset(part.inputs).__contains__)
    nodes = (cut.nodes for output in part.outputs if (cut := cuts.at(output)) is not None)
    return any(decisions(step, some) for some in nodes)


def _effect(weight: Site, part: Part, case: Case, replays: Replays, further: float | None = None) -> float | None:
    """What one weight of the candidate's does to the reference's part by itself, in units of what storing it once more
    does; 0 where that is no more than float64 rounds. Its difference may be taken `further`, to so many times the
    weight's size."""
    sides = _sides(part, case, replays)
    if sides is None:
        return None
    reference, unit = sides[0], case.unit(case.items[weight].pair)
    given = _random_inputs(part, *sides, 0)[0]
    changed = replays.counterparts.array(weight)
    if further is not None and changed is not None:
        changed = _taken_further(wide(case.reference.array(weight)), wide(changed), further)

    def other(site: Site) -> Array | None:
        return changed if site == weight else None

    worst = 0.0
    try:
        for at in range(len(reference.outputs)):
            expected, found = _run(reference, at, given, reference.weights), _run(reference, at, given, other)
            if np.allclose(expected, found, rtol=NOTHING, atol=NOTHING * float(np.abs(expected).max(initial=0.0))):
                continue

            def draw(number: int, at: int = at) -> Array:
                return _run(reference, at, given, _moved(reference, unit, number))

            excess = excess_of(expected, found, max(unit, FLOAT32), draw)
            worst = max(worst, 0.0 if excess is None else max(excess.times, LEAST_EFFECT))
    except NotReplayableError:
        return None
    return worst


def _shows(site: Site, part: Part, case: Case, replays: Replays) -> bool:
    """Whether other numbers at a site inside a part show in what the reference makes of them: what a closed gate hides
    is no other way to compute the same."""
    sides = _sides(part, case, replays)
    if sides is None or site not in sides[0].step.sites:
        return False
    reference = sides[0]
    given = _random_inputs(part, *sides, 0)[0]
    changed = replace(reference, inputs=(*reference.inputs, site))
    try:
        moved = _other(reference, site, _run(replace(reference, outputs=(site,)), 0, given, reference.weights))
        for at in range(len(reference.outputs)):
            expected, found = (
                _run(reference, at, given, reference.weights),
                _run(changed, at, [*given, moved], reference.weights),
            )
            excess = excess_of(expected, found, FLOAT32, partial(_as_expected, expected))
            if excess is not None and not excess.times <= OUTWEIGHED:
                return True
    except NotReplayableError:
        return False
    return False


def _other(side: _Side, site: Site, array: Array) -> Array:
    """Other numbers in the place of a tensor's, as large as they are."""
    rng = np.random.default_rng(0)
    if array.dtype.kind in "iu":
        return _random(side, site, array, rng)
    if array.dtype.kind == "b":
        return np.logical_not(array)
    exact = wide(array)
    moved: Array = exact + (float(np.sqrt(np.mean(np.square(exact)))) or 1.0) * rng.standard_normal(array.shape)
    return moved


def _as_expected(expected: Array, seed: int) -> Array:
    return expected


def _taken_further(reference: NDArray[np.float64], candidate: NDArray[np.float64], times: float) -> Array:
    """A weight that differs in the same direction, by at least so many times its size."""
    apart, size = candidate - reference, float(np.abs(reference).max(initial=0.0)) or 1.0
    largest = float(np.abs(apart).max(initial=0.0))
    found: Array = reference + apart * max(1.0, times * size / largest if largest else 1.0)
    return found


def _sides(part: Part, case: Case, replays: Replays) -> tuple[_Side, _Side] | None:
    """Both sides of a part: the candidate's own program, or, where it recorded none, the reference's with the
    candidate's weights. None where its program has no such part: nothing is known of its function then."""
    step = replays.program.steps.get(part.outputs[0].step)
    pairs = [case.items[one].pair for one in (*part.inputs, *part.outputs)]
    if step is None or any(pair.site != pair.reference.site or pair.site not in step.sites for pair in pairs):
        return None
    reference = _Side(step, case.reference, part.inputs, part.outputs, lambda site: None)
    own = _own_side(part, replays)
    if own is not None or replays.own is not None:
        return None if own is None else (reference, own)
    return reference, _Side(step, case.reference, part.inputs, part.outputs, _weights_only(replays))


def _own_side(part: Part, replays: Replays) -> _Side | None:
    inputs, outputs = (tuple(replays.own_site(one) for one in some) for some in (part.inputs, part.outputs))
    known = tuple(one for one in inputs if one is not None), tuple(output for output in outputs if output is not None)
    if replays.own is None or (len(known[0]), len(known[1])) != (len(inputs), len(outputs)):
        return None
    step = replays.own.program.steps.get(known[1][0].step)
    if step is None or any(one not in step.sites for some in known for one in some):
        return None
    return _Side(step, replays.own.trace, *known, lambda site: None)


def _weights_only(replays: Replays) -> Tensors:
    return lambda site: replays.counterparts.array(site) if site.phase == "weight" else None


def _run(side: _Side, at: int, inputs: Sequence[Array], weights: Tensors) -> Array:
    given = dict(zip(side.inputs, inputs, strict=True))
    cut = Cuts(side.step, given.__contains__).at(side.outputs[at])
    if cut is None or cut.is_empty:
        raise NotReplayableError("the part has no program of its own")

    def tensors(site: Site) -> Array | None:
        return given[site] if site in given else weights(site)

    kept = meant_casts(side.step, cut, roundoff(side.trace[side.outputs[at]].dtype))
    return Interpreter(side.step, side.trace, tensors=tensors, exact=True, limits=LIMITS, kept=kept).array_of(cut)


def _moved(side: _Side, unit: float, seed: int) -> Tensors:
    """Weights that are stored once more: rounded at random."""

    def tensors(site: Site) -> Array | None:
        array = side.weights(site)
        if site.phase != "weight" or (array is None and site not in side.trace):
            return array
        exact = wide(side.trace.array(site) if array is None else array)
        key = [seed, *map(ord, f"{site.name}.{site.port}")]
        moved: Array = exact * (1 + ROUNDED * unit * (np.random.default_rng(key).random(exact.shape) - 0.5))
        return moved

    return tensors


def _recorded_inputs(part: Part, reference: _Side, candidate: _Side) -> tuple[list[Array], list[Array]]:
    """What the reference's part was given, for both sides; what differs between the sides stays what it is."""
    pairs = zip(part.inputs, reference.inputs, candidate.inputs, strict=True)
    given = [reference.trace.array(one) for one in reference.inputs]
    return given, [
        candidate.trace.array(other) if site in part.own else reference.trace.array(one) for site, one, other in pairs
    ]


def _random_inputs(part: Part, reference: _Side, candidate: _Side, seed: int) -> tuple[list[Array], list[Array]]:
    """Numbers like those that a part was given, and others, the same for both sides: masks stay what they are, and so
    does what differs between the sides."""
    rng = np.random.default_rng(seed + 1)
    drawn: tuple[list[Array], list[Array]] = [], []
    for site, own, other in zip(part.inputs, reference.inputs, candidate.inputs, strict=True):
        kept = site in part.own or site in part.shared
        array = reference.trace.array(own) if kept else _random(reference, own, reference.trace.array(own), rng)
        drawn[0].append(array)
        drawn[1].append(candidate.trace.array(other) if site in part.own else array)
    return drawn


def _random(side: _Side, site: Site, array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind in "iu":
        rows = min(_rows_read(side, site), default=0)
        shuffled: Array = rng.permutation(array.reshape(-1)).reshape(array.shape)
        return rng.integers(0, rows, array.shape).astype(array.dtype) if rows else shuffled
    if array.dtype.kind == "b" or not array.size:
        return array
    numbers = wide(array)
    if not np.isfinite(numbers).all() or len(np.unique(numbers.reshape(-1)[:4096])) <= FEW_VALUES:
        return array
    drawn: Array = np.mean(numbers) + np.std(numbers) * rng.standard_normal(array.shape)
    return drawn


def _rows_read(side: _Side, site: Site) -> Iterator[int]:
    """How many rows the tables have that whole numbers are looked up in."""
    ref = side.step.sites[site]
    for _, call in side.step.calls():
        if call.op.startswith("aten.embedding.") and len(call.args) > 1 and call.args[1] == ref:
            table = call.args[0]
            if isinstance(table, Ref):
                yield _shape(side.step, table)[0]


def _shape(step: Step, ref: Ref) -> tuple[int, ...]:
    node = step.nodes[ref.node]
    type_ = node.results[ref.at] if isinstance(node, Call) else node.type
    return (0,) if type_ is None else type_.shape


def _is_read(site: Site, part: Part, case: Case, replays: Replays) -> bool:
    """Whether every number of a weight that differs has an effect on what a part gives, for some random inputs."""
    sides = _sides(part, case, replays)
    reference, candidate = case.load(case.items[site].pair)
    differs = (
        wide(reference) != wide(candidate)
        if reference.shape == candidate.shape
        else np.ones(reference.shape, dtype=bool)
    )
    if sides is None or site not in sides[0].step.sites:
        return False
    read = np.zeros(differs.shape, dtype=bool)
    for seed in range(TRIALS):
        given = _random_inputs(part, *sides, seed)[0]
        try:
            read |= _reads(sides[0], site, given, differs.shape)
        except NotReplayableError:
            break
        if read[differs].all():
            return True
    left = np.argwhere(differs & ~read)
    return len(left) <= PROBES and all(_moves(sides[0], site, index) for index in left)


def _reads(side: _Side, site: Site, inputs: Sequence[Array], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which numbers of a weight move the outputs of a part at all, by its derivative."""
    given = dict(zip(side.inputs, inputs, strict=True))
    found = np.zeros(shape, dtype=bool)
    for output in side.outputs:
        cut = Cuts(side.step, {*given, site}.__contains__).at(output)
        ref = side.step.sites[site]
        if cut is None or cut.is_empty or ref not in cut.given:
            continue
        run = Interpreter(side.step, side.trace, tensors=given.get, exact=True, limits=LIMITS)
        gradient = np.random.default_rng(0).standard_normal(_shape(side.step, cut.target))
        (by,) = run.derivative(cut, [ref], gradient)
        found |= np.asarray(by).reshape(shape) != 0
    return found


def _moves(side: _Side, site: Site, index: NDArray[np.intp]) -> bool:
    """Whether one number of a weight that has no derivative, as a running mean, moves the outputs of a part."""
    inputs = [side.trace.array(one) for one in side.inputs]
    moved = wide(side.trace.array(site)).copy()
    moved[tuple(index)] = 2 * moved[tuple(index)] + 1

    def weights(wanted: Site) -> Array | None:
        return moved if wanted == site else side.weights(wanted)

    try:
        both = [[_run(side, at, inputs, one) for one in (side.weights, weights)] for at in range(len(side.outputs))]
    except NotReplayableError:
        return False
    return any(not np.array_equal(one, other) for one, other in both)
