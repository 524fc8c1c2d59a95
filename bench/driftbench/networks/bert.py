"""An encoder of BERT's kind: token types, a padding mask, norms after the sums, a pooler. The candidate projects with
one matrix product for queries, keys and values and adds its mask as a large negative number."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import Bugs, Planted
from .network import Network, class_loss, wide
from .parts import OwnLayerNorm, own_softmax

VOCABULARY, WIDTH, HEADS, LAYERS, PLACES, CLASSES, EPS = 70, 40, 5, 3, 20, 4, 1e-12
HEAD = WIDTH // HEADS


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(PLACES, WIDTH)
        self.token_type = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPS)

    def forward(self, tokens: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        return self.norm(self.word(tokens) + self.position(places) + self.token_type(types))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPS)
        with torch.no_grad():
            self.query.weight.mul_(2)
            self.key.weight.mul_(2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, HEADS, HEAD).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :].bool())
        return self.norm(x + self.dense(mixed.transpose(1, 2).reshape(batch, length, WIDTH)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.intermediate = nn.Linear(WIDTH, 80)
        self.act = nn.GELU()
        self.output = nn.Linear(80, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPS)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.attention(x, mask)
        return self.norm(x + self.output(self.act(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layer = nn.ModuleList(Block() for _ in range(LAYERS))
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.tanh = nn.Tanh()
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(tokens, types)
        for layer in self.layer:
            x = layer(x, mask)
        return self.classifier(self.tanh(self.pooler(x[:, 0])))


class OwnEmbeddings(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(PLACES, WIDTH)
        self.token_type = nn.Embedding(2, WIDTH)
        self.norm = OwnLayerNorm(WIDTH, EPS, {"norm-eps": bugs["embedding-eps"]} if "embedding-eps" in bugs else {})
        self.bugs = bugs

    def forward(self, tokens: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        total = self.token_type(types)
        if "types-unused" in self.bugs:
            total = torch.zeros_like(total)
        places = torch.arange(tokens.shape[1]) + self.bugs.get("position-shift", 0)
        return self.norm(total + self.position(places) + self.word(tokens))


class OwnAttention(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm = OwnLayerNorm(WIDTH, EPS, bugs)
        self.bugs = bugs

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, HEAD)).movedim(2, 0) for part in (self.query, self.key, self.value))
        scores = wide(torch.matmul(q, k.mT)) / self.bugs.get("attention-divisor", math.sqrt(HEAD))
        hidden = (1 - mask.to(scores.dtype))[None, :, None, :]
        if "mask-missing" in self.bugs:
            hidden = hidden * 0
        if "mask-queries" in self.bugs:
            hidden = (1 - mask.to(scores.dtype))[None, :, :, None]
        weights = own_softmax(scores - self.bugs.get("mask-value", 1e30) * hidden)
        mixed = torch.matmul(weights.to(v.dtype), v)  # head, batch, token, feature
        merged = mixed.permute(1, 2, 0, 3) if "merge" not in self.bugs else mixed.permute(1, 0, 2, 3)
        branch = self.dense(merged.reshape(x.shape))
        return self.norm(branch if "missing-residual" in self.bugs else branch + x)


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.attention = OwnAttention(bugs)
        self.intermediate = nn.Linear(WIDTH, 80)
        self.act = nn.GELU(bugs.get("approximate", "none"))
        self.output = nn.Linear(80, WIDTH)
        self.norm = OwnLayerNorm(WIDTH, EPS, {})
        self.bugs = bugs

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        attended = self.attention(x, mask)
        branch = self.output(self.act(self.intermediate(attended)))
        return self.norm((x if "residual-source" in self.bugs else attended) + branch)


class OwnBert(nn.Module):
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.embeddings = OwnEmbeddings(planted.bugs)
        self.layer = nn.ModuleList(OwnBlock(planted.at(layer)) for layer in range(LAYERS))
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.tanh = nn.Identity() if "tanh-missing" in planted.bugs else nn.Tanh()
        self.classifier = nn.Linear(WIDTH, CLASSES)
        self.bugs = planted.bugs

    def forward(self, tokens: torch.Tensor, types: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(tokens, types)
        for layer in self.layer:
            x = layer(x, mask)
        return self.classifier(self.tanh(self.pooler(x[:, self.bugs.get("pooled-token", 0)])))


class FusedAttention(nn.Module):
    """Queries, keys and values from one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm = OwnLayerNorm(WIDTH, EPS, {})

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, HEAD)).permute(2, 0, 3, 1, 4)
        scores = (wide(q @ k.mT) * HEAD**-0.5).masked_fill(mask[:, None, None, :] == 0, -torch.inf)
        mixed = torch.softmax(scores, -1).to(v.dtype) @ v
        return self.norm(x + self.dense(mixed.transpose(1, 2).flatten(2)))


class FusedBert(OwnBert):
    """The candidate with fused projections; these have no counterpart."""

    def __init__(self, planted: Planted) -> None:
        super().__init__(planted)
        for layer in self.layer:
            layer.attention = FusedAttention()


def fused_names() -> dict[str, str]:
    """Every module that both have, under its one name."""
    with torch.device("meta"):  # only the names matter
        ours = {name for name, _ in Bert().named_modules() if name}
        theirs = {name for name, _ in FusedBert(Planted()).named_modules() if name}
    return {name: name for name in sorted(ours & theirs)}


def inputs() -> tuple[Any, ...]:
    """Three texts of different lengths, padded on the right, in two segments."""
    mask = (torch.arange(12) < torch.tensor([[12], [9], [5]])).long()
    types = (torch.arange(12) >= torch.tensor([[6], [4], [3]])).long() * mask
    return torch.randint(1, VOCABULARY, (3, 12)) * mask, types, mask


NETWORK = Network(
    Bert, {"own": OwnBert, "fused": FusedBert}, inputs, lambda: torch.randint(0, CLASSES, (3,)), class_loss
)
