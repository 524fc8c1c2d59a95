"""Trainers: from random weights, or from a checkpoint and then from nothing else; with
as many parameters as there should be, and tokens enough to teach them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import torch

from ..core.strict_json import Json
from ..decoder.decoder_config import PRESETS
from ..decoder.decoder_settings import DecoderConfig
from ..decoder.model import Decoder
from ..errors import FirstdriftError, SelectionError
from ..kernels.checksums import crc32
from ..weights.checkpoint import Checkpoint
from ..weights.loading.architecture import LLAMA_370M_BAND, Architecture, architecture_of, require_decoder
from ..weights.loading.arriving import compare_twins, gather
from ..weights.loading.destinations import destinations
from ..weights.loading.failures import LOAD, POPULATE, failure
from ..weights.loading.load import populate
from ..weights.loading.plan import make_plan
from ..weights.loading.proof import wrong_values
from ..weights.loading.suggestions import suggested_map
from ..weights.open_checkpoint import open_checkpoint
from .data.training_tokenizer import DEFAULT
from .origins import describe, refuse_another
from .run_failures import CUDA, UPLOAD
from .run_settings import Settings
from .trainer import Trainer, check_device, empty_decoder, on_device, random_decoder

TOO_FEW, FEW = 10, 20  # tokens a parameter
SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens a run reads, and the estimate of how many parameters there are to teach."""

    tokens: int
    parameters: int

    @property
    def ratio(self) -> float:
        """Tokens a parameter."""
        return self.tokens / self.parameters

    def to_json(self) -> dict[str, Json]:
        """The two numbers and their ratio."""
        return {"tokens": self.tokens, "parameters": self.parameters, "ratio": self.ratio}


def estimated_parameters(of: DecoderConfig) -> int:
    """N = V·H + L(4H² + 3H·I) + H: the gate's own estimate, which knows neither grouped heads nor biases."""
    hidden = of.hidden_size
    layer = 4 * hidden * hidden + 3 * hidden * of.intermediate_size
    return of.vocab_size * hidden + of.num_hidden_layers * layer + hidden


def check_budget(of: DecoderConfig, settings: Settings, *, forced: bool) -> tuple[Budget, str | None]:
    """The budget, and a warning when it is short; too short a one is an error unless it is forced.

    A run of no steps trains nothing, and needs no tokens.
    """
    budget = Budget(settings.num_steps * settings.tokens_per_step, estimated_parameters(of))
    if settings.num_steps <= 0 or budget.ratio >= FEW:
        return budget, None
    said = (
        f"token budget: {settings.num_steps} steps of {settings.tokens_per_step:,} tokens are {budget.tokens:,} for "
        f"about {budget.parameters:,} parameters, {budget.ratio:.3g} tokens a parameter"
    )
    if budget.ratio < TOO_FEW and not forced:
        raise SelectionError(f"{said}, and less than {TOO_FEW} is refused; train longer, or --force-under-provisioned")
    return budget, f"{said}; {FEW} are advised"


def parse_band(text: str | None) -> tuple[int, int] | None:
    """From how many parameters to how many, as `366M..374M` says it."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)\.\.(\d+(?:\.\d+)?)([KMB]?)", text.strip(), re.ASCII)
    low, high = (round(float(found[n]) * SUFFIXES[found[n + 1]]) for n in (1, 3)) if found else (1, 0)
    if low > high:
        raise SelectionError(f"--parameters {text!r} is no range from a number to a larger one; write it as 366M..374M")
    return low, high


def check_band(of: DecoderConfig, band: tuple[int, int]) -> None:
    """Refuse an architecture with more or fewer parameters than it should have, a tied output layer counted too."""
    with torch.device("meta"):
        model = Decoder(of)
    tied = model.lm_head.weight.numel() if of.tie_word_embeddings else 0
    count = sum(parameter.numel() for parameter in model.parameters()) + tied
    if not band[0] <= count <= band[1]:
        counted = ", the tied output layer counted too" if tied else ""
        raise SelectionError(
            f"this model has {count:,} parameters{counted}, and from {band[0]:,} to {band[1]:,} are asked for; give "
            "another architecture, or another range with --parameters"
        )


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
    check_device(trainer, UPLOAD, {arrival.name: arrival.crc32 for arrival in loaded.proof} if device != "cpu" else {})
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
    for assignment in plan.assignments:
        if assignment.twins:
            array = gather(assignment, checkpoint)[0]
            said, another = compare_twins(assignment, checkpoint, array, crc32(array))
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
