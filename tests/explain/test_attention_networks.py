"""Bugs of attention, positions and experts in whole networks of other styles than any benchmark's, found and named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import firstdrift as fd

WIDTH, TOKENS = 32, 18


class Scores(nn.Module):
    """Attention with a softcap and a window, by einsum, of a fused projection that has heads inside."""

    def __init__(self, cap: float | None = 6.0, window: int | None = 7, ahead: int = 0, scale: float = 0.4) -> None:
        super().__init__()
        self.Wqkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out_proj = nn.Linear(WIDTH, WIDTH)
        self.cap, self.window, self.ahead, self.scale = cap, window, ahead, scale
        with torch.no_grad():
            self.Wqkv.weight.mul_(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.Wqkv(x).unflatten(-1, (3, 2, WIDTH // 2)).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        seen = distance >= -self.ahead
        if self.window is not None:
            seen = seen & (distance < self.window)
        scores = scores.masked_fill(~seen, -math.inf)
        return self.out_proj(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))


class Kernel(nn.Module):
    """A core without weights, which is handed heads before tokens."""

    def __init__(self, scale: float = 8**-0.5, causal: bool = True) -> None:
        super().__init__()
        self.scale, self.causal = scale, causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)


class Cored(nn.Module):
    def __init__(self, **core: Any) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.core = Kernel(**core)
        self.to_out = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            self.to_q.weight.mul_(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (4, 8)).transpose(1, 2) for part in (self.to_q, self.to_k, self.to_v))
        return self.to_out(self.core(q, k, v).transpose(1, 2).flatten(2))


class Padded(nn.Module):
    """Right padding; a padded query sees itself in any case."""

    def __init__(self, ignored: bool = False, order: tuple[int, ...] = (0, 1, 2)) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ignored, self.order = ignored, order
        with torch.no_grad():
            self.qkv.weight.mul_(2)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (parts[i].unflatten(-1, (4, 8)).transpose(1, 2) for i in self.order)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if not self.ignored:
            seen = seen & attention_mask[:, None, None].bool() | torch.eye(x.shape[1], dtype=torch.bool)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class Picture(nn.Module):
    """Patches of a convolution with a class token, and positions resized with a cubic."""

    def __init__(self, mode: str = "bicubic", last: bool = False, moved: int = 0) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.position_embedding = nn.Parameter(torch.randn(1, 10, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.mode, self.last, self.moved = mode, last, moved

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).mT
        first, grid = self.position_embedding[:, :1], self.position_embedding[:, 1:]
        grid = F.interpolate(grid.unflatten(1, (3, 3)).permute(0, 3, 1, 2), size=(5, 5), mode=self.mode)
        token = self.cls.expand(len(x), -1, -1)
        x = torch.cat((x, token) if self.last else (token, x), 1)
        return self.norm(x + torch.cat((first, grid.flatten(2).mT), 1).roll(-self.moved, 1))


class Experts(nn.Module):
    """Matrices as (expert, in, out), gate and up in turns, weights of all experts."""

    def __init__(self, shift: int = 0, halves: bool = False, weighed: bool = True) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 5, bias=False)
        self.bank = Bank(shift, halves, weighed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = (3 * self.router(x)).softmax(-1).topk(2, -1)
        return self.bank(x, torch.zeros(*x.shape[:-1], 5, dtype=x.dtype).scatter(-1, chosen, best))


class Bank(nn.Module):
    def __init__(self, shift: int, halves: bool, weighed: bool) -> None:
        super().__init__()
        self.up = nn.Parameter(0.3 * torch.randn(5, WIDTH, 40))
        self.down = nn.Parameter(0.3 * torch.randn(5, 20, WIDTH))
        self.shift, self.halves, self.weighed = shift, halves, weighed

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if not self.weighed:
            weights = (weights > 0).to(x.dtype)
        inner = torch.einsum("btw,ewi->btei", x, self.up.roll(-self.shift, 0))
        a, b = inner.chunk(2, -1) if self.halves else (inner[..., ::2], inner[..., 1::2])
        each = torch.einsum("btei,eiw->btew", F.gelu(a) * b, self.down.roll(-self.shift, 0))
        return (each * weights[..., None]).sum(-2)


class Tables(nn.Module):
    """Sines and cosines of positions that are handed over, far into a text."""

    def __init__(self, scaled: bool = True, coarse: bool = False) -> None:
        super().__init__()
        self.scaled, self.coarse = scaled, coarse

    def forward(self, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rates = 5e4 ** (-torch.arange(0, 12, 2, dtype=torch.float64) / 12)
        if self.scaled:
            rates = torch.where(rates < 0.05, rates / 4, rates)
        places = position_ids.to(torch.bfloat16).double() if self.coarse else position_ids.double()
        angles = places[:, None] * rates
        return angles.cos().float(), angles.sin().float()


class Scaled(nn.Module):
    def __init__(self, factor: float = 5.0) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 8)
        self.factor = factor

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens) * self.factor)


def hidden() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, TOKENS, WIDTH),)


def padded() -> tuple[torch.Tensor, ...]:
    mask = torch.ones(3, TOKENS, dtype=torch.long)
    mask[1, 12:] = 0
    return torch.randn(3, TOKENS, WIDTH), mask


def pictures() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, 20, 20),)


def places() -> tuple[torch.Tensor, ...]:
    return (torch.arange(3001, 3001 + TOKENS),)


def words() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 50, (2, TOKENS)),)


BUGS = [
    ("softcap", Scores, {}, {"cap": None}, hidden),
    ("softcap", Scores, {"window": None}, {"window": None, "cap": None}, hidden),
    ("window-off-by-one", Scores, {}, {"window": 8}, hidden),
    ("window-off-by-one", Scores, {"cap": None}, {"cap": None, "window": 6}, hidden),
    ("mask-missing", Scores, {}, {"window": None}, hidden),
    ("attention-scale", Scores, {}, {"scale": 0.25}, hidden),
    ("mask-off-by-one", Scores, {"window": None}, {"window": None, "ahead": 1}, hidden),
    ("attention-scale", Cored, {}, {"scale": 32**-0.5}, hidden),
    ("mask-missing", Cored, {}, {"causal": False}, hidden),
    ("mask-missing", Padded, {}, {"ignored": True}, padded),
    ("qkv-order", Padded, {}, {"order": (0, 2, 1)}, padded),
    ("interpolation", Picture, {}, {"mode": "bilinear"}, pictures),
    ("concat-order", Picture, {}, {"last": True}, pictures),
    ("interleave", Experts, {}, {"halves": True}, hidden),
    ("changed-call", Experts, {}, {"weighed": False}, hidden),
    ("scale", Scaled, {}, {"factor": 1.0}, words),
]


def both(kind: type[nn.Module], usual: dict[str, Any], wrong: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    reference, candidate = kind(**usual).eval(), kind(**wrong).eval()
    candidate.load_state_dict(reference.state_dict())
    return reference, candidate


@pytest.mark.parametrize(("label", "kind", "usual", "wrong", "inputs"), BUGS)
def test_one_bug_is_named_with_both_models_at_hand(
    label: str, kind: type[nn.Module], usual: dict[str, Any], wrong: dict[str, Any], inputs: Any
) -> None:
    reference, candidate = both(kind, usual, wrong)
    result = fd.check(reference=reference, candidate=candidate, inputs=inputs())
    assert result.first_drift is not None
    assert result.first_drift.cause is not None
    assert result.first_drift.cause.label == label, result.sentence


@pytest.mark.parametrize(("label", "kind", "usual", "wrong", "inputs"), BUGS)
def test_one_bug_is_named_from_two_traces(
    tmp_path: Path, label: str, kind: type[nn.Module], usual: dict[str, Any], wrong: dict[str, Any], inputs: Any
) -> None:
    models, given = both(kind, usual, wrong), inputs()
    for model, name in zip(models, ("reference", "candidate"), strict=True):
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(*given)
    result = fd.diff(tmp_path / "reference", tmp_path / "candidate")
    assert result.first_drift is not None
    assert result.first_drift.cause is not None
    assert result.first_drift.cause.label == label, result.sentence
