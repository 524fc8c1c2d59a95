"""Recurrent cells as implementations have them: one formula each, by what is unusual about it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..formulas import ACTIVATIONS, Cell, gru_step, lstm_step, rnn_step
from ..formulas.recurrence import State, Step

Floats = NDArray[np.float64]
Function = Callable[[Floats], Floats]

USUAL = "as usual"


def _tanh(x: Floats) -> Floats:
    return np.asarray(np.tanh(x))


SIGMOID, HARD, KERAS = (ACTIVATIONS[name] for name in ("sigmoid", "hard_sigmoid", "hard_sigmoid_keras"))


def _lstm(
    gate: Function = SIGMOID, new: Function = _tanh, shown: Function = _tanh, forget: float = 0.0, coupled: bool = False
) -> Step:
    def step(cell: Cell, drive: Floats, state: State) -> State:
        i, f, g, o = np.split(drive + cell.feedback(state[0]), 4, axis=-1)
        kept = gate(f + forget)
        c = kept * state[1] + (1 - kept if coupled else gate(i)) * new(g)
        return gate(o) * shown(c), c

    return step


def _gru(gate: Function = SIGMOID, before: bool = False, exchanged: bool = False, reset: str = "both") -> Step:
    def step(cell: Cell, drive: Floats, state: State) -> State:
        h, size = state[0], cell.hidden
        r, z, n = np.split(drive, 3, axis=-1)
        back = cell.feedback(h)
        bias = 0.0 if cell.b_hh is None else cell.b_hh[2 * size :]
        opened = gate(r + back[..., :size])
        if before:
            inner = (opened * h) @ cell.w_hh[2 * size :].T + bias
        elif reset == "weight":
            inner = opened * (back[..., 2 * size :] - bias) + bias
        else:
            inner = back[..., 2 * size :] * (opened if reset == "both" else 1.0)
        update, new = gate(z + back[..., size : 2 * size]), np.tanh(n + inner)
        return ((1 - update) * h + update * new if exchanged else (1 - update) * new + update * h,)

    return step


def _rnn(function: Function) -> Step:
    def step(cell: Cell, drive: Floats, state: State) -> State:
        return (function(drive + cell.feedback(state[0])),)

    return step


def _same(x: Floats) -> Floats:
    return x


STEPS: dict[int, dict[str, Step]] = {
    4: {
        USUAL: lstm_step,
        "with 1 added to the forget gate": _lstm(forget=1.0),
        "with hard sigmoids": _lstm(HARD),
        "with Keras's hard sigmoids": _lstm(KERAS),
        "with a sigmoid for the new cell values": _lstm(new=SIGMOID),
        "without tanh of the new cell values": _lstm(new=_same),
        "without tanh of the cell state in the output": _lstm(shown=_same),
        "with a sigmoid of the cell state in the output": _lstm(shown=SIGMOID),
        "with tanh and sigmoid exchanged": _lstm(_tanh, SIGMOID, SIGMOID),
        "with one gate for input and forgetting": _lstm(coupled=True),
    },
    3: {
        USUAL: gru_step,
        "with the reset gate before the linear map of the state": _gru(before=True),
        "with the update gate the other way round": _gru(exchanged=True),
        "with the reset gate before the linear map, and the update gate the other way round": _gru(
            before=True, exchanged=True
        ),
        "without the reset gate": _gru(reset="none"),
        "with the reset gate on the state's linear map but not on its bias": _gru(reset="weight"),
        "with hard sigmoids": _gru(HARD),
        "with Keras's hard sigmoids": _gru(KERAS),
    },
    1: {
        USUAL: rnn_step,
        "with ReLU": _rnn(ACTIVATIONS["relu"]),
        "with sigmoids": _rnn(SIGMOID),
        "without its activation": _rnn(_same),
    },
}
