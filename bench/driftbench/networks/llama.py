"""A decoder with RoPE, grouped queries, RMSNorm and SwiGLU. The candidate rotates complex numbers, keeps the groups
apart in einsums and takes its own softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import Bugs, Planted
from .network import Network, sequence_loss, wide
from .parts import OwnEmbedding, OwnLinear, OwnRMSNorm, causal_bias

VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, LAYERS = 96, 64, 4, 2, 16, 96, 3
EPS = 1e-6


def scaled_frequencies(theta: float, factor: float) -> torch.Tensor:
    """Frequencies of the pairs; with a factor, the slow ones are slowed down further, as Llama 3.1 does."""
    frequencies = theta ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
    wavelengths = 2 * math.pi / frequencies
    smooth = ((64.0 / wavelengths - 1.0) / 3.0).clamp(0, 1)  # 1 for fast pairs, 0 for slow ones
    return frequencies * (smooth + (1 - smooth) / factor)


class RMSNorm(nn.Module):
    """`coarse` rounds to bfloat16 on the way, which is the reference's own fault."""

    def __init__(self, width: int, eps: float = EPS, coarse: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.coarse = eps, coarse

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = wide(x)
        if self.coarse:
            h = h.bfloat16().to(h.dtype)
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Rotary(nn.Module):
    def __init__(self, theta: float, factor: float) -> None:
        super().__init__()
        self.theta, self.factor = theta, factor

    def forward(self, positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(positions.double(), scaled_frequencies(self.theta, self.factor))
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD, bias=bias)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=bias)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=bias)
        self.o_proj = nn.Linear(HEADS * HEAD, WIDTH, bias=bias)
        with torch.no_grad():  # trained attention is sharper than a fresh one
            self.q_proj.weight.mul_(2)
            self.k_proj.weight.mul_(2)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, HEADS, HEAD).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, KV_HEADS, HEAD).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, KV_HEADS, HEAD).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(HEADS // KV_HEADS, 1)
        v = v.repeat_interleave(HEADS // KV_HEADS, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, bias: bool, residual: float) -> None:
        super().__init__()
        self.input_norm = RMSNorm(WIDTH)
        self.attn = Attention(bias)
        self.post_norm = RMSNorm(WIDTH)
        self.mlp = MLP()
        self.residual = residual

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.residual * self.attn(self.input_norm(x), cos, sin)
        return x + self.residual * self.mlp(self.post_norm(x))


class Llama(nn.Module):
    def __init__(
        self,
        theta: float,
        factor: float,
        bias: bool,
        tied: bool,
        residual: float,
        logits: float,
        coarse: bool,
        depth: int,
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.rotary = Rotary(theta, factor)
        self.layers = nn.ModuleList(Block(bias, residual) for _ in range(depth))
        self.norm = RMSNorm(WIDTH, coarse=coarse)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight
        self.logits = logits

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        cos, sin = self.rotary(positions, x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x)) * self.logits


class OwnRotary(nn.Module):
    """Tables by powers and an einsum."""

    def __init__(self, bugs: Bugs, theta: float, factor: float) -> None:
        super().__init__()
        self.theta = bugs.get("rope-theta", theta)
        self.factor = 1.0 if "rope-scaling" in bugs else factor
        self.coarse = bugs.get("rope-precision")
        self.square = "rope-exponent" in bugs

    def forward(self, positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = scaled_frequencies(self.theta, self.factor)
        if self.square:  # the exponent runs over half the pairs twice as fast
            frequencies = frequencies**2
        places = positions.double()
        if self.coarse == "frequencies":
            frequencies = frequencies.to(torch.bfloat16).double()
        if self.coarse == "positions":
            places = places.to(torch.bfloat16).double()
        turns = torch.polar(torch.ones((), dtype=torch.float64), torch.einsum("s,f->sf", places, frequencies))
        return turns.real.repeat(1, 2).to(like.dtype), turns.imag.repeat(1, 2).to(like.dtype)


class OwnAttention(nn.Module):
    """Groups stay an axis of their own; scores, mask and softmax by hand."""

    def __init__(self, bugs: Bugs, bias: bool) -> None:
        super().__init__()
        self.q_proj = OwnLinear(WIDTH, HEADS * HEAD, bias, skip_bias="missing-bias" in bugs)
        self.k_proj = OwnLinear(WIDTH, KV_HEADS * HEAD, bias, skip_bias="missing-bias" in bugs)
        self.v_proj = OwnLinear(WIDTH, KV_HEADS * HEAD, bias, skip_bias="missing-bias" in bugs)
        self.o_proj = OwnLinear(
            HEADS * HEAD, WIDTH, bias, biases=bugs.get("double-bias", 1), bugs=bugs.get("o_proj", {})
        )
        self.bugs = bugs

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q = self.q_proj(x).unflatten(-1, (HEADS, HEAD))
        k = self.k_proj(x).unflatten(-1, (KV_HEADS, HEAD))
        v = self.v_proj(x).unflatten(-1, (KV_HEADS, HEAD))
        q, k = self.rotate(q, cos, sin, query=True), self.rotate(k, cos, sin, query=False)
        groups = HEADS // KV_HEADS
        if "gqa-order" in self.bugs:
            q = q.unflatten(2, (groups, KV_HEADS)).transpose(2, 3)
        else:
            q = q.unflatten(2, (KV_HEADS, groups))
        scores = torch.einsum("bighd,bjgd->bghij", q, k.to(q.dtype)) * self.bugs.get("attention-scale", HEAD**-0.5)
        scores = wide(scores) + causal_bias(x.shape[1], self.bugs)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        mixed = torch.einsum("bghij,bjgd->bighd", weights, v)
        if "gqa-order" in self.bugs:
            mixed = mixed.transpose(2, 3)
        if "head-permutation" in self.bugs:  # merged as (feature, head)
            return self.o_proj(mixed.flatten(2, 3).transpose(2, 3).flatten(2))
        return self.o_proj(mixed.flatten(2))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, query: bool) -> torch.Tensor:
        """Turn pairs as complex numbers."""
        half = HEAD // 2
        if query and "position-shift" in self.bugs:
            cos, sin = cos * cos[1] - sin * sin[1], sin * cos[1] + cos * sin[1]  # one step further
        cos, sin = cos[:, None, :half], sin[:, None, :half]
        if "rope-interleave" in self.bugs:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        a, b = x[..., :half], x[..., half:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        if "rope-sign" in self.bugs:
            turned = torch.cat((a * cos + b * sin, b * cos - a * sin), -1)
        if "rope-first-half" in self.bugs:  # the other pairs pass as they are
            keep = torch.arange(HEAD) % half >= half // 2
            turned = torch.where(keep, x, turned)
        if "rope-head-0" in self.bugs:  # only the first head is turned
            first = torch.arange(x.shape[2])[:, None] == 0
            turned = torch.where(first, turned, x)
        if "rope-amplitude" in self.bugs:
            turned = turned * self.bugs["rope-amplitude"]
        return turned


class OwnMLP(nn.Module):
    """SiLU as x times a logistic function."""

    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.gate_proj = OwnLinear(WIDTH, HIDDEN, False, bugs=bugs.get("gate_proj", {}))
        self.up_proj = OwnLinear(WIDTH, HIDDEN, False)
        self.down_proj = OwnLinear(HIDDEN, WIDTH, False, bugs=bugs.get("down_proj", {}))
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if "swapped-operands" in self.bugs:
            gate, up = up, gate
        if "activation" in self.bugs:
            return self.down_proj(self.bugs["activation"](gate) * up)
        product = (wide(gate) * torch.sigmoid(wide(gate))).to(up.dtype) * up
        if "clamp" in self.bugs:
            product = product.clamp(-self.bugs["clamp"], self.bugs["clamp"])
        return self.down_proj(product)


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs, bias: bool, residual: float) -> None:
        super().__init__()
        self.input_norm = OwnRMSNorm(WIDTH, EPS, bugs)
        self.attn = OwnAttention(bugs, bias)
        self.post_norm = OwnRMSNorm(WIDTH, EPS, {})
        self.mlp = OwnMLP(bugs)
        self.bugs, self.residual = bugs, residual

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        normed = self.input_norm(x)
        branch = self.attn(normed, cos, sin)
        skip = normed if "residual-source" in self.bugs else x
        if "missing-residual" in self.bugs:
            skip = torch.zeros_like(x)
        factor = 1.0 if "residual-multiplier" in self.bugs else self.residual
        x = torch.add(skip, branch, alpha=factor)
        normed = self.post_norm(x)
        branch = self.mlp(normed)
        if "mlp-missing-residual" in self.bugs:
            return self.residual * branch
        return torch.add(x, branch, alpha=self.residual)


class OwnLlama(nn.Module):
    def __init__(
        self,
        planted: Planted,
        theta: float,
        factor: float,
        bias: bool,
        tied: bool,
        residual: float,
        logits: float,
        coarse: bool,
        depth: int,
    ) -> None:
        super().__init__()
        bugs = planted.bugs
        self.embed_tokens = OwnEmbedding(VOCABULARY, WIDTH, bugs)
        self.rotary = OwnRotary(bugs, theta, factor)
        self.layers = nn.ModuleList(OwnBlock(planted.at(layer), bias, residual) for layer in range(depth))
        self.norm = OwnRMSNorm(WIDTH, EPS, {"norm-missing": True} if "final-norm-missing" in bugs else {})
        self.lm_head = OwnLinear(WIDTH, VOCABULARY, False)
        if tied and "untied-head" not in bugs:
            self.lm_head.weight = self.embed_tokens.weight
        self.logits = 1.0 if "logits-scale" in bugs else logits

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        cos, sin = self.rotary(positions, x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.logits * self.lm_head(self.norm(x))


def inputs() -> tuple[Any, ...]:
    return torch.randint(0, VOCABULARY, (2, 16)), torch.arange(16)


NETWORK = Network(
    Llama,
    {"own": OwnLlama},
    inputs,
    lambda: torch.randint(0, VOCABULARY, (2, 16)),
    sequence_loss,
    {
        "theta": 1e4,
        "factor": 1.0,
        "bias": False,
        "tied": False,
        "residual": 1.0,
        "logits": 1.0,
        "coarse": False,
        "depth": LAYERS,
    },
)
