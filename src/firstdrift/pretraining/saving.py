"""Checkpoints of a run: a directory that any loader of models can read, with what is needed to go on beside it.

    step-000500/
      model.safetensors | model.apr    the weights, with everything that builds the model again
      config.json, tokenizer.json ...  as Hugging Face has them
      training/state.json              how far the run is; sizes and checksums of all files
      training/optimizer.safetensors   what the optimizer remembers, and the state of random numbers

It appears by one rename, when every byte is on the disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .._kernels.checksums import crc32
from ..atomic import replacing
from ..checkpoints.checkpoint import Array
from ..checkpoints.writing import write_checkpoint
from ..decoder.config_json import to_config
from ..errors import storage
from ..regular import open_regular
from ..strict_json import Json, plain
from .directories import replacing_directory
from .optimizing import state_of
from .progress import Progress
from .stamps import Stamp, metadata_of
from .trainer import Trainer

FORMAT, VERSION = "firstdrift-training", 1
CHECKPOINTS, TRAINING, STATE, OPTIMIZER = "checkpoints", "training", "state.json", "optimizer.safetensors"
RNG, CUDA_RNG = "rng", "rng.cuda"
_ROOM = "free some space"
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is on the disk."""

    path: Path
    step: int


def checkpoint_name(step: int) -> str:
    """The directory of a step's checkpoint; names sort as steps do."""
    return f"step-{step:06d}"


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
    stamp: Stamp,
    fingerprint: str,
    tokenizer: Mapping[str, bytes] | None = None,
) -> Saved:
    """Write everything that a run is, or nothing."""
    path = run / CHECKPOINTS / checkpoint_name(trainer.step)
    with storage(path, "write the checkpoint", _ROOM), replacing_directory(path) as partial:
        _write_model(partial, trainer, stamp)
        for name, data in (tokenizer or {}).items():
            (partial / name).write_bytes(data)
        (partial / TRAINING).mkdir()
        memory = state_of(trainer.optimizer, trainer.model) | _random_state(trainer.device)
        write_checkpoint(partial / TRAINING / OPTIMIZER, _arrays(memory), format="safetensors")
        _write_json(partial / TRAINING / STATE, _state(trainer, progress, fingerprint, partial))
    return Saved(path, trainer.step)


def checksum(file: Path) -> str:
    """The CRC-32 of a file's bytes."""
    value = 0
    with open_regular(file) as opened:
        while data := opened.read(_CHUNK):
            value = crc32(np.frombuffer(data, np.uint8), value)
    return f"{value:08x}"


def _write_model(directory: Path, trainer: Trainer, stamp: Stamp) -> None:
    weights = dict(trainer.model.named_parameters())  # a tied tensor is there once
    metadata = metadata_of(trainer.model.config, stamp, sum(one.numel() for one in weights.values()))
    kind = trainer.settings.format
    write_checkpoint(directory / f"model.{kind}", _arrays(weights), format=kind, metadata=metadata)
    _write_json(directory / "config.json", to_config(trainer.model.config))


def _state(trainer: Trainer, progress: Progress, fingerprint: str, directory: Path) -> dict[str, Json]:
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    return {
        "format": FORMAT,
        "version": VERSION,
        "step": trainer.step,
        "position": trainer.step * trainer.settings.accumulate * trainer.settings.batch,
        "progress": progress.to_json(),
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


def _write_json(path: Path, said: Json) -> None:
    with replacing(path) as file:
        file.write((json.dumps(plain(said), indent=1, allow_nan=False) + "\n").encode())
