"""Everything that can be refused is refused here, in a fixed order, before the first large allocation.

1 device, 2 the checkpoint opens and is one, 3 it says what model it is of, and that is a decoder, 4 the token budget,
5 the numbers of the run, 6 the vocabulary, 7 the data. The builder's own checks follow: values, family, names, shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..decoder.config import PRESETS, config_of
from ..decoder.config_json import from_config, to_config
from ..decoder.settings import DecoderConfig
from ..errors import FirstdriftError, FormatError, SelectionError
from ..strict_json import Json
from .budget import Budget, check_budget
from .building import check_length, open_init, verify_init
from .corpora import find_corpus, read_tokens
from .devices import resolve_device
from .origins import Origin, read_origin
from .settings import Settings
from .stamps import Stamp, stamp_of
from .tokenizing import Tokenizer, count_tokens, open_tokenizer
from .vocabulary import STRICT_PRESET, TOKENIZER, VOCAB, check_vocabulary
from .windows import Windows, cut


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; without `init` the architecture is that of `config`, a preset or a file."""

    settings: Settings
    data: str
    init: str | None = None
    config: str | None = None
    tokenizer: str | None = None
    device: str = "auto"
    force_under_provisioned: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that nothing speaks against: what it is of, where it computes, what it reads; `notes` are for people."""

    request: Request
    config: DecoderConfig
    stamp: Stamp
    device: str
    windows: Windows
    origin: Origin | None = None
    tokenizer: Tokenizer | None = None
    tokenizer_path: Path | None = None
    budget: Budget | None = None
    notes: tuple[str, ...] = ()

    def data_json(self) -> dict[str, Json]:
        """What the data is."""
        return {"path": str(Path(self.request.data).absolute()), **self.windows.to_json()}

    def tokenizer_files(self) -> Mapping[str, bytes] | None:
        """What makes the tokenizer again."""
        return None if self.tokenizer is None else self.tokenizer.files

    def init_json(self) -> dict[str, Json] | None:
        """What the run starts from."""
        if self.origin is None:
            return None
        return {
            "path": str(self.origin.path.absolute()), "format": self.origin.format,
            "architecture": self.origin.architecture.name,
        }  # fmt: skip


def prepare(request: Request) -> Prepared:
    """Check a request; raises the first error of the order above."""
    settings = request.settings
    device, chosen = resolve_device(request.device)
    notes = [chosen] if chosen else []
    origin = None if request.init is None else read_origin(request.init)
    config = origin.config if origin is not None else architecture_asked_for(request.config)
    refuse_contradiction(request, origin)
    budget = None
    if origin is not None:
        budget, warning = check_budget(config, settings, forced=request.force_under_provisioned)
        notes += [f"warning: {warning}"] if warning else []
    settings.check()
    check_length(settings, config)
    notes += _doubts(settings, origin)
    path = tokenizer_path(request, origin)
    if path is not None:
        strict = origin is None and request.config == STRICT_PRESET
        check_vocabulary(count_tokens(path), config.vocab_size, strict=strict, place=path)
    tokenizer, windows, read = read_data(request, config, path)
    notes += read
    name = config.family if origin is not None else request.config if request.config in PRESETS else config.family
    return Prepared(
        request, config, stamp_of(config, name), device, windows, origin, tokenizer, path, budget, tuple(notes)
    )


def architecture_asked_for(asked: str | None) -> DecoderConfig:
    """The architecture of a preset, or of a config.json."""
    if asked is None:
        raise SelectionError(
            f"nothing says what to train; give --init, or --config with a config.json or one of {', '.join(PRESETS)}"
        )
    if asked in PRESETS:
        return PRESETS[asked]
    if not Path(asked).exists():
        raise SelectionError(f"--config {asked!r} is neither a file nor one of {', '.join(PRESETS)}; give one of these")
    return config_of(asked)


def refuse_contradiction(request: Request, origin: Origin | None) -> None:
    """An architecture that is given beside a checkpoint has to be the checkpoint's."""
    if origin is None or request.config is None:
        return
    asked, found = to_config(architecture_asked_for(request.config)), to_config(origin.config)
    keys = [key for key in sorted({*asked, *found}) if asked.get(key) != found.get(key)]
    if keys:
        said = "; ".join(f"{key} {asked.get(key)!r} and {found.get(key)!r}" for key in keys[:4])
        raise SelectionError(
            f"--config {request.config} and --init {origin.path} are of other models: {said}; give one"
        )


def tokenizer_path(request: Request, origin: Origin | None) -> Path | None:
    """The tokenizer that was named, else the one that the checkpoint embeds, else the one that lies beside it."""
    if request.tokenizer is not None:
        return Path(request.tokenizer)
    if origin is None:
        return None
    if origin.embeds_tokenizer:
        return origin.path
    beside = origin.path if origin.path.is_dir() else origin.path.parent
    return beside if any((beside / name).is_file() for name in (TOKENIZER, VOCAB)) else None


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


def verify(prepared: Prepared) -> None:
    """The builder's checks without memory for the model, for a run that is not to be started."""
    if prepared.origin is not None:
        with open_init(prepared.origin.path) as checkpoint:
            verify_init(checkpoint, prepared.config)


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
