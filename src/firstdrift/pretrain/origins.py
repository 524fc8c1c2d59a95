"""The checkpoint that a run starts from, and what a checkpoint of a run says of itself: read from metadata alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from ..core.strict_json import Json
from ..decoder.config_json import FAMILIES, to_config
from ..decoder.decoder_config import config_of_checkpoint
from ..decoder.decoder_settings import DecoderConfig
from ..errors import FirstdriftError, FormatError, WeightsError
from ..weights.checkpoint import Checkpoint
from ..weights.loading.architecture import Architecture, architecture_of, open_described, require_decoder
from ..weights.loading.failures import ARCHITECTURE, POPULATE
from .data.training_tokenizer import EMBEDDED

# What may stand under a key, in the words of an error.
FIELD_KINDS: Mapping[str, Callable[[Json], bool]] = {
    "a text": lambda value: type(value) is str,
    "a count": lambda value: type(value) is int and value >= 0,
    "a number": lambda value: type(value) in (int, float),
    "a finite number": lambda value: type(value) in (int, float) and math.isfinite(value),
    "a finite number or null": lambda value: value is None or (type(value) in (int, float) and math.isfinite(value)),
    "true or false": lambda value: type(value) is bool,
    "a table": lambda value: type(value) is dict,
    "a text or null": lambda value: value is None or type(value) is str,
    "a table or null": lambda value: value is None or type(value) is dict,
}


def check_fields(said: Json, kinds: Mapping[str, str], place: object) -> dict[str, Json]:
    """The table, whose keys are of the kinds they should be; raises FormatError with the first that is not."""
    if type(said) is not dict:
        raise FormatError(f"{place}: is no table; it was changed")
    for key, kind in kinds.items():
        if key not in said or not FIELD_KINDS[kind](said[key]):
            found = f"is {said[key]!r}"[:60] if key in said else "is missing"
            raise FormatError(f"{place}: {key} {found}, and has to be {kind}; it was changed")
    return said


FALLBACK = "model"


@dataclass(frozen=True, slots=True)
class Stamp:
    """The name of what is trained, and the class that Hugging Face has for it."""

    name: str
    architecture: str

    def to_json(self) -> dict[str, Json]:
        """The two by name."""
        return {"name": self.name, "architecture": self.architecture}

    @classmethod
    def from_json(cls, said: Json, place: object) -> Stamp:
        """The stamp that a run has stored."""
        check_fields(said, {"name": "a text", "architecture": "a text"}, f"{place}, stamp")
        return cls(said["name"], said["architecture"])


def stamp_of(config: DecoderConfig, name: str | None) -> Stamp:
    """The stamp of a preset or of a model type: `llama-370m-pretrain`, `qwen2-pretrain`, else `model-pretrain`."""
    return Stamp(f"{name or FALLBACK}-pretrain", FAMILIES[config.family].architecture)


def metadata_of(config: DecoderConfig, stamp: Stamp, parameters: int) -> dict[str, Json]:
    """The metadata of a checkpoint in either format; APR's own spellings are made by its writer."""
    return {
        **to_config(config),
        "name": stamp.name,
        "architecture": stamp.architecture,
        "hf_architecture": stamp.architecture,
        "hf_model_type": config.family,
        "param_count": parameters,
        "total_size": 4 * parameters,
    }


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
