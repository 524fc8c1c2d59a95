"""`python bench/driftbench/run.py`: put every case to firstdrift and to the rules others use, and print the scores."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import click
from rich.console import Console
from rich.progress import Progress

from driftbench.asking import MODES, can_check
from driftbench.cases import chosen_cases
from driftbench.running import run_cases
from driftbench.scoring import Score
from driftbench.tables import list_cases, render


@click.command(help=(__doc__ or "").split(": ", 1)[1].capitalize())
@click.option("--mode", type=click.Choice(MODES), help="Ask in one way only; by default in all there are.")
@click.option("--only", default="*", metavar="GLOB", help="Only cases whose name fits.")
@click.option("--json", "json_to", type=Path, metavar="OUT", help="Write every score there.")
@click.option("--jobs", type=click.IntRange(1), default=1, metavar="N", help="Processes.")
@click.option("--no-baselines", is_flag=True, help="Leave out the rules that others use.")
@click.option("--list", "listing", is_flag=True, help="List the cases and end.")
def main(mode: str | None, only: str, json_to: Path | None, jobs: int, no_baselines: bool, listing: bool) -> None:
    cases = chosen_cases(only)
    if not cases:
        raise click.UsageError(f"no case is named {only!r}; --list names them")
    if listing:
        click.echo(list_cases(cases))
        return
    modes = [mode] if mode else [one for one in MODES if one != "check" or can_check()]
    scores: list[Score] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("cases", total=len(cases))
        for case, found in run_cases(cases, modes, with_baselines=not no_baselines, jobs=jobs):
            bar.update(task, advance=1, description=case.name)
            scores += found
    click.echo(render(scores))
    if json_to is not None:
        json_to.write_text(json.dumps([asdict(one) for one in scores], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
