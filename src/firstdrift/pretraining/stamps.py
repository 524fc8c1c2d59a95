"""What a checkpoint of a run says of itself: its name, its architecture, and everything that builds the model again."""

from __future__ import annotations

from dataclasses import dataclass

from ..decoder.config_json import FAMILIES, to_config
from ..decoder.settings import DecoderConfig
from ..strict_json import Json
from .fields import check_fields

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
