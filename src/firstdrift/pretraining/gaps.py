"""The proof that weights arrived: on the same held-out windows they must do better than random ones."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ..strict_json import Json
from .failures import TrainingError
from .identifiers import WEAK
from .trainer import Trainer
from .windows import Windows

LEAST, SHARE = 0.5, 0.25  # nats, and a share of what guessing costs


@dataclass(frozen=True, slots=True)
class Gap:
    """The loss with the given weights and with random ones, and how far apart they have to be."""

    given: float
    random: float
    required: float

    @property
    def nats(self) -> float:
        """How much better the given weights are."""
        return self.random - self.given

    @property
    def wide_enough(self) -> bool:
        """Whether the given weights can be the ones that were meant; a NaN is not."""
        return self.nats >= self.required

    def to_json(self) -> dict[str, Json]:
        """The numbers by name."""
        return {**asdict(self), "nats": self.nats, "wide_enough": self.wide_enough}

    def __str__(self) -> str:
        return (
            f"step 0: validation loss {self.given:.2f} with the given weights, {self.random:.2f} with random ones, "
            f"gap {self.nats:.2f} nats (at least {self.required:.2f})"
        )


def measure_gap(trainer: Trainer, windows: Windows) -> Gap:
    """Evaluate the given weights, then random ones of the same architecture, which are gone again afterwards."""
    given = trainer.evaluate(windows)
    random = trainer.random_twin().evaluate(windows)
    return Gap(given, random, max(LEAST, SHARE * math.log(trainer.model.config.vocab_size)))


def refuse_weak(gap: Gap, path: object) -> None:
    """Weights that are hardly better than random ones are not the ones that were meant."""
    if not gap.wide_enough:
        raise TrainingError(
            f"{WEAK}: {path}: {gap}; these weights are hardly better than random ones for this text: check that the "
            "tokenizer and the data are the model's, or go on with --allow-weak-init"
        )
