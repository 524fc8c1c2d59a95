"""Who watches a decoder: for every stage of every layer whether it is wanted, and its tensor when it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Taps:
    """A watcher: `wants(stage, layer)` is asked first, then `see(stage, layer, tensor)` is called with what is wanted.

    Tensors come with the batch in front and a token's values together: `[batch, tokens, ...]`, but attention's scores
    and weights, which are `[batch, heads, tokens, positions]`. They are borrowed, and must not be changed.
    """

    wants: Callable[[str, int], bool]
    see: Callable[[str, int, Tensor], None]

    def __call__(self, stage: str, layer: int, tensor: Tensor) -> None:
        """Hand over a tensor that was computed anyway."""
        if self.wants(stage, layer):
            self.see(stage, layer, tensor)


OFF = Taps(lambda stage, layer: False, lambda stage, layer, tensor: None)
