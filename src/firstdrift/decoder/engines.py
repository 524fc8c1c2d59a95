"""What runs a model for a trace: our decoder with its weights proven, or the transformers library, behind one shape;
and a run of it, the prompt first, then token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..core.bars import Advance, Bar, no_bar
from ..core.dtypes import ML_NAMES
from ..errors import CaptureError
from ..weights.checkpoint import Checkpoint
from ..weights.loading.destinations import destinations
from ..weights.loading.failures import POPULATE, failure, not_present
from ..weights.loading.load import populate
from ..weights.loading.plan import Plan, make_plan
from ..weights.loading.proof import Loaded
from ..weights.loading.suggestions import suggested_map
from ..weights.open_checkpoint import open_checkpoint
from .decoder_config import config_of
from .decoder_layers import Cache, Taps
from .decoder_settings import DecoderConfig
from .model import Decoder
from .stage_recording import NativeTrace, Selection, StageFiles

FLOATS = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16} | {
    short: getattr(torch, name) for short, name in ML_NAMES.items()
}


def load_decoder(path: str | PathLike[str], *, dtype: torch.dtype | None = None) -> Decoder:
    """The model of a Hugging Face directory, an APR or GGUF file, or weights with a config.json beside them.

    It is in the checkpoint's own dtype, the widest where there are several, float32 where it is quantized; or in
    `dtype`, each value rounded once. Every parameter is read back and compared, as `fd.load_weights` does.
    """
    return load_with_proof(path, config_of(path), dtype)[0]


def load_with_proof(
    path: str | PathLike[str], config: DecoderConfig, dtype: torch.dtype | None = None, bar: Bar = no_bar
) -> tuple[Decoder, Loaded]:
    """The model, and for each of its tensors where its numbers came from. `bar` counts the model's bytes."""
    with open_checkpoint(path) as checkpoint:
        model, _ = described(checkpoint, config, dtype)
        model = model.to_empty(device="cpu")
        model.tie()
        with bar("loading", sum(parameter.nbytes for parameter in model.parameters())) as advance:
            return model.eval(), populate(model, checkpoint, None, cast=True, advance=advance)


def described(checkpoint: Checkpoint, config: DecoderConfig, dtype: torch.dtype | None = None) -> tuple[Decoder, Plan]:
    """The model of the settings, without memory yet, and what of the checkpoint goes where in it; raises WeightsError
    where names or shapes do not fit."""
    refuse_missing_layers(checkpoint, config)
    with torch.device("meta"):
        model = Decoder(config).to(dtype or dtype_of(checkpoint))
    plan = make_plan(checkpoint, destinations(model), None)
    if plan.problems:
        what = f"{checkpoint.path}: does not hold the model that its settings describe"
        raise failure(POPULATE, what, plan.problems, suggested_map(plan, checkpoint))
    return model, plan


def dtype_of(checkpoint: Checkpoint) -> torch.dtype:
    """The dtype that holds every weight of a checkpoint exactly."""
    found = {FLOATS.get("f32" if entry.quantized else entry.dtype) for entry in checkpoint.entries.values()}
    known = [dtype for dtype in found if dtype is not None]
    return reduce(torch.promote_types, known) if known else torch.float32


def refuse_missing_layers(checkpoint: Checkpoint, config: DecoderConfig) -> None:
    """Before the model is built, without memory even: settings may claim a million layers of a file that has two."""
    last = config.num_hidden_layers - 1
    wanted = {f"model.layers.{last}.self_attn.q_proj.weight": f"the settings say {last + 1} layers"}
    sparse = [layer for layer in range(last + 1) if config.experts_of(layer)]
    if config.experts and sparse:
        number = config.experts.count - 1
        wanted[f"model.layers.{sparse[-1]}.mlp.experts.{number}.up_proj.weight"] = (
            f"the settings say {number + 1} experts"
        )
    problems = [f"{not_present(name, checkpoint)}; {why}" for name, why in wanted.items() if name not in checkpoint]
    if problems:
        raise failure(POPULATE, f"{checkpoint.path}: does not hold the model that its settings describe", problems)


class Engine:
    """A loaded model that remembers the tokens it has seen; `loaded` is a sentence about its weights."""

    model: Any  # a torch.nn.Module
    loaded: str

    def forward(self, tokens: Tensor, taps: Taps) -> Tensor:
        """Logits `[batch, tokens, vocabulary]` of tokens that follow those of the calls before."""
        raise NotImplementedError

    def weight(self, name: str) -> Tensor | None:
        """A weight as it is used, by Hugging Face's name; None where the model has none of that name."""
        try:
            found: Tensor = self.model.get_parameter(name).detach()
        except AttributeError:
            return None
        return found


class DecoderEngine(Engine):
    """Our own decoder, with weights that are proven to have arrived."""

    def __init__(self, path: str | PathLike[str], config: DecoderConfig, dtype: torch.dtype, bar: Bar = no_bar) -> None:
        self.model, proof = load_with_proof(path, config, dtype, bar)
        self.loaded = str(proof)
        self._cache = Cache()

    @torch.no_grad()
    def forward(self, tokens: Tensor, taps: Taps) -> Tensor:
        self.model.taps = taps
        logits: Tensor = self.model(tokens, cache=self._cache)
        return logits


def run(
    engine: Engine,
    recording: NativeTrace | StageFiles,
    selection: Selection,
    prompt: Sequence[int],
    *,
    steps: int = 1,
    given: Sequence[int] = (),
    advance: Advance = lambda count: None,
) -> tuple[int | None, ...]:
    """Feed a prompt and then one token a step, recording what is selected; the cache carries over.

    Returns the likeliest token after every step, the first of equals, None where logits are NaN. It is fed next,
    unless `given` has another, so that two engines can be led along the same text. `advance` is told of every tensor.
    """

    def see(stage: str, layer: int, tensor: Tensor) -> None:
        recording.see(stage, layer, tensor)
        advance(1)

    taps = Taps(selection.wants, see)
    feed = list(prompt)
    chosen: list[int | None] = []
    for step in range(steps):
        recording.begin(step, feed)
        logits = engine.forward(torch.tensor([feed]), taps)[0, -1]
        chosen.append(None if bool(logits.isnan().any()) else int(logits.argmax()))
        if step + 1 == steps:
            break
        following = given[step] if given else chosen[-1]
        if following is None:
            raise CaptureError(
                f"step {step}: its logits have NaN, so that no token is the likeliest; trace it alone, or give tokens "
                "(--teacher)"
            )
        feed = [following]
    return tuple(chosen)
