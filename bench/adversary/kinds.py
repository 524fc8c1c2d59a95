"""Random networks of many kinds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from .network import INPUT, Network, Node, weights_for
from .operations.dense import ACTIVATIONS, Activation, Add, Embedding, Linear, Mul, Softmax
from .operations.losses import CrossEntropy, MeanSquares
from .operations.norms import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from .operations.sequences import Attention, Experts, GRULayer, Rotary
from .operations.spatial import AvgPool, Conv, GlobalAverage, MaxPool
from .optimizers import Optimizer

Rng = np.random.Generator


class Builder:
    """Collects nodes; each `then` reads the one before unless told otherwise."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def then(self, name: str, op, *inputs: str, tied: str | None = None) -> str:
        inputs = inputs or (self.nodes[-1].name if self.nodes else INPUT,)
        self.nodes.append(Node(name, op, inputs, tied))
        return name


def pick(rng: Rng, *choices):
    return choices[rng.integers(len(choices))]


def activation(rng: Rng) -> Activation:
    return Activation(which=pick(rng, *ACTIVATIONS))


def norm(rng: Rng, width: int):
    return LayerNorm(width=width, eps=pick(rng, 1e-5, 1e-6)) if rng.random() < 0.5 else RMSNorm(width=width)


def floats(rng: Rng, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def mlp(rng: Rng, b: Builder) -> torch.Tensor:
    rows, width = int(rng.integers(3, 17)), int(pick(rng, 6, 16, 32, 48))
    into = width
    for i in range(rng.integers(1, 4)):
        out = int(pick(rng, 8, 24, 33, 64))
        b.then(f"fc{i}", Linear(wide_in=into, wide_out=out))
        if rng.random() < 0.4:
            b.then(f"norm{i}", norm(rng, out))
        b.then(f"act{i}", activation(rng))
        into = out
    b.then("head", Linear(wide_in=into, wide_out=7))
    if rng.random() < 0.2:
        b.then("softmax", Softmax())
    return floats(rng, rows, width)


def gated(rng: Rng, b: Builder, width: int, read: str, tag: str = "") -> str:
    inner = int(pick(rng, 12, 24, 40))
    b.then(f"gate{tag}", Linear(wide_in=width, wide_out=inner, has_bias=False), read)
    b.then(f"act{tag}", Activation(which=pick(rng, "silu", "gelu")))
    b.then(f"up{tag}", Linear(wide_in=width, wide_out=inner, has_bias=False), read)
    b.then(f"mul{tag}", Mul(), f"act{tag}", f"up{tag}")
    return b.then(f"down{tag}", Linear(wide_in=inner, wide_out=width, has_bias=bool(rng.random() < 0.5)))


def residual(rng: Rng, b: Builder) -> torch.Tensor:
    width = int(pick(rng, 8, 16, 32))
    stream = b.then("stem", Linear(wide_in=width, wide_out=width))
    for i in range(rng.integers(1, 3)):
        read = b.then(f"norm{i}", norm(rng, width), stream)
        inner = gated(rng, b, width, read, str(i))
        stream = b.then(f"add{i}", Add(), stream, inner)
    b.then("head", Linear(wide_in=width, wide_out=5))
    return floats(rng, int(rng.integers(2, 5)), int(rng.integers(3, 9)), width)


def conv(rng: Rng, b: Builder) -> torch.Tensor:
    channels, side = int(pick(rng, 4, 8)), int(pick(rng, 6, 8))
    bias = bool(rng.random() < 0.5)
    b.then("conv0", Conv(into=3, out=channels, has_bias=bias, bias=bias))
    if rng.random() < 0.7:
        b.then("norm0", pick(rng, BatchNorm(channels=channels), GroupNorm(channels=channels)))
    stream = b.then("act0", activation(rng))
    b.then("conv1", Conv(into=channels, out=channels, size=pick(rng, 1, 3), padding=0), stream)
    if b.nodes[-1].op.size == 1 and rng.random() < 0.7:
        b.then("add", Add(), stream, "conv1")
    b.then("pool", pick(rng, MaxPool(), AvgPool()))
    b.then("mean", GlobalAverage())
    b.then("head", Linear(wide_in=channels, wide_out=6))
    return floats(rng, int(rng.integers(2, 5)), 3, side, side)


def decoder(rng: Rng, b: Builder) -> torch.Tensor:
    count, size = int(pick(rng, 1, 2, 4)), int(pick(rng, 4, 8))
    width, rows, batch, length = count * size, int(pick(rng, 11, 24)), int(pick(rng, 1, 3)), int(pick(rng, 4, 9))
    stream = b.then("embed", Embedding(rows=rows, width=width))
    lengths = tuple(int(n) for n in rng.integers(2, length + 1, batch)) if rng.random() < 0.3 else ()
    core = Attention(heads=count, scale=size**-0.5, causal=bool(rng.random() < 0.8 or not lengths), lengths=lengths)
    read = b.then("norm0", norm(rng, width), stream)
    for part in "qkv":
        b.then(part, Linear(wide_in=width, wide_out=width, has_bias=False), read)
    turned = rng.random() < 0.6
    if turned:
        b.then("ropeq", Rotary(heads=count), "q")
        b.then("ropek", Rotary(heads=count), "k")
    b.then("attn", core, *(("ropeq", "ropek") if turned else ("q", "k")), "v")
    b.then("o", Linear(wide_in=width, wide_out=width, has_bias=False))
    stream = b.then("add0", Add(), stream, "o")
    read = b.then("norm1", norm(rng, width))
    stream = b.then("add1", Add(), stream, gated(rng, b, width, read))
    b.then("norm2", norm(rng, width))
    tied = "embed" if rng.random() < 0.5 else None
    b.then("head", Linear(wide_in=width, wide_out=rows, has_bias=False), tied=tied)
    return torch.from_numpy(rng.integers(0, rows, (batch, length)))


def recurrent(rng: Rng, b: Builder) -> torch.Tensor:
    into, width = int(pick(rng, 4, 9)), int(pick(rng, 6, 12))
    b.then("gru", GRULayer(into=into, width=width))
    if rng.random() < 0.5:
        b.then("norm", norm(rng, width))
    b.then("head", Linear(wide_in=width, wide_out=5))
    return floats(rng, int(rng.integers(2, 5)), int(rng.integers(3, 8)), into)


def routed(rng: Rng, b: Builder) -> torch.Tensor:
    width = int(pick(rng, 6, 12))
    b.then("norm0", norm(rng, width))
    b.then("experts", Experts(width=width, chosen=int(pick(rng, 1, 2)), normalised=bool(rng.random() < 0.5)))
    b.then("add", Add(), INPUT, "experts")
    b.then("norm1", norm(rng, width))
    b.then("head", Linear(wide_in=width, wide_out=5))
    return floats(rng, int(rng.integers(3, 7)), width)


def wide(rng: Rng, b: Builder) -> torch.Tensor:
    """A few larger tensors: sums of many terms and rows by the hundred."""
    width, rows = int(pick(rng, 256, 512)), int(pick(rng, 64, 128))
    b.then("norm", norm(rng, width))
    b.then("fc", Linear(wide_in=width, wide_out=int(pick(rng, 128, 256))))
    b.then("act", activation(rng))
    b.then("head", Linear(wide_in=b.nodes[1].op.wide_out, wide_out=16))
    return floats(rng, rows, width)


KINDS: dict[str, Callable[[Rng, Builder], torch.Tensor]] = {
    "mlp": mlp, "residual": residual, "conv": conv, "decoder": decoder, "recurrent": recurrent, "routed": routed,
    "wide": wide,
}  # fmt: skip
OFTEN = {"mlp": 4, "residual": 3, "conv": 4, "decoder": 4, "recurrent": 2, "routed": 2, "wide": 1}


def draw_network(rng: Rng, kind: str, train: bool, adamw: bool) -> Network:
    """A network of this kind with weights, input and, where it is trained, loss and optimizer."""
    b = Builder()
    x = KINDS[kind](rng, b)
    nodes = tuple(b.nodes)
    network = Network(kind, nodes, x, weights_for(nodes, rng))
    if not train:
        return network
    shape = _output_shape(network)
    count = int(np.prod(shape[:-1]))
    if rng.random() < 0.75 and not isinstance(nodes[-1].op, Softmax):
        loss = CrossEntropy(targets=tuple(int(n) for n in rng.integers(0, shape[-1], count)))
    else:
        loss = MeanSquares(targets=tuple(float(n) / 4 for n in rng.integers(-8, 9, int(np.prod(shape)))))
    optimizer = None
    if rng.random() < 0.6:
        optimizer = Optimizer("AdamW" if adamw and rng.random() < 0.5 else "SGD", lr=float(pick(rng, 0.01, 0.1)))
    steps = 2 if optimizer and rng.random() < 0.3 else 1
    return Network(kind, nodes, x, network.weights, loss, optimizer, steps)


def _output_shape(network: Network) -> tuple[int, ...]:
    from .running import run

    return tuple(run(network, torch.float32, None)[_last(network)].shape)


def _last(network: Network):
    from .network import at

    return at(0, "fwd", network.last)
