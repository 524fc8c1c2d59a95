"""Attentions that are more than a softmax of scaled products: one bug in each is found and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import firstdrift as fd

WIDTH, HEADS, CHANNELS, TOKENS = 48, 6, 8, 15
EARLIER = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


def turned(
    x: torch.Tensor,
    theta: float,
    pairing: str = "half",
    dims: int | None = None,
    over: int | None = None,
    apart: int = 0,
) -> torch.Tensor:
    """x (batch, heads, tokens, channels); `apart` are the channels between those of a pair."""
    dims = dims or x.shape[-1]
    rates = theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / (over or dims))
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    out, step = x.clone(), apart or dims // 2
    if pairing == "half":
        first, second = slice(0, dims // 2), slice(step, step + dims // 2)
    else:
        first, second = slice(0, dims, 2), slice(1, dims, 2)
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def projected(heads: int, gain: float = 2.0) -> nn.Linear:
    made = nn.Linear(WIDTH, heads * CHANNELS, bias=False)
    with torch.no_grad():
        made.weight.mul_(gain)
    return made


def mixed(scores: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None = EARLIER) -> torch.Tensor:
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Capped(nn.Module):
    """A factor on the scores that no width gives, and a softcap; few key heads."""

    def __init__(
        self,
        cap: float | None = 2.3,
        factor: float = 0.29,
        kv: int = 1,
        theta: float | None = 1e4,
        pairing: str = "half",
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = projected(HEADS), projected(kv), projected(kv), nn.Linear(WIDTH, WIDTH)
        self.settings = cap, factor, kv, theta, pairing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limit, factor, kv, theta, pairing = self.settings
        q, k, v = (part(x).unflatten(-1, (-1, CHANNELS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if theta is not None:
            q, k = turned(q, theta, pairing), turned(k, theta, pairing)
        k, v = (part.repeat_interleave(HEADS // kv, 1) for part in (k, v))
        scores = factor * q @ k.mT
        return self.out(mixed(scores if limit is None else limit * torch.tanh(scores / limit), v))


class Normed(nn.Module):
    """Queries and keys are normalised by modules, of which a candidate may make no use."""

    def __init__(
        self, used: str = "modules", sides: str = "qk", kind: str = "rms", late: bool = False, fused: bool = False,
        scale: float = CHANNELS**-0.5, over: str = "head", theta: float = 1e4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.fused, self.used, self.sides, self.late, self.scale, self.over = fused, used, sides, late, scale, over
        self.theta = theta
        parts = {"qkv": 3} if fused else {"q_proj": 1, "k_proj": 1, "v_proj": 1}
        for name, times in parts.items():
            self.add_module(name, projected(times * HEADS))
        width = CHANNELS if over in ("head", "all") else WIDTH
        self.q_norm, self.k_norm = (
            nn.RMSNorm(width, eps=1e-5) if kind == "rms" else nn.LayerNorm(width) for _ in range(2)
        )
        self.o_proj = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            for parameter in (*self.q_norm.parameters(), *self.k_norm.parameters()):
                parameter.add_(0.3 * torch.randn(width))

    def normed(self, x: torch.Tensor, side: str) -> torch.Tensor:
        norm = self.q_norm if side == "q" else self.k_norm
        if side not in self.sides:
            return x
        if self.used == "modules":
            return norm(x) if self.over == "head" else norm(x.transpose(1, 2).flatten(2)).unflatten(
                -1, (HEADS, CHANNELS)).transpose(1, 2)  # fmt: skip
        if self.over == "all":
            size = x.pow(2).mean((1, 3), keepdim=True).add(1e-5).sqrt()
            return x / size * norm.weight
        if self.over == "each":  # of a norm of all heads
            size = x.pow(2).mean(-1, keepdim=True).add(1e-5).sqrt()
            return x / size * norm.weight.unflatten(0, (HEADS, 1, CHANNELS))
        if isinstance(norm, nn.LayerNorm):
            return F.layer_norm(x, (CHANNELS,), norm.weight, norm.bias)
        return x / x.pow(2).mean(-1, keepdim=True).add(1e-5).sqrt() * norm.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused:
            parts = self.qkv(x).unflatten(-1, (HEADS, 3, CHANNELS)).unbind(3)
        else:
            parts = [part(x).unflatten(-1, (HEADS, CHANNELS)) for part in (self.q_proj, self.k_proj, self.v_proj)]
        q, k, v = (part.transpose(1, 2) for part in parts)
        if not self.late:
            q, k = self.normed(q, "q"), self.normed(k, "k")
        q, k = turned(q, self.theta), turned(k, self.theta)
        if self.late:
            q, k = self.normed(q, "q"), self.normed(k, "k")
        return self.o_proj(mixed(self.scale * q @ k.mT, v))


class SomeHeads(nn.Module):
    """A change that is made in some heads only."""

    def __init__(self, heads: tuple[int, ...] = (), kind: str = "", kv: int = 3) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = projected(HEADS), projected(kv), projected(kv), nn.Linear(WIDTH, WIDTH)
        self.heads, self.kind, self.kv = list(heads), kind, kv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, CHANNELS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = (part.repeat_interleave(HEADS // self.kv, 1) for part in (k, v))
        a, b = turned(q, 1e4), turned(k, 1e4)
        if self.kind == "theta":
            a[:, self.heads], b[:, self.heads] = (turned(part, 5e5)[:, self.heads] for part in (q, k))
        if self.kind == "queries":
            a[:, self.heads] = turned(q, 1e4, "interleaved")[:, self.heads]
        scores = a @ b.mT * CHANNELS**-0.5
        if self.kind == "scale":
            scores[:, self.heads] *= 1.7
        seen = EARLIER.expand(HEADS, -1, -1).clone()
        if self.kind == "mask":
            seen[self.heads] = EARLIER | torch.ones_like(EARLIER).tril(1)
        if self.kind == "noise":
            scores[:, self.heads] += torch.randn(len(x), len(self.heads), TOKENS, TOKENS)
        return self.out(mixed(scores, v, seen))


class Partial(nn.Module):
    """A quarter of each head is rotated; heads are inside the fused projection, and the block is parallel."""

    def __init__(self, over: int = 4, apart: int = 0, theta: float = 700.0) -> None:
        super().__init__()
        self.norm, self.query_key_value = nn.LayerNorm(WIDTH), projected(3 * HEADS)
        self.dense, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.over, self.apart, self.theta = over, apart, theta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.query_key_value(self.norm(x)).unflatten(-1, (3, 3, 2 * CHANNELS)).unbind(3)
        q, k, v = (part.transpose(1, 2) for part in parts)
        q, k = (turned(part, self.theta, dims=4, over=self.over, apart=self.apart) for part in (q, k))
        return x + self.dense(mixed(q @ k.mT / 4, v)) + self.mlp(self.norm(x))


class Relative(nn.Module):
    """A bias of the scores that is looked up without a module."""

    def __init__(self, kind: str = "", causal: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (
            projected(HEADS, 1),
            projected(HEADS),
            projected(HEADS),
            nn.Linear(WIDTH, WIDTH),
        )
        self.rel_bias = nn.Parameter(torch.randn(9, HEADS))
        self.pairs = nn.Parameter(torch.randn(HEADS, TOKENS, TOKENS))
        self.kind, self.causal, self.scale = kind, causal, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, CHANNELS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = self.scale * q @ k.mT
        distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
        if self.kind == "distance":
            scores = scores + self.rel_bias[distance.clamp(-4, 4) + 4].permute(2, 0, 1)
        if self.kind == "pairs":
            scores = scores + self.pairs
        if self.kind == "samples":
            scores = scores + torch.randn(len(x), HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1))
        return self.o(mixed(scores, v, EARLIER if self.causal else None))


class Latent(nn.Module):
    """Keys and values from a latent; one rotated key for all heads; values of a width of their own."""

    PLAIN, ROTATED, VALUE = 10, 6, 12

    def __init__(
        self, theta: float = 1e4, pairing: str = "half", factor: float = 1.3, ahead: int = 0, dims: int = 6
    ) -> None:
        super().__init__()
        self.q_a_proj, self.q_a_layernorm = nn.Linear(WIDTH, 20), nn.RMSNorm(20)
        self.q_b_proj = nn.Linear(20, 4 * (self.PLAIN + self.ROTATED))
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = nn.Linear(WIDTH, 18 + self.ROTATED), nn.RMSNorm(18)
        self.kv_b_proj, self.o_proj = nn.Linear(18, 4 * (self.PLAIN + self.VALUE)), nn.Linear(4 * self.VALUE, WIDTH)
        self.theta, self.pairing, self.factor, self.ahead, self.dims = theta, pairing, factor, ahead, dims
        with torch.no_grad():
            self.q_b_proj.weight.mul_(3), self.kv_b_proj.weight.mul_(3), self.kv_a_proj_with_mqa.weight.mul_(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (4, -1)).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split([18, self.ROTATED], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (4, -1)).transpose(1, 2)
        plain, v = kv.split([self.PLAIN, self.VALUE], -1)
        a, b = (
            turned(part, self.theta, self.pairing, dims=self.dims, over=self.ROTATED, apart=3)
            for part in (q[..., self.PLAIN :], shared[:, None])
        )
        scores = q[..., : self.PLAIN] @ plain.mT + a @ b.mT
        seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(self.ahead)
        return self.o_proj(mixed(scores * self.factor / 4, v, seen))


BUGS = [
    ("softcap", Capped, {}, {"cap": None}),
    ("softcap", Capped, {"kv": 3}, {"cap": 4.0}),
    ("softcap", Capped, {"theta": None, "kv": 6}, {"cap": 9.0}),
    ("attention-scale", Capped, {}, {"factor": 0.4}),
    ("attention-scale", Capped, {"kv": 2, "pairing": "interleaved"}, {"factor": 8**-0.5}),
    ("attention-scale", Capped, {"cap": None, "factor": 0.6}, {"factor": 8**-0.5}),
    ("rope-interleave", Capped, {"kv": 2}, {"pairing": "interleaved"}),
    ("norm-missing", Normed, {"kind": "layer"}, {"sides": "k"}),
    ("attention-scale", Normed, {}, {"used": "inline", "scale": 0.5}),
    pytest.param(
        "rope-theta",
        Normed,
        {},
        {"used": "inline", "theta": 1e5},
        marks=pytest.mark.xfail(strict=True, reason="a table's base is not fitted behind norms that one side inlines"),
    ),
    ("rope-theta", Partial, {}, {"theta": 1e4}),
    ("missing-term", Relative, {"kind": "distance"}, {"kind": ""}),
    ("missing-term", Relative, {"causal": True, "kind": "distance"}, {"kind": ""}),
    ("missing-term", Relative, {"kind": "pairs"}, {"kind": ""}),
    ("rope-interleave", Latent, {}, {"pairing": "interleaved"}),
    ("rope-theta", Latent, {}, {"theta": 5e5}),
    ("attention-scale", Latent, {}, {"factor": 1.0}),
    ("mask-off-by-one", Latent, {}, {"ahead": 1}),
]
OTHERS = [
    (SomeHeads, {}, {"heads": (1,), "kind": "noise"}),
    (Relative, {}, {"kind": "samples"}),
    (Capped, {}, {"cap": 4.0, "factor": 0.5}),
    (Normed, {}, {"sides": "q", "scale": 0.5}),
    (Latent, {}, {"factor": 1.0, "pairing": "interleaved"}),
]


def both(kind: type[nn.Module], usual: dict[str, Any], wrong: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(5)
    reference, candidate = kind(**usual).eval(), kind(**{**usual, **wrong}).eval()
    candidate.load_state_dict(reference.state_dict())
    return reference, candidate


def hidden() -> torch.Tensor:
    return torch.randn(4, TOKENS, WIDTH, generator=torch.Generator().manual_seed(2))


def label_of(result: Any) -> str:
    assert result.first_drift is not None
    assert result.first_drift.cause is not None
    return str(result.first_drift.cause.label)


def from_traces(folder: Path, models: tuple[nn.Module, nn.Module]) -> Any:
    for model, name in zip(models, ("reference", "candidate"), strict=True):
        with fd.trace(model, folder / name), torch.no_grad():
            model(hidden())
    return fd.diff(folder / "reference", folder / "candidate")


@pytest.mark.parametrize(("label", "kind", "usual", "wrong"), BUGS)
def test_one_bug_is_named_with_both_models_at_hand(
    label: str, kind: type[nn.Module], usual: dict[str, Any], wrong: dict[str, Any]
) -> None:
    reference, candidate = both(kind, usual, wrong)
    result = fd.check(reference=reference, candidate=candidate, inputs=(hidden(),))
    assert label_of(result) == label, result.sentence


@pytest.mark.parametrize(("label", "kind", "usual", "wrong"), BUGS)
def test_one_bug_is_named_from_two_traces(
    tmp_path: Path, label: str, kind: type[nn.Module], usual: dict[str, Any], wrong: dict[str, Any]
) -> None:
    result = from_traces(tmp_path, both(kind, usual, wrong))
    assert label_of(result) == label, result.sentence


@pytest.mark.parametrize(("kind", "usual", "wrong"), OTHERS)
def test_what_is_no_single_change_is_not_called_one(
    tmp_path: Path, kind: type[nn.Module], usual: dict[str, Any], wrong: dict[str, Any]
) -> None:
    result = from_traces(tmp_path, both(kind, usual, wrong))
    assert label_of(result) in ("unknown", "changed-call") or "; " in result.sentence, result.sentence
