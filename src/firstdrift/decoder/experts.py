"""A mixture of experts: a router sends each token to a few of many networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .feedforward import FeedForward
from .precision import wide
from .settings import DecoderConfig, Experts
from .taps import OFF, Taps


class MixtureOfExperts(nn.Module):
    """The sum of the chosen experts' outputs, weighted by how strongly each was chosen."""

    def __init__(self, config: DecoderConfig, experts: Experts, layer: int) -> None:
        super().__init__()
        self.settings, self.layer = experts, layer
        self.gate = nn.Linear(config.hidden_size, experts.count, bias=False)
        self.experts = nn.ModuleList(
            FeedForward(config, layer, experts.intermediate_size) for _ in range(experts.count)
        )

    def forward(self, x: Tensor, taps: Taps = OFF) -> Tensor:
        """What the experts make of each token by itself."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.route(tokens)
        taps("moe_router", self.layer, weights.unflatten(0, x.shape[:2]))
        taps("moe_router_indices", self.layer, chosen.unflatten(0, x.shape[:2]))
        out = torch.zeros_like(tokens)
        for number in chosen.unique().tolist():
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, self.experts[number](tokens[token]) * weights[token, place, None])
        summed: Tensor = out.unflatten(0, x.shape[:2])
        taps("moe_ffn_out", self.layer, summed)
        return summed

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the numbers of each token's experts, the strongest first."""
        weights, chosen = self.gate(tokens).softmax(-1, dtype=wide(tokens.dtype)).topk(self.settings.per_token, -1)
        if self.settings.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(tokens.dtype), chosen
