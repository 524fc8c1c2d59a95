"""LSTM, GRU and plain recurrent layers, as PyTorch lays out their weights, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..causes.formulas import Cell, activation, gru_step, lstm_step, rnn_step
from ..strict_json import Json
from .operation import Floats, Gradients, Inputs, Operation, Parameters

STEPS = {"LSTM": lstm_step, "GRU": gru_step, "RNN_TANH": rnn_step}
OUTPUTS = {"out.0": "sequence", "out": "sequence", "out.1": "hidden", "out.1.0": "hidden", "out.1.1": "cell"}
State = tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class _Pass:
    """One layer in one direction over a sequence (time, batch, features), with every state it was in."""

    place: str  # the suffix of its weights' names
    cell: Cell
    x: Floats
    times: range
    states: list[State]  # the first before any step, then after each, in the order of `times`

    @property
    def sequence(self) -> Floats:
        found = np.empty((len(self.x), *self.states[0][0].shape))
        for t, state in zip(self.times, self.states[1:], strict=True):
            found[t] = state[0]
        return found


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers that go through a sequence, one after the other, in one direction or in both."""

    mode: str
    count: int
    both_ways: bool
    batch_first: bool

    def passes(self, inputs: Inputs, parameters: Parameters) -> list[list[_Pass]]:
        """All passes, by layer."""
        x = self.timed(inputs[0])
        given = [state[:, None] if inputs[0].ndim == 2 else state for state in inputs[1:]]
        found: list[list[_Pass]] = []
        for layer in range(self.count):
            ways = []
            for suffix in ("", "_reverse")[: 1 + self.both_ways]:
                place, number = f"l{layer}{suffix}", (1 + self.both_ways) * layer + bool(suffix)
                cell = _cell(parameters, place)
                zero = np.zeros((x.shape[1], cell.hidden))
                state = tuple(one[number] for one in given) or (zero,) * (2 if self.mode == "LSTM" else 1)
                ways.append(self._run(place, cell, x, state, backwards=bool(suffix)))
            found.append(ways)
            x = np.concatenate([way.sequence for way in ways], -1)
        return found

    def timed(self, x: Floats) -> Floats:
        """A sequence as (time, batch, features)."""
        return x[:, None] if x.ndim == 2 else x.swapaxes(0, 1) if self.batch_first else x

    def as_given(self, x: Floats, like: Floats) -> Floats:
        """A sequence laid out as the input is."""
        return x[:, 0] if like.ndim == 2 else x.swapaxes(0, 1) if self.batch_first else x

    def _run(self, place: str, cell: Cell, x: Floats, state: State, *, backwards: bool) -> _Pass:
        times = range(len(x))[:: -1 if backwards else 1]
        drive, states = cell.drive(x), [state]
        for t in times:
            states.append(STEPS[self.mode](cell, drive[t], states[-1]))
        return _Pass(place, cell, x, times, states)


def recurrent(*, mode: str, layers: int, both_ways: bool, batch_first: bool, output: str) -> Operation:
    """Layers that go through a sequence; `output` is the sequence, or the last hidden or cell state."""
    stack = _Layers(mode, layers, both_ways, batch_first)

    def forward(inputs: Inputs, parameters: Parameters) -> Floats:
        passes = stack.passes(inputs, parameters)
        if output == "sequence":
            return stack.as_given(np.concatenate([way.sequence for way in passes[-1]], -1), inputs[0])
        states = np.stack([way.states[-1][output == "cell"] for ways in passes for way in ways])
        return states[:, 0] if inputs[0].ndim == 2 else states

    def backward(inputs: Inputs, parameters: Parameters, gradient: Floats) -> Gradients:
        passes = stack.passes(inputs, parameters)
        found: dict[str, Floats] = {}
        last = None if output == "sequence" else gradient[:, None] if inputs[0].ndim == 2 else gradient
        flowing = stack.timed(gradient) if last is None else np.zeros((*passes[0][0].x.shape[:2], 1))
        for layer, ways in reversed(list(enumerate(passes))):
            into = np.zeros(ways[0].x.shape)
            width = ways[0].cell.hidden
            for number, way in enumerate(ways):
                own = flowing[..., number * width : (number + 1) * width] if flowing.shape[-1] > 1 else None
                ending = None if last is None else last[layer * len(ways) + number]
                part, weights = _back(mode, way, own, ending, to_cell=output == "cell")
                into += part
                found |= {f"{name}_{way.place}": item for name, item in weights.items()}
            flowing = into
        kept = {port: item for port, item in found.items() if port in parameters}
        return [stack.as_given(flowing, inputs[0]), *[None] * (len(inputs) - 1)], kept

    settings: dict[str, Json] = {"layers": layers, "both_ways": both_ways, "batch_first": batch_first, "output": output}
    return Operation(mode, "linear", forward, settings, backward=backward, rows=False)


def _back(
    mode: str, way: _Pass, flowing: Floats | None, ending: Floats | None, *, to_cell: bool
) -> tuple[Floats, dict[str, Floats]]:
    """The gradients of a pass's input and weights, from those of its sequence or of its last state."""
    zero = np.zeros(way.states[0][0].shape)
    to_h = zero if ending is None or to_cell else ending
    to_c = zero if ending is None or not to_cell else ending
    drive, into = way.cell.drive(way.x), np.zeros(way.x.shape)
    w_ih, w_hh = np.zeros(way.cell.w_ih.shape), np.zeros(way.cell.w_hh.shape)
    b_ih, b_hh = np.zeros(len(w_ih)), np.zeros(len(w_hh))
    for number in reversed(range(len(way.times))):
        t, before, after = way.times[number], way.states[number], way.states[number + 1]
        to_h = to_h if flowing is None else to_h + flowing[t]
        fed, back, to_h, to_c = _step_back(mode, way.cell, drive[t], before, after, to_h, to_c)
        into[t] = fed @ way.cell.w_ih
        to_h = to_h + back @ way.cell.w_hh
        w_ih += fed.T @ way.x[t]
        w_hh += back.T @ before[0]
        b_ih += fed.sum(0)
        b_hh += back.sum(0)
    return into, {"weight_ih": w_ih, "weight_hh": w_hh, "bias_ih": b_ih, "bias_hh": b_hh}


def _step_back(
    mode: str, cell: Cell, drive: Floats, before: State, after: State, to_h: Floats, to_c: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Gradients of what input and state contribute to the gates, and of the states before, through the gates alone."""
    back = cell.feedback(before[0])
    if mode == "LSTM":
        i, f, g, o = _gates(drive + back, "sigmoid", "sigmoid", "tanh", "sigmoid")
        root = np.tanh(after[1])
        to_c = to_c + to_h * o * (1 - root**2)
        slopes = (
            to_c * g * i * (1 - i),
            to_c * before[1] * f * (1 - f),
            to_c * i * (1 - g**2),
            to_h * root * o * (1 - o),
        )
        gates = np.concatenate(slopes, -1)
        return gates, gates, np.zeros(to_h.shape), to_c * f
    if mode == "GRU":
        (dr, dz, dn), (hr, hz, hn) = np.split(drive, 3, -1), np.split(back, 3, -1)
        r, z = activation("sigmoid", dr + hr), activation("sigmoid", dz + hz)
        n = np.tanh(dn + r * hn)
        to_n = to_h * (1 - z) * (1 - n**2)
        to_z, to_r = to_h * (before[0] - n) * z * (1 - z), to_n * hn * r * (1 - r)
        fed = np.concatenate([to_r, to_z, to_n], -1)
        return fed, np.concatenate([to_r, to_z, to_n * r], -1), to_h * z, to_c
    slope = to_h * (1 - after[0] ** 2)
    return slope, slope, np.zeros(to_h.shape), to_c


def _gates(total: Floats, *names: str) -> Iterator[Floats]:
    for name, part in zip(names, np.split(total, len(names), -1), strict=True):
        yield activation(name, part)


def _cell(parameters: Parameters, place: str) -> Cell:
    weights = parameters[f"weight_ih_{place}"], parameters[f"weight_hh_{place}"]
    return Cell(*weights, parameters.get(f"bias_ih_{place}"), parameters.get(f"bias_hh_{place}"))
