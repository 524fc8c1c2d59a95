"""`firstdrift demo`: a keyword spotter in PyTorch and its port to C, trained one step for ten batches, and compared."""

from __future__ import annotations

import importlib.util
import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ...core.strict_json import plain
from ...errors import storage
from ..options import Command, counted, print_json
from ..options import say as echo

if TYPE_CHECKING:
    from ...demo.demo_batches import Batch, Distance, Settings

    Say = Callable[[str], None]

SCHEMA = "firstdrift-demo-v1"
SHOWN_STEPS = 10  # lines of the table of steps, about
REPORT_LINES = 3
QUESTION = "Why do gradients of the first LayerNorm differ from batch to batch?"
HEADING = "\nbatch  clips     grad ln1  flips  verdict"


@click.command("demo", cls=Command, short_help="Compare a real C port with its PyTorch original.")
@click.option("--bug", default="none", show_default=True, metavar="NAME", help="Plant a bug; `list` names them.")
@click.option("--batches", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Batches to run.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, metavar="N", help="Clips in a batch.")
@click.option("--steps", type=click.IntRange(1), default=1, metavar="N", help="Train on and compare with float64.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Random seed.")
@click.option("--out", default="demo-traces", show_default=True, metavar="DIR", help="Directory for traces.")
@click.option("--force", is_flag=True, help="Use DIR even if it holds other files.")
def command(bug: str, batches: int, batch: int, steps: int, seed: int, out: str, force: bool, as_json: bool) -> None:
    """Train a small network for one step in C and in PyTorch, and compare the two.

    The network is a keyword spotter; both sides run ten batches from the same weights. Without a C compiler or PyTorch,
    recorded traces are compared.

    Exit codes: 0 same, noise or flip; 1 drift; 2 could not run; 3 internal error.

    \b
    firstdrift demo
    firstdrift demo --bug relu-mask
    firstdrift demo --steps 100
    """
    from ...demo.demo_batches import Settings, prepare
    from ...demo.port import Port, find_bug, known_bugs

    if bug == "list":
        for known in known_bugs().values():
            echo(f"{known.name:<20} {known.what}")
        return
    chosen = find_bug(bug)
    say: Say = (lambda line: None) if as_json else echo
    if (why := _cannot_run()) is not None:
        _end([_recorded(bug, steps, why, say)], None, bug, None, as_json, why)
    directory = Path(out)
    prepare(directory, force=force)
    port = Port.build(directory)
    say(f"A keyword spotter of 17 layers: PyTorch, and its port to C, built by {port.compiler}.")
    later = f"; it shows from step {chosen.steps} on" if chosen.steps > 1 else ""
    say(f"bug: {bug}, {chosen.what}{later}")
    settings = Settings(directory, port, bug, batches, batch, seed)
    found = _batches(settings, say)
    distances = _steps(settings, steps, say) if steps > 1 else None
    _end(found, distances, bug, directory, as_json, None)


def _cannot_run() -> str | None:
    """Why both sides cannot be run here, in a sentence."""
    from ...demo.port import NO_COMPILER, find_compiler

    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed; install firstdrift[torch]"
    return NO_COMPILER if find_compiler() is None else None


def _recorded(bug: str, steps: int, why: str, say: Say) -> Batch:
    from ...demo.recorded_clip import recorded_batch

    echo(f"firstdrift: {why}; until then, recorded traces of one clip are compared", err=True)
    if steps > 1:
        echo("firstdrift: further steps were not recorded; --steps is left out", err=True)
    found = recorded_batch(bug)
    say(HEADING)
    say(_line(found))
    return found


def _batches(settings: Settings, say: Say) -> list[Batch]:
    from ...demo.demo_batches import run_batches

    found: list[Batch] = []
    say(HEADING)
    with counted("batches", len(settings.starts())) as advance:
        for batch in run_batches(settings):
            found.append(batch)
            say(_line(batch))
            advance(1)
    return found


def _line(batch: Batch) -> str:
    clips = f"{batch.start}-{batch.start + batch.clips - 1}"
    error = "" if batch.norm_error is None else f"{batch.norm_error:.1e}"
    first = batch.result.first_drift
    found = batch.result.claim
    if first is not None:
        sample = "" if first.sample is None else f" (sample {first.sample})"
        found = f"drift: {first.phase} {first.name}{sample}, by {first.introduced_by}"
    return f"{batch.number:5}  {clips:<9} {error:>8}  {batch.flips:5}  {found}"


def _steps(settings: Settings, steps: int, say: Say) -> list[Distance]:
    from ...demo.demo_batches import conclusion, run_steps

    found = run_steps(settings, steps)
    say("\nThe weights after each step over batch 0, and how far they are from a float64 run:")
    say(" step  C port    PyTorch   ratio  of the way")
    shown = {round(steps ** (number / (SHOWN_STEPS - 1))) for number in range(SHOWN_STEPS)}
    for row in found:
        if row.step in shown:
            say(f"{row.step:5}  {row.port:.2e}  {row.torch:.2e}  {row.ratio:5.2f}  {row.port / (row.moved or 1):.1e}")
    say(textwrap.fill(conclusion(found), 80))
    return found


def _end(
    found: Sequence[Batch], distances: Sequence[Distance] | None, bug: str, directory: Path | None, as_json: bool,
    why: str | None,
) -> NoReturn:  # fmt: skip
    """The report of the batch that matters, the answer, and the exit code."""
    from ...demo.demo_batches import answer
    from ...report import render

    shown = next((batch for batch in found if batch.matters), found[0])
    codes = {batch.result.exit_code for batch in found}
    code = 1 if 1 in codes else max(codes)
    said = plain(
        {
            "schema": SCHEMA, "bug": bug, "recorded": why, "exit_code": code, "answer": answer(found),
            "batches": [_batch_json(batch) for batch in found], "shown": shown.number,
            "report": shown.result.to_json(), "steps": None if distances is None else _steps_json(distances),
        }
    )  # fmt: skip
    if directory is not None:
        with storage(directory, "write the demo's result", "free some space"):
            (directory / "demo.json").write_text(json.dumps(said, indent=1, allow_nan=False) + "\n")
    if as_json:
        print_json(said)
    else:
        echo(f"\n$ firstdrift diff {shown.reference} {shown.candidate}\n")
        echo(render(shown.result, limit=REPORT_LINES))
        if not code:
            echo(f"\n{QUESTION}\n{textwrap.fill(answer(found), 80)}")
    click.get_current_context().exit(code)


def _batch_json(batch: Batch) -> dict[str, Any]:
    result = batch.result
    return {
        "batch": batch.number, "start": batch.start, "clips": batch.clips, "verdict": str(result.verdict),
        "sentence": result.sentence, "exit_code": result.exit_code, "flips": batch.flips,
        "norm_error": batch.norm_error,
    }  # fmt: skip


def _steps_json(found: Sequence[Distance]) -> dict[str, Any]:
    from ...demo.demo_batches import conclusion

    keys = ("step", "port", "torch", "ratio", "moved")
    return {"sentence": conclusion(found), "rows": [{key: getattr(row, key) for key in keys} for row in found]}
