"""A model and its optimizer on a device: one step of training, and the loss on what is held out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..decoder.decoder_settings import DecoderConfig
from ..decoder.model import Decoder, initialise
from ..errors import SelectionError, WeightsError
from ..weights.loading.arriving import held_crc32
from .data.windows import Windows, batch_at
from .run_settings import CUDA, Settings, TrainingError, learning_rate

Rows = NDArray[np.int64]  # windows of tokens
BETAS, EPS = (0.9, 0.999), 1e-8
REMEMBERED = ("step", "exp_avg", "exp_avg_sq")  # by the optimizer, of a parameter


class NotFiniteError(TrainingError):
    """The loss or the gradient of a step is not finite; the weights are those from before it."""

    def __init__(self, step: int, what: str, value: float) -> None:
        super().__init__(
            f"step {step}: the {what} is {value}, so that the run stops with the weights from before it; lower --lr, "
            "or record the step with --trace-nonfinite"
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did."""

    step: int
    loss: float
    gradient_norm: float
    lr: float


class Trainer:
    """A decoder in training. `step` is how many steps are done; `loaded` how many tensors came from a checkpoint, and
    `notes` what is to be said of them."""

    def __init__(
        self, model: Decoder, settings: Settings, device: str = "cpu", loaded: int = 0, notes: tuple[str, ...] = ()
    ) -> None:
        self.model = model.to(device)
        self.settings = settings
        self.device = device
        self.loaded = loaded
        self.notes = notes
        self.optimizer = make_optimizer(self.model, settings)
        self.step = 0
        self._parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def train_step(self, batches: Iterable[Rows]) -> Step:
        """One update from the mean of the batches' losses; raises NotFiniteError with nothing changed."""
        loss = self.gradients(batches)
        if not math.isfinite(loss):
            self._refuse("loss", loss)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.clip))
        if not math.isfinite(norm):
            self._refuse("norm of the gradient", norm)
        lr = learning_rate(self.settings, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return Step(self.step - 1, loss, norm, lr)

    def gradients(self, batches: Iterable[Rows]) -> float:
        """Add up the gradients of a step's batches; their mean loss."""
        self.model.train()
        share = 1 / self.settings.accumulate
        total = 0.0
        for rows in batches:
            loss = self.loss(rows) * share
            loss.backward()
            total += loss.item()
        return total

    def loss(self, rows: Rows) -> torch.Tensor:
        """The mean loss of windows, with its graph."""
        windows = torch.from_numpy(rows).to(self.device)
        with self._precision():
            return self.model.loss(windows, windows)

    def batches(self, windows: Windows, step: int) -> list[Rows]:
        """What a step trains on."""
        size = self.settings.batch
        first = step * self.settings.accumulate
        return [
            batch_at(windows, self.settings.seed, number * size, size)
            for number in range(first, first + self.settings.accumulate)
        ]

    @property
    def position(self) -> int:
        """How many windows of the training order were read."""
        return self.step * self.settings.accumulate * self.settings.batch

    def evaluate(self, windows: Windows) -> float:
        """The mean loss of the windows that are held out, each weighing the same."""
        self.model.eval()
        held, size = windows.held_out, self.settings.batch
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(held), size):
                rows = windows.take(held[start : start + size])
                total += self.loss(rows).item() * len(rows)
        return total / len(held)

    def random_twin(self) -> Trainer:
        """The same architecture with the random weights of the seed, to compare with."""
        return Trainer(random_decoder(self.model.config, self.settings.seed), self.settings, self.device)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.settings.dtype == "f32":
            return nullcontext()
        return torch.autocast(self.device, torch.bfloat16)

    def _refuse(self, what: str, value: float) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        raise NotFiniteError(self.step, what, value)


def random_decoder(config: DecoderConfig, seed: int) -> Decoder:
    """A decoder with the random weights of a seed."""
    model = empty_decoder(config)
    initialise(model, seed)
    return model


def empty_decoder(config: DecoderConfig) -> Decoder:
    """A decoder whose memory is there and holds nothing yet."""
    with torch.device("meta"):
        model = Decoder(config)
    model = model.to_empty(device="cpu")
    model.tie()
    return model


DEVICES = ("cpu", "cuda", "auto")


def resolve_device(asked: str) -> tuple[str, str | None]:
    """`cpu` or `cuda`, and a sentence that says what `auto` chose."""
    if asked not in DEVICES:
        raise SelectionError(f"--device {asked!r} is not one of {', '.join(DEVICES)}; choose one of these")
    if asked == "cpu":
        return "cpu", None
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise SelectionError(
            f"{CUDA}: --device cuda: this PyTorch ({torch.__version__}) has no CUDA device; give --device cpu, or auto "
            "to take what there is"
        )
    chosen = "cuda" if there else "cpu"
    return chosen, f"--device auto chose {chosen}" if asked == "auto" else None


@contextmanager
def on_device(device: str, identifier: str) -> Iterator[None]:
    """Let a device that does not take the model be an error of ours, and never another device."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:  # without support for a device, torch asserts
        if device == "cpu":
            raise
        raise SelectionError(
            f"{identifier}: the model cannot be put on --device {device} ({error}); mend it, or give --device cpu"
        ) from error


def check_device(trainer: Trainer, identifier: str, checksums: Mapping[str, int] | None = None) -> None:
    """Refuse to train anywhere else than was asked for, or with other numbers than were uploaded there."""
    for name, parameter in trainer.model.named_parameters():
        if parameter.device.type != trainer.device:
            raise SelectionError(f"{identifier}: {name} is on {parameter.device.type}, and not on {trainer.device}")
        wanted = (checksums or {}).get(name)
        if wanted is not None and held_crc32(parameter) != wanted:
            raise WeightsError(
                f"{identifier}: {name} has other numbers on {trainer.device} than were loaded, checksum "
                f"{held_crc32(parameter):08x} and not {wanted:08x}; the device or its driver is broken"
            )


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """A fresh AdamW, as language models are trained with: matrices decay, norms and biases do not."""
    parameters = list(model.parameters())
    decayed = [parameter for parameter in parameters if parameter.ndim >= 2]
    spared = [parameter for parameter in parameters if parameter.ndim < 2]  # norms and biases are vectors
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=learning_rate(settings, 0), betas=BETAS, eps=EPS
    )


def state_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """What an optimizer remembers, as `PARAMETER.exp_avg` and so on; empty before its first step."""
    return {
        f"{name}.{key}": optimizer.state[parameter][key]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key in REMEMBERED
    }
