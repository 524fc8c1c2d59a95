"""A run for people: what it started from, what that was worth, how it went, and what it left."""

from __future__ import annotations

from pathlib import Path

from ..core.strict_json import Json
from .run_record import ENDINGS, LOG, Record, read_log, read_record

SCHEMA = "firstdrift-run-v1"
EVALUATIONS_SHOWN = 12


def run_json(run: Path) -> dict[str, Json]:
    """Everything that is known of a run."""
    record, events = read_record(run), read_log(run / LOG) if (run / LOG).is_file() else []
    ended = next((event for event in reversed(events) if event["event"] in ENDINGS), None)
    return {
        "schema": SCHEMA,
        "path": str(run),
        **record.to_json(),
        "state": _state(ended),
        "steps_done": 1 + max((event["step"] for event in events if event["event"] == "step"), default=-1),
        "evaluations": [
            {key: item for key, item in event.items() if key != "event"} for event in events if event["event"] == "eval"
        ],
        "checkpoints": _names(run / "checkpoints"),
        "traces": _names(run / "traces"),
        "end": ended,
    }


def run_text(run: Path) -> str:
    """A summary of a run, some lines long."""
    said, record = run_json(run), read_record(run)
    settings = record.settings
    data = record.data
    windows = f"{data['training_windows']:,} windows to train on and {data['held_out_windows']:,} held out"
    steps = f"{settings.batch} x {settings.accumulate} sequences of {settings.seq_length} tokens, {settings.mode}"
    rate = f"lr {settings.lr:g}, warmup {settings.warmup}, {settings.dtype} on {record.device}, seed {settings.seed}"
    lines = [
        f"{run}: {record.stamp['name']}, {said['state']}, {said['steps_done']} of {settings.num_steps} steps",
        f"  model: {_model(record)}",
        f"  data: {_near(data['path'])}, {data['tokens']:,} tokens, {windows}",
        f"  steps: {steps}, {rate}",
        f"  init: {_init(record)}",
    ]
    shown = said["evaluations"]
    if shown:
        lines.append("  validation loss: " + _losses(shown))
    if said["end"] is not None and said["end"].get("message"):
        lines.append(f"  {said['end']['message']}")
    for name in ("checkpoints", "traces"):
        if said[name]:
            lines.append(f"  {name}: {', '.join(said[name])}")
    return "\n".join(lines)


def _state(ended: dict[str, Json] | None) -> str:
    if ended is None:
        return "running or killed"
    return str(ended["reason"]) if ended["event"] == "end" else f"stopped ({ended['event']})"


def _model(record: Record) -> str:
    config = record.config
    return (
        f"{record.stamp['architecture']}, {config.num_hidden_layers} layers, {config.hidden_size} wide, "
        f"{config.num_attention_heads} heads of {config.head_dim}, vocabulary {config.vocab_size:,}"
    )


def _init(record: Record) -> str:
    if record.init is None:
        return f"random weights of seed {record.settings.seed}"
    said = f"{_near(record.init['path'])}, {record.init['tensors']} tensors"
    gap = record.gap
    if gap is None:
        return said
    return f"{said}; {gap['given']:.2f} nats where random weights have {gap['random']:.2f}, gap {gap['nats']:.2f}"


def _losses(evaluations: list[dict[str, Json]]) -> str:
    left_out = len(evaluations) - EVALUATIONS_SHOWN
    kept = evaluations if left_out <= 0 else [evaluations[0], *evaluations[1 - EVALUATIONS_SHOWN :]]
    parts = [f"{event['val_loss']:.2f} at {event['step']}" for event in kept]
    return ", ".join(parts if left_out <= 0 else [parts[0], "...", *parts[1:]])


def _near(path: str) -> str:
    """A path as it is seen from here, if it lies here."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _names(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    return sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
