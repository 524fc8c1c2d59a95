"""The dense network of a layer: one projection gates another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from .settings import DecoderConfig
from .taps import OFF, Taps

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


class FeedForward(nn.Module):
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(self, config: DecoderConfig, layer: int, inner: int | None = None) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, inner or config.intermediate_size
        self.layer = layer
        self.activation = ACTIVATIONS[config.activation]
        self.gate_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, bias=config.mlp_bias)

    def forward(self, x: Tensor, taps: Taps = OFF) -> Tensor:
        """What the network makes of each token by itself."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        taps("ffn_gate", self.layer, gate)
        taps("ffn_up", self.layer, up)
        active = self.activation(gate)
        taps("ffn_silu", self.layer, active)
        product = active * up
        taps("ffn_swigl", self.layer, product)
        out: Tensor = self.down_proj(product)
        taps("ffn_out", self.layer, out)
        return out
