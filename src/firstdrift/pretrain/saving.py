"""Checkpoints of a run: directories that any loader of models can read, that appear whole, and that hold what is
needed to continue.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..core.regular import open_regular
from ..core.strict_json import Json
from ..decoder.config_json import to_config
from ..errors import storage
from ..kernels.checksums import crc32
from ..weights.checkpoint import Array
from ..weights.writing import write_checkpoint
from .run_record import VERSION, check_fields, write_json
from .trainer import Trainer, state_of

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
