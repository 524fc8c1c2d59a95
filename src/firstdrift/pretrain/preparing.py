"""Everything that can be refused is refused here, in a fixed order, before the first large allocation.

1 device, 2 the checkpoint opens and is one, 3 it says what model it is of, and that is a decoder, 4 the token budget,
5 the numbers of the run, 6 the vocabulary, 7 the data. The builder's own checks follow: values, family, names, shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.strict_json import Json
from ..decoder.config_json import from_config, to_config
from ..decoder.decoder_config import PRESETS, config_of
from ..decoder.decoder_settings import DecoderConfig
from ..decoder.tokenizing import tokenizer_file
from ..errors import FirstdriftError, FormatError, SelectionError
from ..weights.loading.architecture import LLAMA_370M_BAND
from .building import Budget, check_band, check_budget, check_length, open_init, parse_band, untied, verify_init
from .data.corpora import find_corpus, read_tokens
from .data.training_tokenizer import DEFAULT, Tokenizer, check_vocabulary, count_tokens, open_tokenizer
from .data.windows import Windows, cut
from .origins import Origin, Stamp, read_origin, refuse_another, stamp_of
from .run_settings import Settings
from .trainer import resolve_device


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; without `init` the architecture is that of `config`, a preset or a file, else the
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


@dataclass(frozen=True, slots=True)
class Checked:
    """A request after the first five checks, which touch neither weights nor data; `notes` are for people."""

    request: Request
    config: DecoderConfig
    stamp: Stamp
    device: str
    origin: Origin | None = None
    budget: Budget | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """What is known of the run by now."""
        return {
            "settings": self.request.settings.to_json(), "config": to_config(self.config),
            "stamp": self.stamp.to_json(), "device": self.device, "init": self.init_json(),
            "budget": None if self.budget is None else self.budget.to_json(), "notes": list(self.notes),
        }  # fmt: skip

    def init_json(self) -> dict[str, Json] | None:
        """What the run starts from."""
        if self.origin is None:
            return None
        return {
            "path": str(self.origin.path.absolute()), "format": self.origin.format,
            "architecture": self.origin.architecture.name,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prepared(Checked):
    """A run that nothing speaks against, and what it reads."""

    windows: Windows = field(kw_only=True)
    tokenizer: Tokenizer | None = None
    tokenizer_path: Path | None = None

    def to_json(self) -> dict[str, Json]:
        """What is known of the run by now."""
        return {**Checked.to_json(self), "data": self.data_json()}

    def data_json(self) -> dict[str, Json]:
        """What the data is."""
        return {"path": str(Path(self.request.data).absolute()), **self.windows.to_json()}

    def tokenizer_files(self) -> Mapping[str, bytes] | None:
        """What makes the tokenizer again."""
        return None if self.tokenizer is None else self.tokenizer.files


def prepare(request: Request) -> Prepared:
    """Check a request; raises the first error of the order above."""
    checked = check_request(request)
    origin, config = checked.origin, checked.config
    path = tokenizer_path(request, origin)
    if path is not None:
        check_vocabulary(count_tokens(path), config.vocab_size, strict=_is_default(request), place=path)
    tokenizer, windows, read = read_data(request, config, path)
    return Prepared(
        request, config, checked.stamp, checked.device, origin, checked.budget, (*checked.notes, *read),
        windows=windows, tokenizer=tokenizer, tokenizer_path=path,
    )  # fmt: skip


def check_request(request: Request) -> Checked:
    """The first five checks, which read metadata alone."""
    settings = request.settings
    device, chosen = resolve_device(request.device)
    notes = [chosen] if chosen else []
    origin = None if request.init is None else read_origin(request.init)
    config = origin.config if origin is not None else architecture_asked_for(request.config)
    if origin is not None and request.config is not None:
        refuse_another(architecture_asked_for(request.config), origin, f"--config {request.config}")
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
    band = LLAMA_370M_BAND if request.parameters is None and _is_default(request) else parse_band(request.parameters)
    if band is not None:
        check_band(config, band)
    name = config.family
    if origin is None:
        name = request.config or DEFAULT
        name = name if name in PRESETS else config.family
        notes += [] if request.config else [f"neither --init nor --config: the preset {DEFAULT}"]
    notes += _doubts(settings, origin)
    return Checked(request, config, stamp_of(config, name), device, origin, budget, tuple(notes))


def _is_default(request: Request) -> bool:
    """Whether the preset with numbers of its own is trained from nothing."""
    return request.init is None and request.config in (None, DEFAULT)


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
    if origin is None:
        return None
    if origin.embeds_tokenizer:
        return origin.path
    beside = origin.path if origin.path.is_dir() else origin.path.parent
    return None if tokenizer_file(beside) is None else beside


def read_data(
    request: Request, config: DecoderConfig, path: Path | None
) -> tuple[Tokenizer | None, Windows, list[str]]:
    """The windows of the data, cut and held out, and what was noticed on the way."""
    corpus = find_corpus(request.data)
    tokenizer = None if path is None else open_tokenizer(path)
    tokens = read_tokens(corpus, config.vocab_size, tokenizer)
    windows = cut(tokens, request.settings, corpus.path)
    notes = [f"{corpus.path}: {corpus.skipped} files are no text and no shards, and are left out"]
    return tokenizer, windows, notes if corpus.skipped else []


def verify(prepared: Prepared) -> tuple[str, ...]:
    """The builder's checks without memory for the model, for a run that is not to be started."""
    if prepared.origin is None:
        return ()
    with open_init(prepared.origin.path) as checkpoint:
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
