"""Go on with a run: with what it began with, or with the same said again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..decoder.config_json import to_config
from ..errors import SelectionError
from ..strict_json import Json
from .building import build_trainer
from .devices import resolve_device
from .directories import remove_partial
from .interruption import asked_to_stop
from .log import LOG, Log, rewind
from .preparing import Request, architecture_asked_for, read_data
from .records import Record, is_run, locked, read_record, write_record
from .resuming import find_checkpoint, restore
from .running import Outcome, Run, Watch
from .saving import CHECKPOINTS, all_checkpoints, step_of
from .starting import Asked, check_traced

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
