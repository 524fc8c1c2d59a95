"""Whether a model has as many parameters as it should, and there are enough tokens to teach them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from ..decoder.model import Decoder
from ..decoder.settings import DecoderConfig
from ..errors import SelectionError
from ..strict_json import Json
from .settings import Settings

TOO_FEW, FEW = 10, 20  # tokens a parameter
SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens a run reads, and the estimate of how many parameters there are to teach."""

    tokens: int
    parameters: int

    @property
    def ratio(self) -> float:
        """Tokens a parameter."""
        return self.tokens / self.parameters

    def to_json(self) -> dict[str, Json]:
        """The two numbers and their ratio."""
        return {"tokens": self.tokens, "parameters": self.parameters, "ratio": self.ratio}


def estimated_parameters(of: DecoderConfig) -> int:
    """N = V·H + L(4H² + 3H·I) + H: the gate's own estimate, which knows neither grouped heads nor biases."""
    hidden = of.hidden_size
    layer = 4 * hidden * hidden + 3 * hidden * of.intermediate_size
    return of.vocab_size * hidden + of.num_hidden_layers * layer + hidden


def check_budget(of: DecoderConfig, settings: Settings, *, forced: bool) -> tuple[Budget, str | None]:
    """The budget, and a warning when it is short; too short a one is an error unless it is forced.

    A run of no steps trains nothing, and needs no tokens.
    """
    budget = Budget(settings.num_steps * settings.tokens_per_step, estimated_parameters(of))
    if settings.num_steps <= 0 or budget.ratio >= FEW:
        return budget, None
    said = (
        f"token budget: {settings.num_steps} steps of {settings.tokens_per_step:,} tokens are {budget.tokens:,} for "
        f"about {budget.parameters:,} parameters, {budget.ratio:.3g} tokens a parameter"
    )
    if budget.ratio < TOO_FEW and not forced:
        raise SelectionError(f"{said}, and less than {TOO_FEW} is refused; train longer, or --force-under-provisioned")
    return budget, f"{said}; {FEW} are advised"


def parse_band(text: str | None) -> tuple[int, int] | None:
    """From how many parameters to how many, as `366M..374M` says it."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)\.\.(\d+(?:\.\d+)?)([KMB]?)", text.strip(), re.ASCII)
    low, high = (round(float(found[n]) * SUFFIXES[found[n + 1]]) for n in (1, 3)) if found else (1, 0)
    if low > high:
        raise SelectionError(f"--parameters {text!r} is no range from a number to a larger one; write it as 366M..374M")
    return low, high


def check_band(of: DecoderConfig, band: tuple[int, int]) -> None:
    """Refuse an architecture with more or fewer parameters than it should have, a tied output layer counted too."""
    with torch.device("meta"):
        model = Decoder(of)
    tied = model.lm_head.weight.numel() if of.tie_word_embeddings else 0
    count = sum(one.numel() for one in model.parameters()) + tied
    if not band[0] <= count <= band[1]:
        counted = ", the tied output layer counted too" if tied else ""
        raise SelectionError(
            f"this model has {count:,} parameters{counted}, and from {band[0]:,} to {band[1]:,} are asked for; give "
            "another architecture, or another range with --parameters"
        )
