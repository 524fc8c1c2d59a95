"""A decoder of GPT-2's kind: fused c_attn, LayerNorm, gelu_new, learned positions or ALiBi, left padding, a tied head.
The candidate computes heads one after the other and its norms by moments."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import Bugs, Planted
from .network import Network, sequence_loss, wide
from .parts import OwnLayerNorm, OwnLinear, own_softmax

VOCABULARY, WIDTH, HEADS, LAYERS, PLACES, EPS = 90, 48, 6, 3, 24, 1e-5
HEAD = WIDTH // HEADS


def slopes(heads: int) -> torch.Tensor:
    """ALiBi's slopes, of the nearest power of two, with every other one of the next for the rest."""
    power = 2 ** math.floor(math.log2(heads))
    base = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    more = [2 ** (-8 * (n + 1) / (2 * power)) for n in range(0, 2 * (heads - power), 2)]
    return torch.tensor(base + more)


class Attention(nn.Module):
    def __init__(self, alibi: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.alibi = alibi
        with torch.no_grad():
            self.c_attn.weight.mul_(2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.c_attn(x).split(WIDTH, -1)
        q, k, v = (part.view(batch, length, HEADS, HEAD).transpose(1, 2) for part in (q, k, v))
        seen = torch.ones(length, length, dtype=torch.bool).tril() & mask[:, None, None, :].bool()
        seen |= torch.eye(length, dtype=torch.bool)  # padding sees at least itself
        bias = torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)
        if self.alibi:
            distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
            bias = bias + (slopes(HEADS)[:, None, None] * distance).to(x.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.drop(self.c_proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH)))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU("tanh")
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, alibi: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH, EPS)
        self.attn = Attention(alibi)
        self.ln_2 = nn.LayerNorm(WIDTH, EPS)
        self.mlp = MLP()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, alibi: bool) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = None if alibi else nn.Embedding(PLACES, WIDTH)
        self.h = nn.ModuleList(Block(alibi) for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH, EPS)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)
        if self.wpe is not None:
            nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe((mask.cumsum(-1) - 1).clamp(min=0))
        for block in self.h:
            x = block(x, mask)
        return self.lm_head(self.ln_f(x))


class OwnDropout(nn.Module):
    """A mask drawn by hand."""

    def __init__(self, rate: float, bugs: Bugs) -> None:
        super().__init__()
        self.rate, self.always = rate, "dropout-active" in bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and not self.always:
            return x
        return x * torch.empty_like(x).bernoulli_(1 - self.rate).div_(1 - self.rate)


class OwnAttention(nn.Module):
    """Head after head, each a product of small matrices."""

    def __init__(self, bugs: Bugs, alibi: bool) -> None:
        super().__init__()
        self.c_attn = OwnLinear(WIDTH, 3 * WIDTH, skip_bias="bias-dropped" in bugs)
        self.c_proj = OwnLinear(WIDTH, WIDTH)
        self.drop = OwnDropout(0.1, bugs)
        self.bugs, self.alibi = bugs, alibi

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        fused = self.c_attn(x)
        order = self.bugs.get("qkv-order", (0, 1, 2))
        if "qkv-per-head" in self.bugs:  # read as (head, 3, feature)
            q, k, v = fused.unflatten(-1, (HEADS, 3, HEAD)).unbind(-2)
        else:
            parts = fused.unflatten(-1, (3, HEADS, HEAD))
            q, k, v = (parts[..., index, :, :] for index in order)
        heads = [self.one(q[..., h, :], k[..., h, :], v[..., h, :], mask, h) for h in range(HEADS)]
        if "heads-reversed" in self.bugs:
            heads.reverse()
        return self.drop(self.c_proj(torch.cat(heads, -1)))

    def one(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, head: int) -> torch.Tensor:
        length = q.shape[1]
        scores = wide(q @ k.mT) * self.bugs.get("attention-scale", HEAD**-0.5)
        ahead = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        if self.alibi:
            places = torch.arange(length) if "alibi-absolute" in self.bugs else ahead  # each row is free of a constant
            scores = scores + self.slope(head) * places
        seen = ahead <= self.bugs.get("mask-off-by-one", 0)
        if "mask-missing" in self.bugs:
            seen = torch.ones_like(seen)
        seen = seen if "padding-ignored" in self.bugs else seen & mask[:, None, :].bool() | (ahead == 0)
        scores = scores + torch.zeros_like(scores).masked_fill(~seen, torch.finfo(scores.dtype).min)
        return own_softmax(scores).to(v.dtype) @ v

    def slope(self, head: int) -> float:
        if "alibi-geometric" in self.bugs:  # as if the number of heads were a power of two
            return 2 ** (-8 * (head + 1) / HEADS)
        if "alibi-exponent" in self.bugs:
            return float(slopes(HEADS)[head]) * 2 ** (8 / 4)
        return float(slopes(HEADS)[head])


class OwnGELU(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.other = bugs.get("activation")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.other is not None:
            return self.other(x)
        h = wide(x)
        return (h * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (h + 0.044715 * h.pow(3)))).to(x.dtype)


class OwnMLP(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.c_fc = OwnLinear(WIDTH, 4 * WIDTH)
        self.act = OwnGELU(bugs)
        self.c_proj = OwnLinear(4 * WIDTH, WIDTH, skip_bias="mlp-bias-dropped" in bugs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs, alibi: bool) -> None:
        super().__init__()
        self.ln_1 = OwnLayerNorm(WIDTH, EPS, bugs)
        self.attn = OwnAttention(bugs, alibi)
        self.ln_2 = OwnLayerNorm(WIDTH, EPS, {})
        self.mlp = OwnMLP(bugs)
        self.bugs = bugs

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        branch = self.attn(self.ln_1(x), mask)
        if "parallel" in self.bugs:  # the MLP reads the block's input, as GPT-J's does
            return x + branch + self.mlp(self.ln_2(x))
        x = branch + x
        return self.mlp(self.ln_2(x)) + x


class OneSidedHead(OwnLinear):
    """Sends no gradient to its matrix, which then has only the embedding's share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight.detach())


class OwnGPT2(nn.Module):
    def __init__(self, planted: Planted, alibi: bool) -> None:
        super().__init__()
        self.bugs = planted.bugs
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = None if alibi else nn.Embedding(PLACES, WIDTH)
        self.h = nn.ModuleList(OwnBlock(planted.at(layer), alibi) for layer in range(LAYERS))
        self.ln_f = OwnLayerNorm(WIDTH, EPS, {})
        head = OneSidedHead if "tied-gradient" in self.bugs else OwnLinear
        self.lm_head = head(WIDTH, VOCABULARY, False)
        if "untied-head" not in self.bugs:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        if self.wpe is not None:
            places = (torch.cumsum(mask, -1) - 1).relu() + self.bugs.get("position-shift", 0)
            if "positions-ignore-padding" in self.bugs:
                places = torch.arange(tokens.shape[1]).expand_as(tokens)
            learned = self.wpe(places)
            x = x if "positions-unused" in self.bugs else learned + x
        for block in self.h:
            x = block(x, mask)
        return self.lm_head(self.ln_f(x))


def inputs() -> tuple[Any, ...]:
    """The second text is shorter and padded on the left."""
    mask = torch.ones(2, 15, dtype=torch.long)
    mask[1, :4] = 0
    return torch.randint(0, VOCABULARY, (2, 15)), mask


NETWORK = Network(
    GPT2, {"own": OwnGPT2}, inputs, lambda: torch.randint(0, VOCABULARY, (2, 15)), sequence_loss, {"alibi": False}
)
