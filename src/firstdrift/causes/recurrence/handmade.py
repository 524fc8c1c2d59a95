"""Recurrent cells written by hand: stacked matrices under any names, in the module or in its parts.

Nothing says what such a matrix is for, nor in which order the gates are stacked. Every reading that the shapes allow
is proposed, and what reproduces the reference is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from ...traces import Array
from ..evidence import Evidence
from ..formulas import Cell
from .cells import STEPS, Floats

MOST_MATRICES = 4  # that a cell may have; what has more is no cell
MOST_BIASES = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """What a module may compute: the evidence with its sequence (and states) as the only inputs, and the cell."""

    evidence: Evidence
    cell: Cell


def readings(evidence: Evidence) -> Iterator[Reading]:
    """Every cell that the weights of a module and of its parts may be, with what it may have been fed."""
    hidden = evidence.expected.shape[-1] if evidence.expected.ndim in (2, 3) else 0
    weights = _weights(evidence)
    matrices = {name: value for name, value in weights.items() if value.ndim == 2}
    if hidden < 2 or not 1 <= len(matrices) <= MOST_MATRICES:
        return
    own = _ports(evidence)
    for gates in STEPS:
        rows = gates * hidden
        biases = {name: value for name, value in weights.items() if value.shape == (rows,)}
        if len(biases) > MOST_BIASES:
            continue
        for name, recurrent in matrices.items():
            for w_hh in _turned(recurrent, rows, hidden):
                yield from _driven(evidence, own, w_hh, _one_of(biases, name))
                others = {one: value for one, value in matrices.items() if one != name}
                yield from _stacked(evidence, own, others, w_hh, (name, biases))
            yield from _joined(evidence, own, recurrent, rows, hidden, _one_of(biases, name))


def ordered(cell: Cell) -> Iterator[Cell]:
    """A cell with its gates in every order, the usual one first."""
    size = cell.hidden
    for order in permutations(range(len(cell.w_hh) // size)):
        rows = np.concatenate([np.arange(size) + gate * size for gate in order])
        biases = (None if one is None else one[rows] for one in (cell.b_ih, cell.b_hh))
        yield Cell(cell.w_ih[rows], cell.w_hh[rows], *biases)


def _driven(
    evidence: Evidence, own: Mapping[str, tuple[Array, Array]], w_hh: Floats, biases: list[Floats | None]
) -> Iterator[Reading]:
    """A part has made what the input contributes to every gate."""
    for key, value in evidence.inputs.items():
        made = evidence.candidate_inputs.get(key)
        if value.ndim in (2, 3) and value.shape[-1] == len(w_hh) and made is not None and made.dtype.kind == "f":
            given = _fed(evidence, own, (value, made))
            yield from (Reading(given, Cell(np.eye(len(w_hh)), w_hh, None, bias)) for bias in biases)


def _stacked(
    evidence: Evidence, own: Mapping[str, tuple[Array, Array]], others: Mapping[str, Floats], w_hh: Floats,
    named: tuple[str, Mapping[str, Floats]],
) -> Iterator[Reading]:  # fmt: skip
    """A matrix of the inputs and one of the state."""
    x = next(iter(own.values()), None)
    if x is None:
        return
    for name, value in others.items():
        for w_ih in _turned(value, len(w_hh), x[0].shape[-1]):
            for b_ih in _one_of(named[1], name):
                for b_hh in _one_of({k: v for k, v in named[1].items() if v is not b_ih}, named[0]):
                    yield Reading(_fed(evidence, own, x), Cell(w_ih, w_hh, b_ih, b_hh))


def _joined(
    evidence: Evidence, own: Mapping[str, tuple[Array, Array]], value: Floats, rows: int, hidden: int,
    biases: list[Floats | None],
) -> Iterator[Reading]:  # fmt: skip
    """One matrix of inputs and state side by side, or the other way round."""
    x = next(iter(own.values()), None)
    if x is None:
        return
    width = x[0].shape[-1]
    for whole in _turned(value, rows, width + hidden):
        for bias in biases:
            given = _fed(evidence, own, x)
            yield Reading(given, Cell(whole[:, :width], whole[:, width:], bias))
            yield Reading(given, Cell(whole[:, hidden:], whole[:, :hidden], bias))


def _turned(value: Floats, rows: int, columns: int) -> Iterator[Floats]:
    if value.shape == (rows, columns):
        yield value
    if value.shape == (columns, rows):
        yield value.T


def _one_of(biases: Mapping[str, Floats], matrix: str) -> list[Floats | None]:
    """The biases that may go with a matrix, that of the same module first; or none."""
    place = matrix.rpartition(".")[0]
    return [*(value for _, value in sorted(biases.items(), key=lambda one: one[0].rpartition(".")[0] != place)), None]


def _weights(evidence: Evidence) -> dict[str, Floats]:
    """The floating weights of a module and of all below it, by their path from the module."""
    found = {name: np.asarray(value, np.float64) for name, value in evidence.parameters.items() if _real(value)}
    prefix = f"{evidence.site.name}." if evidence.site.name else ""
    for site in evidence.around.sites("weight"):
        if site.step == evidence.site.step and site.name.startswith(prefix) and site.name != evidence.site.name:
            value = evidence.around.reference(site)
            if value is not None and _real(value):
                found[f"{site.name[len(prefix) :]}.{site.port}"] = np.asarray(value, np.float64)
            if len(found) > MOST_MATRICES + MOST_BIASES:
                return {}
    return found


def _ports(evidence: Evidence) -> dict[str, tuple[Array, Array]]:
    """What both sides handed to the module itself."""
    here, found = evidence.site, {}
    for site in evidence.around.sites("fwd"):
        if (site.step, site.name, site.call) == (here.step, here.name, here.call) and site.port.startswith("in."):
            ours, theirs = evidence.around.reference(site), evidence.around.candidate(site)
            if ours is not None and theirs is not None and _real(ours) and ours.shape == theirs.shape:
                found[site.port] = ours, theirs
    for port, value in evidence.inputs.items() if not found else ():
        if port.startswith("in.") and _real(value):
            found[port] = value, evidence.candidate_inputs.get(port, value)
    return found


def _real(value: Array) -> bool:
    return value.dtype.kind == "f" and value.size > 0


def _fed(evidence: Evidence, own: Mapping[str, tuple[Array, Array]], x: tuple[Array, Array]) -> Evidence:
    """The evidence with a sequence as the first input, and what else the module was handed as its states."""
    given = {"in.0": x} | {port: pair for port, pair in own.items() if port != "in.0"}
    inputs, seen = ({port: pair[side] for port, pair in given.items()} for side in (0, 1))
    return replace(evidence, inputs=inputs, candidate_inputs=seen)
