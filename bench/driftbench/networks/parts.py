"""Parts that several candidates share: linear layers, norms and masks by their formulas, with what can be wrong."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ..case import NO_BUGS, Bugs
from .network import wide


class OwnLinear(nn.Module):
    """A linear layer as an einsum and a separate sum; `biases` says how often the bias is added.

    Of `bugs`, `gain` is a factor of the result, `channel` (index, factor) one of a single channel, `product` a dtype
    that inputs and weights are rounded to, `accumulator` one that partial sums are rounded to, `unwritten` leaves the
    last token's row to chance.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        skip_bias: bool = False,
        biases: int = 1,
        bugs: Bugs = NO_BUGS,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.biases = 0 if skip_bias else biases
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.product(x)
        if self.bias is not None and self.biases:
            y = y + self.biases * self.bias
        y = y * self.bugs.get("gain", 1)
        if "unwritten" in self.bugs:  # rows of a buffer that hold what was there before: another thing each time
            garbage = torch.from_numpy(np.random.default_rng().standard_normal(y[:, -1:].shape)).to(y.dtype)
            y = torch.cat((y[:, :-1], garbage), 1)
        if "channel" in self.bugs:
            index, factor = self.bugs["channel"]
            y = torch.cat((y[..., :index], y[..., index : index + 1] * factor, y[..., index + 1 :]), -1)
        return y

    def product(self, x: torch.Tensor) -> torch.Tensor:
        if "accumulator" in self.bugs:
            total = torch.zeros(())
            for part, rows in zip(x.split(4, -1), self.weight.split(4, -1), strict=True):
                total = (total + part @ rows.T).to(self.bugs["accumulator"]).to(x.dtype)
            return total
        if "product" in self.bugs:
            coarse = self.bugs["product"]
            return x.to(coarse).to(x.dtype) @ self.weight.to(coarse).to(x.dtype).T
        return torch.einsum("...i,oi->...o", x, self.weight)


class TransposedLinear(nn.Module):
    """Stores its matrix as [in, out] under the usual name."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class SplitLinear(nn.Module):
    """Sums its products in parts, as split-K kernels do, from the last part to the first."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, parts: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = zip(x.chunk(self.parts, -1), self.weight.chunk(self.parts, -1), strict=True)
        y = sum(part.flip(-1) @ rows.flip(-1).T for part, rows in reversed(list(pairs)))
        return y if self.bias is None else y + self.bias


class SampleLinear(nn.Module):
    """One sample after the other, as a batch of another size would be."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([nn.functional.linear(row, self.weight, self.bias) for row in x])


class NudgedLinear(nn.Module):
    """Every other result is the next number up: what another order of sums does, and less than any tolerance below."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x, self.weight, self.bias)
        up = torch.nextafter(y, torch.full_like(y, torch.inf))
        return torch.where(torch.arange(y.shape[-1]) % 2 == 0, up, y)


class OwnEmbedding(nn.Module):
    """A lookup by index_select."""

    def __init__(self, rows: int, width: int, bugs: Bugs) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.shift = int(bugs.get("token-shift", 0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = (tokens + self.shift) % len(self.weight)
        return self.weight.index_select(0, rows.flatten()).unflatten(0, tokens.shape)


class OwnRMSNorm(nn.Module):
    """RMSNorm by division and an einsum; `offset` 1 is Gemma's convention."""

    def __init__(self, width: int, eps: float, bugs: Bugs, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bugs = bugs
        self.eps = bugs.get("norm-eps", eps)
        self.offset = offset if "norm-plus-one" not in bugs else 1.0 - offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "norm-missing" in self.bugs:
            return x
        h = wide(x)
        if "rms-vs-layernorm" in self.bugs:
            h = h - h.mean(-1, keepdim=True)
        square = torch.einsum("...d,...d->...", h, h)[..., None] / h.shape[-1]
        if "norm-axis" in self.bugs:  # over the sequence as well
            square = square.mean(-2, keepdim=True)
        if "norm-twice" in self.bugs:  # harmless: what is normalised stays as it is
            h = h / (square + self.eps).sqrt()
            square = h.square().mean(-1, keepdim=True)
        if "norm-eps-placement" in self.bugs:
            root = square.sqrt() + self.eps
        else:
            root = (square + self.eps).sqrt()
        gain = wide(self.weight) + self.offset
        if "norm-before-cast" in self.bugs:
            return (h / root).to(x.dtype) * gain.to(x.dtype)
        return (h / root * gain).to(x.dtype)


class OwnLayerNorm(nn.Module):
    """LayerNorm by moments."""

    def __init__(self, width: int, eps: float, bugs: Bugs) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.bugs = bugs
        self.eps = bugs.get("norm-eps", eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "norm-missing" in self.bugs:
            return x
        h = wide(x)
        if "norm-axis" in self.bugs:  # over the sequence as well
            centred = h - h.mean((-2, -1), keepdim=True)
            variance = (centred * centred).mean((-2, -1), keepdim=True)
        else:
            centred = h - h.mean(-1, keepdim=True)
            variance = torch.einsum("...d,...d->...", centred, centred)[..., None] / h.shape[-1]
        if "rms-vs-layernorm" in self.bugs:
            centred, variance = h, h.square().mean(-1, keepdim=True)
        if "norm-unbiased" in self.bugs:
            variance = variance * h.shape[-1] / (h.shape[-1] - 1)
        root = variance.sqrt() + self.eps if "norm-eps-placement" in self.bugs else (variance + self.eps).sqrt()
        scaled = centred / root * self.weight
        return (scaled if "missing-bias" in self.bugs else scaled + self.bias).to(x.dtype)


def causal_bias(length: int, bugs: Bugs, window: int | None = None) -> torch.Tensor:
    """What is added to scores: 0 where a query may look, minus infinity elsewhere."""
    ahead = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    seen = ahead <= bugs.get("mask-off-by-one", 0)
    if window is not None and "window-missing" not in bugs:
        seen &= ahead > -bugs.get("window-off-by-one", window)
    if "mask-missing" in bugs:
        seen = torch.ones_like(seen)
    return torch.zeros(length, length).masked_fill(~seen, -torch.inf)


def own_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Softmax along the last axis, by its formula, in float32 at least."""
    scores = wide(scores)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)
