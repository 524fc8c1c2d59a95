"""Operations whose backward passes are written by hand, as ports to other languages have them, and can be wrong."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Bugs

# Each backward gets the bugs of its layer as the last argument of forward, and gives no gradient for it.


class LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, bugs: Bugs) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bugs = bugs
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows, out = x.flatten(0, -2), grad.flatten(0, -2)
        matrix = weight.T if "linear-grad-untransposed" in ctx.bugs else weight
        of_weight, of_bias = out.T @ rows, out.sum(0)
        if "linear-weight-grad-transposed" in ctx.bugs:
            of_weight = of_weight.T.contiguous()
        if "linear-bias-grad-mean" in ctx.bugs:
            of_bias = out.mean(0)
        if "linear-weight-grad-last" in ctx.bugs:  # overwritten by each sample, not summed
            of_weight = grad[-1].T @ x[-1]
        if "linear-frozen" in ctx.bugs:
            of_weight = torch.zeros_like(of_weight)
        return grad @ matrix, of_weight, of_bias, None


class EmbeddingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor, bugs: Bugs) -> torch.Tensor:
        ctx.save_for_backward(tokens, weight)
        ctx.bugs = bugs
        return weight[tokens]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        tokens, weight = ctx.saved_tensors
        total = torch.zeros_like(weight)
        rows, values = tokens.flatten(), grad.flatten(0, -2)
        if "embedding-grad-overwritten" in ctx.bugs:  # of a token that occurs twice, the last gradient remains
            for row, value in zip(rows.tolist(), values, strict=True):
                total[row] = value
        else:
            total.index_add_(0, rows, values)
        return None, total, None


class ReLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bugs: Bugs) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.bugs = bugs
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        if "relu-grad-at-zero" in ctx.bugs:
            return grad * (x >= 0), None
        if "relu-grad-of-gradient" in ctx.bugs:  # masks by the gradient's own sign, not by the input's
            return grad * (grad > 0), None
        return grad * (x > 0), None


class SiLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bugs: Bugs) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.bugs = bugs
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        slope = gate if "silu-grad-term" in ctx.bugs else gate * (1 + x * (1 - gate))
        return grad * slope, None


class SoftmaxFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bugs: Bugs) -> torch.Tensor:
        weights = torch.exp(x - x.amax(-1, keepdim=True))
        weights = weights / weights.sum(-1, keepdim=True)
        ctx.save_for_backward(weights)
        ctx.bugs = bugs
        return weights

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (weights,) = ctx.saved_tensors
        if "softmax-grad-diagonal" in ctx.bugs:
            return grad * weights * (1 - weights), None
        return weights * (grad - (grad * weights).sum(-1, keepdim=True)), None


class LayerNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, bugs: Bugs) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        root = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        ctx.save_for_backward(x, centred / root, root, weight)
        ctx.bugs = bugs
        return centred / root * weight + bias

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, normed, root, weight = ctx.saved_tensors
        inner = grad if "norm-grad-gain" in ctx.bugs else grad * weight
        mean = 0 if "norm-grad-mean" in ctx.bugs else inner.mean(-1, keepdim=True)
        along = 0 if "norm-grad-variance" in ctx.bugs else normed * (inner * normed).mean(-1, keepdim=True)
        seen = x if "gain-grad-of-input" in ctx.bugs else normed
        of_weight = (grad * seen).flatten(0, -2).sum(0)
        of_bias = grad.flatten(0, -2).sum(0)
        return (inner - mean - along) / root, of_weight, of_bias, None, None


class ScaledGradient(torch.autograd.Function):
    """The same value with a gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.factor, None
