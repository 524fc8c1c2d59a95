"""Go on from a checkpoint of a run, bit for bit as if it had not stopped; or say what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.strict_json import Json, with_floats
from ..decoder.config_json import to_config
from ..errors import FirstdriftError, FormatError, NotFoundError, VersionError, storage
from ..weights.checkpoint import Checkpoint
from ..weights.json_file import read_json_object
from ..weights.loading.load import load_weights
from ..weights.open_checkpoint import open_checkpoint
from .optimizing import STATE as REMEMBERED
from .origins import check_fields
from .saving import (
    CHECKPOINTS,
    CUDA_RNG,
    FORMAT,
    OPTIMIZER,
    RNG,
    STATE,
    TRAINING,
    VERSION,
    Progress,
    all_checkpoints,
    checksum,
    step_of,
)
from .trainer import Trainer


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
    place = checkpoint / TRAINING / STATE
    said = _read_state(place)
    _check_files(checkpoint, said)
    _check_same(said, "architecture", said.get("config"), to_config(trainer.model.config), place)
    _check_same(said, "data", said.get("data"), fingerprint, place)
    step = said["step"]
    position = step * trainer.settings.accumulate * trainer.settings.batch
    _check_same(said, "position in the data", said.get("position"), position, place)
    progress = Progress.from_json(said.get("progress"), place)
    try:
        load_weights(trainer.model, next(iter(sorted(checkpoint.glob("model.*")))))
        with open_checkpoint(checkpoint / TRAINING / OPTIMIZER) as memory:
            _restore_optimizer(trainer, memory, step)
            _restore_random(trainer, memory)
    except FirstdriftError as error:
        raise FormatError(f"{checkpoint}: cannot be gone on from ({error})") from error
    trainer.step = step
    return progress


def _read_state(place: Path) -> dict[str, Json]:
    said: dict[str, Json] = with_floats(read_json_object(place))
    if said.get("format") != FORMAT:
        raise FormatError(f"{place}: says format {said.get('format')!r}, not {FORMAT!r}; name a checkpoint of a run")
    if type(said.get("version")) is not int or not 1 <= said["version"] <= VERSION:
        raise VersionError(
            f"{place}: has version {said.get('version')!r}, and this is for {VERSION}; update firstdrift"
        )
    return check_fields(said, {"step": "a count", "files": "a table", "config": "a table", "data": "a text"}, place)


def _check_files(checkpoint: Path, said: dict[str, Json]) -> None:
    """Every file as it was written; a damaged one is named with both checksums."""
    if f"{TRAINING}/{OPTIMIZER}" not in said["files"] or not any(name.startswith("model.") for name in said["files"]):
        raise FormatError(f"{checkpoint}: its list of files lacks the model or the optimizer; {_earlier(checkpoint)}")
    for name, about in said["files"].items():
        file = checkpoint / name
        known = type(about) is dict and {"bytes", "crc32"} <= about.keys()
        if not known or ".." in Path(name).parts or Path(name).is_absolute():
            raise FormatError(f"{checkpoint}: its list of files has {name!r}, which is none; {_earlier(checkpoint)}")
        with storage(checkpoint, "look for its files", _earlier(checkpoint)):  # a name may be too long for the system
            found = file.is_file()
        if not found:
            raise FormatError(f"{file}: is missing; {_earlier(checkpoint)}")
        size = file.stat().st_size
        if size != about["bytes"]:
            raise FormatError(f"{file}: has {size} bytes and was written with {about['bytes']}; {_earlier(checkpoint)}")
        sum_of = checksum(file)
        if sum_of != about["crc32"]:
            raise FormatError(
                f"{file}: is damaged, its checksum is {sum_of} and was {about['crc32']}; {_earlier(checkpoint)}"
            )


def _check_same(said: dict[str, Json], what: str, stored: Json, now: Json, place: Path) -> None:
    if stored == now:
        return
    if type(stored) is dict and type(now) is dict:
        keys = [key for key in sorted({*stored, *now}) if stored.get(key) != now.get(key)]
        differing = "; ".join(f"{key} was {stored.get(key)!r} and is {now.get(key)!r}" for key in keys[:4])
    else:
        differing = f"it was {stored!r} and is {now!r}"
    raise FormatError(f"{place}: is of step {said['step']} with another {what}: {differing}; resume with the same")


def _restore_optimizer(trainer: Trainer, memory: Checkpoint, step: int) -> None:
    optimizer: Any = trainer.optimizer
    parameters = dict(trainer.model.named_parameters())
    expected = {f"{name}.{key}" for name in parameters for key in REMEMBERED} if step else set()
    found = set(memory.entries) - {RNG, CUDA_RNG}
    if found != expected:
        wrong = ", ".join(sorted(found ^ expected)[:4])
        raise FormatError(f"{memory.path}: does not remember the parameters of this model: {wrong}")
    for name, parameter in parameters.items() if step else ():
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
    """What to do instead: the newest checkpoint before this one."""
    own = next((part for part in (checkpoint, *checkpoint.parents) if part.name.startswith("step-")), checkpoint)
    before = [path for path in all_checkpoints(own.parent.parent) if step_of(path) < step_of(own)]
    return f"resume from {before[-1]}" if before else "start the run again"
