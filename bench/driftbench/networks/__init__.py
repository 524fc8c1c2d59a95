"""The networks: each a plain reference, and a candidate written separately that can be told to be wrong."""

from __future__ import annotations

from importlib import import_module

from .network import Network

NAMES = (
    "llama",
    "gemma",
    "gpt2",
    "vit",
    "bert",
    "spotter",
    "resnet",
    "unet",
    "tagger",
    "moe",
    "mlp",
    "quantised",
    "shared",
)


def find_network(name: str) -> Network:
    """The network of this name."""
    network: Network = import_module(f"{__name__}.{name}").NETWORK
    return network
