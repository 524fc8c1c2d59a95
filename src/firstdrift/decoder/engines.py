"""What runs a model for a trace: our decoder here, the transformers library next door, behind one shape."""

from __future__ import annotations

from os import PathLike
from typing import Protocol

import torch
from torch import Tensor, nn

from ..bars import Bar, no_bar
from .cache import Cache
from .loading import load_with_proof
from .settings import DecoderConfig
from .taps import Taps


class Engine(Protocol):
    """A loaded model that remembers the tokens it has seen."""

    loaded: str  # one sentence about the weights

    def forward(self, tokens: Tensor, taps: Taps) -> Tensor:
        """Logits `[batch, tokens, vocabulary]` of tokens that follow those of the calls before."""

    def weight(self, name: str) -> Tensor | None:
        """A weight by Hugging Face's name; None where the model has none of that name."""


class DecoderEngine:
    """Our own decoder, with weights that are proven to have arrived."""

    def __init__(self, path: str | PathLike[str], config: DecoderConfig, dtype: torch.dtype, bar: Bar = no_bar) -> None:
        self.model, proof = load_with_proof(path, config, dtype, bar)
        self.loaded = str(proof)
        self._cache = Cache()

    @torch.no_grad()
    def forward(self, tokens: Tensor, taps: Taps) -> Tensor:
        """Run the next tokens."""
        self.model.taps = taps
        logits: Tensor = self.model(tokens, cache=self._cache)
        return logits

    def weight(self, name: str) -> Tensor | None:
        """A weight as it is used."""
        return weight_of(self.model, name)


def weight_of(model: nn.Module, name: str) -> Tensor | None:
    """A model's parameter by its name."""
    try:
        return model.get_parameter(name).detach()
    except AttributeError:
        return None
