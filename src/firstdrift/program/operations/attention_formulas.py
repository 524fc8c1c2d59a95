"""Attention in parts, and mixtures of experts. Heads of a token lie together: `[batch, tokens, heads, size]`."""

# mypy: disable-error-code="no-any-return"
# Settings are of any type, and so is what is computed with them.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..interpreter import NotReplayableError
from .layer_formulas import rms
from .op_table import BY_SHAPE, REQUIRED, Tensors, Weights, capped, entry, wide


@entry(
    "ScaledDotProductAttention", "SDPA", inputs=-1, scale=("number", BY_SHAPE), is_causal=("flag", False),
    heads=("whole", BY_SHAPE),
)  # fmt: skip
def _attention(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Query, key, value and perhaps a mask, `[..., heads, tokens, size]`; where `heads` says how many there are, they
    lie together, `[..., tokens, heads * size]`."""
    if s.heads is None:
        return _attended(x, s, is_grouped=x[0].dim() > 3)
    size = x[0].shape[-1] // s.heads
    counts = s.heads, x[1].shape[-1] // size, x[1].shape[-1] // size
    apart = [one.unflatten(-1, (count, -1)).transpose(-2, -3) for one, count in zip(x[:3], counts, strict=True)]
    return _attended([*apart, *x[3:]], s, is_grouped=True).transpose(-2, -3).flatten(-2)


def _attended(x: Tensors, s: Any, *, is_grouped: bool) -> Tensor:
    q, k, v = x[:3]
    k, v = (tensor.repeat_interleave(q.shape[-3] // k.shape[-3], -3) if is_grouped else tensor for tensor in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if s.scale is None else s.scale)
    if len(x) > 3:
        scores = scores.masked_fill(~x[3], -torch.inf) if x[3].dtype == torch.bool else scores + x[3]
    if s.is_causal:
        scores = scores.masked_fill(~_visible(scores, None), -torch.inf)
    return scores.softmax(-1, dtype=wide(q.dtype)).to(q.dtype) @ v


@entry(
    "Heads", heads=("whole", REQUIRED), head_dim=("whole", REQUIRED), start=("whole", 0), eps=("number", BY_SHAPE),
    offset=("number", 0.0),
)  # fmt: skip
def _heads(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A stretch of the last axis, cut into heads; with a weight, each is RMS-normed."""
    split = x[0][..., s.start : s.start + s.heads * s.head_dim].unflatten(-1, (s.heads, s.head_dim))
    if "weight" not in w:
        return split.clone()
    if s.eps is None:
        raise NotReplayableError("eps was not recorded")
    return rms(split, w["weight"], s.eps, s.offset)


@entry(
    "RoPE", "RotaryEmbedding", theta=("number", REQUIRED, "base", "rope_theta"), position=("whole", 0),
    partial=("number", 1.0), adjacent=("flag", False, "interleaved"), scaling=("word", "default"),
    factor=("number", 1.0), low_freq_factor=("number", BY_SHAPE), high_freq_factor=("number", BY_SHAPE),
    original_positions=("whole", BY_SHAPE), divisors=("numbers", BY_SHAPE),
)  # fmt: skip
def _rope(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Pairs of a head's dimensions turned by the position times a frequency, from `position` on."""
    size = int(x[0].shape[-1] * s.partial)
    dtype = wide(x[0].dtype)
    places = torch.arange(s.position, s.position + x[0].shape[1], device=x[0].device, dtype=dtype)
    turned = places[:, None] * _frequencies(s, size, dtype, x[0].device)
    turned = turned.repeat_interleave(2, -1) if s.adjacent else torch.cat((turned, turned), -1)
    cos, sin = (part.to(x[0].dtype)[:, None] for part in (turned.cos(), turned.sin()))
    turning, still = x[0][..., :size], x[0][..., size:]
    if s.adjacent:
        partner = torch.stack((-turning[..., 1::2], turning[..., ::2]), -1).flatten(-2)
    else:
        partner = torch.cat((-turning[..., size // 2 :], turning[..., : size // 2]), -1)
    return torch.cat((turning * cos + partner * sin, still), -1)


def _frequencies(s: Any, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    step = s.theta ** torch.full((), -2 / size, dtype=dtype, device=device)  # engines multiply by it again and again
    found = step ** torch.arange(size // 2, dtype=dtype, device=device)
    if s.divisors is not None:
        return torch.stack([found[at] / one for at, one in enumerate(s.divisors)])
    if s.scaling == "linear":
        return found / s.factor
    if s.scaling == "llama3":
        turns = s.original_positions * found / (2 * torch.pi)
        share = ((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0, 1)
        return (1 - share) * found / s.factor + share * found
    if s.scaling != "default":
        raise NotReplayableError(f"scaling is {s.scaling!r}, and only default, linear and llama3 are in the library")
    return found


@entry("AttentionScores", inputs=-1, scale=("number", REQUIRED))
def _scores(x: Tensors, w: Weights, s: Any) -> Tensor:
    """A query and the keys so far, step after step: `[batch, heads, tokens, positions]`, scaled."""
    q, k = x[0].transpose(1, 2), torch.cat(list(x[1:]), 1).transpose(1, 2)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return q @ k.transpose(2, 3) * s.scale


@entry("CausalSoftmax", softcap=("number", BY_SHAPE), window=("whole", BY_SHAPE))
def _causal_softmax(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Of scores `[batch, heads, tokens, positions]`, of which the last positions are the tokens' own."""
    scores = capped(x[0], s.softcap)
    scores = scores.masked_fill(~_visible(scores, s.window), torch.finfo(scores.dtype).min)
    return scores.softmax(-1, dtype=wide(x[0].dtype)).to(x[0].dtype)


def _visible(scores: Tensor, window: int | None) -> Tensor:
    new, every = scores.shape[-2:]
    query = torch.arange(every - new, every, device=scores.device)[:, None]
    key = torch.arange(every, device=scores.device)
    return key <= query if window is None else (key <= query) & (key > query - window)


@entry("AttentionMix", inputs=-1, kv_heads=("whole", REQUIRED), head_dim=("whole", REQUIRED))
def _mix(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Attention's weights times the values, which are the last stretch of queries, keys and values in a row."""
    values = torch.cat([tensor[..., -s.kv_heads * s.head_dim :] for tensor in x[1:]], 1)
    v = values.unflatten(-1, (s.kv_heads, s.head_dim)).transpose(1, 2)
    v = v.repeat_interleave(x[0].shape[1] // s.kv_heads, 1)
    return (x[0] @ v).transpose(1, 2).flatten(2)


@entry(
    "Router", per_token=("whole", REQUIRED, "num_experts_per_tok"),
    normalised=("flag", REQUIRED), indices=("flag", False),
)  # fmt: skip
def _router(x: Tensors, w: Weights, s: Any) -> Tensor:
    """The weights of each token's experts, the strongest first; or their numbers."""
    scores = functional.linear(x[0], w["weight"]).softmax(-1, dtype=wide(x[0].dtype))
    chosen, numbers = scores.topk(s.per_token, -1)
    if s.indices:
        return numbers
    return (chosen / chosen.sum(-1, keepdim=True) if s.normalised else chosen).to(x[0].dtype)


@entry("Experts", inputs=3, activation=("word", REQUIRED))
def _experts(x: Tensors, w: Weights, s: Any) -> Tensor:
    """Weights and numbers of each token's experts, and the tokens; the experts' gate, up and down in a row."""
    share, numbers, tokens = x
    apply = _by_config(s.activation)
    total = torch.zeros_like(tokens)
    for number, (gate, up, down) in enumerate(zip(*[iter(w.all["weight"])] * 3, strict=True)):
        made = functional.linear(apply(functional.linear(tokens, gate)) * functional.linear(tokens, up), down)
        total = total + made * (share * (numbers == number)).sum(-1, keepdim=True)
    return total


def _by_config(word: str) -> Callable[[Tensor], Tensor]:
    """An activation by the name that a config.json gives it."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu,
        "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }  # fmt: skip
    if word not in known:
        raise NotReplayableError(f"activation is {word!r}, and only {', '.join(known)} are in the library")
    return known[word]
