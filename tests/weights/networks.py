"""Small networks, and their state as anybody would save it."""

import numpy as np
import torch
from torch import nn

from firstdrift.weights.difference import compare
from firstdrift.weights.open_checkpoint import open_checkpoint


class Tied(nn.Module):
    """An embedding whose weight is the output layer's too."""

    def __init__(self, tied=True):
        super().__init__()
        self.embed = nn.Embedding(12, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 12, bias=False)
        if tied:
            self.head.weight = self.embed.weight


class Attention(nn.Module):
    """Three projections where other implementations have one, or the other way round."""

    def __init__(self, fused):
        super().__init__()
        if fused:
            self.qkv = nn.Linear(8, 16)
        else:
            self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)


def plain(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 6)).to(dtype)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def bits(model):
    return {
        name: value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in model.state_dict().items()
    }


def other(model, seed=1):
    """A state of the same shapes with other numbers."""
    torch.manual_seed(seed)
    return {
        name: torch.randn(value.shape).to(value.dtype) if value.is_floating_point() else torch.full_like(value, seed)
        for name, value in model.state_dict().items()
    }


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def holder(tensors):
    """A model with parameters of these names and shapes, all zero."""
    root = nn.Module()
    for name, value in tensors.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]
        module.register_parameter(leaf, nn.Parameter(torch.from_numpy(np.zeros_like(value)), requires_grad=False))
    return root


def diff_checkpoints(reference, candidate):
    """The difference of two checkpoints by their paths."""
    with open_checkpoint(reference) as of_reference, open_checkpoint(candidate) as of_candidate:
        return compare(of_reference, of_candidate)
