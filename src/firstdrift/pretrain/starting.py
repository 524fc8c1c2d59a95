"""From a request that was checked to a run: a new one, or one that is continued."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.strict_json import Json
from ..decoder.config_json import to_config
from ..errors import SelectionError
from .building import build_trainer, build_trainer_with_init
from .gaps import Check, Gap, check_scratch, measure_gap, refuse_failed
from .preparing import Prepared, Request, architecture_asked_for, check_storable, read_data
from .resuming import find_checkpoint, restore
from .run_record import LOG, Log, Record, is_run, locked, read_record, rewind, write_record
from .run_settings import Settings
from .saving import CHECKPOINTS, Progress, all_checkpoints, remove_partial, step_of
from .trainer import resolve_device
from .training import TRACES, Outcome, Run, Watch, asked_to_stop

ASIDE = "abandoned-"
# What may be said anew when a run goes on: none of these changes what a step computes, but for the schedule's end.
CHANGEABLE = frozenset({"num_steps", "eval_every", "checkpoint_every", "val_loss_target", "patience", "min_epochs"})


def resume(
    path: Path, given: Mapping[str, Json], asked: Asked, watch: Callable[[Record], Watch], told: Callable[[Path], None]
) -> tuple[Path, Record, Outcome]:
    """Go on with a run from its newest checkpoint, or from the one that is named.

    `given` are settings, and `data`, `init`, `config`, `tokenizer` and `device`, where they are said again; what is
    not as the run began with is refused.
    """
    put_back(path)
    run, checkpoint = find_checkpoint(path)
    record = read_record(run)
    refuse_another(record, given)
    settings = replace(record.settings, **{name: value for name, value in given.items() if name in CHANGEABLE})
    settings.check()
    check_traced(asked.trace_steps, settings)
    record = replace(record, settings=settings, target_given=record.target_given or asked.target_given)
    with locked(run, new=False):
        device, _ = resolve_device(record.device)
        request = Request(settings, record.data["path"], tokenizer=record.tokenizer, device=device)
        tokenizer, windows, _ = read_data(request, record.config, _tokenizer_path(record, checkpoint))
        trainer = build_trainer(settings, record.config, device)
        progress = restore(trainer, checkpoint, windows.fingerprint)
        set_aside(run, checkpoint)
        write_record(run, record)
        rewind(run / LOG, trainer.step)
        with Log(run / LOG) as log, asked_to_stop() as stop:
            log.append("resume", step=trainer.step)
            told(checkpoint)
            files = None if tokenizer is None else tokenizer.files
            outcome = Run(
                run, trainer, windows, record.stamp, log, progress, files, asked.trace_steps, asked.trace_not_finite,
                watch(record), stop,
            ).go()  # fmt: skip
    return run, record, outcome


def put_back(path: Path) -> None:
    """Let a run be as it was before a checkpoint that was not finished, which may have been replacing another."""
    run = path if is_run(path) else path.parent.parent
    if is_run(run):
        with locked(run, new=False):
            remove_partial(run / CHECKPOINTS)


def set_aside(run: Path, checkpoint: Path) -> None:
    """Rename the checkpoints after the one that is gone on from: they are of a future that may come otherwise."""
    for later in all_checkpoints(run):
        if step_of(later) > step_of(checkpoint):
            aside = later.with_name(f"{ASIDE}{later.name}")
            shutil.rmtree(aside, ignore_errors=True)
            later.rename(aside)


def refuse_another(record: Record, given: Mapping[str, Json]) -> None:
    """Refuse everything that is said again and is not as it was, with both values."""
    stored = {**record.settings.to_json(), **_sources(record)}
    now = {name: _comparable(name, value) for name, value in given.items() if name not in CHANGEABLE}
    differing = [(name, stored[name], value) for name, value in now.items() if stored[name] != value]
    if differing:
        said = "; ".join(_difference(*one) for one in differing)
        raise SelectionError(f"a run goes on as it began: {said}; leave it out, or begin another run")


def _sources(record: Record) -> dict[str, Json]:
    init = None if record.init is None else record.init.get("path")
    return {
        "data": record.data["path"], "init": init, "tokenizer": record.tokenizer, "device": record.device,
        "config": to_config(record.config),
    }  # fmt: skip


def _comparable(name: str, value: Json) -> Json:
    """What was said, as a record keeps it."""
    if name == "init" and value == "none":
        return None
    if name in ("data", "init", "tokenizer"):
        return str(Path(value).absolute())
    if name == "device":
        return resolve_device(value)[0]
    return to_config(architecture_asked_for(value)) if name == "config" else value


def _difference(name: str, stored: Json, now: Json) -> str:
    option = "--" + name.replace("_", "-")
    if name != "config":
        return f"{option} was {stored!r} and is {now!r}"
    keys = [key for key in sorted({*stored, *now}) if stored.get(key) != now.get(key)]
    fields = ", ".join(f"{key} was {stored.get(key)!r} and is {now.get(key)!r}" for key in keys[:4])
    return f"{option} is another architecture ({fields})"


def _tokenizer_path(record: Record, checkpoint: Path) -> Path | None:
    """The tokenizer of a run; a checkpoint has a copy of one that is no longer where it was."""
    if record.tokenizer is None:
        return None
    return Path(record.tokenizer) if Path(record.tokenizer).exists() else checkpoint


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
