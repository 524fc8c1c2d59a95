"""Near-ties: weights and inputs under which float32 decides by its last bit, and another order otherwise."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

Inputs = tuple[Any, ...]


def _seen(model: nn.Module, path: str, inputs: Inputs) -> torch.Tensor:
    """The output of a module in float64."""
    found: list[torch.Tensor] = []
    double = copy.deepcopy(model).double().eval()
    double.get_submodule(path).register_forward_hook(lambda module, args, output: found.append(output))
    with torch.no_grad():
        double(*(x.double() if x.is_floating_point() else x for x in inputs))
    return found[0]


@torch.no_grad()
def relu_at_zero(model: nn.Module, inputs: Inputs) -> None:
    """The bias of norm1 puts one element of each channel at zero, as exactly as float32 can."""
    found = _seen(model, "norm1", inputs).flatten(0, -2)
    norm = model.get_submodule("norm1")
    rows = torch.arange(found.shape[1]) % found.shape[0]
    norm.bias -= found[rows, torch.arange(found.shape[1])].float()


@torch.no_grad()
def equal_neighbours(model: nn.Module, inputs: Inputs) -> None:
    """One input of each sample is moved so that two neighbours in a window of pool1 are equal and positive."""
    (mel,) = inputs
    kernel = model.get_submodule("conv1").weight.double()
    for sample in range(len(mel)):
        open_ = _seen(model, "bn1", inputs)[sample]
        pairs = open_[:, : open_.shape[1] // 2 * 2].unflatten(1, (-1, 2))[:, 2:-2].amin(-1)
        channel, pair = divmod(int(pairs.argmax()), pairs.shape[1])
        left = 2 * (pair + 2)
        y = _seen(model, "conv1", inputs)[sample, channel]
        # conv1 reads frames 2t-2 .. 2t+2 for output t; frame 2t-2 is read by `left` and not by `left + 1`
        band = int(kernel[channel, :, 0].abs().argmax())
        mel[sample, band, 2 * left - 2] += float((y[left + 1] - y[left]) / kernel[channel, band, 0])


@torch.no_grad()
def equal_experts(model: nn.Module, inputs: Inputs) -> None:
    """The second and third choice of one token in layer 1 are made equal."""
    layer = model.get_submodule("layers.1.mlp.router.gate")
    tokens = _seen(model, "layers.1.post_norm", inputs).flatten(0, 1)
    token = tokens[5]
    logits = layer.weight.double() @ token
    order = logits.argsort(descending=True)
    second, third = int(order[1]), int(order[2])
    layer.weight[third] += ((logits[second] - logits[third]) * token / token.square().sum()).float()
