"""Traces as an engine writes them that knows `op` and `attrs`, and nothing of programs."""

import numpy as np
import torch

import firstdrift as fd
from firstdrift.core.sites import Site

OUT = Site(0, "fwd", "y", "out")


def recorded(path, inputs, weights, op, attrs, reference, *, dtype=torch.float64, changed=None):
    """One operation, forward and backward, computed by torch: what it reads, what it made, all gradients.

    `changed` are the settings that are written down where they are others than those computed with.
    """
    inputs = [_leaf(one, dtype) for one in inputs]
    weights = {port: [_leaf(one, dtype, port) for one in _listed(item)] for port, item in weights.items()}
    made = reference(*inputs, **{port: item if len(item) > 1 else item[0] for port, item in weights.items()})
    above = torch.randn(made.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(made.dtype)
    if made.requires_grad:
        made.backward(above)
    with fd.Writer(path) as writer:
        sites = _weights(writer, weights)
        for number, one in enumerate(inputs):
            writer.put(f"x{number}", "fwd", one.detach(), producers=[])
        several = [site for site in sites if site.name != "y"]
        reads = [Site(0, "fwd", f"x{number}", "out") for number in range(len(inputs))]
        said = (changed if changed is not None else attrs) or None
        writer.put("y", "fwd", made.detach(), op=op, attrs=said, producers=[*reads, *(sites if several else ())])
        if made.requires_grad:
            writer.put("y", "agrad", above)
            for number, one in enumerate(inputs):
                if one.grad is not None:
                    writer.put(f"x{number}", "agrad", one.grad)
            _gradients(writer, weights)
    return fd.open_trace(path)


def _weights(writer, weights):
    """Weights stand under the operation's name; where several share a port, each under a name of its own."""
    sites = []
    for port, items in weights.items():
        for number, item in enumerate(items):
            name = "y" if len(items) == 1 else f"part{number}"
            writer.put(name, "weight", item.detach(), port=port)
            sites.append(Site(0, "weight", name, port))
    return sites


def _gradients(writer, weights):
    for port, items in weights.items():
        for number, item in enumerate(items):
            if item.grad is not None:
                writer.put("y" if len(items) == 1 else f"part{number}", "grad", item.grad, port=port)


def _listed(item):
    return item if isinstance(item, list) else [item]


def _leaf(item, dtype, port=""):
    tensor = item.detach().clone()
    if not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype).requires_grad_(not port.startswith("running_"))


def numbers(*shape, seed=0, low=None):
    """Random numbers; from `low` up where a function needs them so."""
    drawn = np.random.default_rng(seed + sum(shape)).standard_normal(shape)
    return torch.from_numpy(drawn if low is None else low + np.abs(drawn))
