"""GRU and LSTM as loops over time, with the parameters of the library's."""

from __future__ import annotations

import torch
from torch import nn

from ..case import NO_BUGS, Bugs


class OwnGRU(nn.Module):
    """A loop; all input products first. Gives (outputs, last state) as nn.GRU with batch_first does."""

    def __init__(self, inputs: int, hidden: int, bugs: Bugs = NO_BUGS) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih_l0 = nn.Parameter(torch.empty(3 * hidden))
        self.bias_hh_l0 = nn.Parameter(torch.empty(3 * hidden))
        self.hidden, self.bugs = hidden, bugs

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fed = torch.einsum("bti,gi->btg", x, self.weight_ih_l0) + self.bias_ih_l0
        state = x.new_zeros(len(x), self.hidden)
        states = []
        for step in range(x.shape[1]):
            state = self.cell(fed[:, step], state)
            states.append(state)
        if "gru-reversed" in self.bugs:
            states.reverse()
        return torch.stack(states, 1), state[None]

    def cell(self, fed: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        reset_in, update_in, new_in = fed.chunk(3, -1)
        reset_rec, update_rec, new_rec = (state @ self.weight_hh_l0.T + self.bias_hh_l0).chunk(3, -1)
        if "gate-order" in self.bugs:  # z, r, n, as other frameworks have it
            reset_in, update_in, reset_rec, update_rec = update_in, reset_in, update_rec, reset_rec
        reset, update = torch.sigmoid(reset_in + reset_rec), torch.sigmoid(update_in + update_rec)
        if "reset-before" in self.bugs:  # the state is reset before the product, not its result after
            rows = self.weight_hh_l0[2 * self.hidden :]
            new_rec = (reset * state) @ rows.T + self.bias_hh_l0[2 * self.hidden :]
            new = torch.tanh(new_in + new_rec)
        else:
            new = torch.tanh(torch.addcmul(new_in, reset, new_rec))
        if "update-inverted" in self.bugs:
            return torch.lerp(state, new, update)
        return torch.lerp(new, state, update)


class OwnLSTM(nn.Module):
    """Both directions as loops, with the parameters of a one-layer bidirectional nn.LSTM."""

    def __init__(self, inputs: int, hidden: int, bugs: Bugs = NO_BUGS) -> None:
        super().__init__()
        for end in ("", "_reverse"):
            self.register_parameter(f"weight_ih_l0{end}", nn.Parameter(torch.empty(4 * hidden, inputs)))
            self.register_parameter(f"weight_hh_l0{end}", nn.Parameter(torch.empty(4 * hidden, hidden)))
            self.register_parameter(f"bias_ih_l0{end}", nn.Parameter(torch.empty(4 * hidden)))
            self.register_parameter(f"bias_hh_l0{end}", nn.Parameter(torch.empty(4 * hidden)))
        self.hidden, self.bugs = hidden, bugs

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        ahead, last, memory = self.one_way(x, "")
        back, first, other = self.one_way(x if "backward-forward" in self.bugs else x.flip(1), "_reverse")
        if "backward-order" not in self.bugs:
            back = back.flip(1)
        sides = (back, ahead) if "directions-swapped" in self.bugs else (ahead, back)
        return torch.cat(sides, -1), (torch.stack((last, first)), torch.stack((memory, other)))

    def one_way(self, x: torch.Tensor, end: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        get = self.get_parameter
        bias = get(f"bias_ih_l0{end}") + get(f"bias_hh_l0{end}")
        if "recurrent-bias-dropped" in self.bugs:
            bias = get(f"bias_ih_l0{end}")
        state = memory = x.new_zeros(len(x), self.hidden)
        states = []
        for step in range(x.shape[1]):
            gates = x[:, step] @ get(f"weight_ih_l0{end}").T + state @ get(f"weight_hh_l0{end}").T + bias
            if "gate-order" in self.bugs:  # read as i, g, f, o
                taken, new, kept, shown = gates.chunk(4, -1)
            else:
                taken, kept, new, shown = gates.chunk(4, -1)
            forget = torch.sigmoid(kept + self.bugs.get("forget-bias", 0.0))
            memory = forget * memory + torch.sigmoid(taken) * torch.tanh(new)
            state = torch.sigmoid(shown) * (memory if "tanh-missing" in self.bugs else torch.tanh(memory))
            states.append(state)
        return torch.stack(states, 1), state, memory
