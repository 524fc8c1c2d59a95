"""Continue from a checkpoint of a run, bit for bit as if it had not stopped; or say what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.strict_json import Json
from ..decoder.config_json import to_config
from ..errors import FirstdriftError, FormatError, NotFoundError, storage
from ..weights.checkpoint import Checkpoint
from ..weights.loading.load import load_weights
from ..weights.open_checkpoint import open_checkpoint
from .run_record import read_table
from .saving import (
    CHECKPOINTS,
    CUDA_RNG,
    FORMAT,
    OPTIMIZER,
    RNG,
    STATE,
    TRAINING,
    Progress,
    all_checkpoints,
    checksum,
    step_of,
)
from .trainer import REMEMBERED, Trainer

KINDS = {"step": "a count", "files": "a table", "config": "a table", "data": "a text"}


def find_checkpoint(path: Path) -> tuple[Path, Path]:
    """The run and the checkpoint that a path means: a run's newest, or the checkpoint itself."""
    if (path / TRAINING).is_dir() and path in all_checkpoints(path.parent.parent):
        return path.parent.parent, path
    found = all_checkpoints(path)
    if not found:
        raise NotFoundError(
            f"{path}: holds no checkpoint of a run ({CHECKPOINTS}/step-*); name a run, or one of its checkpoints"
        )
    return path, found[-1]


def restore(trainer: Trainer, checkpoint: Path, fingerprint: str) -> Progress:
    """Give a trainer everything that a checkpoint holds: weights, what the optimizer remembers, random numbers."""
    state = read_state(checkpoint)
    place = f"{checkpoint / TRAINING / STATE}"
    trainer.step = state["step"]
    for what, stored, now in (
        ("architecture", state["config"], to_config(trainer.model.config)),
        ("data", state["data"], fingerprint),
        ("position in the data", state.get("position"), trainer.position),
    ):
        if stored != now:
            differing = differences(stored, now)
            raise FormatError(
                f"{place}: is of step {trainer.step} with another {what}: {differing}; resume with the same"
            )
    progress = Progress.from_json(state.get("progress"), place)
    try:
        load_weights(trainer.model, min(checkpoint.glob("model.*")))
        with open_checkpoint(checkpoint / TRAINING / OPTIMIZER) as memory:
            _restore_optimizer(trainer, memory)
            _restore_random(trainer, memory)
    except FirstdriftError as error:
        raise FormatError(f"{checkpoint}: cannot be continued from ({error})") from error
    return progress


def read_state(checkpoint: Path) -> dict[str, Json]:
    """What a checkpoint says of itself. Every file must be as it was written; a damaged one is named with both
    checksums."""
    state = read_table(checkpoint / TRAINING / STATE, FORMAT, KINDS, "a checkpoint of a run")
    instead = _earlier(checkpoint)
    if f"{TRAINING}/{OPTIMIZER}" not in state["files"] or not any(name.startswith("model.") for name in state["files"]):
        raise FormatError(f"{checkpoint}: its list of files lacks the model or the optimizer; {instead}")
    for name, about in state["files"].items():
        file = checkpoint / name
        known = type(about) is dict and {"bytes", "crc32"} <= about.keys()
        if not known or ".." in Path(name).parts or Path(name).is_absolute():
            raise FormatError(f"{checkpoint}: its list of files has {name!r}, which is none; {instead}")
        with storage(checkpoint, "look for its files", instead):  # a name may be too long for the system
            if not file.is_file():
                raise FormatError(f"{file}: is missing; {instead}")
        size = file.stat().st_size
        if size != about["bytes"]:
            raise FormatError(f"{file}: has {size} bytes and was written with {about['bytes']}; {instead}")
        if (found := checksum(file)) != about["crc32"]:
            raise FormatError(f"{file}: is damaged, its checksum is {found} and was {about['crc32']}; {instead}")
    return state


def differences(stored: Json, now: Json) -> str:
    """What was and what is: of two tables the first four fields that differ."""
    if type(stored) is not dict or type(now) is not dict:
        return f"it was {stored!r} and is {now!r}"
    keys = [key for key in sorted({*stored, *now}) if stored.get(key) != now.get(key)]
    return "; ".join(f"{key} was {stored.get(key)!r} and is {now.get(key)!r}" for key in keys[:4])


def _restore_optimizer(trainer: Trainer, memory: Checkpoint) -> None:
    optimizer: Any = trainer.optimizer
    parameters = dict(trainer.model.named_parameters()) if trainer.step else {}
    expected = {f"{name}.{key}" for name in parameters for key in REMEMBERED}
    found = set(memory.entries) - {RNG, CUDA_RNG}
    if found != expected:
        wrong = ", ".join(sorted(found ^ expected)[:4])
        raise FormatError(f"{memory.path}: does not remember the parameters of this model: {wrong}")
    for name, parameter in parameters.items():
        kept = {key: torch.from_numpy(np.array(memory.array(f"{name}.{key}"))) for key in REMEMBERED}
        if any(kept[key].shape != parameter.shape for key in REMEMBERED[1:]):
            raise FormatError(f"{memory.path}: what it remembers of {name} has another shape than the model's")
        optimizer.state[parameter] = {
            key: value if key == "step" else value.to(trainer.device) for key, value in kept.items()
        }


def _restore_random(trainer: Trainer, memory: Checkpoint) -> None:
    torch.set_rng_state(torch.from_numpy(np.array(memory.array(RNG))))
    if trainer.device == "cuda" and CUDA_RNG in memory:
        torch.cuda.set_rng_state(torch.from_numpy(np.array(memory.array(CUDA_RNG))))


def _earlier(checkpoint: Path) -> str:
    """What to do instead: resume from the newest checkpoint before this one."""
    before = [path for path in all_checkpoints(checkpoint.parent.parent) if step_of(path) < step_of(checkpoint)]
    return f"resume from {before[-1]}" if before else "start the run again"
