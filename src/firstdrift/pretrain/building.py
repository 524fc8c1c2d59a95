"""Trainers: from random weights, or from a checkpoint and then from nothing else."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch

from ..decoder.decoder_config import PRESETS
from ..decoder.decoder_settings import DecoderConfig
from ..errors import SelectionError
from ..weights.loading.architecture import Architecture, require_decoder
from ..weights.loading.load import opened, populate
from .data.training_tokenizer import DEFAULT
from .origins import describe, require_same_model, verify_init
from .run_settings import CUDA, UPLOAD, Settings
from .trainer import Trainer, check_device, empty_decoder, on_device, random_decoder


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
