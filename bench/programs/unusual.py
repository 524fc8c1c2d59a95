"""Networks written by hand whose tensors or control flow are unusual: routed by data, random, complex, sparse."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils import parametrizations

from .network import Network, adamw, draw_of, infers, normal, sgd, tokens, trains

WIDTH, CLASSES = 16, 5


def class_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return F.cross_entropy(model(normal(draw, 6, 8, WIDTH)), torch.randint(CLASSES, (6,), generator=draw))


class Router(nn.Module):
    """Experts by hand: how many run, on which rows and how deep depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        shares, chosen = self.gate(rows).softmax(-1).topk(2)
        mixed = torch.zeros_like(rows)
        for number, count in enumerate(torch.bincount(chosen.flatten(), minlength=4).tolist()):
            if count == 0:
                continue
            row, place = torch.nonzero(chosen == number, as_tuple=True)
            out = self.experts[number](rows.index_select(0, row)) * shares[row, place, None]
            mixed = mixed.index_add(0, row, out)
        calls = 0
        while mixed.norm(dim=-1).max().item() > 1.5 and calls < 3:
            mixed, calls = self.norm(mixed) * 0.4, calls + 1
        return self.head(mixed.view_as(x).amax(1))


class Halting(nn.Module):
    """Searches a fixed point until it stands still, and differentiates it there, in a hook of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))  # a contraction, so that there is one
        self.outer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.outer(x.mean(1))
        with torch.no_grad(), torch.nn.utils.parametrize.cached():
            state = self._solve(lambda z: torch.tanh(0.8 * self.inner(z) + given), torch.zeros_like(given))
        state = torch.tanh(0.8 * self.inner(state) + given)
        if self.training:
            start = state.detach().requires_grad_()
            once = torch.tanh(0.8 * self.inner(start) + given.detach())

            def implicit(grad: torch.Tensor) -> torch.Tensor:
                return self._solve(lambda g: torch.autograd.grad(once, start, g, retain_graph=True)[0] + grad, grad)

            state.register_hook(implicit)
        return self.head(state)

    @staticmethod
    def _solve(once: Any, state: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            new = once(state)
            if torch.allclose(new, state, atol=1e-3):
                return new
            state = new
        return state


class Random(nn.Module):
    """Chance of every kind: dropped features and channels, noise, choices with and without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.act = nn.RReLU()
        self.channels = nn.Dropout1d(0.2)
        self.alpha = nn.AlphaDropout(0.1)
        self.choice = nn.Linear(WIDTH, 3)
        self.branches = nn.Parameter(torch.randn(3, WIDTH, WIDTH) * 0.2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.act(self.layer(x)), 0.3, self.training)
        h = self.alpha(self.channels(h)) + 0.1 * torch.randn_like(h)
        h = h * torch.bernoulli(torch.full_like(h[..., :1], 0.9)) + torch.empty_like(h).uniform_(-0.1, 0.1)
        hard = F.gumbel_softmax(self.choice(h), tau=0.7, hard=True)
        h = torch.einsum("blc,blk,kcd->bld", h, hard, self.branches)
        kept = torch.multinomial(h.detach().abs().sum(-1), 4)
        h = h.gather(1, kept[..., None].expand(-1, -1, WIDTH))[:, torch.randperm(4)]
        walk = torch.poisson(torch.ones(4)) + torch.normal(0.0, torch.ones(4)).exponential_()
        return self.head((h * walk[:, None]).mean(1))


class Spectral(nn.Module):
    """A mixer of frequencies with complex weights, a window of short transforms and phases."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, WIDTH, dtype=torch.complex64) * 0.2 + 1)
        self.turn = nn.Parameter(torch.zeros(WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(2 * WIDTH, CLASSES)
        self.register_buffer("window", torch.hann_window(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.fft.irfft(torch.fft.rfft(x, dim=1) * self.filter, n=x.shape[1], dim=1)
        h = self.norm(x + h + torch.fft.fft2(x).real)
        phase = torch.polar(torch.ones_like(self.turn), self.turn)
        turned = torch.view_as_real(torch.complex(h, h.flip(1)) * phase.conj()).flatten(-2)
        short = torch.stft(h.transpose(1, 2).flatten(1), 8, 4, window=self.window, return_complex=True)
        level = torch.log1p(short.abs().square()).mean((1, 2))
        return self.head(turned.mean(1) * level[:, None]) + short.imag.mean()


class Graph(nn.Module):
    """Messages along edges: sums, maxima and softmaxes over neighbours, whose number differs."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(2 * WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1)
        self.head = nn.Linear(3 * WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        message = F.elu(self.message(torch.cat([x[source], x[target]], -1)))
        score = self.score(message).squeeze(-1)
        top = torch.full((x.shape[0],), float("-inf")).scatter_reduce(0, target, score, "amax")
        weight = torch.exp(score - top[target])
        total = torch.zeros_like(top).index_add(0, target, weight)
        summed = torch.zeros_like(x).index_add(0, target, message * (weight / total[target])[:, None])
        index = target[:, None].expand_as(message)
        largest = torch.zeros_like(x).scatter_reduce(0, index, message, "amax", include_self=False)
        return self.head(torch.cat([x, summed, largest], -1))


def graph_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    """Edges drawn anew and each kept once, so that their number changes from step to step."""
    edges = torch.unique(torch.randint(12, (2, 40), generator=draw), dim=1)
    edges = edges[:, edges[0] != edges[1]]
    return F.cross_entropy(model(normal(draw, 12, WIDTH), edges), torch.randint(CLASSES, (12,), generator=draw))


class Tied(nn.Module):
    """One matrix for reading and writing words, layers whose weights are computed from others."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, WIDTH, max_norm=3.0)  # rows are shortened in place as they are read
        self.first = parametrizations.weight_norm(nn.Linear(WIDTH, 24))
        self.second = parametrizations.spectral_norm(nn.Linear(24, WIDTH))
        self.turn = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH, bias=False))
        self.head = nn.Linear(WIDTH, 97, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.head(self.turn(self.second(F.mish(self.first(self.embed(text))))))


def next_word_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    text = tokens(draw, 4, 9)
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


class Bags(nn.Module):
    """Sparse gradients of embeddings. They are sparse tensors, without strides or one storage: what makes them and what
    SparseAdam does with them cannot be replayed from plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(97, WIDTH, sparse=True)
        self.bags = nn.EmbeddingBag(97, WIDTH, mode="sum", sparse=True)

    def forward(self, text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return (self.words(text[starts]) * self.bags(text, starts)).sum(-1)


def bags_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    wanted = torch.rand(3, generator=draw).round()
    return F.binary_cross_entropy_with_logits(model(tokens(draw, 14), torch.tensor([0, 5, 9])), wanted)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2).eval()


def padded_encoder_step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """With padding the fast path goes through nested tensors, which have no plain strides either."""
    draw = draw_of(model)
    padding = torch.arange(8) >= torch.tensor([[8], [5], [3]])
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
        model(normal(draw, 3, 8, WIDTH), src_key_padding_mask=padding)


UNUSUAL = (
    Network("router", Router, trains(class_loss), adamw()),
    Network("fixed-point", Halting, trains(class_loss), sgd(momentum=0.9)),
    Network("random", Random, trains(class_loss), lambda model: torch.optim.Adagrad(model.parameters())),
    Network("spectral-complex", Spectral, trains(class_loss), adamw(lr=1e-2)),
    Network("graph", Graph, trains(graph_loss), adamw()),
    Network("tied-parametrized", Tied, trains(next_word_loss), adamw()),
    Network("sparse-embedding", Bags, trains(bags_loss), lambda model: torch.optim.SparseAdam(model.parameters())),
    Network("encoder-fast-path", encoder, infers(lambda model, draw: model(normal(draw, 3, 8, WIDTH)))),
    Network("encoder-nested", encoder, padded_encoder_step),
)
