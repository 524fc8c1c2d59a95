"""A decoder with experts: RoPE as a module on part of the head, norms of queries and keys, a top-k router, packed gate
and up projections, a shared expert. The candidate gathers tokens by expert."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import Bugs, Planted
from .network import Network, sequence_loss, wide
from .parts import OwnLinear, OwnRMSNorm, causal_bias, own_softmax

VOCABULARY, WIDTH, HEADS, HEAD, ROTARY, LAYERS, EXPERTS, TOP, HIDDEN = 70, 40, 4, 16, 8, 3, 6, 2, 24
EPS, THETA = 1e-6, 1e4


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = EPS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = wide(x)
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Rope(nn.Module):
    """Turns the first dimensions of each head; the rest passes."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = THETA ** (-torch.arange(0, ROTARY, 2, dtype=torch.float64) / ROTARY)
        angles = torch.outer(torch.arange(q.shape[1], dtype=torch.float64), frequencies).repeat(1, 2)[:, None]
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        return self.turn(q, cos, sin), self.turn(k, cos, sin)

    @staticmethod
    def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned, passed = x[..., :ROTARY], x[..., ROTARY:]
        a, b = turned.chunk(2, -1)
        return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, passed), -1)


class Core(nn.Module):
    """Causal attention of heads on axis 2."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k_proj = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.v_proj = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.q_norm = RMSNorm(HEAD)
        self.k_norm = RMSNorm(HEAD)
        self.rope = Rope()
        self.core = Core()
        self.o_proj = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q_norm(self.q_proj(x).unflatten(-1, (HEADS, HEAD)))
        k = self.k_norm(self.k_proj(x).unflatten(-1, (HEADS, HEAD)))
        v = self.v_proj(x).unflatten(-1, (HEADS, HEAD))
        return self.o_proj(self.core(*self.rope(q, k), v).flatten(2))


class Router(nn.Module):
    """Gives the weights of the chosen experts and which they are."""

    def __init__(self, renormalise: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.renormalise = renormalise
        with torch.no_grad():
            self.gate.weight.mul_(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = wide(self.gate(x)).softmax(-1).topk(TOP, -1)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), chosen


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """Every expert's product with its weight, which is zero where it was not chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(0.2 * torch.randn(EXPERTS, 2 * HIDDEN, WIDTH))
        self.down = nn.Parameter(0.2 * torch.randn(EXPERTS, WIDTH, HIDDEN))

    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for expert in range(EXPERTS):
            gate, up = (x @ self.gate_up[expert].T).chunk(2, -1)
            share = (weights * (chosen == expert)).sum(-1, keepdim=True)
            total = total + share * ((F.silu(gate) * up) @ self.down[expert].T)
        return total


class Mixture(nn.Module):
    def __init__(self, renormalise: bool) -> None:
        super().__init__()
        self.router = Router(renormalise)
        self.experts = Experts()
        self.shared = Expert()
        self.shared_gate = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.experts(x, *self.router(x))
        return mixed + torch.sigmoid(self.shared_gate(x)) * self.shared(x)


class Block(nn.Module):
    def __init__(self, renormalise: bool) -> None:
        super().__init__()
        self.input_norm = RMSNorm(WIDTH)
        self.attn = Attention()
        self.post_norm = RMSNorm(WIDTH)
        self.mlp = Mixture(renormalise)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class MoE(nn.Module):
    def __init__(self, renormalise: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(renormalise) for _ in range(LAYERS))
        self.norm = RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class OwnRope(nn.Module):
    """Pairs as sums of products, written into place."""

    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.bugs = bugs
        self.turned = HEAD if "rope-whole" in bugs else ROTARY

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shift = self.bugs.get("query-shift", 0)
        return self.turn(q, shift), self.turn(k, 0)

    def turn(self, x: torch.Tensor, shift: int) -> torch.Tensor:
        half = self.turned // 2
        span = HEAD if "rope-exponent" in self.bugs else self.turned
        theta = self.bugs.get("rope-theta", THETA)
        places = torch.arange(x.shape[1], dtype=torch.float64) + shift
        angles = torch.einsum("s,f->sf", places, theta ** (-2 * torch.arange(half, dtype=torch.float64) / span))
        cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
        if "rope-interleave" in self.bugs:
            a, b = x[..., 0 : self.turned : 2], x[..., 1 : self.turned : 2]
            pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
            return torch.cat((pairs, x[..., self.turned :]), -1)
        a, b = x[..., :half], x[..., half : self.turned]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., self.turned :]), -1)


class OwnCore(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = wide(torch.einsum("bihd,bjhd->bhij", q, k)) * self.bugs.get("attention-scale", HEAD**-0.5)
        scores = scores + causal_bias(q.shape[1], self.bugs)
        if "sink" in self.bugs:  # a key of score zero that nobody asked for
            scores = torch.cat((scores, torch.zeros_like(scores[..., :1])), -1)
            return torch.einsum("bhij,bjhd->bihd", own_softmax(scores)[..., :-1].to(q.dtype), v)
        return torch.einsum("bhij,bjhd->bihd", own_softmax(scores).to(q.dtype), v)


class OwnHeadNorm(OwnRMSNorm):
    """A norm of each head; or, wrongly, of all heads together."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "norm-all-heads" in self.bugs:
            h = wide(x)
            root = (h.square().mean((-2, -1), keepdim=True) + self.eps).sqrt()
            return (h / root * self.weight).to(x.dtype)
        return super().forward(x)


class OwnAttention(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.q_proj = OwnLinear(WIDTH, HEADS * HEAD, False)
        self.k_proj = OwnLinear(WIDTH, HEADS * HEAD, False)
        self.v_proj = OwnLinear(WIDTH, HEADS * HEAD, False)
        heads = {key: value for key, value in bugs.items() if key == "norm-all-heads"}
        self.q_norm = OwnHeadNorm(HEAD, bugs.get("head-norm-eps", EPS), heads)
        self.k_norm = OwnHeadNorm(HEAD, bugs.get("head-norm-eps", EPS), heads)
        self.rope = OwnRope(bugs)
        self.core = OwnCore(bugs)
        self.o_proj = OwnLinear(HEADS * HEAD, WIDTH, False)
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = self.v_proj(x).unflatten(-1, (HEADS, HEAD))
        q = self.q_proj(x).unflatten(-1, (HEADS, HEAD))
        k = self.k_proj(x).unflatten(-1, (HEADS, HEAD))
        if "norm-after-rope" in self.bugs:  # the same, where the gains are one
            q, k = self.rope(q, k)
            q, k = self.q_norm(q), self.k_norm(k)
            return self.o_proj(self.core(q, k, v).flatten(2))
        if "head-norms-unused" not in self.bugs:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rope(q, k)
        return self.o_proj(self.core(q, k, v).flatten(2))


class OwnRouter(nn.Module):
    """Chooses by logits first, as the softmax does not change the order."""

    def __init__(self, bugs: Bugs, renormalise: bool) -> None:
        super().__init__()
        self.gate = OwnLinear(WIDTH, EXPERTS, False)
        self.bugs, self.renormalise = bugs, renormalise

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = wide(self.gate(x))
        best, chosen = torch.sort(logits, dim=-1, descending=True, stable=True)
        best, chosen = best[..., :TOP], chosen[..., :TOP]
        renormalise = not self.renormalise if "router-renorm" in self.bugs else self.renormalise
        if "raw-logits" in self.bugs:
            return best.to(x.dtype), chosen
        if "sigmoid" in self.bugs:
            weights = torch.sigmoid(best)
            return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), chosen
        if renormalise:
            return own_softmax(best).to(x.dtype), chosen
        total = torch.logsumexp(logits, -1, keepdim=True)
        return torch.exp(best - total).to(x.dtype), chosen


class OwnExpert(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.gate_up = OwnLinear(WIDTH, 2 * HIDDEN, False)
        self.down = OwnLinear(HIDDEN, WIDTH, False)
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).split(HIDDEN, -1)
        if "packing-interleaved" in self.bugs:
            gate, up = self.gate_up(x).unflatten(-1, (HIDDEN, 2)).unbind(-1)
        if "halves-swapped" in self.bugs:
            gate, up = up, gate
        if "clamped" in self.bugs:
            gate, up = gate.clamp(max=self.bugs["clamped"]), up.clamp(-self.bugs["clamped"], self.bugs["clamped"])
        return self.down((wide(gate) * torch.sigmoid(wide(gate))).to(x.dtype) * up)


class OwnExperts(nn.Module):
    """Tokens are gathered by expert, and their results scattered back."""

    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(EXPERTS, 2 * HIDDEN, WIDTH))
        self.down = nn.Parameter(torch.empty(EXPERTS, WIDTH, HIDDEN))
        self.bugs = bugs

    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        total = torch.zeros_like(tokens)
        for expert in range(EXPERTS):
            rows, place = torch.nonzero(chosen.flatten(0, 1) == expert, as_tuple=True)
            used = (expert + 1) % EXPERTS if "expert-shift" in self.bugs else expert
            inner = tokens[rows] @ self.gate_up[used].T
            gate, up = inner[:, :HIDDEN], inner[:, HIDDEN:]
            result = (F.silu(gate) * up) @ self.down[used].T
            share = weights.flatten(0, 1)[rows, place][:, None]
            if "weights-unused" in self.bugs:
                share = torch.ones_like(share)
            if "empty-capacity" in self.bugs:  # no expert takes more tokens than this
                kept = self.bugs["empty-capacity"]
                rows, result, share = rows[:kept], result[:kept], share[:kept]
            total = total.index_add(0, rows, share * result)
        return total.view_as(x)


class OwnMixture(nn.Module):
    def __init__(self, bugs: Bugs, renormalise: bool) -> None:
        super().__init__()
        self.router = OwnRouter(bugs, renormalise)
        self.experts = OwnExperts(bugs)
        self.shared = OwnExpert(bugs)
        self.shared_gate = OwnLinear(WIDTH, 1, False)
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared = self.shared(x)
        gate = self.shared_gate(x)
        shared = shared if "shared-gate-unused" in self.bugs else shared * gate.sigmoid()
        mixed = self.experts(x, *self.router(x))
        if "shared-unused" in self.bugs:
            return mixed
        if "scaled" in self.bugs:
            mixed = mixed * self.bugs["scaled"]
        return shared + mixed


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs, renormalise: bool) -> None:
        super().__init__()
        self.input_norm = OwnRMSNorm(WIDTH, EPS, bugs)
        self.attn = OwnAttention(bugs)
        self.post_norm = OwnRMSNorm(WIDTH, EPS, {})
        self.mlp = OwnMixture(bugs, renormalise)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attn(self.input_norm(x)) + x
        return self.mlp(self.post_norm(x)) + x


class OwnMoE(nn.Module):
    def __init__(self, planted: Planted, renormalise: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(OwnBlock(planted.at(layer), renormalise) for layer in range(LAYERS))
        self.norm = OwnRMSNorm(WIDTH, EPS, {})
        self.lm_head = OwnLinear(WIDTH, VOCABULARY, False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def names_without(*parts: str) -> dict[str, str]:
    """All modules under their own names, but for those whose path ends with one of these."""
    with torch.device("meta"):  # only the names matter
        model = MoE(True)
    return {name: name for name, _ in model.named_modules() if name and name.rpartition(".")[2] not in parts}


def inputs() -> tuple[Any, ...]:
    return (torch.randint(0, VOCABULARY, (2, 13)),)


NETWORK = Network(
    MoE, {"own": OwnMoE}, inputs, lambda: torch.randint(0, VOCABULARY, (2, 13)), sequence_loss, {"renormalise": True}
)
