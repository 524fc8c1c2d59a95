"""Recurrent cells, step by step; gates are stacked along the rows of the weights in torch's order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .activations import sigmoid

Floats = NDArray[np.float64]
State = tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """The weights of one layer and direction: (gates*hidden, in), (gates*hidden, hidden), and two biases."""

    w_ih: Floats
    w_hh: Floats
    b_ih: Floats | None = None
    b_hh: Floats | None = None

    @property
    def hidden(self) -> int:
        """The size of the state."""
        return int(self.w_hh.shape[1])

    def drive(self, x: Floats) -> Floats:
        """What the input contributes to every gate."""
        y = x @ self.w_ih.T
        return np.asarray(y if self.b_ih is None else y + self.b_ih)

    def feedback(self, h: Floats) -> Floats:
        """What the state contributes to every gate."""
        y = h @ self.w_hh.T
        return np.asarray(y if self.b_hh is None else y + self.b_hh)


Step = Callable[[Cell, Floats, State], State]


def lstm_step(cell: Cell, drive: Floats, state: State) -> State:
    """Input, forget, cell and output gate: (h, c)."""
    i, f, g, o = np.split(drive + cell.feedback(state[0]), 4, axis=-1)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(cell: Cell, drive: Floats, state: State) -> State:
    """Reset, update and new gate; the reset gate meets the state after its linear map."""
    back = np.split(cell.feedback(state[0]), 3, axis=-1)
    r, z, n = np.split(drive, 3, axis=-1)
    update = sigmoid(z + back[1])
    new = np.tanh(n + sigmoid(r + back[0]) * back[2])
    return (new + update * (state[0] - new),)


def rnn_step(cell: Cell, drive: Floats, state: State) -> State:
    """tanh of both contributions."""
    return (np.tanh(drive + cell.feedback(state[0])),)


def recur(step: Step, x: Floats, cell: Cell, initial: State, reverse: bool = False) -> tuple[Floats, State]:
    """Run a cell over x (time, batch, features): all outputs, and the last state."""
    drive = cell.drive(x)
    state = initial
    y = np.empty((*x.shape[:-1], cell.hidden))
    for t in range(len(x))[:: -1 if reverse else 1]:
        state = step(cell, drive[t], state)
        y[t] = state[0]
    return y, state


def lstm(x: Floats, cell: Cell, h0: Floats | None = None, c0: Floats | None = None) -> tuple[Floats, State]:
    """One LSTM layer over x (time, batch, features)."""
    return recur(lstm_step, x, cell, _start(x, cell, h0, c0))


def gru(x: Floats, cell: Cell, h0: Floats | None = None) -> tuple[Floats, State]:
    """One GRU layer over x (time, batch, features)."""
    return recur(gru_step, x, cell, _start(x, cell, h0))


def rnn(x: Floats, cell: Cell, h0: Floats | None = None) -> tuple[Floats, State]:
    """One plain recurrent layer over x (time, batch, features)."""
    return recur(rnn_step, x, cell, _start(x, cell, h0))


def _start(x: Floats, cell: Cell, *given: Floats | None) -> State:
    zero = np.zeros((*x.shape[1:-1], cell.hidden))
    return tuple(zero if one is None else one for one in given)
