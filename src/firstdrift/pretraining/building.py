"""Trainers: from random weights, or from a checkpoint and then from nothing else."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch

from .._kernels.checksums import crc32
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.opening import open_checkpoint
from ..decoder.config import PRESETS
from ..decoder.model import Decoder
from ..decoder.settings import DecoderConfig
from ..errors import FirstdriftError, SelectionError
from ..loading.architecture import Architecture, architecture_of, require_decoder
from ..loading.arriving import compare_twins, gather
from ..loading.destinations import destinations
from ..loading.failures import failure
from ..loading.identifiers import LOAD, POPULATE
from ..loading.plan import make_plan
from ..loading.populating import populate
from ..loading.presets import LLAMA_370M_BAND
from ..loading.suggestions import suggested_map
from ..loading.values import wrong_values
from .budget import check_band
from .devices import check_device, on_device
from .identifiers import CUDA, UPLOAD
from .origins import describe, refuse_another
from .settings import Settings
from .trainer import Trainer, empty_decoder, random_decoder
from .vocabulary import DEFAULT


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

    `settings` is a `firstdrift.pretraining.settings.Settings`, from `Settings.of(mode, ...)`. `untie` keeps an output
    layer beside a tied embedding. The optimizer starts fresh.
    """
    if (init_config is None) != (init_path is None):
        given, absent = ("init_path", "init_config") if init_config is None else ("init_config", "init_path")
        raise SelectionError(f"{given} is given and {absent} is None; they must both be given or both be None")
    if init_config is None or init_path is None:
        return build_trainer(settings, config or default_config(), device)
    settings.check()
    if isinstance(init_config, Architecture):
        require_decoder(init_config, "init_config")
    with open_init(Path(init_path)) as checkpoint:
        origin = describe(checkpoint)
        refuse_another(init_config, origin, "init_config")
        built = untied(origin.config) if untie else origin.config
        check_length(settings, built)
        notes = verify_init(checkpoint, built)
        torch.manual_seed(settings.seed)
        model = empty_decoder(built)
        loaded = populate(model, checkpoint, None, cast=True)
    with on_device(device, UPLOAD):
        trainer = Trainer(model, settings, device, loaded.count, notes)
    check_device(trainer, UPLOAD, {one.name: one.crc32 for one in loaded.proof} if device != "cpu" else {})
    return trainer


def default_config() -> DecoderConfig:
    """What is built where nothing is said: a preset, whose count of parameters has to be in its own band."""
    check_band(PRESETS[DEFAULT], LLAMA_370M_BAND)
    return PRESETS[DEFAULT]


def untied(config: DecoderConfig) -> DecoderConfig:
    """The same architecture with an output layer of its own."""
    return replace(config, tie_word_embeddings=False)


def verify_init(checkpoint: Checkpoint, config: DecoderConfig) -> tuple[str, ...]:
    """Everything that can be known of a checkpoint without memory for the model: values, family, names and shapes, and
    that what is stored twice is the same; what is to be said of that."""
    _check_values(checkpoint)
    architecture_of(checkpoint)  # once more, and now the names of the tensors too
    with torch.device("meta"):
        model = Decoder(config)
    plan = make_plan(checkpoint, destinations(model), None)
    if plan.problems:
        what = f"{checkpoint.path}: does not hold the model that its metadata describes"
        raise failure(POPULATE, what, plan.problems, suggested_map(plan, checkpoint))
    notes: tuple[str, ...] = ()
    for one in plan.assignments:
        if one.twins:
            array = gather(one, checkpoint)[0]
            said, another = compare_twins(one, checkpoint, array, crc32(array))
            if another is not None:
                raise failure(LOAD, f"{checkpoint.path}: its tensors cannot be loaded", [another])
            notes += said
    return notes


def open_init(path: Path) -> Checkpoint:
    """The checkpoint to start from; what cannot be opened is a failure to load."""
    try:
        return open_checkpoint(path)
    except FirstdriftError as error:
        error.args = (f"{LOAD}: {error}",)
        raise


def _check_values(checkpoint: Checkpoint) -> None:
    problems = []
    for name in checkpoint.entries:
        try:
            wrong = wrong_values(checkpoint.array(name))
        except FirstdriftError as error:
            wrong = str(error)
        if wrong is not None:
            problems.append(f"{name}: {wrong}")
    if not checkpoint.entries:
        problems.append("it holds no tensors")
    if problems:
        raise failure(LOAD, f"{checkpoint.path}: its tensors cannot be loaded", problems)


def check_length(settings: Settings, config: DecoderConfig) -> None:
    """Refuse sequences that are longer than the model has positions."""
    if settings.seq_length > config.max_position_embeddings:
        raise SelectionError(
            f"--seq-length {settings.seq_length} is more than the {config.max_position_embeddings} positions of the "
            "model; give less"
        )
