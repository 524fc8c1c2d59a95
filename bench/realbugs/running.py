"""Fetch, load, build and ask: case after case, by `fd.check` and from two recorded traces."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

import click
from driftbench.asking import MODES, Answer, check, diff_traces, record
from driftbench.sides import Sides

from firstdrift.live.sides import one_thread

from .building import build
from .case import Case
from .cases import all_cases
from .changing import names_a_changed_line
from .fetching import fetch
from .loading import Release
from .scoring import Score, failed, render, score
from .verifying import is_what_it_says


def run_case(case: Case, modes: Sequence[str]) -> Iterator[Score]:
    """Ask about one case; what raises is an answer, too."""
    for mode in modes:
        start = time.perf_counter()
        try:
            answer = ASKING[mode](built(case))
            yield score(case, mode, answer, _at_change(case, answer), time.perf_counter() - start)
        except Exception as error:
            yield failed(case, mode, error, time.perf_counter() - start)


def built(case: Case) -> Sides:
    """Both sides of a case, from the releases that it names."""
    fixed, buggy = (Release(fetch(case.package, version), case.absent) for version in (case.fixed, case.buggy))
    return build(case, fixed, buggy)


def _at_change(case: Case, answer: Answer) -> bool:
    fixed, buggy = (fetch(case.package, version) for version in (case.fixed, case.buggy))
    return names_a_changed_line(answer.sentence, fixed, buggy)


def _by_traces(sides: Sides) -> Answer:
    with tempfile.TemporaryDirectory(prefix="realbugs-") as place:
        return diff_traces(record(sides, Path(place)))


ASKING: dict[str, Callable[[Sides], Answer]] = {"check": check, "traces": _by_traces}


@click.command(help="Ask firstdrift about bugs between published releases.")
@click.option("--only", default="*", metavar="GLOB", help="Only cases whose name fits.")
@click.option("--mode", type=click.Choice(MODES), help="Ask in one way only; by default in both.")
@click.option("--json", "json_to", type=Path, metavar="OUT", help="Write every score there.")
@click.option("--verify", is_flag=True, help="Only make sure that bugs change the function and rewrites do not.")
@click.option("--list", "listing", is_flag=True, help="List the cases and end.")
def main(only: str, mode: str | None, json_to: Path | None, verify: bool, listing: bool) -> None:
    cases = [case for case in all_cases() if fnmatchcase(case.name, only)]
    if not cases:
        raise click.UsageError(f"no case is named {only!r}; --list names them")
    if listing:
        click.echo("\n".join(_line(case) for case in cases))
        return
    if verify:
        for case in cases:
            click.echo(f"{case.name:<36} {_verified(case)}")
        return
    scores: list[Score] = []
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old releases warn of much that is deprecated today
        for case in cases:
            for found in run_case(case, [mode] if mode else MODES):
                scores.append(found)
                click.echo(f"{found.case} {found.by} {found.verdict} {found.seconds:.0f} s", err=True)
    click.echo(render(scores))
    if json_to is not None:
        json_to.write_text(json.dumps([asdict(one) for one in scores], indent=1) + "\n", encoding="utf-8")


def _verified(case: Case) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "as said" if is_what_it_says(case, built(case)) else "NOT AS SAID"
    except Exception as error:
        return f"FAILED {type(error).__name__}: {error}".splitlines()[0]


def _line(case: Case) -> str:
    kind = "rewrite" if case.truth is None else case.truth.change
    return f"{case.name:<36} {case.package} {case.buggy} -> {case.fixed}: {kind}"
