"""Trainers: from random weights, or from a checkpoint and then from nothing else."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import torch

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.opening import open_checkpoint
from ..decoder.config_json import FAMILIES
from ..decoder.model import Decoder
from ..decoder.settings import DecoderConfig
from ..errors import FirstdriftError, SelectionError, WeightsError
from ..loading.architecture import Architecture, require_decoder
from ..loading.destinations import destinations
from ..loading.failures import failure
from ..loading.families import family_of_metadata, family_of_names
from ..loading.identifiers import FAMILY, LOAD, POPULATE
from ..loading.plan import make_plan
from ..loading.populating import populate
from ..loading.suggestions import suggested_map
from ..loading.values import wrong_values
from .origins import config_of_origin
from .settings import Settings
from .trainer import Trainer, empty_decoder, random_decoder


def build_trainer(settings: Settings, config: DecoderConfig, device: str = "cpu") -> Trainer:
    """A trainer of a decoder with the random weights of the seed."""
    settings.check()
    check_length(settings, config)
    torch.manual_seed(settings.seed)
    return Trainer(random_decoder(config, settings.seed), settings, device)


def build_trainer_with_init(
    settings: Settings,
    config: DecoderConfig | None = None,
    *,
    init_config: Architecture | DecoderConfig | None = None,
    init_path: str | PathLike[str] | None = None,
    device: str = "cpu",
) -> Trainer:
    """A trainer of a decoder with the weights of a checkpoint, or an error; never with random weights instead.

    `init_config` is what the checkpoint is of, as `fd.read_architecture` or `config_of` reads it, and belongs to
    `init_path`: both are given or neither. Without them it is `build_trainer(settings, config)`, byte for byte.
    Checked in this order: the pair, the family (FALSIFY-APR-PRETRAIN-ARCH-007), every tensor's values
    (FALSIFY-APR-PRETRAIN-INIT-006), names against metadata (FALSIFY-INIT-ARCH-MATCH-001), names and shapes against the
    model's (FALSIFY-APR-PRETRAIN-INIT-007). Memory for the model is taken after that. The optimizer is fresh.
    `settings` is a `firstdrift.pretraining.settings.Settings`, as its `of(mode, ...)` makes one.
    """
    if (init_config is None) != (init_path is None):
        given, absent = ("init_path", "init_config") if init_config is None else ("init_config", "init_path")
        raise SelectionError(f"{given} is given and {absent} is None; they must both be given or both be None")
    if init_config is None or init_path is None:
        if config is None:
            raise SelectionError("neither config nor init_config says what to build; give one of them")
        return build_trainer(settings, config, device)
    settings.check()
    if isinstance(init_config, Architecture):
        require_decoder(init_config)
    with open_init(Path(init_path)) as checkpoint:
        built = init_config if isinstance(init_config, DecoderConfig) else config_of_origin(checkpoint)
        check_length(settings, built)
        verify_init(checkpoint, built)
        torch.manual_seed(settings.seed)
        model = empty_decoder(built)
        loaded = populate(model, checkpoint, None, cast=True)
    return Trainer(model, settings, device, loaded.count)


def verify_init(checkpoint: Checkpoint, config: DecoderConfig) -> None:
    """Everything that can be known of a checkpoint without memory for the model: values, family, names and shapes."""
    _check_values(checkpoint)
    _check_family(checkpoint, config)
    with torch.device("meta"):
        model = Decoder(config)
    plan = make_plan(checkpoint, destinations(model), None)
    if plan.problems:
        what = f"{checkpoint.path}: does not hold the model that its metadata describes"
        raise failure(POPULATE, what, plan.problems, suggested_map(plan, checkpoint))


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


def _check_family(checkpoint: Checkpoint, config: DecoderConfig) -> None:
    """Compare the family of the metadata with that of the names, where both are known."""
    name = FAMILIES[config.family].architecture
    said, told = family_of_metadata(name), family_of_names(checkpoint.entries)
    biased = told == "qwen2" and config.qkv_bias  # a Llama with biases has the names of a Qwen2
    if said is not None and told is not None and said != told and not biased:
        raise WeightsError(
            f"{FAMILY}: {checkpoint.path}: its metadata says {name} (family {said}), but its tensors have the names of "
            f"family {told}; one of the two is of another model"
        )


def check_length(settings: Settings, config: DecoderConfig) -> None:
    """Refuse sequences that are longer than the model has positions."""
    if settings.seq_length > config.max_position_embeddings:
        raise SelectionError(
            f"--seq-length {settings.seq_length} is more than the {config.max_position_embeddings} positions of the "
            "model; give less"
        )
