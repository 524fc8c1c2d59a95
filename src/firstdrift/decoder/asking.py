"""What a trace was asked for, checked against what a model is: before anything large is loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import CaptureError, StageError
from ..stages import STAGES, WHOLE_MODEL, SavePlan
from .recording import BEFORE_ROPE, Selection
from .settings import DecoderConfig

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
    layers = {layer: wanted & config.stages(layer) for layer in inside}
    found = frozenset().union(*layers.values()) | (wanted & WHOLE_MODEL)
    absent = [stage for stage in dict.fromkeys(plan.stages) if stage not in found]
    if absent and not everything:
        anywhere = frozenset().union(*(config.stages(layer) for layer in range(config.num_hidden_layers)))
        what = "this model has no" if absent[0] not in anywhere else "the selected layers have no"
        raise StageError(f"{what} {', '.join(absent)}; the stages there are {', '.join(_all_of(config, inside))}")
    if before_rope:
        layers = {
            layer: stages | {before for after, before in BEFORE_ROPE.items() if after in stages}
            for layer, stages in layers.items()
        }
    return Selection({layer: stages for layer, stages in layers.items() if stages}, wanted & WHOLE_MODEL)


def _all_of(config: DecoderConfig, layers: range) -> list[str]:
    there = frozenset().union(*(config.stages(layer) for layer in layers)) | WHOLE_MODEL
    return [stage for stage in STAGES if stage in there]


def parse_tokens(text: str, option: str) -> list[int]:
    """Token ids by commas or spaces."""
    found = re.split(r"[\s,]+", text.strip().strip(","))
    wrong = [one for one in found if not _ID.fullmatch(one)]
    if wrong:
        raise CaptureError(f"{option} {text!r}: {wrong[0]!r} is no token id; write whole numbers by commas, as 1,5,9")
    return [int(one) for one in found]


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
