"""`firstdrift pretrain`: train a decoder from weights that are proven to be the ones that were given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import CaptureError, SelectionError
from ..options import Command, drawn, print_json, say

if TYPE_CHECKING:
    from ...pretrain.preparing import Checked, Prepared
    from ...pretrain.run_record import Event, Watch
    from ...pretrain.training import Outcome

SCHEMA = "firstdrift-pretrain-v1"
FAILED_CHECK, COULD_NOT = 1, 2
OUT = "pretrain-run"
SOURCES = ("data", "init", "config", "tokenizer", "device")
REQUESTED = ("force_under_provisioned", "untie", "parameters", "allow_weak_init", "force", "trace_nonfinite")


@click.command("pretrain", cls=Command, short_help="Train a decoder, from a checkpoint or from random weights.")
@click.option("--init", metavar="PATH|none", help="Checkpoint to start from; none for random weights.")
@click.option("--config", metavar="FILE|PRESET", help="Architecture without --init.  [default: llama-370m]")
@click.option("--parameters", metavar="LOW..HIGH", help="Allowed parameter count.  [llama-370m: 366M..374M, else any]")
@click.option("--mode", type=click.Choice(["finetune", "from-scratch"]), help="Set of defaults.  [default: by --init]")
@click.option("--data", metavar="FILE|DIR", help="Text (.txt, .md, .py, .jsonl, ...) or token shards (.npy, .bin).")
@click.option("--tokenizer", metavar="DIR", help="tokenizer.json, or vocab.json and merges.txt.  [default: model's]")
@click.option("--out", metavar="DIR", help="Log, checkpoints and traces.  [default: pretrain-run]")
@click.option("--num-steps", type=int, metavar="N", help="Steps; 0 loads, evaluates and saves.  [default: 500]")
@click.option("--batch", type=int, metavar="N", help="Sequences in a batch.  [default: 16]")
@click.option("--seq-length", type=int, metavar="N", help="Tokens of a sequence.  [default: 512]")
@click.option("--accumulate", type=int, metavar="N", help="Batches in a step.  [default: 1]")
@click.option("--lr", type=float, metavar="X", help="Peak learning rate.  [default: 5e-5, from-scratch 3e-4]")
@click.option("--warmup", type=int, metavar="N", help="Warmup steps.  [default: 100, from-scratch 1000]")
@click.option("--clip", type=float, metavar="X", help="Largest gradient norm.  [default: 1]")
@click.option("--weight-decay", type=float, metavar="X", help="For matrices only.  [default: 0.01]")
@click.option("--dtype", type=click.Choice(["f32", "bf16"]), help="Compute dtype; weights stay f32.  [default: f32]")
@click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), help="auto prints its choice.  [default: auto]")
@click.option("--seed", type=int, metavar="N", help="For random weights and data order.  [default: 42]")
@click.option("--eval-every", type=int, metavar="N", help="Steps between evaluations; 0: at the end.  [default: 100]")
@click.option("--steps-per-epoch", type=click.IntRange(1), metavar="N", help="Same as --eval-every.")
@click.option("--min-epochs", type=int, metavar="N", help="Evaluations before --patience may stop.  [default: 3]")
@click.option("--val-loss-target", type=float, metavar="X", help="Stop at this loss.  [default: 2.2, from-scratch 3.0]")
@click.option("--patience", type=int, metavar="N", help="Evaluations without improvement; 0: any number.  [default: 5]")
@click.option("--checkpoint-every", type=int, metavar="N", help="Steps between checkpoints.  [default: 500]")
@click.option("--format", type=click.Choice(["safetensors", "apr"]), help="Checkpoint format.  [default: safetensors]")
@click.option(
    "--resume", is_flag=False, flag_value="", metavar="[RUN]",
    help="Continue the run at --out, RUN, or one of its checkpoints.",
)  # fmt: skip
@click.option("--trace-steps", metavar="LIST", help="Record these steps (0,100) as traces.")
@click.option("--trace-nonfinite", is_flag=True, help="Record a step whose loss is not finite.")
@click.option("--force-under-provisioned", is_flag=True, help="Allow fewer than 10 tokens a parameter.")
@click.option("--allow-weak-init", is_flag=True, help="Allow weights hardly better than random.")
@click.option("--untie", is_flag=True, help="Keep an output layer beside a tied embedding.")
@click.option("--force", is_flag=True, help="Replace the run at --out.")
@click.option("--dry-run", is_flag=True, help="Check everything and stop.")
@click.option("--synthetic", is_flag=True, help="Check metadata only.")
def command(resume: str | None, trace_steps: str | None, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Train a decoder on text, from a checkpoint (--init) or from random weights (--config).

    Everything is checked before the first step. At step 0 the held-out text is evaluated with the given weights and
    with random ones, to prove that the weights were loaded.

    Exit codes: 0 trained; 1 a check failed or --val-loss-target was missed; 2 could not start, or interrupted (a
    checkpoint is written); 3 internal error.

    \b
    firstdrift pretrain --init model.gguf --data corpus/ --tokenizer model/ --force-under-provisioned
    firstdrift pretrain --config tiny --data tokens.bin --num-steps 2000 --out run
    firstdrift pretrain --resume run
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise CaptureError("training needs torch; pip install 'firstdrift[decoder]'") from None
    from ...pretrain.run_settings import TrainingError, parse_steps

    given["trace_steps"] = frozenset(parse_steps(trace_steps))
    given["target_given"] = given["val_loss_target"] is not None
    try:
        code = _start(given, dry_run, as_json) if resume is None else _resume(resume, given, dry_run, as_json)
    except TrainingError as error:
        if as_json:
            print_json({"schema": SCHEMA, "error": str(error)})
        say(f"firstdrift: {error}", err=True)
        code = FAILED_CHECK
    click.get_current_context().exit(code)


def _start(given: dict[str, Any], dry_run: bool, as_json: bool) -> int:
    from ...pretrain.preparing import Request, check_request, prepare, verify
    from ...pretrain.run_settings import Settings
    from ...pretrain.starting import start

    if given["data"] is None and not given["synthetic"]:
        raise click.UsageError("give --data, a text or a directory of texts or token shards")
    sources = {name: given[name] for name in SOURCES if given[name] is not None}
    if sources.get("init") == "none":
        del sources["init"]
    numbers = {"mode": "finetune" if "init" in sources else "from-scratch", **_settings_given(given)}
    sources.setdefault("data", "")
    flags = {name: given[name] for name in (*REQUESTED, "trace_steps", "target_given")}
    request = Request(Settings.of(**numbers), **sources, **flags)
    if given["synthetic"]:
        checked = check_request(request)
        if as_json:
            print_json({"schema": SCHEMA, "synthetic": True, **checked.to_json()})
        _say([_model(checked), *checked.notes, "synthetic: neither weights nor data were touched"], as_json)
        return 0
    prepared = prepare(request)
    _say([_model(prepared), _data(prepared), *prepared.notes], as_json)
    if dry_run:
        notes = verify(prepared)
        if as_json:
            said = prepared.to_json()
            print_json({"schema": SCHEMA, "dry_run": True, **said, "notes": [*prepared.notes, *notes]})
        _say([*notes, "nothing speaks against this run; nothing was started"], as_json)
        return 0
    out = Path(given["out"] or OUT)
    with _watching(request.settings.num_steps, as_json) as watch:
        outcome = start(prepared, out, watch)
    return _finish(out, outcome, request.target_given, request.settings.val_loss_target, as_json)


def _resume(path: str, given: dict[str, Any], dry_run: bool, as_json: bool) -> int:
    from ...pretrain.starting import resume

    for option, is_given in (("dry-run", dry_run), ("synthetic", given["synthetic"]), ("force", given["force"])):
        if is_given:
            raise SelectionError(f"--{option} cannot be given with --resume; leave one of them out")
    if path and given["out"] is not None:
        raise SelectionError(f"--resume {path} and --out {given['out']} both name a run; leave one of them out")
    said = _settings_given(given) | {name: given[name] for name in SOURCES if given[name] is not None}
    with _watching(None, as_json) as watch:
        run, record, outcome = resume(
            Path(path or given["out"] or OUT), said, watch, trace_steps=given["trace_steps"],
            trace_nonfinite=given["trace_nonfinite"], target_given=given["target_given"],
        )  # fmt: skip
    return _finish(run, outcome, record.target_given, record.settings.val_loss_target, as_json)


def _settings_given(given: dict[str, Any]) -> dict[str, Any]:
    from ...pretrain.run_settings import Settings

    if given["steps_per_epoch"] is not None:
        if given["eval_every"] not in (None, given["steps_per_epoch"]):
            raise click.UsageError("--steps-per-epoch and --eval-every are the same; give one of them")
        given["eval_every"] = given["steps_per_epoch"]
    names = {field.name for field in fields(Settings)}
    return {name: value for name, value in given.items() if name in names and value is not None}


def _finish(run: Path, outcome: Outcome, target_given: bool, target: float, as_json: bool) -> int:
    """The summary and the exit code."""
    from ...pretrain.showing import run_json, run_text
    from ...pretrain.training import INTERRUPTED

    missed = target_given and not (outcome.val_loss is not None and outcome.val_loss <= target)
    if as_json:
        print_json({**run_json(run), "schema": SCHEMA, "outcome": outcome.to_json(), "target_missed": missed})
    else:
        say(run_text(run))
        if outcome.tokens_per_second:
            say(f"  {outcome.seconds:.1f} s, {outcome.tokens_per_second:,.0f} tokens/s")
    if outcome.reason == INTERRUPTED:
        say(f"firstdrift: interrupted after step {outcome.step}; go on with --resume {run}", err=True)
        return COULD_NOT
    if missed:
        reached = "not known" if outcome.val_loss is None else f"{outcome.val_loss:.3f}"
        say(f"firstdrift: the validation loss is {reached}, and --val-loss-target is {target:g}", err=True)
        return FAILED_CHECK
    return 0


def _model(checked: Checked) -> str:
    """What is about to be trained, and from what."""
    from ...pretrain.preparing import estimated_parameters

    start = "random weights" if checked.origin is None else f"{checked.origin.path} ({checked.origin.format})"
    stamp = checked.record.stamp
    what = f"{stamp['architecture']}, about {estimated_parameters(checked.config):,} parameters"
    return f"{stamp['name']}: {what}, from {start} on {checked.record.device}"


def _data(prepared: Prepared) -> str:
    """On what it is trained."""
    windows = prepared.windows
    cut = f"{len(windows.training):,} windows of {windows.length} to train on and {len(windows.held_out):,} held out"
    return f"{prepared.request.data}: {windows.tokens:,} tokens, {cut}"


def _say(lines: list[str], as_json: bool) -> None:
    for line in lines if not as_json else ():
        say(line)


@contextmanager
def _watching(steps: int | None, as_json: bool) -> Iterator[Watch]:
    """Prints what happens, if people read it; on a terminal a bar has loss, speed and the time that is left.

    Without `steps`, how many there are is told by the event of resuming.
    """

    def columns(rich: Any) -> list[Any]:
        return [rich.MofNCompleteColumn(), rich.TextColumn("{task.fields[said]}  left"), rich.TimeRemainingColumn()]

    with drawn("training", steps, columns, said="") as update:

        def watch(event: Event) -> None:
            if event["event"] == "step":
                said = f"loss {event['loss']:.3f}  {event['tokens_per_second']:,.0f} tokens/s"
                update(completed=event["step"] + 1, said=said)
            else:
                if event["event"] == "resume":
                    update(total=event["num_steps"])
                _say(_line(event), as_json)

        yield watch


def _line(event: Event) -> list[str]:
    """What people are told of an event."""
    from ...pretrain.gaps import Gap

    match event["event"]:
        case "resume":
            return [f"going on from {event['path']}"]
        case "note":
            return [event["message"]]
        case "gap":
            return [str(Gap(event["given"], event["random"], event["vocabulary"]))]
        case "eval" if event["step"]:
            return [f"step {event['step']}: validation loss {event['val_loss']:.2f}"]
    return []
