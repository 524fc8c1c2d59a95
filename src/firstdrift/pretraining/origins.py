"""The checkpoint that a run starts from: what it is, read from its metadata alone, before anything large is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.hf_directory import CONFIG
from ..checkpoints.json_file import read_json_object
from ..checkpoints.opening import open_checkpoint
from ..decoder.config import config_of_checkpoint
from ..decoder.config_json import from_config
from ..decoder.settings import DecoderConfig
from ..errors import FirstdriftError, FormatError, NotFoundError, StorageError
from ..loading.architecture import GGUF_TIED_BY, Architecture, architecture_of, require_decoder
from ..loading.identifiers import ARCHITECTURE, MAGIC, OPEN
from ..regular import read_regular
from ..strict_json import Json
from .tokenizing import EMBEDDED

OUTPUTS = (GGUF_TIED_BY, "lm_head.weight")  # what says whether embeddings are tied
SELF_DESCRIBED = ("apr", "gguf", "hf")
CONTAINERS = (b"APR\0", b"APRN", b"GGUF")


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
    path = Path(path)
    try:
        checkpoint = open_checkpoint(path)
    except StorageError as error:
        kind = NotFoundError if isinstance(error, NotFoundError) else StorageError
        raise kind(f"{OPEN}: {error}") from error
    except FirstdriftError as error:
        raise FormatError(f"{ARCHITECTURE if _container(path) else MAGIC}: {error}") from error
    with checkpoint:
        view = _without_layers(checkpoint)
        architecture = architecture_of(view)
        require_decoder(architecture)
        embeds = path.is_file() and any(key in checkpoint.metadata for key in EMBEDDED)
        try:
            config = config_of_origin(checkpoint)
        except FirstdriftError as error:
            raise error if ARCHITECTURE in str(error) else FormatError(f"{ARCHITECTURE}: {error}") from error
        return Origin(path, checkpoint.format, architecture, config, embeds)


def config_of_origin(checkpoint: Checkpoint) -> DecoderConfig:
    """The decoder that an open checkpoint is of."""
    if checkpoint.format.startswith(SELF_DESCRIBED):
        return config_of_checkpoint(checkpoint)
    return from_config(_said(checkpoint), str(checkpoint.path))


def _without_layers(checkpoint: Checkpoint) -> Checkpoint:
    """What the metadata says, without the names that it is compared with later, in their turn."""
    outputs = {name: entry for name, entry in checkpoint.entries.items() if name in OUTPUTS}
    return Checkpoint(
        checkpoint.path, checkpoint.format, outputs, lambda entry: checkpoint.array(entry.name),
        metadata=_said(checkpoint),
    )  # fmt: skip


def _said(checkpoint: Checkpoint) -> Mapping[str, Json]:
    """The metadata; plain weights that have none may have a config.json beside them."""
    beside = checkpoint.path.parent / CONFIG
    if checkpoint.format.startswith(SELF_DESCRIBED) or "vocab_size" in checkpoint.metadata or not beside.is_file():
        return checkpoint.metadata
    try:
        return read_json_object(beside)
    except FormatError as error:
        raise FormatError(f"{ARCHITECTURE}: {error}") from error


def _container(path: Path) -> bool:
    """Whether a file has the magic of a container that describes itself, and is broken behind it."""
    if not path.is_file():
        return False
    return read_regular(path, 4) in CONTAINERS
