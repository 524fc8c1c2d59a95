"""A network as a list of named operations, and the PyTorch model that the reference is recorded with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import firstdrift as fd

from .operations.op import Op
from .optimizers import Optimizer

INPUT = "x"
Values = dict[fd.Site, Tensor]


def at(step: int, phase: str, name: str, port: str = "out") -> fd.Site:
    return fd.Site(step, phase, name, port, 0, None)


@dataclass(frozen=True)
class Node:
    name: str
    op: Op
    inputs: tuple[str, ...]
    tied: str | None = None  # the node that owns its weights

    @property
    def owner(self) -> str:
        return self.tied or self.name


@dataclass(frozen=True)
class Network:
    """Nodes in the order they run; the last one's result is the model's. Weights and input are in float32."""

    kind: str
    nodes: tuple[Node, ...]
    x: Tensor
    weights: dict[tuple[str, str], Tensor]
    loss: Op | None = None
    optimizer: Optimizer | None = None
    steps: int = 1

    @property
    def last(self) -> str:
        return self.nodes[-1].name

    def stored(self, dtype: torch.dtype) -> Network:
        """The same network with weights and input that this dtype holds."""
        weights = {key: value.to(dtype) for key, value in self.weights.items()}
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        return Network(self.kind, self.nodes, x, weights, self.loss, self.optimizer, self.steps)

    def trainable(self) -> list[tuple[str, str]]:
        kept = {(n.name, port) for n in self.nodes for port in n.op.buffers()}
        return [key for key in self.weights if key not in kept]


def weights_for(nodes: tuple[Node, ...], rng: np.random.Generator) -> dict[tuple[str, str], Tensor]:
    return {
        (node.name, port): torch.from_numpy(node.op.initial(port, shape, rng).astype(np.float32))
        for node in nodes
        if node.tied is None
        for port, shape in node.op.shapes().items()
    }


class Model(nn.Module):
    """The network as PyTorch runs it."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._nodes = network.nodes
        for node in network.nodes:
            self.add_module(node.name, node.op.module())
        for (name, port), value in network.weights.items():
            module = self.get_submodule(name)
            if port in dict(module.named_buffers()):
                setattr(module, port, value.clone())
            else:
                setattr(module, port, nn.Parameter(value.clone()))
        for node in network.nodes:
            if node.tied:
                self.get_submodule(node.name).weight = self.get_submodule(node.tied).weight

    def forward(self, x: Tensor) -> Tensor:
        made = {INPUT: x}
        for node in self._nodes:
            made[node.name] = getattr(self, node.name)(*(made[one] for one in node.inputs))
        return made[self._nodes[-1].name]


def record(network: Network, path: str) -> None:
    """The reference: a trace of the PyTorch model with its program."""
    model = Model(network).eval()  # norms keep their statistics
    if network.loss is None:
        with fd.trace(model, path), torch.no_grad():
            model(network.x)
        return
    optimizer = network.optimizer.make(model.parameters()) if network.optimizer else None
    with fd.trace(model, path, optimizer=optimizer):
        for _ in range(network.steps):
            model.zero_grad()
            network.loss.exact([model(network.x)], {}).backward()
            if optimizer is not None:
                optimizer.step()


def canonical(network: Network, site: fd.Site) -> fd.Site | None:
    """The tensor that a recorded site shows, by the one name that it has here; None for what is not followed."""
    step, phase, name, port = site.step, site.phase, site.name, site.port
    if phase in ("agrad", "lossgrad"):
        return at(step, "agrad", network.last if name in ("", "loss") else name)
    if phase == "fwd":
        if name == "":
            return at(step, "fwd", network.last) if port == "out" else at(step, "input", "input", INPUT)
        if port.startswith("in."):
            node = next(node for node in network.nodes if node.name == name)
            source = node.inputs[int(port[3:])]
            return at(step, "input", "input", INPUT) if source == INPUT else at(step, "fwd", source)
        return at(step, "fwd", name)
    if phase == "grad_scaled":
        return at(step, "grad", name, port)
    if phase in ("weight", "weight_after") and (name, port) not in network.weights:
        return None
    if phase == "weight_after" and (name, port) not in network.trainable():
        return at(step, "weight", name, port)  # a frozen buffer is after the step what it was before
    return None if port.endswith(".step") else at(step, phase, name, port)
