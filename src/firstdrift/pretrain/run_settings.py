"""What decides what a training run computes, checked once: its settings and learning rate; and how a run fails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from ..core.strict_json import Json
from ..errors import FirstdriftError, FormatError, SelectionError
from ..weights.loading.failures import LOAD


class TrainingError(FirstdriftError, RuntimeError):
    """A run that was started as asked has failed a check of its own: weak weights, a loss that is not finite."""


VOCABULARY = "GATE-ARCH-370M-011"  # the tokenizer and the model's embedding
STRICT = "INV-ARCH-370M-006"  # exactly as many entries
RELAXED = "INV-ARCH-370M-006-RELAXED"  # no more entries than rows
CUDA = "GATE-GPUTRAIN-002"  # CUDA was asked for, and there is none
UPLOAD = "FALSIFY-APR-PRETRAIN-INIT-CUDA-001"  # the given weights are not on the device that was asked for
# What the contract wants of step 0 it has under the id that its program gives to failed loads; these tell them apart.
GAP = f"{LOAD}-GAP"  # the given weights are hardly better than random ones
LOSS = f"{LOAD}-LOSS"  # the given weights are no trained language model's
SCRATCH = f"{LOAD}-SCRATCH"  # random weights know more than random weights can

# What a mode means where nothing else is said: the peak of the learning rate, steps up to it, the loss aimed at.
MODES: Mapping[str, Mapping[str, Json]] = {
    "finetune": {"lr": 5e-5, "warmup": 100, "val_loss_target": 2.2},
    "from-scratch": {"lr": 3e-4, "warmup": 1000, "val_loss_target": 3.0},
}
CHOICES = {"mode": tuple(MODES), "dtype": ("f32", "bf16"), "format": ("safetensors", "apr")}
LEAST = {
    "num_steps": 0, "eval_every": 0, "checkpoint_every": 0, "warmup": 0, "patience": 0, "min_epochs": 0, "batch": 1,
    "accumulate": 1, "seq_length": 2, "seed": 0,
}  # fmt: skip
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of a run. `lr`, `warmup` and `val_loss_target` follow the mode unless they are given: `of`.

    A step sees `batch * accumulate` sequences of `seq_length` tokens. `eval_every` and `checkpoint_every` are in steps;
    0 is only at the end. An epoch is what lies between two evaluations. `patience` is how many in a row may bring
    nothing better, 0 any number, and `min_epochs` how many there are before that ends a run.
    """

    lr: float
    warmup: int
    val_loss_target: float
    mode: str = "finetune"
    num_steps: int = 500
    batch: int = 16
    seq_length: int = 512
    accumulate: int = 1
    clip: float = 1.0
    weight_decay: float = 0.01
    seed: int = 42
    dtype: str = "f32"
    eval_every: int = 100
    patience: int = 5
    min_epochs: int = 3
    checkpoint_every: int = 500
    format: str = "safetensors"

    @classmethod
    def of(cls, mode: str = "finetune", **given: Json) -> Settings:
        """The settings of a mode, changed by what is given. Their values are checked in their turn, by `check`."""
        if mode not in MODES:
            raise SelectionError(f"--mode {mode!r} is not one of {', '.join(MODES)}; choose one of these")
        names = {field.name for field in fields(cls)}
        unknown = sorted(given.keys() - names)
        if unknown:
            raise SelectionError(f"{', '.join(unknown)}: no such setting; there are {', '.join(sorted(names))}")
        said = {**MODES[mode], **{name: value for name, value in given.items() if value is not None}}
        return cls(mode=mode, **said)

    @classmethod
    def from_json(cls, said: Json, place: object) -> Settings:
        """The settings that a run has stored."""
        if type(said) is not dict or {field.name for field in fields(cls)} != said.keys():
            raise FormatError(f"{place}: its settings are not those of a run; it was changed, or is of another version")
        try:
            settings = cls(**said)
            settings.check()
        except (SelectionError, TypeError) as error:
            raise FormatError(f"{place}: its settings cannot be used ({error}); it was changed") from None
        return settings

    @property
    def tokens_per_step(self) -> int:
        """How many tokens are read in a step."""
        return self.batch * self.accumulate * self.seq_length

    @property
    def lr_min(self) -> float:
        """Where the learning rate ends."""
        return min(self.lr, max(self.lr * 0.01, 1e-7))

    def to_json(self) -> dict[str, Json]:
        """The settings by name."""
        return asdict(self)

    def check(self) -> None:
        """Refuse what no run can have: the target and the numbers of steps first, as the order of checks has it."""
        _check_positive("val_loss_target", self.val_loss_target)
        for name, least in LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least or (name == "seed" and value > LARGEST_SEED):
                upto = f" to {LARGEST_SEED}" if name == "seed" else ""
                raise SelectionError(f"{option(name)} {value!r} is not a whole number from {least}{upto}; give one")
        _check_positive("lr", self.lr)
        _check_positive("clip", self.clip)
        _check_positive("weight_decay", self.weight_decay, or_zero=True)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                said = f"{option(name)} {getattr(self, name)!r}"
                raise SelectionError(f"{said} is not one of {', '.join(choices)}; choose one of these")


def option(name: str) -> str:
    """A setting as the command line has it."""
    return "--" + name.replace("_", "-")


def _check_positive(name: str, value: Json, *, or_zero: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not or_zero):
        kind = "a number of 0 or more" if or_zero else "a number above 0"
        raise SelectionError(f"{option(name)} {value!r} is not {kind}; give one")


def parse_steps(text: str | None) -> tuple[int, ...]:
    """Numbers of steps, as `0,100` says them."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise SelectionError(f"--trace-steps {text!r} is not a list of steps; write them as 0,100")
    return tuple(sorted({int(part) for part in parts}))


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step, counted from 0; the peak is reached in the last step of the warmup."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    down = max(1, settings.num_steps - 1 - settings.warmup)
    share = min(1.0, (step - settings.warmup) / down)
    return settings.lr_min + (settings.lr - settings.lr_min) * 0.5 * (1 + math.cos(math.pi * share))
