"""Whether there are enough tokens for a model to be worth training on them."""

from __future__ import annotations

from dataclasses import dataclass

from ..decoder.settings import DecoderConfig
from ..errors import SelectionError
from ..strict_json import Json
from .settings import Settings

TOO_FEW, FEW = 10, 20  # tokens a parameter


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
