"""Attentions written with torch, whose every choice is an argument; and what a trace would record of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from firstdrift.causes.evidence import Evidence
from firstdrift.sites import Site


@dataclass(frozen=True)
class Config:
    width: int = 64
    heads: int = 4
    kv_heads: int = 4
    bias: bool = True
    causal: int | None = 0
    window: int | None = None
    reach: int | None = None
    scale: float | None = None
    softcap: float | None = None
    theta: float | None = None
    rotary: int | None = None  # rotated channels; all of the head if not given
    exponent: int | None = None  # channels in the exponent
    pairing: str = "half"
    scaling: str = ""
    rope_factor: float = 8.0
    shift: int = 0
    sides: str = "qk"
    precision: str = ""  # dtype and stage of the tables
    tiled: bool = False
    fused: str = ""  # blocks, heads or features
    roles: str = "qkv"
    joined: str = "thd"
    divided: str = "thd"
    head_order: tuple[int, ...] | None = None
    slopes: str = ""
    norm: str = ""
    padding: str = ""  # how the mask is used
    hidden: float = -math.inf
    late: bool = False
    over: int = -1
    relative: bool = False
    surplus: int = 0  # keys and values of zeros that all queries see


def frequencies(config: Config, channels: int) -> torch.Tensor:
    steps = torch.arange(0, channels, 2, dtype=torch.float64)
    given = config.theta ** (-steps / (config.exponent or channels))
    if config.scaling == "linear":
        return given / config.rope_factor
    if config.scaling == "llama3":
        wave = 2 * math.pi / given
        low, high, original = 1.0, 4.0, 8192.0
        smooth = (original / wave - low) / (high - low)
        mixed = (1 - smooth) * given / config.rope_factor + smooth * given
        slow = torch.where(wave > original / low, given / config.rope_factor, mixed)
        return torch.where(wave < original / high, given, slow)
    if config.scaling == "tail":  # a rule of its own, which no implementation has
        return torch.where(steps > channels / 2, given / config.rope_factor, given)
    return given


def tables(config: Config, channels: int, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    given = frequencies(config, channels)
    dtype, _, stage = config.precision.partition(" ")
    low = {"bf16": torch.bfloat16, "f16": torch.float16}.get(dtype)
    if low is not None and stage in ("frequencies", "angles"):
        given = given.float().to(low)
    if stage == "angles":
        angles = positions.to(low)[:, None] * given[None]
        return angles.cos().double(), angles.sin().double()
    angles = positions.double()[:, None] * given.double()[None]
    cos, sin = angles.cos(), angles.sin()
    return (cos.float().to(low).double(), sin.float().to(low).double()) if stage == "tables" else (cos, sin)


def rope(x: torch.Tensor, config: Config, shift: int = 0) -> torch.Tensor:
    """x is (batch, heads, tokens, channels)."""
    part = config.rotary or x.shape[-1]
    cos, sin = (one.to(x.dtype) for one in tables(config, part, torch.arange(x.shape[2]) + shift))
    turned, kept = x[..., :part], x[..., part:]
    if config.pairing == "half":
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([turned, kept], dim=-1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        channels = config.width // config.heads
        narrow = channels * config.kv_heads
        if config.fused:
            self.qkv = nn.Linear(config.width, config.width + 2 * narrow, bias=config.bias)
        else:
            self.q_proj = nn.Linear(config.width, config.width, bias=config.bias)
            self.k_proj = nn.Linear(config.width, narrow, bias=config.bias)
            self.v_proj = nn.Linear(config.width, narrow, bias=config.bias)
        self.o_proj = nn.Linear(config.width, config.width, bias=config.bias)
        self.relative_bias = nn.Embedding(64, config.heads)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        c = self.config
        if not c.fused:
            made = {"q": self.q_proj(x), "k": self.k_proj(x), "v": self.v_proj(x)}
            return tuple(made[name] for name in c.roles)
        whole, d = self.qkv(x), c.width // c.heads
        rep = c.heads // c.kv_heads
        sizes = [rep if name == "q" else 1 for name in c.roles]
        if c.fused == "blocks":
            parts = whole.split([size * c.kv_heads * d for size in sizes], dim=-1)
        elif c.fused == "heads":
            groups = whole.unflatten(-1, (c.kv_heads, rep + 2, d))
            parts = tuple(part.flatten(-3) for part in groups.split(sizes, dim=-2))
        else:
            parts = whole.unflatten(-1, (-1, 3)).unbind(-1)
        made = dict(zip(c.roles, parts, strict=True))
        return made["q"], made["k"], made["v"]

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        c = self.config
        heads = (c.heads, c.kv_heads, c.kv_heads)
        q, k, v = (divide(one, n, c.divided) for one, n in zip(self.split(x), heads, strict=True))
        if c.norm == "rms":
            q, k = (one * torch.rsqrt(one.pow(2).mean(-1, keepdim=True) + 1e-30) for one in (q, k))
        if c.theta is not None:
            q = rope(q, c, c.shift) if "q" in c.sides else q
            k = rope(k, c) if "k" in c.sides else k
        rep = c.heads // c.kv_heads
        k, v = (one.repeat(1, rep, 1, 1) if c.tiled else one.repeat_interleave(rep, dim=1) for one in (k, v))
        hidden = ~self.visible(x, mask)
        self.scores = self.biased(q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if c.scale is None else c.scale))
        self.scores = self.scores if c.late else self.scores.masked_fill(hidden, c.hidden)
        self.scores = nn.functional.pad(self.scores, (0, c.surplus))
        v = nn.functional.pad(v, (0, 0, 0, c.surplus))
        self.probabilities = self.scores if c.over == 0 else torch.softmax(self.scores, dim=c.over)
        if c.late:
            self.probabilities = self.probabilities.masked_fill(nn.functional.pad(hidden, (0, c.surplus)), 0.0)
        out = self.probabilities @ v
        out = out if c.head_order is None else out[:, list(c.head_order)]
        return self.o_proj(join(out, c.joined))

    def biased(self, scores: torch.Tensor) -> torch.Tensor:
        c = self.config
        if c.softcap is not None:
            scores = c.softcap * torch.tanh(scores / c.softcap)
        distance = torch.arange(scores.shape[-1])[:, None] - torch.arange(scores.shape[-1])[None]
        if c.slopes:
            scores = scores - slopes(c)[:, None, None].to(scores.dtype) * distance
        relative = self.relative_bias(distance.clamp(-31, 31) + 31).permute(2, 0, 1)
        return scores + relative if c.relative else scores

    def visible(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        c, (batch, tokens, _) = self.config, x.shape
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None]
        visible = torch.ones(batch, 1, tokens, tokens, dtype=torch.bool)
        if c.causal is not None:
            visible = visible & (distance >= -c.causal)
        if c.window is not None:
            visible = visible & (distance < c.window)
        if c.reach is not None:
            visible = visible & (distance.abs() <= c.reach)
        if mask is not None and c.padding:
            keep = mask[:, None, None, :].bool()
            visible = visible & (keep if c.padding == "keep" else ~keep)
        return visible


def divide(x: torch.Tensor, heads: int, axes: str) -> torch.Tensor:
    batch, tokens, _ = x.shape
    if axes == "htd":
        return x.reshape(batch, heads, tokens, -1)
    if axes == "tdh":
        return x.reshape(batch, tokens, -1, heads).permute(0, 3, 1, 2)
    return x.reshape(batch, tokens, heads, -1).transpose(1, 2)


def join(out: torch.Tensor, axes: str) -> torch.Tensor:
    batch, _, tokens, _ = out.shape
    if axes == "htd":
        return out.reshape(batch, tokens, -1)
    if axes == "tdh":
        return out.permute(0, 2, 3, 1).reshape(batch, tokens, -1)
    return out.transpose(1, 2).reshape(batch, tokens, -1)


def slopes(config: Config) -> torch.Tensor:
    n = config.heads
    if config.slopes == "naive":
        return 2.0 ** (-8.0 * torch.arange(1, n + 1) / n)
    power = 2 ** int(math.log2(n))
    given = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    given += [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(n - power)]
    return torch.tensor(given) * (2.0 ** (8.0 / n) if config.slopes == "late" else 1.0)


class Weights:
    """Surroundings that hold the weights of two models."""

    def __init__(self, reference: nn.Module, candidate: nn.Module, name: str) -> None:
        self.facts: dict[str, Any] = {}
        self._weights = [_weights(model, name) for model in (reference, candidate)]

    def sites(self, phase: str) -> list[Site]:
        return list(self._weights[0]) if phase == "weight" else []

    def reference(self, site: Site) -> np.ndarray | None:
        return self._weights[0].get(site)

    def candidate(self, site: Site) -> np.ndarray | None:
        return self._weights[1].get(site)

    def op(self, site: Site) -> str:
        return ""

    def producers(self, site: Site) -> tuple[Site, ...]:
        return ()


def _weights(model: nn.Module, name: str) -> dict[Site, np.ndarray]:
    found = {}
    for path, parameter in model.named_parameters():
        owner, _, port = path.rpartition(".")
        site = Site(0, "weight", f"{name}.{owner}" if owner else name, port)
        found[site] = parameter.detach().double().numpy()
    return found


@dataclass(frozen=True)
class Run:
    """What hooks see of one attention."""

    inputs: dict[str, np.ndarray]
    joined: np.ndarray
    out: np.ndarray
    scores: np.ndarray
    probabilities: np.ndarray


def recorded(model: Attention, x: torch.Tensor, mask: torch.Tensor | None) -> Run:
    """The projections, what the output projection is given and returns, scores and probabilities."""
    seen: dict[str, np.ndarray] = {}

    def hook(name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            seen[name] = output.detach().double().numpy()
            seen[f"{name} in"] = args[0].detach().double().numpy()

        return keep

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_children()]
    model(x, mask)
    for handle in handles:
        handle.remove()
    names = [name for name in seen if name in ("q_proj", "k_proj", "v_proj", "qkv", "relative_bias")]
    inputs = {f"layers.0.attn.{name}": seen[name] for name in names if name != "relative_bias"}
    if model.config.relative:
        inputs["layers.0.attn.relative_bias"] = seen["relative_bias"]
    if mask is not None:
        inputs["input attention_mask"] = mask.numpy()
    scores, probabilities = (one.detach().double().numpy() for one in (model.scores, model.probabilities))
    return Run(inputs, seen["o_proj in"], seen["o_proj"], scores, probabilities)


def evidence(
    reference: Config, tokens: int = 24, batch: int = 2, noise: float = 1e-6, dtype: torch.dtype = torch.float32,
    mask: torch.Tensor | None = None, gain: float = 2.0, seed: int = 0, at: str = "joined", **changes: Any,
) -> Evidence:  # fmt: skip
    """The drift between two attentions of the same weights, at one of the tensors that a trace would hold."""
    torch.manual_seed(seed)
    one, other = Attention(reference).to(dtype), Attention(replace(reference, **changes)).to(dtype)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.mul_(gain)
    other.load_state_dict(one.state_dict())
    x = torch.randn(batch, tokens, reference.width, dtype=dtype)
    with torch.no_grad():
        runs = [recorded(model, x, mask) for model in (one, other)]
    expected, found = (getattr(run, at) for run in runs)
    everything = {**runs[1].inputs, **runs[0].inputs}  # a bias that one side does not add is still recorded
    inputs, own = ({**everything, **run.inputs} for run in runs)
    if at == "out":
        inputs = own = {"in.0": x.double().numpy()} | ({} if mask is None else {"in.mask": mask.numpy()})
        around = Weights(one, other, "layers.0.attn")
        site = Site(0, "fwd", "layers.0.attn", "out")
        return Evidence(site, expected, found, noise, inputs=inputs, candidate_inputs=own, around=around)
    name = "layers.0.attn.o_proj" if at == "joined" else "layers.0.attn.softmax"
    return Evidence(Site(0, "fwd", name, "in.0"), expected, found, noise, inputs=inputs, candidate_inputs=own)


def noisy(given: Evidence, noise: float, seed: int = 0) -> Evidence:
    """The same drift with what a coarse dtype would add to both sides."""
    rng = np.random.default_rng(seed)
    expected, found = (x * (1 + noise * rng.normal(size=x.shape)) for x in (given.expected, given.found))
    return replace(given, expected=expected, found=found, noise=noise)
