"""Traces of single steps of a run, each a trace of its own, so that a killed run leaves whole ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..tracing import trace
from .trainer import Rows, Trainer

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
