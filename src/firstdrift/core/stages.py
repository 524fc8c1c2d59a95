"""The 23 stages of a decoder that aprender's `--save-tensor` names, what each is computed from, and save plans."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import StageError

INPUT = "<layer input>"  # the embedding, or the residual of the layer before

# In the canonical order of the list `all`; each with the stages it is computed from.
PRODUCERS: dict[str, tuple[str, ...]] = {
    "embedding": (),
    "attn_norm": (INPUT,),
    "qkv_matmul": ("attn_norm",),
    "qkv_bias": ("qkv_matmul",),
    "q_post_rope": ("qkv_bias",),
    "k_post_rope": ("qkv_bias",),
    "attn_scores": ("q_post_rope", "k_post_rope"),
    "attn_softmax": ("attn_scores",),
    "attention": ("attn_softmax", "qkv_bias"),
    "attn_out": ("attention",),
    "post_attn_residual": ("attn_out", INPUT),
    "ffn_norm": ("post_attn_residual",),
    "ffn_gate": ("ffn_norm",),
    "ffn_up": ("ffn_norm",),
    "ffn_silu": ("ffn_gate",),
    "ffn_swigl": ("ffn_silu", "ffn_up"),
    "ffn_out": ("ffn_swigl",),
    "post_ffn_residual": ("ffn_out", "moe_ffn_out", "post_attn_residual"),
    "moe_router": ("ffn_norm",),
    "moe_ffn_out": ("moe_router", "moe_router_indices", "ffn_norm"),
    "moe_router_indices": ("ffn_norm",),
    "final_norm": (INPUT,),
    "lm_head": ("final_norm",),
}
STAGES = tuple(PRODUCERS)
WHOLE_MODEL = frozenset({"final_norm", "lm_head"})
ALIASES = {"layer_output": "post_ffn_residual"}
INDEX_PAYLOAD = frozenset({"moe_router_indices"})  # expert ids stored as float32: equal or not, nothing between
DEFAULT_LAYERS = "0..1"

# The order of computation: the mixture of experts runs before the residual that adds its output.
_MOE = ("moe_router", "moe_router_indices", "moe_ffn_out")
_EXECUTION = [stage for stage in STAGES if stage not in _MOE]
_EXECUTION[_EXECUTION.index("post_ffn_residual") : _EXECUTION.index("post_ffn_residual")] = _MOE
EXECUTION_RANK = {stage: rank for rank, stage in enumerate(_EXECUTION)}

MAX_LAYER = 0xFFFFFFFE
_BOUND = re.compile(r"\+?[0-9]+")


def parse_stage(token: str) -> str:
    """One stage name or alias, trimmed and in any case."""
    trimmed = token.strip()
    if not trimmed:
        raise StageError(f"empty stage name in {token!r}; name one of {', '.join(STAGES)}")
    name = ALIASES.get(trimmed.lower(), trimmed.lower())
    if name not in PRODUCERS:
        raise StageError(f"unknown stage {trimmed!r}; valid stages are {', '.join(STAGES)}")
    return name


def parse_stages(text: str) -> tuple[str, ...]:
    """A comma-separated list, or `all`. Order and duplicates are kept; a blank text selects nothing."""
    if not text.strip():
        return ()
    if text.strip().lower() == "all":
        return STAGES
    return tuple(parse_stage(token) for token in text.split(","))


def parse_layer_range(text: str) -> range:
    """`START..END`, END exclusive."""
    trimmed = text.strip()
    start_text, dots, end_text = trimmed.partition("..")
    if not dots:
        raise StageError(f"layer range {trimmed!r}: expected START..END, for example 0..4")
    start = _bound(start_text, "START", trimmed)
    end = _bound(end_text, "END", trimmed)
    if end <= start:
        raise StageError(f"layer range {trimmed!r}: END {end} must be above START {start}, because END is exclusive")
    return range(start, end)


def _bound(text: str, which: str, whole: str) -> int:
    digits = text.strip()
    if not _BOUND.fullmatch(digits):
        raise StageError(f"layer range {whole!r}: {which} {digits!r} is not a whole number; write START..END")
    significant = digits.lstrip("+0") or "0"  # int() refuses texts of thousands of digits, zeros included
    if len(significant) > 10 or int(significant) > 0xFFFFFFFF:
        raise StageError(f"layer range {whole!r}: {which} {digits} is above {0xFFFFFFFF}; write START..END")
    return int(significant)


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Which stages of which layers go where."""

    stages: tuple[str, ...]
    layers: range
    directory: Path

    @classmethod
    def from_cli(cls, stages: str, layers: str, directory: str | Path) -> SavePlan:
        """Parse the flags `--save-tensor`, `--save-tensor-layers` and `--save-tensor-dir`."""
        return cls(parse_stages(stages), parse_layer_range(layers), Path(directory))

    def should_save(self, stage: str, layer: int) -> bool:
        """Whether the plan selects a stage; stages of the whole model ignore the layer."""
        stage = ALIASES.get(stage, stage)
        return stage in self.stages and (stage in WHOLE_MODEL or layer in self.layers)


def default_directory(model: str | Path) -> Path:
    """Where a model's stage files go when nothing else is said: beside it, `<stem>-trace`."""
    path = Path(model)
    stem = path.stem if path.name != ".." and path.stem.isprintable() else ""  # not printable: not UTF-8 either
    return path.parent / f"{stem or 'trace'}-trace"
