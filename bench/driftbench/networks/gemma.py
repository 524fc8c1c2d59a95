"""A decoder of Gemma's kind: gains of 1 + w, norms before and after, soft caps, an embedding scaled by sqrt(d), a tanh
GELU gate, a sliding window in every other layer and a tied head. The candidate fuses what names allow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..case import Bugs, Planted
from .network import Network, sequence_loss, wide
from .parts import OwnLinear, OwnRMSNorm, causal_bias, own_softmax

VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, LAYERS = 80, 48, 4, 1, 12, 72, 4
EPS, THETA, WINDOW, SCORE_CAP, LOGIT_CAP, QUERY_SCALAR = 1e-6, 1e4, 5, 4.0, 3.0, 9.0


class GemmaNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = EPS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = wide(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + wide(self.weight))).to(x.dtype)


def rope(x: torch.Tensor) -> torch.Tensor:
    """Half-split rotation over axis -2."""
    frequencies = THETA ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), frequencies).repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * angles.cos().to(x.dtype) + torch.cat((-b, a), -1) * angles.sin().to(x.dtype)


class Attention(nn.Module):
    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.window = window
        with torch.no_grad():  # trained attention is sharper than a fresh one
            self.q_proj.weight.mul_(4)
            self.k_proj.weight.mul_(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = rope(self.q_proj(x).view(batch, length, HEADS, HEAD).transpose(1, 2))
        k = rope(self.k_proj(x).view(batch, length, KV_HEADS, HEAD).transpose(1, 2))
        v = self.v_proj(x).view(batch, length, KV_HEADS, HEAD).transpose(1, 2)
        scores = wide(q @ k.transpose(-2, -1)) * QUERY_SCALAR**-0.5
        scores = SCORE_CAP * torch.tanh(scores / SCORE_CAP)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if self.window is not None:
            mask &= torch.ones(length, length, dtype=torch.bool).triu(1 - self.window)
        scores = scores.masked_fill(~mask, -torch.inf)
        mixed = scores.softmax(-1).to(x.dtype) @ v
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.act = nn.GELU("tanh")
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.input_norm = GemmaNorm(WIDTH)
        self.attn = Attention(window)
        self.post_attn_norm = GemmaNorm(WIDTH)
        self.pre_mlp_norm = GemmaNorm(WIDTH)
        self.mlp = MLP()
        self.post_mlp_norm = GemmaNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.post_attn_norm(self.attn(self.input_norm(x)))
        return x + self.post_mlp_norm(self.mlp(self.pre_mlp_norm(x)))


class Gemma(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed_tokens.weight, std=0.3)
        self.layers = nn.ModuleList(Block(WINDOW if layer % 2 == 0 else None) for layer in range(LAYERS))
        self.norm = GemmaNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens) * math.sqrt(WIDTH)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        return LOGIT_CAP * torch.tanh(logits / LOGIT_CAP)


class OwnAttention(nn.Module):
    """One einsum over the query's heads, with the only key head broadcast; the rotation by pairs of sums."""

    def __init__(self, bugs: Bugs, window: int | None) -> None:
        super().__init__()
        self.q_proj = OwnLinear(WIDTH, HEADS * HEAD, False)
        self.k_proj = OwnLinear(WIDTH, KV_HEADS * HEAD, False)
        self.v_proj = OwnLinear(WIDTH, KV_HEADS * HEAD, False)
        self.o_proj = OwnLinear(HEADS * HEAD, WIDTH, False)
        self.bugs, self.window = bugs, window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        q = self.turn(self.q_proj(x).unflatten(-1, (HEADS, HEAD)))
        k = self.turn(self.k_proj(x).unflatten(-1, (KV_HEADS, HEAD)))[:, :, 0]
        v = self.v_proj(x)
        q = q * self.bugs.get("attention-scale", QUERY_SCALAR**-0.5)
        scores = wide(torch.einsum("bihd,bjd->bhij", q, k))
        if "softcap" not in self.bugs:
            cap = self.bugs.get("softcap-value", SCORE_CAP)
            scores = torch.tanh(scores / cap) * cap
        scores = scores + causal_bias(length, self.bugs, self.window)
        if "softcap-after-mask" in self.bugs:
            scores = torch.tanh(scores / SCORE_CAP) * SCORE_CAP
        mixed = torch.einsum("bhij,bjd->bihd", own_softmax(scores).to(x.dtype), v)
        return self.o_proj(mixed.flatten(2))

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        theta = self.bugs.get("rope-theta", THETA)
        exponents = torch.arange(HEAD // 2, dtype=torch.float64) / (HEAD // 2)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] / theta**exponents
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class OwnGELU(nn.Module):
    """The tanh form written out; or what else it was taken for."""

    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.other = bugs.get("activation")
        self.cubic = bugs.get("gelu-constant", 0.044715)
        self.approximate = bugs.get("called", "tanh")  # what it says it is, which nobody reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.other is not None:
            return self.other(x)
        h = wide(x)
        return (0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + self.cubic * h**3)))).to(x.dtype)


class OwnMLP(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.gate_proj = OwnLinear(WIDTH, HIDDEN, False)
        self.up_proj = OwnLinear(WIDTH, HIDDEN, False)
        self.act = OwnGELU(bugs)
        self.down_proj = OwnLinear(HIDDEN, WIDTH, False)
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = self.up_proj(x), self.act(self.gate_proj(x))
        return self.down_proj(gate if "missing-factor" in self.bugs else up.mul(gate))


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs, window: int | None) -> None:
        super().__init__()
        norms = {key: value for key, value in bugs.items() if key != "norm-missing"}
        self.input_norm = OwnRMSNorm(WIDTH, EPS, norms, 1.0)
        self.attn = OwnAttention(bugs, window)
        self.post_attn_norm = OwnRMSNorm(WIDTH, EPS, bugs, 1.0)
        self.pre_mlp_norm = OwnRMSNorm(WIDTH, EPS, norms, 1.0)
        self.mlp = OwnMLP(bugs)
        self.post_mlp_norm = OwnRMSNorm(WIDTH, EPS, norms, 1.0)
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.attn(self.input_norm(x))
        if "op-order" in self.bugs:  # the sum is normalised, not the branch
            x = self.post_attn_norm(x + branch)
        else:
            x = self.post_attn_norm(branch) + x
        return self.post_mlp_norm(self.mlp(self.pre_mlp_norm(x))) + x


class OwnGemma(nn.Module):
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        bugs = planted.bugs
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            OwnBlock(planted.at(layer), None if layer % 2 else WINDOW) for layer in range(LAYERS)
        )
        self.norm = OwnRMSNorm(WIDTH, EPS, {"norm-plus-one": True} if "final-plus-one" in bugs else {}, 1.0)
        self.lm_head = OwnLinear(WIDTH, VOCABULARY, False)
        self.lm_head.weight = self.embed_tokens.weight
        self.bugs = bugs

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens) * self.bugs.get("embedding-scale", math.sqrt(WIDTH))
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        if "logit-cap" in self.bugs:
            return logits
        return (logits / LOGIT_CAP).tanh() * LOGIT_CAP


def inputs() -> tuple[Any, ...]:
    return (torch.randint(0, VOCABULARY, (2, 14)),)


NETWORK = Network(Gemma, {"own": OwnGemma}, inputs, lambda: torch.randint(0, VOCABULARY, (2, 14)), sequence_loss)
