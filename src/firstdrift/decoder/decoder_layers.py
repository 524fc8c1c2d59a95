"""The parts of a decoder's layer: norms, rotary positions, the cache, dense networks and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import pi

import torch
from torch import Tensor, nn
from torch.nn import functional

from .decoder_settings import DecoderConfig, Experts, Rope


@dataclass(frozen=True, slots=True)
class Taps:
    """A watcher: `wants(stage, layer)` is asked first, then `see(stage, layer, tensor)` is called with what is wanted.

    Tensors come with the batch in front and a token's values together: `[batch, tokens, ...]`, but attention's scores
    and weights, which are `[batch, heads, tokens, positions]`. They are borrowed, and must not be changed.
    """

    wants: Callable[[str, int], bool]
    see: Callable[[str, int, Tensor], None]

    def __call__(self, stage: str, layer: int, tensor: Tensor) -> None:
        """Hand over a tensor that was computed anyway."""
        if self.wants(stage, layer):
            self.see(stage, layer, tensor)


OFF = Taps(lambda stage, layer: False, lambda stage, layer, tensor: None)


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: a narrower model computes these parts wider, and one of float64 computes all in float64."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """`x / rms(x) * weight`; Gemma's multiplies by 1 + weight, and rounds after that, not before."""

    def __init__(self, size: int, config: DecoderConfig) -> None:
        super().__init__()
        self.eps, self.offset = config.rms_norm_eps, config.norm_offset
        self.weight = nn.Parameter(torch.full((size,), 1.0 - self.offset))

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension."""
        values = x.to(wide(x.dtype))
        normed = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.offset:
            return (normed * (self.offset + self.weight.to(normed.dtype))).to(x.dtype)
        return self.weight * normed.to(x.dtype)


def frequencies(
    rope: Rope, head_dim: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The angle that each pair of dimensions turns by from one position to the next."""
    size = int(head_dim * rope.partial)
    found = 1.0 / (rope.theta ** (torch.arange(0, size, 2, dtype=dtype, device=device) / size))
    if rope.divisors:
        return found / torch.tensor(rope.divisors, dtype=dtype, device=device)
    if rope.scaling == "linear":
        return found / rope.factor
    if rope.scaling == "llama3":
        return _llama3(found, rope)
    return found


def _llama3(found: Tensor, rope: Rope) -> Tensor:
    """Slow pairs are slowed down further, fast ones stay, and those between are blended."""
    turns = rope.original_positions * found / (2 * pi)  # within the original context
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share = share.clamp(0, 1)
    return (1 - share) * found / rope.factor + share * found


def angles(rope: Rope, head_dim: int, start: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, `[count, rotated]`, of the positions from `start`, in the dtype and on the device of `like`.

    They are computed in float32 where the model's dtype is narrower: in bfloat16 there are only 256 whole positions.
    """
    dtype = wide(like.dtype)
    positions = torch.arange(start, start + count, device=like.device, dtype=dtype)
    turned = positions[:, None] * frequencies(rope, head_dim, like.device, dtype)
    turned = turned.repeat_interleave(2, -1) if rope.adjacent else torch.cat((turned, turned), -1)
    return turned.cos().to(like.dtype), turned.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool = False) -> Tensor:
    """Turn the first dimensions of every head, as many as there are angles; the others stay."""
    size = cos.shape[-1]
    turning, still = (x, None) if size == x.shape[-1] else (x[..., :size], x[..., size:])
    if adjacent:
        partner = torch.stack((-turning[..., 1::2], turning[..., ::2]), -1).flatten(-2)
    else:
        partner = torch.cat((-turning[..., size // 2 :], turning[..., : size // 2]), -1)
    turned = turning * cos + partner * sin
    return turned if still is None else torch.cat((turned, still), -1)


class Cache:
    """Keys and values of every token so far; give the same one to every call of a generation."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        return self._kept[0][0].shape[2] if self._kept else 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's keys and values, `[batch, heads, tokens, size]`, and return all of them."""
        if layer in self._kept:
            before = self._kept[layer]
            keys, values = torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)
        self._kept[layer] = keys, values
        return keys, values


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
