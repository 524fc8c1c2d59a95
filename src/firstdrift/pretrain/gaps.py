"""The proof that weights arrived: on the same held-out windows they must do better than random ones."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ..core.strict_json import Json
from ..weights.loading.architecture import QWEN2_0_5B
from .data.windows import Windows
from .run_settings import GAP, LOSS, SCRATCH, TrainingError
from .trainer import Trainer

# The contract's figures, in nats: a trained model's loss, how far random weights may be below guessing, and the gap at
# Qwen2's vocabulary, which for others is the same share of what guessing costs.
MOST_LOSS, MOST_BELOW_GUESSING, GAP_AT_QWEN2 = 6.0, 1.5, 3.0
LEAST_GAP = 0.5


@dataclass(frozen=True, slots=True)
class Check:
    """One figure of step 0 and its bound: at least that, or at most."""

    id: str
    what: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure is on the right side; a NaN is on neither."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def to_json(self) -> dict[str, Json]:
        """The figure, its bound and the answer."""
        return {**asdict(self), "holds": self.holds}

    def __str__(self) -> str:
        return f"{self.what} {self.value:.2f} nats (at {'most' if self.at_most else 'least'} {self.bound:.2f})"


@dataclass(frozen=True, slots=True)
class Gap:
    """The loss with the given weights and with random ones, of a model with so many tokens to choose from."""

    given: float
    random: float
    vocabulary: int

    @property
    def nats(self) -> float:
        """How much better the given weights are."""
        return self.random - self.given

    @property
    def checks(self) -> tuple[Check, ...]:
        """What the three figures have to be."""
        required = max(LEAST_GAP, GAP_AT_QWEN2 * math.log(self.vocabulary) / math.log(QWEN2_0_5B.vocab_size))
        return (
            Check(LOSS, "validation loss with the given weights", self.given, MOST_LOSS, at_most=True),
            check_scratch(self.random, self.vocabulary),
            Check(GAP, "gap", self.nats, required),
        )

    def to_json(self) -> dict[str, Json]:
        """The numbers by name."""
        return {**asdict(self), "nats": self.nats, "checks": [check.to_json() for check in self.checks]}

    def __str__(self) -> str:
        return "step 0: " + ", ".join(map(str, self.checks))


def check_scratch(loss: float, vocabulary: int) -> Check:
    """The loss of random weights: they can only guess, and be a little lucky."""
    return Check(SCRATCH, "with random ones", loss, math.log(vocabulary) - MOST_BELOW_GUESSING)


def measure_gap(trainer: Trainer, windows: Windows) -> Gap:
    """Evaluate the given weights, then random ones of the same architecture, which are gone again afterwards."""
    given = trainer.evaluate(windows)
    random = trainer.random_twin().evaluate(windows)
    return Gap(given, random, trainer.model.config.vocab_size)


OWN = "check that the tokenizer and the data are the model's"
MEANS = {
    GAP: f"these weights are hardly better than random ones for this text: {OWN}",
    LOSS: f"these are not the weights of a language model that was trained on such text: {OWN}",
    SCRATCH: "random weights cannot know this text: check that the held-out windows are not all alike",
}


def refuse_failed(checks: tuple[Check, ...], said: str) -> None:
    """Stop at figures that cannot be those of what was meant, under the id of each that is not."""
    failed = [check for check in checks if not check.holds]
    if failed:
        ids = " and ".join(check.id for check in failed)
        raise TrainingError(f"{ids}: {said}; {MEANS[failed[-1].id]}, or go on with --allow-weak-init")
