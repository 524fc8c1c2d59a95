"""A vision transformer: patches by a convolution, a class token, positions resized from a smaller grid, fused qkv.
The candidate unfolds its patches into a matrix product and interpolates by matrices."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import Bugs, Planted
from .network import Network, class_loss, wide
from .parts import OwnLayerNorm, OwnLinear, own_softmax

WIDTH, HEADS, LAYERS, PATCH, SIDE, TRAINED, CLASSES, EPS = 48, 4, 3, 4, 24, 4, 7, 1e-6
HEAD, GRID = WIDTH // HEADS, SIDE // PATCH


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, PATCH, PATCH)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.conv(image).flatten(2).transpose(1, 2)


class Positions(nn.Module):
    """Puts the class token first and adds the positions, resized bilinearly."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + TRAINED * TRAINED, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, grid = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        grid = grid.reshape(1, TRAINED, TRAINED, WIDTH).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(GRID, GRID), mode="bilinear", align_corners=False)
        places = torch.cat((first, grid.flatten(2).transpose(1, 2)), 1)
        return torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + places


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            self.qkv.weight.mul_(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, EPS)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH, EPS)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH))
        self.gamma = nn.Parameter(0.5 * torch.ones(WIDTH))  # LayerScale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.gamma * self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = Patches()
        self.positions = Positions()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, EPS)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.positions(self.patches(image))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class UnfoldedConv(nn.Module):
    """A convolution of disjoint patches as one matrix product."""

    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, 3, PATCH, PATCH))
        self.bias = nn.Parameter(torch.empty(WIDTH))
        self.bugs = bugs

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kernel = self.weight.flip(2, 3) if "conv-flip" in self.bugs else self.weight
        kernel = kernel.transpose(2, 3) if "conv-transpose" in self.bugs else kernel
        columns = F.unfold(image, PATCH, stride=PATCH)
        if "patch-layout" in self.bugs:  # pixels of a patch as (y, x, channel), weights as (channel, y, x)
            columns = columns.unflatten(1, (3, PATCH * PATCH)).transpose(1, 2).flatten(1, 2)
        found = torch.einsum("oc,bcn->bon", kernel.flatten(1), columns) + self.bias[:, None]
        return found.unflatten(2, (GRID, GRID))


class OwnPatches(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.conv = UnfoldedConv(bugs)
        self.bugs = bugs

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = self.conv(image)
        order = "bcyx->bxyc" if "patch-order" in self.bugs else "bcyx->byxc"
        return torch.einsum(order, found).flatten(1, 2)


def resizing(size: int, to: int, corners: bool) -> torch.Tensor:
    """The matrix of a linear interpolation."""
    if corners:
        places = torch.arange(to, dtype=torch.float64) * (size - 1) / (to - 1)
    else:
        places = ((torch.arange(to, dtype=torch.float64) + 0.5) * size / to - 0.5).clamp(0, size - 1)
    return (1 - (places[:, None] - torch.arange(size)).abs()).clamp(min=0)


class OwnPositions(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + TRAINED * TRAINED, WIDTH))
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrix = resizing(TRAINED, GRID, "align-corners" in self.bugs).to(x.dtype)
        if "nearest" in self.bugs:
            matrix = F.one_hot(torch.arange(GRID) * TRAINED // GRID, TRAINED).to(x.dtype)
        grid = self.pos_embed[0, 1:].unflatten(0, (TRAINED, TRAINED))
        places = torch.einsum("yp,xq,pqc->yxc", matrix, matrix, grid).flatten(0, 1)
        if "class-last" in self.bugs:
            whole = torch.cat((x, self.cls_token.expand(len(x), -1, -1)), 1)
        else:
            whole = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1)
        if "positions-shifted" in self.bugs:
            return whole + torch.cat((places, self.pos_embed[0, :1]))
        return whole + torch.cat((self.pos_embed[0, :1], places))


class OwnAttention(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.qkv = OwnLinear(WIDTH, 3 * WIDTH)
        self.proj = OwnLinear(WIDTH, WIDTH)
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).unflatten(-1, (3, HEADS, HEAD))
        if "feature-head" in self.bugs:  # read as (3, feature, head)
            parts = self.qkv(x).unflatten(-1, (3, HEAD, HEADS)).transpose(-1, -2)
        q, k, v = parts.unbind(-3)
        if "query-key-swapped" in self.bugs:
            q, k = k, q
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.bugs.get("attention-scale", HEAD**-0.5)
        if "softmax-axis" in self.bugs:
            weights = own_softmax(scores.mT).mT.to(x.dtype)
        else:
            weights = own_softmax(scores).to(x.dtype)
        return self.proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class OwnGELU(nn.Module):
    """x times the normal distribution."""

    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = wide(x)
        if "gelu-quick" in self.bugs:
            return (h * torch.sigmoid(1.702 * h)).to(x.dtype)
        return (h * (1 + torch.erf(h * 0.5**0.5)) / 2).to(x.dtype)


class OwnBlock(nn.Module):
    def __init__(self, bugs: Bugs) -> None:
        super().__init__()
        self.norm1 = OwnLayerNorm(WIDTH, EPS, bugs)
        self.attn = OwnAttention(bugs)
        self.norm2 = OwnLayerNorm(WIDTH, EPS, {})
        self.mlp = nn.Sequential(OwnLinear(WIDTH, 96), OwnGELU(bugs), OwnLinear(96, WIDTH))
        self.gamma = nn.Parameter(torch.empty(WIDTH))
        self.bugs = bugs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attn(self.norm1(x)) + (0 if "missing-residual" in self.bugs else x)
        branch = self.mlp(self.norm2(x))
        return x + (branch if "layerscale-missing" in self.bugs else branch * self.gamma)


class OwnViT(nn.Module):
    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.patches = OwnPatches(planted.bugs)
        self.positions = OwnPositions(planted.bugs)
        self.blocks = nn.ModuleList(OwnBlock(planted.at(layer)) for layer in range(LAYERS))
        self.norm = OwnLayerNorm(WIDTH, EPS, {})
        self.head = OwnLinear(WIDTH, CLASSES)
        self.bugs = planted.bugs

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.positions(self.patches(image))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x.mean(1) if "mean-pooled" in self.bugs else x[:, 0])


def inputs() -> tuple[Any, ...]:
    return (torch.randn(2, 3, SIDE, SIDE),)


NETWORK = Network(ViT, {"own": OwnViT}, inputs, lambda: torch.randint(0, CLASSES, (2,)), class_loss)
