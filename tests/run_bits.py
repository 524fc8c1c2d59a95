"""Everything that a run of a model has made, to the bit, so that two runs can be told apart."""

import hashlib
import random

import numpy as np
import torch


class Bits(dict):
    """Everything a run has made, by name, as digests of its bytes."""

    def add(self, name, value):
        if isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo:
            self.add(name, (value._indices(), value._values()))
        elif isinstance(value, torch.Tensor):
            kind = f"{value.dtype} {tuple(value.shape)} {value.requires_grad}"
            data = (
                value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
            self[name] = kind + hashlib.sha256(data).hexdigest()
        elif isinstance(value, dict):
            self[name] = repr(list(value))  # an entry that is empty is one, too
            for key, item in value.items():
                self.add(f"{name}.{key}", item)
        elif isinstance(value, list | tuple):
            self.add(name, dict(enumerate(value)))
        else:
            self[name] = repr(value)

    def add_run(self, model, *optimizers):
        """The state of a model and its optimizers, and of every source of random numbers."""
        self.add("parameter", dict(model.named_parameters()))
        self.add("buffer", dict(model.named_buffers()))
        self.add("gradient", {name: one.grad for name, one in model.named_parameters()})
        self.add("mode", {name: getattr(one, "training", None) for name, one in model.named_modules()})
        self.add("optimizer", [one.state_dict() for one in optimizers])
        self.add_randomness()

    def add_randomness(self):
        self.add("torch's random numbers", torch.get_rng_state())
        self.add("numpy's random numbers", repr(np.random.get_state()))  # noqa: NPY002
        self.add("python's random numbers", repr(random.getstate()))


def assert_same_bits(traced, plain):
    assert plain
    assert traced.keys() == plain.keys()
    differing = [name for name, digest in plain.items() if traced[name] != digest]
    assert not differing, differing[:8]


def seed():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
