"""The checkpoint that a run starts from: what it is, read from its metadata alone, before anything large is touched."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from ..checkpoints.checkpoint import Checkpoint
from ..decoder.config import config_of_checkpoint
from ..decoder.config_json import to_config
from ..decoder.settings import DecoderConfig
from ..errors import FirstdriftError, FormatError, WeightsError
from ..loading.architecture import Architecture, architecture_of, open_described, require_decoder
from ..loading.identifiers import ARCHITECTURE, POPULATE
from ..strict_json import Json
from .tokenizing import EMBEDDED


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint to start from, and the decoder that it is of."""

    path: Path
    format: str
    architecture: Architecture
    config: DecoderConfig
    embeds_tokenizer: bool = False


def read_origin(path: str | PathLike[str]) -> Origin:
    """Open, recognise and describe a checkpoint, in this order; each failure carries its own id."""
    with open_described(Path(path)) as checkpoint:
        return describe(checkpoint)


def describe(checkpoint: Checkpoint) -> Origin:
    """What an open checkpoint is of, by its metadata; the names of its tensors are compared in their turn."""
    architecture = architecture_of(checkpoint, by_names=False)
    require_decoder(architecture, checkpoint.path)
    try:
        config = config_of_checkpoint(checkpoint, by_names=False)
    except FirstdriftError as error:
        architecture_of(checkpoint)  # a name that nothing can be built of may not be that of the tensors either
        raise error if ARCHITECTURE in str(error) else FormatError(f"{ARCHITECTURE}: {error}") from error
    embeds = checkpoint.path.is_file() and any(key in checkpoint.metadata for key in EMBEDDED)
    return Origin(checkpoint.path, checkpoint.format, architecture, config, embeds)


def refuse_another(asked: Architecture | DecoderConfig, origin: Origin, what: str) -> None:
    """An architecture that is given beside a checkpoint has to be the checkpoint's: all that differs is named."""
    if isinstance(asked, Architecture):
        mine, its = asked.to_json(), origin.architecture.to_json()
        if asked.family is not None and origin.architecture.family is not None:
            mine, its = {**mine, "family": asked.family}, {**its, "family": origin.architecture.family}
    else:
        mine, its = to_config(asked), to_config(origin.config)
    keys = [key for key in dict.fromkeys([*mine, *its]) if not _same(mine.get(key), its.get(key))]
    if keys:
        said = "; ".join(f"{key} {mine.get(key)!r} and {its.get(key)!r}" for key in keys)
        raise WeightsError(f"{POPULATE}: {what} and {origin.path} are of different models: {said}; give one of the two")


def _same(mine: Json, its: Json) -> bool:
    """Whether two values are one; numbers are that when they are in float32, which is how some formats keep them."""
    if isinstance(mine, float) and isinstance(its, float):
        return bool(np.float32(mine) == np.float32(its))
    return bool(mine == its)
