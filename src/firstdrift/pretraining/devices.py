"""Where a run computes. What was asked for by name is had, or it is an error; only `auto` may choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from ..errors import SelectionError, WeightsError
from ..loading.arriving import held_crc32
from .identifiers import CUDA
from .trainer import Trainer

DEVICES = ("cpu", "cuda", "auto")


def resolve_device(asked: str) -> tuple[str, str | None]:
    """`cpu` or `cuda`, and a sentence that says what `auto` chose."""
    if asked not in DEVICES:
        raise SelectionError(f"--device {asked!r} is not one of {', '.join(DEVICES)}; choose one of these")
    if asked == "cpu":
        return "cpu", None
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise SelectionError(
            f"{CUDA}: --device cuda: this PyTorch ({torch.__version__}) has no CUDA device; give --device cpu, or auto "
            "to take what there is"
        )
    chosen = "cuda" if there else "cpu"
    return chosen, f"--device auto chose {chosen}" if asked == "auto" else None


@contextmanager
def on_device(device: str, identifier: str) -> Iterator[None]:
    """Let a device that does not take the model be an error of ours, and never another device."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:  # without support for a device, torch asserts
        if device == "cpu":
            raise
        raise SelectionError(
            f"{identifier}: the model cannot be put on --device {device} ({error}); mend it, or give --device cpu"
        ) from error


def check_device(trainer: Trainer, identifier: str, checksums: Mapping[str, int] | None = None) -> None:
    """Refuse to train anywhere else than was asked for, or with other numbers than were uploaded there."""
    for name, parameter in trainer.model.named_parameters():
        if parameter.device.type != trainer.device:
            raise SelectionError(f"{identifier}: {name} is on {parameter.device.type}, and not on {trainer.device}")
        wanted = (checksums or {}).get(name)
        if wanted is not None and held_crc32(parameter) != wanted:
            raise WeightsError(
                f"{identifier}: {name} has other numbers on {trainer.device} than were loaded, checksum "
                f"{held_crc32(parameter):08x} and not {wanted:08x}; the device or its driver is broken"
            )
