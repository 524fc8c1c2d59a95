"""Models that are built in odd ways, of odd numbers: shared, growing, random, in place, in other dtypes and layouts."""

import copy
import random
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from tests.odd_models.odd import BATCH, WIDTH, Calls, Odd, finish, infer, inputs, linear, loss_of, mlp
from torch import nn

Pair = namedtuple("Pair", "left right")


@dataclass
class Made:
    """What some models return."""

    logits: torch.Tensor
    hidden: Any = None


def returned(model, optimizer, number):
    output = model(inputs(number))
    return finish((output.logits, output.hidden), loss_of(output.logits), optimizer)


def recursive(self, x, depth=3):
    return x if depth == 0 else self.part(self(x, depth - 1).tanh())


def tied():
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    model[2].weight = model[0].weight
    return model


def growing(self, x):
    if len(self.parts) < 4:
        self.parts.append(linear())
    for part in self.parts:
        x = part(x).tanh()
    return x


def swapped(model, optimizer, number):
    """A part is replaced between two steps, and the mode is changed."""
    model.train(number != 1)
    if number == 2:
        model[1] = nn.ReLU()
    output = model(inputs(number))
    return finish(output, loss_of(output), optimizer)


def reassigned(model, optimizer, number):
    output = model(inputs(number))
    found = finish(output, loss_of(output), optimizer)
    with torch.no_grad():
        model[0].weight.data = model[0].weight.data * 0.9
        model[3].bias.copy_(torch.zeros(WIDTH))
    return found


def dropped(self, x):
    """Layers are left out by Python's chance, noise is numpy's."""
    for part in self.parts:
        if random.random() < 0.7:
            x = part(x).tanh()
    return x + torch.from_numpy(np.random.normal(size=x.shape).astype(np.float32)) * 0.1  # noqa: NPY002


def drawn(self, x):
    hard = F.gumbel_softmax(self.part(x), hard=True)
    own = torch.randn(x.shape, generator=self.chance)
    return F.rrelu(hard + own, training=self.training) * torch.bernoulli(torch.full_like(x, 0.5))


def with_chance():
    model = Calls(drawn, part=linear())
    model.chance = torch.Generator().manual_seed(5)
    return model


def written(self, x):
    y = self.part(x)
    z = y.clone()
    z[:, 0] = 1.0
    z[:, 1:3] += y[:, 3:5]
    z.index_put_((torch.tensor([0, 2]),), torch.ones(2, WIDTH), accumulate=True)
    return z.t().contiguous().as_strided((WIDTH, BATCH), (1, WIDTH)).relu_().t()


class Remembers(nn.Module):
    """Keeps numbers from one step to the next, in a buffer and in an attribute."""

    def __init__(self):
        super().__init__()
        self.part, self.last = linear(), None
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        y = self.part(x) + (0.0 if self.last is None else self.last)
        self.mean = self.mean * 0.9 + y.detach().mean(0) * 0.1
        self.last = y.detach()
        return y - self.mean


class Scaled(torch.Tensor):
    """A tensor of the user's own kind."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def subclassed(model, optimizer, number):
    output = model(inputs(number).as_subclass(Scaled))
    assert isinstance(output, Scaled)
    return finish(output.as_subclass(torch.Tensor), loss_of(output.as_subclass(torch.Tensor)), optimizer)


class Overrides(nn.Module):
    """Calls that do not go the usual way."""

    def __init__(self):
        super().__init__()
        self.part = linear()

    def __call__(self, x):
        return super().__call__(x) + 1

    def __getattr__(self, name):
        return 0.5 if name == "factor" else super().__getattr__(name)

    def forward(self, x):
        return self.part.forward(x) * self.factor + self.part(x)


def of_dtype(dtype):
    def step(model, optimizer, number):
        output = model(inputs(number).to(dtype))
        return finish(output, loss_of(output), optimizer)

    return Odd(lambda: nn.Sequential(linear(), nn.Tanh(), linear()).to(dtype), step)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64) * 0.3)

    def forward(self, x):
        return torch.fft.fft(x.to(torch.complex64)) @ self.weight.conj() * torch.polar(x, x).mT.mT


def images(model, optimizer, number):
    output = model(inputs(number, BATCH, 3, 8, 8).to(memory_format=torch.channels_last))
    return finish(output, loss_of(output), optimizer)


def convolutions():
    parts = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(2),
    ]
    model = nn.Sequential(*parts)
    model(inputs(0, BATCH, 3, 8, 8))
    return model.to(memory_format=torch.channels_last)


def packed_rows(model, optimizer, number):
    rows = nn.utils.rnn.pack_sequence([inputs(number + size, size, WIDTH) for size in (5, 3, 2)])
    output, state = model(rows)
    return finish((output.data, state), output.data.square().mean(), optimizer)


def empty_batches(model, optimizer, number):
    output = model(inputs(number)[: number % 2])
    return finish(output, output.square().sum(), optimizer)


def autocast(model, optimizer, number):
    with torch.autocast("cpu", torch.bfloat16):
        output = model(inputs(number))
    return finish(output, loss_of(output), optimizer)


def sparse_matrix(self, x):
    return torch.sparse.mm(self.graph, self.part(x))


def with_a_graph():
    model = Calls(sparse_matrix, part=linear())
    model.graph = torch.eye(BATCH).roll(1, 0).to_sparse()
    return model


def keywords(model, optimizer, number):
    output = model(first=inputs(number), more={"second": [inputs(number + 9)]})
    return finish(output, loss_of(output), optimizer)


def generated(model, optimizer, number):
    """A generator, whose parts are computed as they are asked for."""
    output = torch.stack(list(model(inputs(number))))
    return finish(output, loss_of(output), optimizer)


def yielding(self, x):
    for part in self.parts:
        x = part(x)
        yield x


def copied(self, x):
    twin = copy.deepcopy(self.part)
    return twin(x).detach() + self.part(x)


def several(*count):
    return nn.ModuleList(linear() for _ in range(*count))


SHAPING = {
    "a module that calls itself": Odd(lambda: Calls(recursive, part=linear())),
    "one module three times": Odd(lambda: Calls(lambda self, x: self.part(self.part(self.part(x))), part=linear())),
    "tied weights": Odd(tied),
    "a model that grows": Odd(lambda: Calls(growing, parts=several(1))),
    "a part that is replaced": Odd(mlp, swapped),
    "weights that are replaced": Odd(mlp, reassigned),
    "layers that are left out by chance": Odd(lambda: Calls(dropped, parts=several(4))),
    "chance of every kind": Odd(with_chance),
    "writing in place": Odd(lambda: Calls(written, part=linear())),
    "a memory from step to step": Odd(Remembers),
    "tensors of another kind": Odd(lambda: nn.Sequential(linear(), nn.Tanh()), subclassed),
    "calls that go another way": Odd(Overrides),
    "double precision": of_dtype(torch.float64),
    "bfloat16": of_dtype(torch.bfloat16),
    "complex numbers": Odd(Complex),
    "channels last": Odd(convolutions, images),
    "rows of other lengths": Odd(lambda: nn.LSTM(WIDTH, 4, 2, dropout=0.3), packed_rows),
    "batches without samples": Odd(lambda: nn.Sequential(linear(), nn.Tanh(), linear()), empty_batches),
    "autocast": Odd(mlp, autocast),
    "a sparse matrix": Odd(with_a_graph),
    "keywords and structures": Odd(
        lambda: Calls(lambda self, *, first, more: self.part(first) + more["second"][0], part=linear()), keywords
    ),
    "a generator": Odd(lambda: Calls(yielding, parts=several(2)), generated),
    "a dataclass": Odd(lambda: Calls(lambda self, x: Made(self.part(x), None), part=linear()), returned),
    "a named tuple": Odd(lambda: Calls(lambda self, x: Pair(self.part(x), None), part=linear())),
    "an output that is the input": Odd(
        lambda: Calls(lambda self, x: self.part(self.same(x)), same=nn.Identity(), part=linear())
    ),
    "a copy made on the way": Odd(lambda: Calls(copied, part=mlp())),
    "no parameters": Odd(
        lambda: nn.Sequential(nn.Softmax(-1), nn.Dropout(0.5)),
        infer,
        optimizer=None,
    ),
    "fake quantisation": Odd(
        lambda: Calls(
            lambda self, x: torch.fake_quantize_per_tensor_affine(self.part(x), 0.1, 0, -128, 127), part=linear()
        )
    ),
    "attention with a mask": Odd(
        lambda: Calls(
            lambda self, x: self.part(x[None], x[None], x[None], attn_mask=torch.ones(BATCH, BATCH).triu(1).bool())[0],
            part=nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True),
        )
    ),
    "a decoder of torch's own": Odd(
        lambda: Calls(
            lambda self, x: self.part(x[None], x[None] * 2),
            part=nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 2, 8, batch_first=True), 2),
        )
    ),
}
