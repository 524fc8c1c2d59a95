"""Everything that can be refused is refused here, in a fixed order, before the first large allocation.

1 device, 2 the checkpoint opens and is one, 3 it says what model it is of, and that is a decoder, 4 the token budget,
5 the numbers of the run, 6 the vocabulary, 7 the data. The builder's own checks follow: values, family, names, shapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..core.strict_json import Json
from ..decoder.config_json import from_config, to_config
from ..decoder.decoder_config import PRESETS, config_of
from ..decoder.decoder_settings import DecoderConfig
from ..decoder.model import Decoder
from ..decoder.tokenizing import tokenizer_file
from ..errors import FirstdriftError, FormatError, SelectionError
from ..weights.loading.architecture import LLAMA_370M_BAND
from ..weights.loading.load import opened
from .building import Origin, check_length, read_origin, require_same_model, untied, verify_init
from .data.corpora import find_corpus, read_tokens
from .data.training_tokenizer import DEFAULT, Tokenizer, check_vocabulary, open_tokenizer
from .data.windows import Windows, cut
from .run_record import Record, stamp_of
from .run_settings import Settings
from .trainer import resolve_device

REFUSED_BELOW, ADVISED = 10, 20  # tokens a parameter
BAND = re.compile(r"(\d+(?:\.\d+)?)([KMB]?)\.\.(\d+(?:\.\d+)?)([KMB]?)", re.ASCII)
SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for. Without `init` the architecture is that of `config`, a preset or a file, else the
    default preset. `parameters` is how many there may be, as `366M..374M`."""

    settings: Settings
    data: str
    init: str | None = None
    config: str | None = None
    tokenizer: str | None = None
    device: str = "auto"
    force_under_provisioned: bool = False
    untie: bool = False
    parameters: str | None = None
    allow_weak_init: bool = False
    target_given: bool = False
    force: bool = False
    trace_steps: frozenset[int] = frozenset()
    trace_nonfinite: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """A request after the first five checks, which touch neither weights nor data; `notes` are for people."""

    request: Request
    record: Record
    origin: Origin | None
    notes: tuple[str, ...]

    @property
    def config(self) -> DecoderConfig:
        """The architecture that is trained."""
        return self.record.config

    def to_json(self) -> dict[str, Json]:
        """What is known of the run by now."""
        said = self.record.to_json()
        keys = ["settings", "config", "stamp", "device", "init", "budget", *(["data"] if said["data"] else [])]
        return {key: said[key] for key in keys} | {"notes": list(self.notes)}


@dataclass(frozen=True, slots=True)
class Prepared(Checked):
    """A run that nothing speaks against, and what it reads."""

    windows: Windows = field(kw_only=True)
    tokenizer: Tokenizer | None = None


def prepare(request: Request) -> Prepared:
    """Check a request; raises the first error of the order above."""
    checked = check_request(request)
    config, path = checked.config, tokenizer_path(request, checked.origin)
    tokenizer = None if path is None else open_tokenizer(path)
    if tokenizer is not None:
        strict = request.init is None and request.config in (None, DEFAULT)
        check_vocabulary(tokenizer.entries, config.vocab_size, strict=strict, place=path)
    windows, notes = read_data(request.data, request.settings, config, tokenizer)
    record = replace(
        checked.record, data={"path": str(Path(request.data).absolute()), **windows.to_json()},
        tokenizer=None if path is None else str(path.absolute()),
    )  # fmt: skip
    return Prepared(request, record, checked.origin, (*checked.notes, *notes), windows=windows, tokenizer=tokenizer)


def check_request(request: Request) -> Checked:
    """The first five checks, which read metadata alone."""
    settings = request.settings
    device, chosen = resolve_device(request.device)
    notes = [chosen] if chosen else []
    origin = None if request.init is None else read_origin(request.init)
    config = origin.config if origin is not None else architecture_asked_for(request.config)
    if origin is not None and request.config is not None:
        require_same_model(architecture_asked_for(request.config), origin, f"--config {request.config}")
    if request.untie:
        if origin is None:
            raise SelectionError("--untie is for the output layer of a checkpoint; give --init, or leave it out")
        config = untied(config)
    budget = None
    if origin is not None:
        budget, warning = check_budget(config, settings, forced=request.force_under_provisioned)
        notes += [f"warning: {warning}"] if warning else []
    settings.check()
    check_length(settings, config)
    if request.parameters is not None:
        check_band(config, parse_band(request.parameters))
    elif origin is None and request.config in (None, DEFAULT):
        check_band(config, LLAMA_370M_BAND)
    stamp = stamp_of(config, config.family)
    if origin is None:
        preset = request.config or DEFAULT
        stamp = stamp_of(config, preset if preset in PRESETS else config.family)
        notes += [] if request.config else [f"neither --init nor --config: the preset {DEFAULT}"]
    init = None
    if origin is not None:
        about = {"format": origin.format, "architecture": origin.architecture.name}
        init = {"path": str(origin.path.absolute()), **about}
    record = Record(settings, config, stamp, device, init=init, budget=budget, target_given=request.target_given)
    return Checked(request, record, origin, (*notes, *_doubts(settings, origin)))


def estimated_parameters(of: DecoderConfig) -> int:
    """N = V·H + L(4H² + 3H·I) + H: the gate's own estimate, which knows neither grouped heads nor biases."""
    hidden = of.hidden_size
    layer = 4 * hidden * hidden + 3 * hidden * of.intermediate_size
    return of.vocab_size * hidden + of.num_hidden_layers * layer + hidden


def check_budget(of: DecoderConfig, settings: Settings, *, forced: bool) -> tuple[dict[str, Json], str | None]:
    """How many tokens a run reads for how many parameters, and a warning where they are few; too few are an error
    unless that is forced. A run of no steps trains nothing, and needs no tokens.
    """
    tokens, parameters = settings.num_steps * settings.tokens_per_step, estimated_parameters(of)
    ratio = tokens / parameters
    budget: dict[str, Json] = {"tokens": tokens, "parameters": parameters, "ratio": ratio}
    if settings.num_steps <= 0 or ratio >= ADVISED:
        return budget, None
    said = (
        f"token budget: {settings.num_steps} steps of {settings.tokens_per_step:,} tokens are {tokens:,} for "
        f"about {parameters:,} parameters, {ratio:.3g} tokens a parameter"
    )
    if ratio < REFUSED_BELOW and not forced:
        raise SelectionError(
            f"{said}, and less than {REFUSED_BELOW} is refused; train longer, or --force-under-provisioned"
        )
    return budget, f"{said}; {ADVISED} are advised"


def parse_band(text: str) -> tuple[int, int]:
    """From how many parameters to how many, as `366M..374M` says it."""
    found = BAND.fullmatch(text.strip())
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


def architecture_asked_for(asked: str | None) -> DecoderConfig:
    """The architecture of a preset, the default one where nothing is said, or of a config.json."""
    if asked is None or asked in PRESETS:
        return PRESETS[asked or DEFAULT]
    if not Path(asked).exists():
        raise SelectionError(f"--config {asked!r} is neither a file nor one of {', '.join(PRESETS)}; give one of these")
    return config_of(asked)


def tokenizer_path(request: Request, origin: Origin | None) -> Path | None:
    """The tokenizer that was named, else the one that the checkpoint embeds, else the one that lies beside it."""
    if request.tokenizer is not None:
        return Path(request.tokenizer)
    if origin is None or origin.embeds_tokenizer:
        return None if origin is None else origin.path
    beside = origin.path if origin.path.is_dir() else origin.path.parent
    return None if tokenizer_file(beside) is None else beside


def read_data(
    data: str, settings: Settings, config: DecoderConfig, tokenizer: Tokenizer | None
) -> tuple[Windows, list[str]]:
    """The windows of the data, cut and held out, and what was noticed on the way."""
    corpus = find_corpus(data)
    windows = cut(read_tokens(corpus, config.vocab_size, tokenizer), settings, corpus.path)
    notes = [f"{corpus.path}: {corpus.skipped} files are no text and no shards, and are left out"]
    return windows, notes if corpus.skipped else []


def verify(prepared: Prepared) -> tuple[str, ...]:
    """The builder's checks without memory for the model, for a run that is not to be started."""
    if prepared.origin is None:
        return ()
    with opened(prepared.origin.path) as checkpoint:
        return verify_init(checkpoint, prepared.config)


def check_storable(config: DecoderConfig) -> None:
    """Refuse an architecture that a checkpoint could not describe, before hours are spent on it."""
    try:
        again = from_config(to_config(config), "the checkpoint")
    except FirstdriftError as error:
        raise FormatError(f"this architecture cannot be written into a config.json ({error})") from error
    if again != config:
        raise FormatError("this architecture cannot be written into a config.json, so that no checkpoint could be read")


def _doubts(settings: Settings, origin: Origin | None) -> list[str]:
    doubts = []
    if settings.mode == "from-scratch" and origin is not None:
        doubts.append("warning: --mode from-scratch with --init: the learning rate is that for random weights")
    if settings.mode == "finetune" and origin is None:
        doubts.append("warning: --mode finetune without --init: there are only random weights to tune")
    if 0 < settings.num_steps <= settings.warmup:
        doubts.append(
            f"warning: {settings.num_steps} steps end within the warmup of {settings.warmup}, so that the learning "
            "rate never reaches its peak"
        )
    return doubts
