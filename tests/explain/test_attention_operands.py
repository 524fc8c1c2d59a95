"""Attention is explained from whatever modules stand between its projections and a functional attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import firstdrift as fd

WIDTH, TOKENS, HEADS, CHANNELS = 32, 14, 4, 8


@dataclass(frozen=True)
class Style:
    """How q and k are made: `between` are the modules that they pass."""

    between: tuple[str, ...] = ("rope",)
    axis: int = 1  # of the heads: 1 is before the tokens, 2 behind them; 0 is together with the batch
    fused: str = ""
    part: int = CHANNELS
    core: str = "flat"  # what is recorded behind the attention
    keys_first: bool = False  # whether keys are turned before queries


@dataclass(frozen=True)
class Bug:
    kv_heads: int = HEADS
    scale: float = CHANNELS**-0.5
    causal: int | None = 0
    window: int | None = None
    ahead: int | None = None  # the keys of a window behind a query
    cap: float | None = None
    tiled: bool = False
    joined: bool = False  # heads and channels are merged the wrong way round
    padding: bool = True
    itself: bool = True  # whether a query of padding sees its own key
    hidden: float = -math.inf
    late: int = 0  # by how many keys the mask is rolled
    gain: float = 1.0
    sink: bool = False


class Rope(nn.Module):
    """A rotation of what it is given: one tensor, or two."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        part, tokens = self.style.part, x.shape[1 if self.style.axis == 2 else -2]
        rates = 100.0 ** (-torch.arange(0, part, 2) / part)
        angles = (torch.arange(tokens) + 1)[:, None] * rates
        if self.style.axis == 2:
            angles = angles[:, None]
        a, b = x[..., : part // 2], x[..., part // 2 : part]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., part:]], -1)

    def forward(self, q: torch.Tensor, k: torch.Tensor | None = None) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self.turned(q) if k is None else (self.turned(q), self.turned(k))


class Gain(nn.Module):
    """RMS norm of each head."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.3 * torch.randn(CHANNELS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    def __init__(self, style: Style, bug: Bug) -> None:
        super().__init__()
        self.style, self.bug = style, bug
        narrow = bug.kv_heads * CHANNELS
        if style.fused == "qkv":
            self.qkv = nn.Linear(WIDTH, WIDTH + 2 * narrow)
        else:
            self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, narrow), nn.Linear(WIDTH, narrow)
        for name in style.between:
            if name == "norms":
                self.qn, self.kn = Gain(), Gain()
            elif name == "two ropes":
                self.turn, self.turn_back = Rope(style), Rope(style)
            else:
                self.rope = Rope(style)
        if style.core == "probabilities":
            self.dropout = nn.Dropout(0.1)
        self.o = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.startswith(("q.", "k.", "qkv.")):
                    weight.mul_(3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, tokens, _ = x.shape
        narrow = self.bug.kv_heads * CHANNELS
        made = (
            (self.q(x), self.k(x), self.v(x))
            if not self.style.fused
            else self.qkv(x).split([WIDTH, narrow, narrow], -1)
        )
        q, k, v = (self.divided(one) for one in made)
        for name in self.style.between:
            if name == "norms":
                q, k = self.qn(q), self.kn(k)
            elif name == "two ropes":
                q, k = self.turn(q), self.turn_back(k)
            elif name == "both":
                q, k = self.rope(q, k)
            elif self.style.keys_first:
                k, q = self.rope(k), self.rope(q)
            else:
                q, k = self.rope(q), self.rope(k)
        q, k, v = (self.heads_first(one, batch) for one in (q, k, v))
        share = HEADS // self.bug.kv_heads
        k, v = (one.repeat(1, share, 1, 1) if self.bug.tiled else one.repeat_interleave(share, 1) for one in (k, v))
        scores = q @ k.mT * self.bug.scale
        if self.bug.cap is not None:
            scores = self.bug.cap * torch.tanh(scores / self.bug.cap)
        scores = scores.masked_fill(~self.seen(tokens, mask), self.bug.hidden)
        if self.bug.sink:
            scores = torch.cat([scores, torch.zeros_like(scores[..., :1])], -1)
        shares = scores.softmax(-1)[..., :tokens]
        if self.style.core == "probabilities":
            shares = self.dropout(shares)
        y = self.bug.gain * (shares @ v)
        return self.o(y.permute(0, 2, 3, 1).flatten(2) if self.bug.joined else y.transpose(1, 2).flatten(2))

    def divided(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(-1, (-1, CHANNELS))
        if self.style.axis == 2:
            return x
        return x.transpose(1, 2).flatten(0, 1) if self.style.axis == 0 else x.transpose(1, 2)

    def heads_first(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        if self.style.axis == 2:
            return x.transpose(1, 2)
        return x.unflatten(0, (batch, -1)) if self.style.axis == 0 else x

    def seen(self, tokens: int, mask: torch.Tensor | None) -> torch.Tensor:
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
        seen = torch.ones(tokens, tokens, dtype=torch.bool)
        if self.bug.causal is not None:
            seen = distance >= -self.bug.causal
        if self.bug.window is not None:
            seen = seen & (distance < self.bug.window)
        if self.bug.ahead is not None:
            seen = seen & (distance >= -self.bug.ahead)
        if mask is not None and self.bug.padding:
            seen = seen & mask[:, None, None].roll(self.bug.late, -1)
            seen = seen | (distance == 0) if self.bug.itself else seen
        return seen


STYLES = {
    "one rope called twice": Style(),
    "rope behind tokens": Style(axis=2),
    "rope of batch and heads": Style(axis=0),
    "one rope of two": Style(("both",)),
    "one rope of two behind tokens": Style(("both",), axis=2),
    "two ropes": Style(("two ropes",)),
    "partial rope": Style(part=4),
    "norms": Style(("norms",)),
    "norms behind tokens": Style(("norms",), axis=2),
    "norms and rope": Style(("norms", "rope")),
    "rope and norms": Style(("rope", "norms"), axis=2),
    "fused": Style(fused="qkv"),
    "fused and two": Style(("norms", "both"), fused="qkv", axis=2),
    "keys before queries": Style(keys_first=True),
    "recorded probabilities": Style(core="probabilities"),
}
BUGS = [
    ("attention-scale", Bug(scale=0.562), Bug()),
    ("attention-scale", Bug(), Bug(scale=1 / CHANNELS)),
    ("window-off-by-one", Bug(window=5), Bug(window=6)),
    ("mask-missing", Bug(window=5), Bug()),
    ("mask-off-by-one", Bug(), Bug(causal=1)),
    ("gqa-order", Bug(kv_heads=2), Bug(kv_heads=2, tiled=True)),
    ("softcap", Bug(cap=4.0), Bug()),
]


def models(style: Style, usual: Bug, wrong: Bug) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    reference = Attention(style, usual).eval()
    candidate = Attention(style, wrong).eval()
    candidate.load_state_dict(reference.state_dict())
    return reference, candidate


def label(
    place: Path, style: Style, usual: Bug, wrong: Bug, mask: torch.Tensor | None = None, tokens: int = TOKENS
) -> tuple[str, str]:
    """What two traces say."""
    pair = models(style, usual, wrong)
    given = torch.randn(3, tokens, WIDTH)
    for model, name in zip(pair, ("reference", "candidate"), strict=True):
        with fd.trace(model, place / name), torch.no_grad():
            model(given, *([] if mask is None else [mask]))
    result = fd.diff(place / "reference", place / "candidate")
    assert result.first_drift is not None
    assert result.first_drift.cause is not None
    return result.first_drift.cause.label, result.sentence


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize(("name", "usual", "wrong"), BUGS[:1] + BUGS[2:3] + BUGS[5:6])
def test_a_bug_is_named_whatever_stands_before_the_attention(
    tmp_path: Path, style: Style, name: str, usual: Bug, wrong: Bug
) -> None:
    told, sentence = label(tmp_path, style, usual, wrong)
    assert told == name, sentence


@pytest.mark.parametrize("style", ["one rope called twice", "fused and two", "recorded probabilities"])
@pytest.mark.parametrize(("name", "usual", "wrong"), BUGS)
def test_every_bug_is_named_behind_rotations_and_norms(
    tmp_path: Path, style: str, name: str, usual: Bug, wrong: Bug
) -> None:
    told, sentence = label(tmp_path, STYLES[style], usual, wrong)
    assert told == name, sentence


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("keys_first", [False, True])
def test_as_many_heads_as_tokens_are_told_apart(tmp_path: Path, axis: int, keys_first: bool) -> None:
    style = Style(axis=axis, keys_first=keys_first)
    told, sentence = label(tmp_path, style, Bug(), Bug(scale=0.5), tokens=HEADS)
    assert told == "attention-scale", sentence


@pytest.mark.parametrize("style", ["one rope called twice", "norms behind tokens", "fused and two"])
def test_what_is_wrong_behind_the_attention_is_not_laid_to_it(tmp_path: Path, style: str) -> None:
    told, sentence = label(tmp_path, STYLES[style], Bug(), Bug(gain=1.3))
    assert told in ("scale", "unknown"), sentence


@pytest.mark.parametrize("style", ["one rope called twice", "norms and rope"])
def test_two_bugs_at_once_are_not_named_as_one(tmp_path: Path, style: str) -> None:
    told, sentence = label(tmp_path, STYLES[style], Bug(cap=4.0), Bug(window=5, scale=0.2))
    assert told == "unknown" or "; " in sentence, sentence  # each is told


def padding(side: str) -> torch.Tensor:
    mask = torch.ones(3, TOKENS, dtype=torch.bool)
    mask[1, 10:], mask[2, 7:] = False, False
    return mask if side == "right" else mask.flip(1)


BOTH_WAYS = Bug(causal=None, window=4, ahead=3)
PADDED = [
    ("attention-scale", Bug(), Bug(scale=0.5)),
    ("mask-missing", Bug(), Bug(padding=False)),
    ("window-off-by-one", Bug(window=4), Bug(window=5)),
    ("mask-off-by-one", Bug(), Bug(causal=1)),
    ("mask-missing", BOTH_WAYS, Bug(causal=None)),
]


@pytest.mark.parametrize(
    ("side", "style", "hidden"),
    [("left", "one rope called twice", -math.inf), ("right", "recorded probabilities", -1e9)],
)
@pytest.mark.parametrize(("name", "usual", "wrong"), PADDED)
def test_masks_are_named_beside_padding(
    tmp_path: Path, side: str, style: str, hidden: float, name: str, usual: Bug, wrong: Bug
) -> None:
    sees = {"itself": hidden == -math.inf, "hidden": hidden}  # what a query of padding sees
    told, sentence = label(tmp_path, STYLES[style], replace(usual, **sees), replace(wrong, **sees), padding(side))
    assert told == name, sentence
