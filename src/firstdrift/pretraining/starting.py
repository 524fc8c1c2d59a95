"""From a request that was checked to a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import SelectionError
from .building import build_trainer_with_init
from .gaps import Check, Gap, check_scratch, measure_gap, refuse_failed
from .interruption import asked_to_stop
from .log import LOG, Log
from .preparing import Prepared, check_storable
from .progress import Progress
from .recording import TRACES
from .records import Record, locked, write_record
from .running import Outcome, Run, Watch
from .saving import CHECKPOINTS
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to happen beside the training itself."""

    trace_steps: frozenset[int] = frozenset()
    trace_not_finite: bool = False
    allow_weak_init: bool = False
    target_given: bool = False
    force: bool = False


def start(prepared: Prepared, out: Path, asked: Asked, watch: Watch, told: Callable[[Gap], None]) -> Outcome:
    """Begin a run at `out` and train it to its end."""
    check_storable(prepared.config)
    origin, settings = prepared.origin, prepared.request.settings
    check_traced(asked.trace_steps, settings)
    with locked(out, new=True, force=asked.force):
        trainer = build_trainer_with_init(
            settings, prepared.config, init_config=None if origin is None else origin.config,
            init_path=None if origin is None else origin.path, untie=prepared.request.untie, device=prepared.device,
        )  # fmt: skip
        _clear(out)
        record = _record(prepared, asked, trainer.loaded)
        write_record(out, record)
        with Log(out / LOG) as log, asked_to_stop() as stop:
            for note in trainer.notes:
                log.append("note", step=0, message=note)
                watch.noted(note)
            checks: tuple[Check, ...]
            if origin is None:
                first = trainer.evaluate(prepared.windows)
                checks = (check_scratch(first, prepared.config.vocab_size),)
                said = f"step 0: validation loss {checks[0]}"
            else:
                gap = measure_gap(trainer, prepared.windows)
                first, checks, said = gap.given, gap.checks, f"{origin.path}: {gap}"
                write_record(out, replace(record, gap=gap.to_json()))
                log.append("gap", step=0, **gap.to_json())
                told(gap)
            if not asked.allow_weak_init:
                refuse_failed(checks, said)
            log.append("eval", step=0, val_loss=first)
            watch.evaluated(0, first)
            return Run(
                out, trainer, prepared.windows, prepared.stamp, log, Progress(), prepared.tokenizer_files(),
                asked.trace_steps, asked.trace_not_finite, watch, stop, first,
            ).go()  # fmt: skip


def _record(prepared: Prepared, asked: Asked, loaded: int) -> Record:
    init = prepared.init_json()
    return Record(
        prepared.request.settings, prepared.config, prepared.stamp, prepared.data_json(),
        None if prepared.tokenizer_path is None else str(prepared.tokenizer_path.absolute()), prepared.device,
        None if init is None else {**init, "tensors": loaded}, None,
        None if prepared.budget is None else prepared.budget.to_json(), asked.target_given,
    )  # fmt: skip


def check_traced(steps: frozenset[int], settings: Settings) -> None:
    """Refuse to record steps that will not come."""
    never = sorted(step for step in steps if step >= settings.num_steps)
    if never:
        said = ", ".join(map(str, never))
        raise SelectionError(
            f"--trace-steps {said}: this run has {settings.num_steps} steps, counted from 0; name those"
        )


def _clear(out: Path) -> None:
    """Remove what a run that is replaced has left; files that are not a run's stay."""
    for name in (CHECKPOINTS, TRACES):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / LOG).unlink(missing_ok=True)
