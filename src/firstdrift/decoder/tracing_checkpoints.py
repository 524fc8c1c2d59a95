"""A trace of a checkpoint from the question to the files: what is asked, checked before anything large is loaded;
then loaded, run token by token, and recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.bars import Bar, no_bar
from ..core.stages import STAGES, WHOLE_MODEL, SavePlan
from ..core.strict_json import Json
from ..errors import CaptureError, FirstdriftError, StageError
from ..store.files import exists, is_trace
from .config_json import to_config
from .decoder_config import config_of
from .decoder_settings import DecoderConfig
from .stage_recording import BEFORE_ROPE, NativeTrace, Selection, StageFiles, refuse_trace
from .tokenizing import tokenizer_of

if TYPE_CHECKING:
    from .engines import Engine

WEIGHTS = "weights"
_ID = re.compile(r"[0-9]{1,18}")


def without_weights(stages: str) -> tuple[str, bool]:
    """A list of stages without the word that asks for the weights that they read, and whether it was there."""
    names = stages.split(",")
    kept = [name for name in names if name.strip().lower() != WEIGHTS]
    return ",".join(kept), len(kept) < len(names)


def select(plan: SavePlan, config: DecoderConfig, *, everything: bool, before_rope: bool = False) -> Selection:
    """The stages of a plan that the model has; with `everything` those it has not are left out, else refused.

    `before_rope` adds what queries and keys were before they were turned, wherever they are selected.
    """
    if not plan.stages:
        raise StageError("no stage is selected; name some, or `all`")
    inside = range(plan.layers.start, min(plan.layers.stop, config.num_hidden_layers))
    wanted = frozenset(plan.stages)
    if wanted - WHOLE_MODEL and not inside:
        raise StageError(
            f"layer range {plan.layers.start}..{plan.layers.stop}: the model has the layers "
            f"0..{config.num_hidden_layers} (END is exclusive); choose among them"
        )
    layers = {layer: config.stages(layer) for layer in inside}
    found = wanted & WHOLE_MODEL.union(*layers.values())
    absent = [stage for stage in dict.fromkeys(plan.stages) if stage not in found]
    if absent and not everything:
        anywhere = frozenset().union(*(config.stages(layer) for layer in range(config.num_hidden_layers)))
        what = "this model has no" if absent[0] not in anywhere else "the selected layers have no"
        there = [stage for stage in STAGES if stage in WHOLE_MODEL or any(stage in own for own in layers.values())]
        raise StageError(f"{what} {', '.join(absent)}; the stages there are {', '.join(there)}")
    chosen = {layer: wanted & stages for layer, stages in layers.items() if wanted & stages}
    if before_rope:
        chosen = {
            layer: stages | {before for after, before in BEFORE_ROPE.items() if after in stages}
            for layer, stages in chosen.items()
        }
    return Selection(chosen, wanted & WHOLE_MODEL)


def parse_tokens(text: str, option: str) -> list[int]:
    """Token ids by commas or spaces."""
    found = re.split(r"[\s,]+", text.strip().strip(","))
    wrong = [text for text in found if not _ID.fullmatch(text)]
    if wrong:
        raise CaptureError(f"{option} {text!r}: {wrong[0]!r} is no token id; write whole numbers by commas, as 1,5,9")
    return list(map(int, found))


def check_tokens(tokens: Sequence[int], config: DecoderConfig, what: str) -> None:
    """Every id inside of the vocabulary."""
    wrong = [token for token in tokens if token >= config.vocab_size]
    if wrong:
        raise CaptureError(
            f"{what}: token {wrong[0]} is outside of the vocabulary, which has {config.vocab_size} (0 to "
            f"{config.vocab_size - 1}); correct it"
        )


def check_length(prompt: int, steps: int, config: DecoderConfig) -> None:
    """No more positions than the model was made for."""
    if not prompt:
        raise CaptureError("the prompt has no tokens; give at least one")
    needed = prompt + steps - 1
    if needed > config.max_position_embeddings:
        more = f" and {steps - 1} more" if steps > 1 else ""
        raise CaptureError(
            f"the prompt has {prompt} tokens{more}, and the model has {config.max_position_embeddings} positions; "
            "shorten it"
        )


SCHEMA = "firstdrift-trace-v1"
PROMPT = "What is 2+2?"  # asked when nothing else is
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was checked against the model; its weights are not read yet."""

    model: Path
    engine: str
    format: str
    dtype: str
    force: bool
    plan: SavePlan
    config: DecoderConfig
    selection: Selection
    tokenizer: Any  # of the `tokenizers` library, or None
    prompt: tuple[int, ...]
    steps: int
    teacher: tuple[int, ...]
    weights: bool = False  # whether what the stages read of the model's weights is recorded


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace left: its files, and the likeliest token after every step (None where logits were NaN)."""

    asked: Asked
    weights: str
    chosen: tuple[int | None, ...]
    files: tuple[tuple[Path, int], ...]
    notes: tuple[str, ...]

    @property
    def tensors(self) -> int:
        """How many tensors were recorded."""
        return self.asked.selection.count * self.asked.steps

    @property
    def agreeing(self) -> int:
        """How many of the given tokens the model would have chosen itself."""
        return sum(a == b for a, b in zip(self.chosen, self.asked.teacher, strict=False))

    @property
    def text(self) -> str | None:
        """The chosen tokens as text, where there is a tokenizer."""
        if self.asked.tokenizer is None or None in self.chosen:
            return None
        text: str = self.asked.tokenizer.decode(list(self.chosen))
        return text

    def to_json(self) -> dict[str, Json]:
        """Everything, schema `firstdrift-trace-v1`."""
        asked = self.asked
        return {
            "schema": SCHEMA, "model": str(asked.model), "engine": asked.engine, "format": asked.format,
            "dtype": asked.dtype, "directory": str(asked.plan.directory), "weights": self.weights,
            "prompt": list(asked.prompt), "steps": asked.steps, "chosen": list(self.chosen),
            "teacher": list(asked.teacher) or None, "agreeing": self.agreeing if asked.teacher else None,
            "text": self.text, "tensors": self.tensors,
            "files": [{"path": path.as_posix(), "bytes": size} for path, size in self.files],
            "notes": list(self.notes),
        }  # fmt: skip


def prepare(
    model: Path, stages: str, layers: str, directory: Path, *, prompt: str | None = None, tokens: str | None = None,
    generate: int | None = None, teacher: str | None = None, **how: Any,
) -> Asked:  # fmt: skip
    """Check everything that can be wrong, from what costs least to what costs most; no weights are read.

    `how` is the engine (`decoder` or `transformers`), the format (`aprt` or `trace`), the dtype, and whether a trace
    may be overwritten (`force`).
    """
    stages, weights = without_weights(stages)
    if weights and how["format"] == "aprt":
        raise CaptureError(f"stage files hold no weights; use --format trace, or leave {WEIGHTS!r} out")
    plan = SavePlan.from_cli(stages, layers, directory)
    given = parse_tokens(teacher, "--teacher") if teacher is not None else []
    if generate is not None and given and generate != len(given):
        raise CaptureError(f"--generate {generate} and --teacher with {len(given)} tokens differ; give one of them")
    if how["dtype"] == "f64" and how["format"] == "aprt":
        raise CaptureError("stage files hold float32, so that --dtype f64 would be rounded; use --format trace")
    if how["dtype"] == "f64" and how["engine"] == "transformers":
        raise CaptureError(
            "transformers computes norms in float32 whatever is asked; use --engine decoder for --dtype f64"
        )
    ids = parse_tokens(tokens, "--tokens") if tokens is not None else None
    config = config_of(model)
    everything = stages.strip().lower() == "all"
    selection = select(plan, config, everything=everything, before_rope=how["format"] == "trace")
    tokenizer = None
    try:
        tokenizer = tokenizer_of(model)
        ids = tokenizer.encode(PROMPT if prompt is None else prompt).ids if ids is None else ids
    except FirstdriftError:  # without a prompt it only serves to show text, and may be absent
        if ids is None:
            raise
    check_tokens(ids, config, "--prompt" if tokens is None else "--tokens")
    check_tokens(given, config, "--teacher")
    steps = generate or max(1, len(given))
    check_length(len(ids), steps, config)
    return Asked(
        model, plan=plan, config=config, selection=selection, tokenizer=tokenizer, prompt=tuple(ids), steps=steps,
        teacher=tuple(given), weights=weights, **how,
    )  # fmt: skip


def perform(asked: Asked, loading: Bar = no_bar, recording: Bar = no_bar) -> Traced:
    """Load, run, record, with a bar for bytes loaded and one for tensors recorded.

    A run that failed takes back what it wrote, so that the same command can be given again.
    """
    if asked.format == "trace" and is_trace(asked.plan.directory) and not asked.force:
        raise exists(asked.plan.directory)  # before the weights are read
    if asked.format == "aprt":
        refuse_trace(asked.plan.directory)
    engine = _engine(asked, loading)  # before anything is written: an old trace is replaced by one that can be made
    from .engines import run

    target: NativeTrace | StageFiles
    if asked.format == "aprt":
        target = StageFiles(asked.plan.directory, asked.steps)
    else:
        weight = engine.weight if asked.weights else None
        target = NativeTrace(asked.plan.directory, asked.config, asked.selection, _header(asked), asked.force, weight)
    try:
        with recording("stages", asked.selection.count * asked.steps) as advance:
            chosen = run(
                engine, target, asked.selection, asked.prompt, steps=asked.steps, given=asked.teacher, advance=advance
            )
            target.close()
    except BaseException:
        target.discard()
        raise
    files = [(path.relative_to(asked.plan.directory), path.stat().st_size) for path in target.files()]
    return Traced(asked, engine.loaded, chosen, tuple(files), tuple(_notes(asked, target)))


def _engine(asked: Asked, loading: Bar) -> Engine:
    try:
        import torch
    except ImportError:
        raise CaptureError("running a model needs PyTorch; pip install 'firstdrift[decoder]'") from None
    dtype = getattr(torch, DTYPES[asked.dtype])
    if asked.engine == "transformers":
        from .transformers_engine import TransformersEngine

        with loading("loading", None):  # the library does not say how far it is
            return TransformersEngine(asked.model, asked.config, dtype)
    from .engines import DecoderEngine

    return DecoderEngine(asked.model, asked.config, dtype, loading)


def _header(asked: Asked) -> dict[str, Json]:
    """What trace.json says of the run; nothing of where files lie, so that equal runs leave equal bytes."""
    return {
        "model": asked.model.name,
        "options": {"engine": asked.engine, "dtype": asked.dtype, "steps": asked.steps},
        "graph": "stage table",
        "config": to_config(asked.config),
        "batch": 1,
        "environment": {name: version(name) for name in ("torch", "transformers") if find_spec(name)},
    }


def _notes(asked: Asked, recording: NativeTrace | StageFiles) -> Sequence[str]:
    notes = []
    others = recording.others() if isinstance(recording, StageFiles) else []
    if others:
        notes.append(f"{len(others)} stage files of an earlier run are still in {asked.plan.directory}")
    count = asked.config.num_hidden_layers
    if asked.plan.layers.stop > count and asked.selection.layers:
        notes.append(f"the model has the layers 0..{count}, END being exclusive, and these were saved")
    return notes
