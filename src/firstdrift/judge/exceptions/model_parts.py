"""A part of a model, run on both sides in float64, from its inputs to its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import wide
from ...core.dtypes import UNIT_ROUNDOFF, roundoff
from ...core.sites import Site
from ...core.traces import Array, Trace
from ...program.calls import Ref, Step
from ...program.casts import meant_casts
from ...program.cuts import Cuts
from ...program.interpreter import Interpreter, NotReplayableError
from ...program.running.op_kinds import decisions
from ..case import Case
from ..noise import ROUNDED, Excess, excess_of
from ..replay.introducing import DRIFT
from ..replay.random_inputs import TRIALS, is_mask, random_like
from ..replay.replays import LIMITS, Replays, Tensors

PROBES = 256  # numbers of a weight without a derivative that are moved one by one
OUTWEIGHED = 8.0  # times what is left of it, what a difference that is made up for does by itself
LEAST_EFFECT = 1e-9  # more than none
NOTHING = 1e-12  # of a tensor, what rounding leaves in float64
FURTHER = 64.0  # times its weight's size, a difference on the way to a decision has no effect on it either
SPREAD = ROUNDED * 12.0**0.5  # of a unit roundoff, evenly drawn numbers are spread that are as far off as one rounding
FLOAT32 = UNIT_ROUNDOFF["f32"]


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


def _no_tensors(site: Site) -> Array | None:
    return None


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's program of a step, and its sites of a part's inputs and outputs."""

    step: Step
    trace: Trace
    inputs: tuple[Site, ...]
    outputs: tuple[Site, ...]
    weights: Tensors = _no_tensors  # in the place of what the trace holds

    def run(self, at: int, inputs: Sequence[Array], weights: Tensors | None = None) -> Array:
        """One of the outputs, made of inputs, with these weights or its own."""
        given = dict(zip(self.inputs, inputs, strict=True))
        held = weights or self.weights
        cut = Cuts(self.step, given.__contains__).at(self.outputs[at])
        if cut is None or cut.is_empty:
            raise NotReplayableError("the part has no program of its own")

        def tensors(site: Site) -> Array | None:
            return given[site] if site in given else held(site)

        kept = meant_casts(self.step, cut, roundoff(self.trace[self.outputs[at]].dtype))
        return Interpreter(self.step, self.trace, tensors=tensors, exact=True, limits=LIMITS, kept=kept).array_of(cut)

    def stored_again(self, unit: float, seed: int) -> Tensors:
        """Its weights, rounded once more at random."""

        def tensors(site: Site) -> Array | None:
            array = self.weights(site)
            if site.phase != "weight" or (array is None and site not in self.trace):
                return array
            exact = wide(self.trace.array(site) if array is None else array)
            key = [seed, *map(ord, f"{site.name}.{site.port}")]
            moved: Array = exact * (1 + SPREAD * unit * (np.random.default_rng(key).random(exact.shape) - 0.5))
            return moved

        return tensors

    def random(self, site: Site, array: Array, rng: np.random.Generator) -> Array:
        """Numbers like those of a tensor, and others; what is looked up in a table may be any row of it."""
        if array.dtype.kind in "iu" and (rows := min(self._rows_read(site), default=0)):
            return rng.integers(0, rows, array.shape).astype(array.dtype)
        return array if array.dtype.kind in "fV" and is_mask(array) else random_like(array, rng)

    def _rows_read(self, site: Site) -> Iterator[int]:
        """How many rows the tables have that whole numbers are looked up in."""
        for _, call in self.step.calls():
            if call.op.startswith("aten.embedding.") and len(call.args) > 1 and call.args[1] == self.step.sites[site]:
                table = call.args[0]
                if isinstance(table, Ref):
                    yield _shape(self.step, table)[0]


def _shape(step: Step, ref: Ref) -> tuple[int, ...]:
    type_ = step.type_of(ref)
    return (0,) if type_ is None else type_.shape


class Trials:
    """A part of both sides: by the candidate's own program, or, where it recorded none, by the reference's with the
    candidate's weights. Raises NotReplayableError where a side has no such part, and where calls cannot be made."""

    def __init__(self, part: Part, case: Case, replays: Replays) -> None:
        self.part, self._case, self._replays = part, case, replays
        step = replays.program.steps.get(part.outputs[0].step)
        pairs = [case.items[one].pair for one in (*part.inputs, *part.outputs)]
        if step is None or any(pair.site != pair.reference.site or pair.site not in step.sites for pair in pairs):
            raise NotReplayableError("the reference has no program of this part")
        self._reference = _Side(step, case.reference, part.inputs, part.outputs)
        self._candidate = self._own() if replays.own is not None else replace(self._reference, weights=self._weights)

    def _weights(self, site: Site) -> Array | None:
        return self._replays.counterparts.array(site) if site.phase == "weight" else None

    def _own(self) -> _Side:
        assert self._replays.own is not None
        found = [tuple(map(self._replays.own_site, some)) for some in (self.part.inputs, self.part.outputs)]
        inputs, outputs = (tuple(one for one in some if one is not None) for some in found)
        step = self._replays.own.program.steps.get(outputs[0].step) if outputs else None
        is_whole = (len(inputs), len(outputs)) == (len(self.part.inputs), len(self.part.outputs))
        if step is None or not is_whole or any(one not in step.sites for one in (*inputs, *outputs)):
            raise NotReplayableError("the candidate has no program of this part")
        return _Side(step, self._replays.own.trace, inputs, outputs)

    def difference(self, weights: Sequence[Site]) -> float | None:
        """How far the two sides are apart on recorded and on random inputs, in units of what storing `weights` once
        more does; None where that cannot be said."""
        unit = max((self._case.unit(self._case.items[site].pair) for site in weights), default=FLOAT32)
        worst = 0.0
        for trial in range(1 + TRIALS):
            ours, theirs = self._inputs(trial)
            for at in range(len(self.part.outputs)):
                expected, found = self._reference.run(at, ours), self._candidate.run(at, theirs)
                if expected.shape != found.shape or expected.dtype.kind in "iub":
                    return None
                excess = self._excess(at, ours, expected, found, unit if weights else None)
                if excess is None:
                    return None
                worst = max(worst, excess.times)
                if worst > DRIFT:  # which no further trial takes back
                    return worst
        return worst

    def is_made_up_for(self, weight: Site) -> bool:
        """Whether a weight that differs is read, and its difference alone would show, or has no effect on anything."""
        alone = self._effect(weight)
        if 0 < alone < OUTWEIGHED or (alone == 0 and self._decides() and self._effect(weight, FURTHER) != 0):
            return False
        return self._is_read(weight)

    def shows(self, site: Site) -> bool:
        """Whether other numbers at a site inside a part show in what the reference makes of them: what a closed gate
        hides is no other way to compute the same."""
        side, (given, _) = self._reference, self._inputs(1)
        if site not in side.step.sites:
            return False
        changed = replace(side, inputs=(*side.inputs, site))
        moved = self._other(site, replace(side, outputs=(site,)).run(0, given))
        for at in range(len(side.outputs)):
            excess = self._excess(at, given, side.run(at, given), changed.run(at, [*given, moved]), None)
            if excess is not None and not excess.times <= OUTWEIGHED:
                return True
        return False

    def _inputs(self, trial: int) -> tuple[list[Array], list[Array]]:
        """What both sides are given: in trial 0 what the reference recorded, else random numbers like it. Masks stay
        what they are, and so does what differs between the sides."""
        rng = np.random.default_rng(trial)
        ours: list[Array] = []
        theirs: list[Array] = []
        for site, own, other in zip(self.part.inputs, self._reference.inputs, self._candidate.inputs, strict=True):
            array = self._reference.trace.array(own)
            if trial and site not in self.part.own and site not in self.part.shared:
                array = self._reference.random(own, array, rng)
            ours.append(array)
            theirs.append(self._candidate.trace.array(other) if site in self.part.own else array)
        return ours, theirs

    def _excess(
        self, at: int, inputs: Sequence[Array], expected: Array, found: Array, unit: float | None
    ) -> Excess | None:
        """How far two results are apart, in units of what storing the weights once more does, in a format of this
        `unit`; without one, of one rounding."""

        def draw(seed: int) -> Array:
            if unit is None:
                return expected
            return self._reference.run(at, inputs, self._reference.stored_again(unit, seed))

        return excess_of(expected, found, max(unit or 0.0, FLOAT32), draw)

    def _decides(self) -> bool:
        """Whether something is decided between the inputs and the outputs: which hides what is too little to be decided
        otherwise."""
        cuts = Cuts(self._reference.step, frozenset(self.part.inputs).__contains__)
        found = (cut for output in self.part.outputs if (cut := cuts.at(output)) is not None)
        return any(decisions(self._reference.step, cut.nodes) for cut in found)

    def _effect(self, weight: Site, further: float | None = None) -> float:
        """What one weight of the candidate's does to the reference's part by itself, in units of what storing it once
        more does; 0 where that is no more than float64 rounds. Its difference may be taken `further`, to so many times
        the weight's size."""
        side, (given, _) = self._reference, self._inputs(1)
        unit, changed = self._case.unit(self._case.items[weight].pair), self._replays.counterparts.array(weight)
        if further is not None and changed is not None:
            changed = _taken_further(wide(self._case.reference.array(weight)), wide(changed), further)
        others: Mapping[Site, Array | None] = {weight: changed}
        worst = 0.0
        for at in range(len(side.outputs)):
            expected, found = side.run(at, given), side.run(at, given, others.get)
            largest = float(np.abs(expected).max(initial=0.0))
            if not np.allclose(expected, found, rtol=NOTHING, atol=NOTHING * largest):
                excess = self._excess(at, given, expected, found, unit)
                worst = max(worst, 0.0 if excess is None else max(excess.times, LEAST_EFFECT))
        return worst

    def _other(self, site: Site, array: Array) -> Array:
        """Other numbers in the place of a tensor's, as large as they are."""
        if array.dtype.kind == "b":
            return np.logical_not(array)
        rng = np.random.default_rng(0)
        if array.dtype.kind in "iu":
            return self._reference.random(site, array, rng)
        moved: Array = wide(array) + random_like(array, rng)
        return moved

    def _is_read(self, site: Site) -> bool:
        """Whether every number of a weight that differs has an effect on what a part gives, for some random inputs."""
        reference, candidate = (wide(array) for array in self._case.load(self._case.items[site].pair))
        is_alike = reference.shape == candidate.shape
        differs = reference != candidate if is_alike else np.ones(reference.shape, dtype=bool)
        if site not in self._reference.step.sites:
            return False
        read = np.zeros(differs.shape, dtype=bool)
        for trial in range(1, 1 + TRIALS):
            try:
                read |= self._reads(site, self._inputs(trial)[0], differs.shape)
            except NotReplayableError:  # without a derivative; single numbers are moved instead
                break
            if read[differs].all():
                return True
        left = np.argwhere(differs & ~read)
        return len(left) <= PROBES and all(self._moves(site, index) for index in left)

    def _reads(self, site: Site, inputs: Sequence[Array], shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which numbers of a weight move the outputs of a part at all, by its derivative."""
        side = self._reference
        given, ref = dict(zip(side.inputs, inputs, strict=True)), side.step.sites[site]
        found = np.zeros(shape, dtype=bool)
        for output in side.outputs:
            cut = Cuts(side.step, {*given, site}.__contains__).at(output)
            if cut is None or cut.is_empty or ref not in cut.given:
                continue
            run = Interpreter(side.step, side.trace, tensors=given.get, exact=True, limits=LIMITS)
            gradient = np.random.default_rng(0).standard_normal(_shape(side.step, cut.target))
            (by,) = run.derivative(cut, [ref], gradient)
            found |= np.asarray(by).reshape(shape) != 0
        return found

    def _moves(self, site: Site, index: NDArray[np.intp]) -> bool:
        """Whether one number of a weight that has no derivative, as a running mean, moves the outputs of a part."""
        side, (inputs, _) = self._reference, self._inputs(0)
        moved = wide(side.trace.array(site)).copy()
        moved[tuple(index)] = 2 * moved[tuple(index)] + 1
        others: Mapping[Site, Array] = {site: moved}
        runs = ((side.run(at, inputs), side.run(at, inputs, others.get)) for at in range(len(side.outputs)))
        return any(not np.array_equal(one, other) for one, other in runs)


def _taken_further(reference: NDArray[np.float64], candidate: NDArray[np.float64], times: float) -> Array:
    """A weight that differs in the same direction, by at least so many times its size."""
    apart, size = candidate - reference, float(np.abs(reference).max(initial=0.0)) or 1.0
    largest = float(np.abs(apart).max(initial=0.0))
    found: Array = reference + apart * max(1.0, times * size / largest if largest else 1.0)
    return found
