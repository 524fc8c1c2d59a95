"""Checkpoints of a run: directories that any loader of models can read, that appear whole, and from which a run
continues bit for bit as if it had not stopped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.regular import open_regular
from ..core.strict_json import Json
from ..decoder.config_json import to_config
from ..errors import FirstdriftError, FormatError, NotFoundError, storage
from ..kernels.checksums import crc32
from ..weights.checkpoint import Array, Checkpoint
from ..weights.loading.load import load_weights
from ..weights.open_checkpoint import open_checkpoint
from ..weights.writing import write_checkpoint
from .run_record import VERSION, check_fields, read_table, write_json
from .trainer import REMEMBERED, Trainer, state_of

PARTIAL = ".partial"


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory beside `path` to fill; it becomes `path`, which must not exist, when the block ends well, else it
    is gone."""
    partial = path.with_name(f".{path.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in sorted(partial.rglob("*")):  # bytes are on the disk before a name says that they are
            if file.is_file():
                with open(file, "r+b") as opened:  # to be written to, or some systems refuse
                    os.fsync(opened.fileno())
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove_partial(parent: Path) -> None:
    """Remove what killed writers have left."""
    for partial in parent.glob(f".*{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Progress:
    """Evaluations after the first step so far, the best of their losses, and how many have passed since."""

    evaluations: int = 0
    best: float | None = None
    since_best: int = 0

    def after(self, loss: float) -> Progress:
        """What is known after one more evaluation."""
        if self.best is None or loss < self.best:
            return Progress(self.evaluations + 1, loss, 0)
        return replace(self, evaluations=self.evaluations + 1, since_best=self.since_best + 1)

    def is_stuck(self, patience: int, min_epochs: int) -> bool:
        """Whether it has not become better for too long; it is given `min_epochs` evaluations in any case."""
        return 0 < patience <= self.since_best and self.evaluations >= min_epochs

    @classmethod
    def from_json(cls, said: Json, place: object) -> Progress:
        """The progress that a checkpoint has stored."""
        kinds = {"evaluations": "a count", "best": "a finite number or null", "since_best": "a count"}
        check_fields(said, kinds, f"{place}, progress")
        return cls(**{key: said[key] for key in kinds})


FORMAT = "firstdrift-training"
CHECKPOINTS, TRAINING, STATE, OPTIMIZER = "checkpoints", "training", "state.json", "optimizer.safetensors"
RNG, CUDA_RNG = "rng", "rng.cuda"
_CHUNK = 16 << 20


def step_directory(parent: Path, step: int) -> Path:
    """Where what belongs to a step lies; names sort as steps do."""
    return parent / f"step-{step:06d}"


def all_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run from the oldest to the newest."""
    found = [path for path in (run / CHECKPOINTS).glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written, by its name."""
    return int(checkpoint.name.removeprefix("step-"))


def save_checkpoint(
    run: Path,
    trainer: Trainer,
    progress: Progress,
    stamp: Mapping[str, Json],
    fingerprint: str,
    tokenizer: Mapping[str, bytes] | None = None,
) -> Path:
    """Write everything that a run is, or nothing. A checkpoint of this step, which is there only where a run continues
    from it, stays."""
    path = step_directory(run / CHECKPOINTS, trainer.step)
    if path.exists():
        return path
    with storage(path, "write the checkpoint", "free some space"), whole_directory(path) as partial:
        _write_model(partial, trainer, stamp)
        for name, data in (tokenizer or {}).items():
            (partial / name).write_bytes(data)
        (partial / TRAINING).mkdir()
        memory = state_of(trainer.optimizer, trainer.model) | _random_state(trainer.device)
        write_checkpoint(partial / TRAINING / OPTIMIZER, _arrays(memory), format="safetensors")
        write_json(partial / TRAINING / STATE, _state(trainer, progress, fingerprint, partial))
    return path


def checksum(file: Path) -> str:
    """The CRC-32 of a file's bytes."""
    value = 0
    with open_regular(file) as opened:
        while data := opened.read(_CHUNK):
            value = crc32(np.frombuffer(data, np.uint8), value)
    return f"{value:08x}"


def _write_model(directory: Path, trainer: Trainer, stamp: Mapping[str, Json]) -> None:
    weights = dict(trainer.model.named_parameters())  # a tied tensor is there once
    count = sum(weight.numel() for weight in weights.values())
    config, kind = trainer.model.config, trainer.settings.format
    metadata = {  # in either format; APR's own spellings are made by its writer
        **to_config(config), **stamp, "hf_architecture": stamp["architecture"], "hf_model_type": config.family,
        "param_count": count, "total_size": 4 * count,
    }  # fmt: skip
    write_checkpoint(directory / f"model.{kind}", _arrays(weights), format=kind, metadata=metadata)
    write_json(directory / "config.json", to_config(config))


def _state(trainer: Trainer, progress: Progress, fingerprint: str, directory: Path) -> dict[str, Json]:
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    return {
        "format": FORMAT,
        "version": VERSION,
        "step": trainer.step,
        "position": trainer.position,
        "progress": asdict(progress),
        "config": to_config(trainer.model.config),
        "data": fingerprint,
        "files": {
            file.relative_to(directory).as_posix(): {"bytes": file.stat().st_size, "crc32": checksum(file)}
            for file in files
        },
    }


def _random_state(device: str) -> dict[str, torch.Tensor]:
    found = {RNG: torch.get_rng_state()}
    return found | ({CUDA_RNG: torch.cuda.get_rng_state()} if device == "cuda" else {})


def _arrays(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, Array]]:
    return [(name, tensor.detach().cpu().numpy()) for name, tensor in tensors.items()]


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
