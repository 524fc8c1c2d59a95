"""A run from its first step, or the one it stopped at, to its end; interrupted in order, traced step by step."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from ..capture.tracing import trace
from ..core.strict_json import Json
from ..errors import StorageError
from .data.training_tokenizer import Tokenizer
from .data.windows import Windows
from .run_checkpoints import Progress, all_checkpoints, save_checkpoint, step_directory
from .run_record import Log
from .run_settings import TrainingError
from .trainer import NotFiniteError, Rows, Trainer

TRACES = "traces"


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
        """The fields by name."""
        return asdict(self) | {"checkpoint": str(self.checkpoint)}


@dataclass
class Run:
    """A trainer, its data and its directory, and what is to happen on the way. `first_loss` is that of the held-out
    windows before the first step, where it is known already."""

    directory: Path
    trainer: Trainer
    windows: Windows
    stamp: dict[str, Json]
    log: Log
    progress: Progress
    tokenizer: Tokenizer | None = None
    trace_steps: frozenset[int] = frozenset()
    trace_nonfinite: bool = False
    stop: Callable[[], bool] = lambda: False
    first_loss: float | None = None

    def go(self) -> Outcome:
        """Train until the last step, the target, a lack of improvement, or a request to stop."""
        settings, trainer = self.trainer.settings, self.trainer
        began, at = time.perf_counter(), trainer.step
        loss, saved = None, None
        val_loss = self.first_loss if settings.num_steps == 0 else None
        reason = FINISHED
        while trainer.step < settings.num_steps:
            loss = self._step()
            done = trainer.step
            if _due(done, settings.eval_every) or done == settings.num_steps:
                val_loss = self._evaluate()
                self.progress = self.progress.after(val_loss)
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
            val_loss = self._evaluate()
        saved = saved or self._save()
        seconds = time.perf_counter() - began
        speed = (trainer.step - at) * settings.tokens_per_step / seconds if trainer.step > at else 0.0
        outcome = Outcome(reason, trainer.step, loss, val_loss, self.progress.best, saved, seconds, speed)
        self.log.append("end", **outcome.to_json())
        return outcome

    def _step(self) -> float:
        """One step, recorded where that was asked for; its loss."""
        trainer, number = self.trainer, self.trainer.step
        batches = trainer.batches(self.windows, number)
        path = step_directory(self.directory / TRACES, number)
        began = time.perf_counter()
        try:
            with recorded(trainer, path) if number in self.trace_steps else nullcontext():
                step = trainer.train_step(batches)
        except NotFiniteError as error:
            self.log.append("not finite", step=number, message=str(error))
            if self.trace_nonfinite:
                self._record_again(path, batches)
            raise
        speed = trainer.settings.tokens_per_step / (time.perf_counter() - began)
        self.log.append("step", **asdict(step), tokens_per_second=speed)
        return step.loss

    def _record_again(self, path: Path, batches: Sequence[Rows]) -> None:
        """Record a step that must not be finished: forward and backward, from the weights that it began with."""
        with recorded(self.trainer, path):
            self.trainer.gradients(batches)
        self.trainer.optimizer.zero_grad(set_to_none=True)

    def _evaluate(self) -> float:
        loss, step = self.trainer.evaluate(self.windows), self.trainer.step
        self.log.append("eval", step=step, val_loss=loss)
        if not math.isfinite(loss):
            raise TrainingError(f"step {step}: the validation loss is {loss}; lower --lr")
        return loss

    def _save(self) -> Path:
        """A disk that is full ends the run; what was saved before stays, and is named."""
        step, files = self.trainer.step, self.tokenizer.files if self.tokenizer else None
        try:
            saved = save_checkpoint(
                self.directory, self.trainer, self.progress, self.stamp, self.windows.fingerprint, files
            )
        except StorageError as error:
            whole = all_checkpoints(self.directory)
            kept = f"the last whole checkpoint is {whole[-1]}" if whole else "there is no checkpoint yet"
            with suppress(StorageError):  # the log lies on the same disk
                self.log.append("not saved", step=step, message=str(error))
            raise StorageError(f"{error}; {kept}") from error
        self.log.append("checkpoint", step=step, path=saved.relative_to(self.directory).as_posix())
        return saved


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0
