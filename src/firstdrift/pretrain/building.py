"""Trainers: from random weights, or from a checkpoint and then from nothing else; and what that checkpoint is of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from ..core.strict_json import Json
from ..decoder.config_json import to_config
from ..decoder.decoder_config import PRESETS, config_of_checkpoint
from ..decoder.decoder_settings import DecoderConfig
from ..decoder.engines import described
from ..errors import FirstdriftError, FormatError, SelectionError, WeightsError
from ..kernels.checksums import crc32
from ..weights.checkpoint import Checkpoint
from ..weights.loading.architecture import Architecture, architecture_of, open_described, require_decoder
from ..weights.loading.arriving import compare_twins, gather
from ..weights.loading.failures import ARCHITECTURE, LOAD, POPULATE, failure
from ..weights.loading.load import opened, populate
from ..weights.loading.proof import wrong_values
from .data.training_tokenizer import DEFAULT, EMBEDDED
from .run_settings import CUDA, UPLOAD, Settings
from .trainer import Trainer, check_device, empty_decoder, on_device, random_decoder


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint to start from, and the decoder that it is of."""

    path: Path
    format: str
    architecture: Architecture
    config: DecoderConfig
    embeds_tokenizer: bool


def read_origin(path: str | PathLike[str]) -> Origin:
    """Open, recognise and describe a checkpoint, in this order; each failure carries its own id."""
    with open_described(Path(path)) as checkpoint:
        return describe(checkpoint)


def describe(checkpoint: Checkpoint) -> Origin:
    """What an open checkpoint is of, by its metadata; `verify_init` compares the names of its tensors."""
    architecture = architecture_of(checkpoint, by_names=False)
    require_decoder(architecture, checkpoint.path)
    try:
        config = config_of_checkpoint(checkpoint, by_names=False)
    except FirstdriftError as error:
        architecture_of(checkpoint)  # a name that nothing can be built of may not be that of the tensors either
        raise error if ARCHITECTURE in str(error) else FormatError(f"{ARCHITECTURE}: {error}") from error
    embeds = checkpoint.path.is_file() and any(key in checkpoint.metadata for key in EMBEDDED)
    return Origin(checkpoint.path, checkpoint.format, architecture, config, embeds)


def require_same_model(asked: Architecture | DecoderConfig, origin: Origin, what: str) -> None:
    """An architecture that is given beside a checkpoint has to be the checkpoint's: all that differs is named."""
    if isinstance(asked, Architecture):
        mine, its = asked.to_json(), origin.architecture.to_json()
        if asked.family is not None and origin.architecture.family is not None:
            mine, its = {**mine, "family": asked.family}, {**its, "family": origin.architecture.family}
    else:
        mine, its = to_config(asked), to_config(origin.config)
    keys = [key for key in dict.fromkeys([*mine, *its]) if not _equal(mine.get(key), its.get(key))]
    if keys:
        said = "; ".join(f"{key} {mine.get(key)!r} and {its.get(key)!r}" for key in keys)
        raise WeightsError(f"{POPULATE}: {what} and {origin.path} are of different models: {said}; give one of the two")


def _equal(mine: Json, its: Json) -> bool:
    """Numbers are equal if they are in float32, which is how some formats keep them."""
    if isinstance(mine, float) and isinstance(its, float):
        return bool(np.float32(mine) == np.float32(its))
    return bool(mine == its)


def verify_init(checkpoint: Checkpoint, config: DecoderConfig) -> tuple[str, ...]:
    """Check all that can be known of a checkpoint without memory for the model: values, family, names and shapes, and
    that what is stored twice is the same. Returns notes about that."""
    _check_values(checkpoint)
    architecture_of(checkpoint)  # once more, and now the names of the tensors too
    _, plan = described(checkpoint, config)
    notes: tuple[str, ...] = ()
    for assignment in plan.assignments:
        if assignment.twins:
            array = gather(assignment, checkpoint)[0]
            said, problem = compare_twins(assignment, checkpoint, array, crc32(array))
            if problem is not None:
                raise failure(LOAD, f"{checkpoint.path}: its tensors cannot be loaded", [problem])
            notes += said
    return notes


def _check_values(checkpoint: Checkpoint) -> None:
    problems = [] if checkpoint.entries else ["it holds no tensors"]
    for name in checkpoint.entries:
        try:
            wrong = wrong_values(checkpoint.array(name))
        except FirstdriftError as error:
            wrong = str(error)
        if wrong is not None:
            problems.append(f"{name}: {wrong}")
    if problems:
        raise failure(LOAD, f"{checkpoint.path}: its tensors cannot be loaded", problems)


def build_trainer(settings: Settings, config: DecoderConfig, device: str = "cpu") -> Trainer:
    """A trainer of a decoder with the random weights of the seed."""
    settings.check()
    check_length(settings, config)
    torch.manual_seed(settings.seed)
    with on_device(device, CUDA):
        trainer = Trainer(random_decoder(config, settings.seed), settings, device)
    check_device(trainer, CUDA)
    return trainer


def build_trainer_with_init(
    settings: Settings,
    config: DecoderConfig | None = None,
    *,
    init_config: Architecture | DecoderConfig | None = None,
    init_path: str | PathLike[str] | None = None,
    untie: bool = False,
    device: str = "cpu",
) -> Trainer:
    """Build a trainer of a decoder with a checkpoint's weights. Raises rather than start from random ones.

    `init_config` is the checkpoint's architecture, from `fd.read_architecture` or `config_of`. Give it with
    `init_path`, or neither: then this is `build_trainer(settings, config)`, by default of Llama-370M.

    Checked in this order: the family (FALSIFY-APR-PRETRAIN-ARCH-007), each field of `init_config` against the file
    (FALSIFY-APR-PRETRAIN-INIT-007), values (FALSIFY-APR-PRETRAIN-INIT-006), names against metadata
    (FALSIFY-INIT-ARCH-MATCH-001), names and shapes against the model (FALSIFY-APR-PRETRAIN-INIT-007).

    `settings` is a `firstdrift.pretrain.run_settings.Settings`, from `Settings.of(mode, ...)`. `untie` keeps an output
    layer beside a tied embedding. The optimizer starts fresh.
    """
    if (init_config is None) != (init_path is None):
        given, absent = ("init_path", "init_config") if init_config is None else ("init_config", "init_path")
        raise SelectionError(f"{given} is given and {absent} is None; they must both be given or both be None")
    if init_config is None or init_path is None:
        return build_trainer(settings, config or PRESETS[DEFAULT], device)
    settings.check()
    if isinstance(init_config, Architecture):
        require_decoder(init_config, "init_config")
    with opened(Path(init_path)) as checkpoint:
        origin = describe(checkpoint)
        require_same_model(init_config, origin, "init_config")
        built = untied(origin.config) if untie else origin.config
        check_length(settings, built)
        notes = verify_init(checkpoint, built)
        torch.manual_seed(settings.seed)
        model = empty_decoder(built)
        loaded = populate(model, checkpoint, None, cast=True)
    with on_device(device, UPLOAD):
        trainer = Trainer(model, settings, device, loaded.count, notes)
    check_device(trainer, UPLOAD, {arrival.name: arrival.crc32 for arrival in loaded.proof} if device != "cpu" else {})
    return trainer


def untied(config: DecoderConfig) -> DecoderConfig:
    """The same architecture with an output layer of its own."""
    return replace(config, tie_word_embeddings=False)


def check_length(settings: Settings, config: DecoderConfig) -> None:
    """Refuse sequences that are longer than the model has positions."""
    if settings.seq_length > config.max_position_embeddings:
        raise SelectionError(
            f"--seq-length {settings.seq_length} is more than the {config.max_position_embeddings} positions of the "
            "model; give less"
        )
