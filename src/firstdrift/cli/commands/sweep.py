"""`firstdrift sweep`: two implementations on many batches, seeds, dtypes or steps, and one answer."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..factories import load_function
from ..options import Command, comparing_options, drawn, print_json, say

if TYPE_CHECKING:
    from ...sweeping.answer import SweepResult
    from ...sweeping.case_rows import Row
    from ...sweeping.sweeps import Given, Prepared

FUNCTION = re.compile(r"[^\s{}]+\.py:\w+|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
INTERRUPTED = "interrupted; what is done is kept, and the same command goes on from there"


@click.command("sweep", cls=Command, short_help="Compare two implementations on many batches.")
@click.argument("pairs", metavar="[PAIRS]", required=False)
@click.option("--reference", metavar="COMMAND", help="Command that writes a trace to {out}, or FILE.py:function.")
@click.option("--candidate", metavar="COMMAND", help="The same for the other side.")
@click.option("--truth", metavar="COMMAND", help="The same in float64, as arbiter.")
@click.option(
    "--cases", multiple=True, metavar="NAME=VALUES",
    help="first:stop:step or a comma list; repeat for all combinations. 'A,B=1,2;3,4' pairs; @FILE has JSON lines.",
)  # fmt: skip
@click.option("--out", default="sweep-results", show_default=True, metavar="DIR", help="Results and traces.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Parallel cases.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds for one run.")
@click.option("--force", is_flag=True, help="Run finished cases again.")
@comparing_options
@click.option(
    "--sort", type=click.Choice(["error", "abs"]), default="error", show_default=True,
    help="Sort gradients by mean error or by mean largest difference.",
)  # fmt: skip
@click.option("--unfold", is_flag=True, help="Show bit-equal sites too.")
@click.option("--limit", type=click.IntRange(min=0), metavar="K", help="Lines of each table.  [default: 100]")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def command(
    pairs: str | None, cases: tuple[str, ...], reference: str | None, candidate: str | None, truth: str | None,
    out: str, jobs: int, timeout: float | None, force: bool, map_file: str | None, phase: tuple[str, ...],
    sort: str, unfold: bool, limit: int | None, quiet: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run two implementations on many cases, compare each, and give one answer.

    Each side is a command with placeholders, {NAME} for a variable of the cases and {out} for a new directory; or a
    function with such parameters, as FILE.py:function or pkg.module:function. PAIRS is a directory of finished pairs:
    CASE/reference and CASE/candidate. Finished cases are not run again unless a command, a file it names, or an option
    changed.

    Exit codes: 0 same, noise or flip in every case; 1 drift in any; 2 could not tell; 3 internal error.

    \b
    firstdrift sweep --cases start=0:320:32 --reference "python ref.py --start {start} --out {out}" \\
                     --candidate "./port --start {start} --out {out}"
    firstdrift sweep runs/
    """
    from ...sweeping.cases import parse_cases
    from ...sweeping.sweeps import prepare

    sides = (reference, candidate, truth)
    if pairs is not None and (cases or any(sides)):
        raise click.UsageError("PAIRS are finished, so there is nothing to run; drop it, or --cases and the commands")
    if pairs is None and not any(sides):
        raise click.UsageError("give --reference, --candidate and --cases, or a directory of finished pairs")
    options |= {"phases": phase, "map": map_file}
    given = tuple(_side(text) for text in sides)
    prepared = prepare(
        pairs if pairs is not None else parse_cases(cases), given,  # type: ignore[arg-type]
        timeout=timeout, options={key: value for key, value in options.items() if value},
    )  # fmt: skip
    result = _run(prepared, Path(out), jobs, force)
    if as_json:
        print_json(result.to_json(sort))
    else:
        from ...sweeping.sweep_text import render

        say(render(result, limit=limit, quiet=quiet, sort=sort, unfold=unfold))
    click.get_current_context().exit(result.exit_code)


def _side(text: str | None) -> Given | None:
    if text is None or not FUNCTION.fullmatch(text):
        return text
    return load_function(text)


def _run(prepared: Prepared, out: Path, jobs: int, force: bool) -> SweepResult:
    """What the cases came to; an interruption keeps what is done."""
    from ...sweeping.ledger import open_ledger

    with open_ledger(out, prepared.identity, force=force) as ledger:
        before = len(prepared.cases) - len(prepared.todo(ledger))
        try:
            with _ended_as_interrupted(), _progress(len(prepared.cases), before) as done:
                prepared.run(ledger, jobs=jobs, done=done)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more, and what was found would not be told
            ledger.notes.append(INTERRUPTED)
        return prepared.result(ledger, before)


@contextmanager
def _ended_as_interrupted() -> Iterator[None]:
    """A request to end, as a CI system sends it, is an interruption: what runs is ended, and what is done is told."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(total: int, before: int) -> Iterator[Callable[[Row], None]]:
    """What is told of every row; draws a bar on a terminal with the time that is left."""

    def columns(rich: Any) -> list[Any]:
        return [
            rich.MofNCompleteColumn(), rich.TimeElapsedColumn(), rich.TextColumn("left"), rich.TimeRemainingColumn(),
        ]  # fmt: skip

    # Refreshed by hand: functions are run in forked processes, and a thread of the bar's would be lost in them.
    with drawn("cases", total, columns, auto_refresh=False, completed=before) as update:
        update(refresh=True)
        found = {"drift": 0, "failed": 0}

        def done(row: Row) -> None:
            for verdict in found:
                found[verdict] += row.verdict == verdict
            counts = "".join(f", {count} {verdict}" for verdict, count in found.items() if count)
            update(advance=1, description=f"cases{counts}", refresh=True)

        yield done
