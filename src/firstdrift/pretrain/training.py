"""A run from its first step, or the one it stopped at, to its end; interrupted in order, traced step by step."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ..capture.tracing import trace
from ..core.strict_json import Json
from ..errors import StorageError
from .data.windows import Windows
from .origins import Stamp
from .run_failures import TrainingError
from .run_record import Log
from .saving import Progress, Saved, all_checkpoints, save_checkpoint
from .trainer import NotFiniteError, Rows, Step, Trainer

TRACES = "traces"


def trace_path(run: Path, step: int) -> Path:
    """Where the trace of a step lies."""
    return run / TRACES / f"step-{step:06d}"


@contextmanager
def recorded(trainer: Trainer, path: Path) -> Iterator[None]:
    """Record the step that runs inside the block, under its own number."""
    settings = trainer.settings
    path.parent.mkdir(parents=True, exist_ok=True)
    tracing = trace(
        trainer.model, path, optimizer=trainer.optimizer, steps=[trainer.step], overwrite=True, seed=settings.seed,
        training=settings.to_json(),
    )  # fmt: skip
    tracing.run.step = trainer.step - 1  # steps are counted from the run's beginning, not from the trace's
    tracing.next_step()
    with tracing:
        yield


def record_without_update(trainer: Trainer, path: Path, batches: Sequence[Rows]) -> None:
    """Record a step that must not be finished: forward and backward, from the weights that it began with."""
    with recorded(trainer, path):
        trainer.gradients(batches)
    trainer.optimizer.zero_grad(set_to_none=True)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """A function that says whether the user wants the run to end; asking twice interrupts at once."""
    if threading.current_thread() is not threading.main_thread():  # signals come to the main thread alone
        yield lambda: False
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


FINISHED, REACHED, STUCK, INTERRUPTED = "finished", "target reached", "no improvement", "interrupted"


class Watch:
    """Who is told what happens; this one keeps it to himself."""

    def stepped(self, step: Step, tokens_per_second: float) -> None:
        """A step is done."""

    def evaluated(self, step: int, loss: float) -> None:
        """The held-out windows were evaluated."""

    def saved(self, saved: Saved) -> None:
        """A checkpoint is on the disk."""

    def noted(self, what: str) -> None:
        """Something was noticed that speaks not against the run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: why, after which step, with which losses, and where its last checkpoint is."""

    reason: str
    step: int
    loss: float | None
    val_loss: float | None
    best: float | None
    checkpoint: Path
    seconds: float
    tokens_per_second: float

    def to_json(self) -> dict[str, Json]:
        """The numbers by name."""
        return {
            "reason": self.reason, "step": self.step, "loss": self.loss, "val_loss": self.val_loss, "best": self.best,
            "checkpoint": str(self.checkpoint), "seconds": self.seconds, "tokens_per_second": self.tokens_per_second,
        }  # fmt: skip


@dataclass
class Run:
    """A trainer, its data and its directory, and what is to happen on the way."""

    directory: Path
    trainer: Trainer
    windows: Windows
    stamp: Stamp
    log: Log
    progress: Progress
    tokenizer: Mapping[str, bytes] | None = None
    trace_steps: frozenset[int] = frozenset()
    trace_not_finite: bool = False
    watch: Watch = field(default_factory=Watch)
    stop: Callable[[], bool] = lambda: False
    first_loss: float | None = None  # of the held-out windows, where it is known already

    def go(self) -> Outcome:
        """Train until the last step, the target, a lack of improvement, or a request to stop."""
        settings, trainer = self.trainer.settings, self.trainer
        began, at = time.perf_counter(), trainer.step
        loss, saved = None, None
        val_loss = self.first_loss if settings.num_steps == 0 else None
        reason = FINISHED
        while trainer.step < settings.num_steps:
            loss = self._step().loss
            done = trainer.step
            if _due(done, settings.eval_every) or done == settings.num_steps:
                val_loss = self._evaluate()
                if val_loss <= settings.val_loss_target:
                    reason = REACHED
                elif self.progress.is_stuck(settings.patience, settings.min_epochs):
                    reason = STUCK
            if self.stop() and reason == FINISHED and done < settings.num_steps:
                reason = INTERRUPTED
            saved = self._save() if _due(done, settings.checkpoint_every) else None
            if reason != FINISHED:
                break
        if val_loss is None and reason != INTERRUPTED:
            val_loss = self._evaluate(counts=False)
        saved = saved or self._save()
        seconds = time.perf_counter() - began
        speed = (trainer.step - at) * settings.tokens_per_step / seconds if trainer.step > at else 0.0
        outcome = Outcome(reason, trainer.step, loss, val_loss, self.progress.best, saved.path, seconds, speed)
        self.log.append("end", **outcome.to_json())
        return outcome

    def _step(self) -> Step:
        """One step, recorded where that was asked for."""
        trainer, number = self.trainer, self.trainer.step
        batches = trainer.batches(self.windows, number)
        began = time.perf_counter()
        tracing = recorded(trainer, trace_path(self.directory, number)) if number in self.trace_steps else nullcontext()
        try:
            with tracing:
                step = trainer.train_step(batches)
        except NotFiniteError as error:
            self._stop_at(error, batches)
            raise
        speed = trainer.settings.tokens_per_step / (time.perf_counter() - began)
        self.log.append(
            "step", step=number, loss=step.loss, gradient_norm=step.gradient_norm, lr=step.lr, tokens_per_second=speed
        )
        self.watch.stepped(step, speed)
        return step

    def _stop_at(self, error: NotFiniteError, batches: Sequence[Rows]) -> None:
        self.log.append("not finite", step=error.step, message=str(error))
        if self.trace_not_finite:
            record_without_update(self.trainer, trace_path(self.directory, error.step), batches)

    def _evaluate(self, *, counts: bool = True) -> float:
        loss = self.trainer.evaluate(self.windows)
        self.log.append("eval", step=self.trainer.step, val_loss=loss)
        if not math.isfinite(loss):
            raise TrainingError(f"step {self.trainer.step}: the validation loss is {loss}; lower --lr")
        if counts:
            self.progress = self.progress.after(loss)
        self.watch.evaluated(self.trainer.step, loss)
        return loss

    def _save(self) -> Saved:
        """A disk that is full ends the run; what was saved before stays, and is named."""
        try:
            saved = save_checkpoint(
                self.directory, self.trainer, self.progress, self.stamp, self.windows.fingerprint, self.tokenizer
            )
        except StorageError as error:
            whole = all_checkpoints(self.directory)
            kept = f"the last whole checkpoint is {whole[-1]}" if whole else "there is no checkpoint yet"
            with suppress(StorageError):  # the log lies on the same disk
                self.log.append("not saved", step=self.trainer.step, message=str(error))
            raise StorageError(f"{error}; {kept}") from error
        self.log.append("checkpoint", step=saved.step, path=saved.path.relative_to(self.directory).as_posix())
        self.watch.saved(saved)
        return saved


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0
