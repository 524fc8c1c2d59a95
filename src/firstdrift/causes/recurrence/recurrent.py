"""Recurrent layers computed otherwise: gates in another order, another formula, state or direction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...traces import Array
from ..evidence import Evidence
from ..formulas import Cell, recur
from ..hypotheses import Finding, Hypothesis
from ..variants import Screen, Variant, findings, forward, reproduces
from .cells import STEPS, USUAL
from .handmade import ordered, readings

Floats = NDArray[np.float64]
Cells = tuple[tuple[Cell, ...], ...]  # by layer, then by direction

SAMPLES, STEPS_SEEN = 4, 16  # of a batch and of its sequences, to try variants on
COST = 10**9  # multiplications that the whole may cost
FIRST_STEPS = 2  # by which most cells are ruled out
GATES = {4: ("input", "forget", "cell", "output"), 3: ("reset", "update", "new"), 1: ("new",)}
NAME = re.compile(r"^(?:weight|bias|w|b)_(ih|hh)(?:_l(\d+))?(_reverse)?$")


@dataclass(frozen=True, slots=True)
class Network:
    """A recurrent module over (time, batch, features); `given` are its first states, each (layers, batch, hidden).

    `shown` says which of its results the tensor is: all outputs (-1), or the last of the n-th state.
    """

    x: Floats
    candidate_x: Floats
    given: tuple[Floats, ...]
    candidate_given: tuple[Floats, ...]
    cells: Cells
    batch_first: bool
    single: bool  # one step of a cell, without an axis of time
    shown: int = -1
    formula: str = USUAL
    backwards: bool = False
    unturned: bool = False  # the reverse direction's outputs stay in the order in which they were computed
    exchanged: bool = False  # the two directions

    @property
    def gates(self) -> int:
        """How many gates a cell has."""
        cell = self.cells[0][0]
        return len(cell.w_hh) // cell.hidden

    @property
    def brief(self) -> int:
        """How many steps tell how the others are computed: what comes first does not depend on what follows."""
        causal = self.shown < 0 and all(len(layer) == 1 for layer in self.cells)
        return min(STEPS_SEEN, len(self.x)) if causal else len(self.x)

    def __call__(self, x: Floats, given: tuple[Floats, ...]) -> Floats:
        """The result that the tensor is."""
        y = x[::-1] if self.backwards else x
        last: list[tuple[Floats, ...]] = []
        for layer in self.cells:
            results = []
            for direction, cell in enumerate(layer):
                start = self._start(y, cell, given, len(last))
                one, state = recur(STEPS[self.gates][self.formula], y, cell, start, reverse=direction == 1)
                results.append(one[::-1] if direction == 1 and self.unturned else one)
                last.append(state)
            y = np.concatenate(results[::-1] if self.exchanged else results, -1)
        if self.shown >= 0:
            found = np.stack([state[self.shown] for state in last])
            return found[0] if self.single else found
        return y[0] if self.single else y.swapaxes(0, 1) if self.batch_first else y

    def _start(self, x: Floats, cell: Cell, given: tuple[Floats, ...], number: int) -> tuple[Floats, ...]:
        states = 2 if self.gates == 4 else 1
        zero = np.zeros((x.shape[1], cell.hidden))
        return tuple(given[one][number] if one < len(given) else zero for one in range(states))

    def changed(self, **changes: Any) -> Floats:
        """The candidate's result if these fields were others."""
        one = replace(self, **changes)
        return one(one.candidate_x, one.candidate_given)

    def some(self, steps: int) -> Network:
        """The same of the first samples and steps."""
        x, candidate_x = self.x[:steps, :SAMPLES], self.candidate_x[:steps, :SAMPLES]
        given, candidate_given = (
            tuple(one[:, :SAMPLES] for one in some) for some in (self.given, self.candidate_given)
        )
        return replace(self, x=x, candidate_x=candidate_x, given=given, candidate_given=candidate_given)

    def cut(self, tensor: Array, steps: int) -> Floats:
        """The part of a result that belongs to the first samples and steps."""
        if self.single:
            return np.asarray(tensor[:SAMPLES], np.float64)
        if self.shown >= 0:
            return np.asarray(tensor[:, :SAMPLES], np.float64)
        part = tensor[:SAMPLES, :steps] if self.batch_first else tensor[:steps, :SAMPLES]
        return np.asarray(part, np.float64)

    def results(self) -> tuple[int, ...]:
        """The shape of the result that the tensor is."""
        (time, batch, _), layers, hidden = self.x.shape, sum(map(len, self.cells)), self.cells[0][0].hidden
        if self.single:
            return batch, hidden
        if self.shown >= 0:
            return layers, batch, hidden
        lead = (batch, time) if self.batch_first else (time, batch)
        return *lead, hidden * len(self.cells[0])


def recurrence(evidence: Evidence) -> Iterable[Finding]:
    """An LSTM, GRU or plain recurrent module, or one cell of it."""
    if not forward(evidence):
        return
    cells = _cells(evidence.parameters)
    if cells is None:
        yield from _by_hand(evidence)
        return
    for network in _networks(evidence, cells):
        if network.results() == evidence.expected.shape and _reproduced(network, evidence, network.brief):
            yield from _explained(network, evidence)
            return


def _by_hand(evidence: Evidence) -> Iterator[Finding]:
    """The same of a module with weights of other names, or in its parts, which need not be stacked in torch's order."""
    for reading in readings(evidence):
        given = reading.evidence
        last = given.expected.ndim == 2 < given.inputs["in.0"].ndim  # the state of the one layer, without its axis
        seen = replace(given, expected=given.expected[None], found=given.found[None]) if last else given
        for cell in ordered(reading.cell):
            for network in _networks(seen, ((cell,),)):
                first = min(network.brief, FIRST_STEPS) if network.shown < 0 else network.brief
                if network.results() == seen.expected.shape and all(
                    _reproduced(network, seen, steps) for steps in (first, network.brief)
                ):
                    for one in _explained(network, seen):
                        yield replace(one, predicted=one.predicted[0]) if last and one.predicted is not None else one
                    return


def _reproduced(network: Network, evidence: Evidence, steps: int) -> bool:
    part = network.some(steps)
    return reproduces(part(part.x, part.given), network.cut(evidence.expected, steps), evidence.noise)


def _explained(network: Network, evidence: Evidence) -> Iterator[Finding]:
    time, batch, _ = network.x.shape
    weights = sum(cell.w_ih.size + cell.w_hh.size for layer in network.cells for cell in layer)
    whole = network if time * batch * weights <= COST else None

    def screen(steps: int) -> Screen[Network]:
        cut = replace(
            evidence, expected=network.cut(evidence.expected, steps), found=network.cut(evidence.found, steps)
        )
        return Screen(network.some(steps), cut, whole)

    brief = [*_formulas(network), *_gates(network), *_states(network), *_biases(network)]
    yield from findings(evidence, screen(network.brief), brief)
    yield from findings(evidence, screen(time), _directions(network))


def _cells(parameters: Mapping[str, Array]) -> Cells | None:
    found: dict[tuple[int, int], dict[str, Floats]] = {}
    for name, tensor in parameters.items():
        said = NAME.match(name)
        if said is None:
            return None
        place = (int(said[2] or 0), int(said[3] is not None))
        kind = ("w_" if tensor.ndim == 2 else "b_") + said[1]
        found.setdefault(place, {})[kind] = np.asarray(tensor, np.float64)
    layers = 1 + max((layer for layer, _ in found), default=-1)
    directions = len(found) // layers if layers else 0
    places = [[(layer, direction) for direction in range(directions)] for layer in range(layers)]
    if not layers or {one for row in places for one in row} != set(found):
        return None
    if any({"w_ih", "w_hh"} - one.keys() or len(one["w_hh"]) not in _rows(one["w_hh"]) for one in found.values()):
        return None
    return tuple(tuple(Cell(**found[one]) for one in row) for row in places)


def _rows(weight: Floats) -> list[int]:
    return [gates * weight.shape[1] for gates in STEPS]


def _networks(evidence: Evidence, cells: Cells) -> Iterator[Network]:
    """The readings of the module's inputs and of the tensor among its results."""
    inputs = [np.asarray(one, np.float64) for one in evidence.inputs.values()]
    seen = [np.asarray(evidence.candidate_inputs.get(key, one), np.float64) for key, one in evidence.inputs.items()]
    width = cells[0][0].w_ih.shape[1]
    if not inputs or [one.shape for one in inputs] != [one.shape for one in seen] or inputs[0].shape[-1:] != (width,):
        return
    single, states = inputs[0].ndim == 2, 2 if len(cells[0][0].w_hh) == 4 * cells[0][0].hidden else 1
    if inputs[0].ndim not in (2, 3):
        return
    for batch_first in (False,) if single else (False, True):
        batch = inputs[0].shape[0 if single or batch_first else 1]
        shape = (sum(map(len, cells)), batch, cells[0][0].hidden)
        x, candidate_x = (_timed(one, single, batch_first) for one in (inputs[0], seen[0]))
        given, candidate_given = (
            tuple(one.reshape(shape) for one in some if one.size == np.prod(shape))[:states]
            for some in (inputs[1:], seen[1:])
        )
        whole = Network(x, candidate_x, given, candidate_given, cells, batch_first, single)
        for shown in range(-1, states):
            for formula in STEPS[whole.gates]:
                yield replace(whole, shown=shown, formula=formula)


def _timed(x: Floats, single: bool, batch_first: bool) -> Floats:
    return x[None] if single else x.swapaxes(0, 1) if batch_first else x


def _formulas(network: Network) -> Iterator[Variant[Network]]:
    for formula in STEPS[network.gates]:
        if formula != network.formula:
            was = "" if network.formula == USUAL else f" instead of {network.formula}"
            yield _with("gate-formula", f"the cell is computed {formula}{was}", formula=formula)


def _gates(network: Network) -> Iterator[Variant[Network]]:
    """The blocks of the gates in another order."""
    names = GATES[network.gates]
    for order in permutations(range(network.gates)):
        if list(order) != sorted(order):
            cells = tuple(tuple(_permuted(cell, order) for cell in layer) for layer in network.cells)
            said = ", ".join(names[one] for one in order)
            sentence = f"the gates are taken in the order {said} instead of {', '.join(names)}"
            yield Variant("gate-order", sentence, methodcaller("changed", cells=cells), 1, {"order": list(order)})


def _directions(network: Network) -> Iterator[Variant[Network]]:
    """The steps, or the two directions, in another order."""
    if not network.single:
        yield _with("permutation", "the sequence is run backwards", backwards=not network.backwards)
    if len(network.cells[0]) == 2:
        yield _with("permutation", "what the reverse direction computes is not turned round", unturned=True)
        yield _with("concat-order", "the two directions are concatenated the other way round", exchanged=True)


def _permuted(cell: Cell, order: tuple[int, ...]) -> Cell:
    """The cell whose gate n has the weights of gate order[n]."""
    size = cell.hidden
    rows = np.concatenate([np.arange(size) + gate * size for gate in order])
    biases = (None if one is None else one[rows] for one in (cell.b_ih, cell.b_hh))
    return Cell(cell.w_ih[rows], cell.w_hh[rows], *biases)


def _states(network: Network) -> Iterator[Variant[Network]]:
    if network.given:
        yield _with("missing-term", "the first state that is given is not used", candidate_given=())
    if len(network.given) == 2:
        yield _with(
            "swapped-operands", "the two first states are exchanged", candidate_given=network.candidate_given[::-1]
        )


def _biases(network: Network) -> Iterator[Variant[Network]]:
    for name, other in (("b_ih", "b_hh"), ("b_hh", "b_ih")):
        if getattr(network.cells[0][0], name) is not None:
            yield _with("missing-bias", f"the bias {name} is not added", cells=_each(network.cells, **{name: None}))
            yield _with("missing-bias", "no bias is added", cells=_each(network.cells, b_ih=None, b_hh=None))
            doubled = tuple(
                tuple(replace(cell, **{other: getattr(cell, name)}) for cell in layer) for layer in network.cells
            )
            yield _with("wrong-weight", f"the bias {name} is used in place of {other}", cells=doubled)


def _each(cells: Cells, **changes: Any) -> Cells:
    return tuple(tuple(replace(cell, **changes) for cell in layer) for layer in cells)


def _with(label: str, sentence: str, **changes: Any) -> Variant[Network]:
    return Variant(label, sentence, methodcaller("changed", **changes))


HYPOTHESES: tuple[Hypothesis, ...] = (recurrence,)
