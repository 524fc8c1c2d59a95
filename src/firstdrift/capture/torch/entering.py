"""From the arguments of `fd.trace` to a trace that can be entered."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._version import __version__
from ...core.strict_json import Json
from ...errors import SelectionError
from ...store.layout import rank_directory
from ...store.writer import Writer
from ..recorder import OnFull, Recorder
from ..scope import Scope
from .names import classes_of
from .session import Tracing
from .step_updates import Optimizer, described
from .verification import Verification


def begin(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    scope: Mapping[str, Any],
    optimizer: Optimizer | Sequence[Optimizer] | None,
    granularity: str,
    verify: bool,
    overwrite: bool,
    checksum: bool,
    header: Mapping[str, Json],
    scaler: torch.amp.GradScaler | None,
    logits: str | None,
    on_full: OnFull,
    program: bool,
    source: bool,
) -> Tracing:
    """Validate everything; the trace itself is made when its block is entered."""
    if granularity not in ("module", "op"):
        raise SelectionError(f"granularity {granularity!r} is not 'module' or 'op'; use one of these")
    if on_full not in ("raise", "continue"):
        raise SelectionError(f"on_full {on_full!r} is not 'raise' or 'continue'; use one of these")
    optimizers = as_optimizers(optimizer)
    rank, ranks = _rank()

    chosen = Scope.of(**scope)

    def open_recorder() -> Recorder:
        said = {**_header(model, optimizers, scope, granularity), **header}
        tracing.run.stated.update(said)
        writer = Writer(path, overwrite=overwrite, checksum=checksum, rank=rank, ranks=ranks, **said)
        return Recorder(writer, chosen, on_full)

    tracing = Tracing(
        model, chosen, open_recorder, optimizers=optimizers, scaler=scaler, logits=logits,
        every_operation=granularity == "op", program=program, source=source,
        verification=Verification(rank_directory(Path(path), rank)) if verify else None,
    )  # fmt: skip
    return tracing


def as_optimizers(given: Optimizer | Sequence[Optimizer] | None) -> tuple[Optimizer, ...]:
    """None, one or several optimizers as a tuple."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Sequence) else (given,)


def _header(
    model: nn.Module, optimizers: Sequence[Optimizer], scope: Mapping[str, Any], granularity: str
) -> dict[str, Json]:
    said: dict[str, Json] = {
        "producer": f"firstdrift {__version__}, torch {torch.__version__}",
        "model": classes_of(model)[0],
        "options": {key: str(item) for key, item in scope.items() if item not in (None, (), "full")}
        | {"granularity": granularity},
        "seed": torch.initial_seed(),
        "environment": {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        },
    }
    if optimizers:
        said["optimizer"] = described(optimizers[0]) if len(optimizers) == 1 else [described(o) for o in optimizers]
    return said


def _rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
