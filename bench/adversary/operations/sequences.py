"""Attention with masks, rotary positions, recurrent layers, routed experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch.nn import functional

from .dense import pieces
from .op import Formula, Op, Wrong


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


def mask_of(op, batch, length):
    """True where a query may look; None without any mask."""
    if not op.causal and not op.lengths:
        return None
    seen = torch.ones(batch, 1, length, length, dtype=torch.bool)
    if op.causal:
        seen = seen & torch.ones(length, length, dtype=torch.bool).tril()
    if op.lengths:
        seen = seen & (torch.arange(length) < torch.tensor(op.lengths)[:, None])[:, None, None]
    return seen


def attention(op, xs, w, rng):
    q, k, v = (heads(x, op.heads) for x in xs)
    mask = mask_of(op, q.shape[0], q.shape[2])
    return joined(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=op.scale))


def attention_unfused(op, xs, w, rng):
    q, k, v = (heads(x, op.heads) for x in xs)
    mask = mask_of(op, q.shape[0], q.shape[2])
    scores = (q * op.scale) @ k.transpose(-1, -2) if rng.random() < 0.5 else (q @ k.transpose(-1, -2)) * op.scale
    scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    return joined(torch.softmax(scores, -1) @ v)


def attention_online(op, xs, w, rng):
    """Keys in pieces, with a running maximum and sum."""
    q, k, v = (heads(x, op.heads) for x in xs)
    mask = mask_of(op, q.shape[0], q.shape[2])
    top = torch.full((*q.shape[:3], 1), -1e30, dtype=q.dtype)
    total, mixed = torch.zeros_like(top), torch.zeros_like(q)
    for part in pieces(k.shape[2], rng):
        scores = q @ k[:, :, part].transpose(-1, -2) * op.scale
        scores = scores if mask is None else scores.masked_fill(~mask[..., part], -1e30)
        now = torch.maximum(top, scores.amax(-1, keepdim=True)).detach()
        weights = torch.exp(scores - now)
        weights = weights if mask is None else weights * mask[..., part]
        shrink = torch.exp(top - now)
        total, mixed, top = (
            total * shrink + weights.sum(-1, keepdim=True),
            mixed * shrink + weights @ v[:, :, part],
            now,
        )
    return joined(mixed / total)


@dataclass(frozen=True)
class Attention(Op):
    heads: int = 2
    scale: float = 0.5
    causal: bool = True
    lengths: tuple[int, ...] = ()
    formulas: ClassVar = (
        Formula("fused", attention),
        Formula("unfused", attention_unfused),
        Formula("online", attention_online, wide=True),
    )

    def wrong(self, rng):
        found = [Wrong("constant", "another scale", replace(self, scale=self.scale * (1 + 10 ** rng.uniform(-5, 0))))]
        if self.causal:
            found.append(Wrong("missing", "causal mask left out", replace(self, causal=False)))
        if self.lengths:
            found.append(Wrong("missing", "padding mask left out", replace(self, lengths=())))
        return found


def tables(op, x):
    """Cosines and sines, in float32 at least."""
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    half = x.shape[-1] // op.heads // 2
    steps = torch.arange(half, dtype=kind) / half
    angles = torch.arange(x.shape[1], dtype=kind)[:, None] * torch.pow(torch.tensor(op.theta, dtype=kind), -steps)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotated(op, xs, w, rng):
    cos, sin = tables(op, xs[0])
    x = heads(xs[0], op.heads)
    if op.adjacent:
        a, b = x[..., 0::2], x[..., 1::2]
        return joined(torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2))
    a, b = x.chunk(2, -1)
    return joined(torch.cat((a * cos - b * sin, b * cos + a * sin), -1))


def rotated_halves(op, xs, w, rng):
    if op.adjacent:
        return rotated(op, xs, w, rng)
    cos, sin = tables(op, xs[0])
    x = heads(xs[0], op.heads)
    a, b = x.chunk(2, -1)
    return joined(x * torch.cat((cos, cos), -1) + torch.cat((-b, a), -1) * torch.cat((sin, sin), -1))


@dataclass(frozen=True)
class Rotary(Op):
    heads: int = 2
    theta: float = 10000.0
    adjacent: bool = False
    formulas: ClassVar = (Formula("pairs", rotated), Formula("halves", rotated_halves))

    def wrong(self, rng):
        theta = self.theta * float(1 + 10 ** rng.uniform(-3, 0.5))
        return [
            Wrong("constant", "another theta", replace(self, theta=theta), {"theta": theta}),
            Wrong("constant", "adjacent pairs", replace(self, adjacent=True)),
        ]


def gru(op, xs, w, rng):
    state = torch.zeros(1, xs[0].shape[0], op.width, dtype=xs[0].dtype)
    hidden = w["bias_hh"] if op.hidden_bias else torch.zeros_like(w["bias_hh"])
    every = [w["weight_ih"], w["weight_hh"], w["bias_ih"], hidden]
    return torch._VF.gru(xs[0], state, every, True, 1, 0.0, torch.is_grad_enabled(), False, True)[0]


def gru_by_steps(op, xs, w, rng):
    x, state, found = xs[0], torch.zeros(xs[0].shape[0], op.width, dtype=xs[0].dtype), []
    order = torch.from_numpy(rng.permutation(op.width))
    hidden = w["bias_hh"] if op.hidden_bias else torch.zeros_like(w["bias_hh"])
    for t in range(x.shape[1]):
        a = (x[:, t] @ w["weight_ih"].t() + w["bias_ih"]).chunk(3, -1)
        b = (state[:, order] @ w["weight_hh"][:, order].t() + hidden).chunk(3, -1)
        reset, update = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
        new = torch.tanh(a[2] + reset * b[2])
        state = new + update * (state - new)
        found.append(state)
    return torch.stack(found, 1)


@dataclass(frozen=True)
class GRULayer(Op):
    into: int = 6
    width: int = 8
    hidden_bias: bool = True
    formulas: ClassVar = (Formula("fused", gru), Formula("by steps", gru_by_steps, wide=True))

    def shapes(self):
        gates = 3 * self.width
        return {
            "weight_ih": (gates, self.into), "weight_hh": (gates, self.width), "bias_ih": (gates,), "bias_hh": (gates,),
        }  # fmt: skip

    def wrong(self, rng):
        return [Wrong("missing", "hidden bias left out", replace(self, hidden_bias=False))]


def shares(op, x, w):
    """How much each expert adds for each row; 0 for those not chosen."""
    chances = torch.softmax(x @ w["router"].t(), -1)
    top, chosen = chances.topk(op.chosen, -1)
    top = top / top.sum(-1, keepdim=True) if op.normalised else top
    return torch.zeros_like(chances).scatter(-1, chosen, top)


def mixed_in_turn(op, xs, w, rng, turns=None):
    share, total = shares(op, xs[0], w), 0
    for e in range(op.experts) if turns is None else turns:
        total = total + share[..., e, None] * (functional.silu(xs[0] @ w["up"][e].t()) @ w["down"][e].t())
    return total


def mixed_in_other_turns(op, xs, w, rng):
    return mixed_in_turn(op, xs, w, rng, rng.permutation(op.experts))


def mixed_at_once(op, xs, w, rng):
    hidden = functional.silu(torch.einsum("...d,efd->...ef", xs[0], w["up"]))
    return torch.einsum("...ef,edf,...e->...d", hidden, w["down"], shares(op, xs[0], w))


@dataclass(frozen=True)
class Experts(Op):
    """Routed: each row goes to the `chosen` most likely experts."""

    width: int = 8
    inner: int = 8
    experts: int = 4
    chosen: int = 2
    normalised: bool = True
    formulas: ClassVar = (
        Formula("in turn", mixed_in_turn),
        Formula("other turns", mixed_in_other_turns),
        Formula("at once", mixed_at_once, wide=True),
    )

    def shapes(self):
        one = (self.experts, self.inner, self.width)
        return {"router": (self.experts, self.width), "up": one, "down": (self.experts, self.width, self.inner)}

    def initial(self, name, shape, rng):
        return rng.standard_normal(shape) * (2.0 if name == "router" else shape[-1] ** -0.5)

    def margin(self, x, w):
        """How far the least likely expert that was chosen is from the likeliest that was not."""
        ranked = (x @ w["router"].t()).sort(-1, descending=True).values
        return float((ranked[..., self.chosen - 1] - ranked[..., self.chosen]).min())

    def wrong(self, rng):
        found = (
            [Wrong("constant", "one expert fewer", replace(self, chosen=self.chosen - 1))] if self.chosen > 1 else []
        )
        return [*found, Wrong("constant", "other normalisation", replace(self, normalised=not self.normalised))]
