"""What a decoder remembers of the tokens before: their keys and values, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Keys and values of every token so far; give the same one to every call of a generation."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        return self._kept[0][0].shape[2] if self._kept else 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's keys and values, `[batch, heads, tokens, size]`, and return all of them."""
        if layer in self._kept:
            before = self._kept[layer]
            keys, values = torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)
        self._kept[layer] = keys, values
        return keys, values
