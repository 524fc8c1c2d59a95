"""hyper-connections: several residual streams, mixed before and after a branch."""

import torch
from torch import nn

from ..case import Case, Truth, at, normal, weighted

PATH = "hyper_connections.manifold_constrained_hyper_connections:ManifoldConstrainedHyperConnections"


def connections(name, buggy, fixed, truth=None, source=""):
    def make(release):
        return release.find(PATH)(4, dim=16, branch=nn.Linear(16, 16), layer_index=1)

    return Case(
        name, "hyper-connections", buggy, fixed, make, lambda: (normal(8, 5, 16),), truth, source,
        loss=weighted, prepare=stirred,
    )  # fmt: skip


def stirred(model):
    """Weights that are zero at first, and would hide what is made of them, get other values."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


CASES = [
    connections(
        "streams-sigmoid-before-sum",
        "0.3.10",
        "0.3.11",
        Truth(
            (at("merge_fracs", "in*"),),
            ("op-order",),
            "the dynamic part of the weights alone goes through 2 * sigmoid, instead of its sum with the static part",
            (r"sigmoid",),
        ),
        "0.3.11: beta.sigmoid() * 2",
    ),
    connections("streams-less-their-maximum", "0.3.1", "0.3.2"),
    connections("streams-maximum-detached", "0.3.2", "0.3.3"),
]
