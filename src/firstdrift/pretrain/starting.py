"""From a request that was checked to a run: a new one, or one that is continued."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..core.strict_json import Json
from ..decoder.config_json import to_config
from ..errors import SelectionError
from .building import build_trainer, build_trainer_with_init
from .data.training_tokenizer import open_tokenizer
from .gaps import Check, check_scratch, measure_gap, refuse_failed
from .preparing import Prepared, architecture_asked_for, check_storable, read_data
from .run_checkpoints import (
    CHECKPOINTS,
    Progress,
    all_checkpoints,
    differences,
    find_checkpoint,
    remove_partial,
    restore,
    step_of,
)
from .run_record import LOG, RECORD, Log, Record, Watch, locked, read_record, rewind, write_record
from .run_settings import Settings, option
from .trainer import resolve_device
from .training import TRACES, Outcome, Run, asked_to_stop

# What may change when a run continues: none of these changes what a step computes, but for the schedule's end.
CHANGEABLE = frozenset({"num_steps", "eval_every", "checkpoint_every", "val_loss_target", "patience", "min_epochs"})


def start(prepared: Prepared, out: Path, watch: Watch) -> Outcome:
    """Begin a run at `out` and train it to its end; `watch` is told of every event."""
    request, record, origin, windows = prepared.request, prepared.record, prepared.origin, prepared.windows
    check_storable(record.config)
    check_traced(request.trace_steps, record.settings)
    with locked(out, new=True, force=request.force):
        trainer = build_trainer_with_init(
            record.settings, record.config, init_config=None if origin is None else origin.config,
            init_path=None if origin is None else origin.path, untie=request.untie, device=record.device,
        )  # fmt: skip
        _clear(out)
        if origin is not None:
            record = replace(record, init={**record.init, "tensors": trainer.loaded})
        write_record(out, record)
        with Log(out / LOG, watch) as log, asked_to_stop() as stop:
            for note in trainer.notes:
                log.append("note", step=0, message=note)
            checks: tuple[Check, ...]
            if origin is None:
                first = trainer.evaluate(windows)
                checks = (check_scratch(first, record.config.vocab_size),)
                said = f"step 0: validation loss {checks[0]}"
            else:
                gap = measure_gap(trainer, windows)
                first, checks, said = gap.given, gap.checks, f"{origin.path}: {gap}"
                write_record(out, replace(record, gap=gap.to_json()))
                log.append("gap", step=0, **gap.to_json())
            if not request.allow_weak_init:
                refuse_failed(checks, said)
            log.append("eval", step=0, val_loss=first)
            return Run(
                out, trainer, windows, record.stamp, log, Progress(), prepared.tokenizer, request.trace_steps,
                request.trace_nonfinite, stop, first,
            ).go()  # fmt: skip


def resume(
    path: Path, given: Mapping[str, Json], watch: Watch, *, trace_steps: frozenset[int] = frozenset(),
    trace_nonfinite: bool = False, target_given: bool = False,
) -> tuple[Path, Record, Outcome]:  # fmt: skip
    """Continue a run from its newest checkpoint, or from the one that is named.

    `given` are settings, and `data`, `init`, `config`, `tokenizer` and `device`, where they are said again; what is
    not as the run began with is refused.
    """
    run = path if (path / RECORD).is_file() else path.parent.parent
    if (run / RECORD).is_file():
        with locked(run, new=False):
            remove_partial(run / CHECKPOINTS)
    run, checkpoint = find_checkpoint(path)
    record = read_record(run)
    refuse_another(record, given)
    settings = replace(record.settings, **{name: value for name, value in given.items() if name in CHANGEABLE})
    settings.check()
    check_traced(trace_steps, settings)
    record = replace(record, settings=settings, target_given=record.target_given or target_given)
    with locked(run, new=False):
        device, _ = resolve_device(record.device)
        tokenizer = None
        if record.tokenizer is not None:  # a checkpoint has a copy of one that is no longer where it was
            tokenizer = open_tokenizer(Path(record.tokenizer) if Path(record.tokenizer).exists() else checkpoint)
        windows, _ = read_data(record.data["path"], settings, record.config, tokenizer)
        trainer = build_trainer(settings, record.config, device)
        progress = restore(trainer, checkpoint, windows.fingerprint)
        set_aside(run, checkpoint)
        write_record(run, record)
        rewind(run / LOG, trainer.step)
        with Log(run / LOG, watch) as log, asked_to_stop() as stop:
            log.append("resume", step=trainer.step, path=str(checkpoint), num_steps=settings.num_steps)
            outcome = Run(
                run, trainer, windows, record.stamp, log, progress, tokenizer, trace_steps, trace_nonfinite, stop
            ).go()
    return run, record, outcome


def set_aside(run: Path, checkpoint: Path) -> None:
    """Rename the checkpoints after the one that a run continues from: they are of a future that may come otherwise."""
    for later in all_checkpoints(run):
        if step_of(later) > step_of(checkpoint):
            aside = later.with_name(f"abandoned-{later.name}")
            shutil.rmtree(aside, ignore_errors=True)
            later.rename(aside)


def refuse_another(record: Record, given: Mapping[str, Json]) -> None:
    """Refuse everything that is said again and is not as it was, with both values."""
    stored = {
        **record.settings.to_json(), "data": record.data["path"], "tokenizer": record.tokenizer,
        "init": None if record.init is None else record.init["path"], "device": record.device,
        "config": to_config(record.config),
    }  # fmt: skip
    now = {name: _as_recorded(name, value) for name, value in given.items() if name not in CHANGEABLE}
    differing = [
        f"--config is another architecture ({differences(stored[name], value)})"
        if name == "config"
        else f"{option(name)} was {stored[name]!r} and is {value!r}"
        for name, value in now.items()
        if stored[name] != value
    ]
    if differing:
        raise SelectionError(f"a run goes on as it began: {'; '.join(differing)}; leave it out, or begin another run")


def _as_recorded(name: str, value: Json) -> Json:
    """What was said, as a record keeps it."""
    if name in ("data", "init", "tokenizer"):
        return None if name == "init" and value == "none" else str(Path(value).absolute())
    if name == "device":
        return resolve_device(value)[0]
    return to_config(architecture_asked_for(value)) if name == "config" else value


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
