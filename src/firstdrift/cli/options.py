"""Options and output that several commands share, bars among them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn, Protocol

import click

from ..core.atomic import replacing
from ..core.bars import within
from ..core.strict_json import Json, plain
from ..errors import TraceExistsError, printable, storage

SHOW_PROGRESS_FROM = 64 << 20  # bytes; less than this is done before a bar could be read


def _set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta["firstdrift.debug"] = True


class Command(click.Command):
    """A command with the options that all have."""

    def __init__(self, name: str | None, *, params: list[click.Parameter] | None = None, **settings: Any) -> None:
        shared = [
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of text."),
            click.Option(["--debug"], is_flag=True, expose_value=False, callback=_set_debug, help="Show tracebacks."),
        ]
        super().__init__(name, params=[*(params or []), *shared], **settings)


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order in which help shows them."""
    return lambda function: reduce(lambda made, option: option(made), reversed(options), function)


REDUCTIONS = click.Choice(["mean", "sum"])
map_option = click.option(
    "--map", "map_file", metavar="FILE", help="Map of the reference's names to the candidate's (YAML)."
)
order_option = click.option("--order", metavar="FILE", help="Probes of npy steps in forward order, one a line.")
selecting_options = together(
    click.option("--only", multiple=True, metavar="GLOB", help="Only matching names (repeatable)."),
    click.option("--phase", multiple=True, metavar="GLOB", help="Only matching phases (repeatable)."),
)
# What says how two traces are compared: `diff` for two, `sweep` for many.
comparing_options = together(
    map_option,
    selecting_options,
    click.option("--ignore", multiple=True, metavar="GLOB", help="Leave out matching names (repeatable)."),
    click.option(
        "--allow-missing", multiple=True, metavar="GLOB", help="Names that the candidate may lack (repeatable)."
    ),
    click.option("--reference-reduction", type=REDUCTIONS, help="Loss reduction in the reference, if not recorded."),
    click.option("--candidate-reduction", type=REDUCTIONS, help="The same for the candidate."),
    click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Batch size, if not recorded."),
    order_option,
)


_COLOUR = re.compile("(\x1b\\[[0-9;]*m)")


def say(text: str, *, err: bool = False, colour: bool = False) -> None:
    """The one way to print: what a terminal would act on is escaped, and so is what its encoding cannot show.

    Where `colour` says that the text was coloured by us, colours are left; their names were escaped before.
    """
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    parts = _COLOUR.split(text) if colour else [text]
    safe = "".join(part if number % 2 else printable(part) for number, part in enumerate(parts))
    click.echo(safe.encode(encoding, "backslashreplace").decode(encoding), err=err, color=colour or None)


def print_json(value: Json) -> None:
    """One strict JSON object, readable by people too."""
    import json

    say(json.dumps(plain(value), indent=1, allow_nan=False))


class Answer(Protocol):
    """What a command has found."""

    @property
    def exit_code(self) -> int:
        """That of the command."""

    def to_json(self) -> dict[str, Json]:
        """What --json prints."""


def finish(found: Answer, text: Callable[[], str], *, as_json: bool) -> NoReturn:
    """Print what a command has found, and exit with its code."""
    if as_json:
        print_json(found.to_json())
    else:
        say(text())
    click.get_current_context().exit(found.exit_code)


def new_map(path: str | None) -> Path | None:
    """Where a map goes. What is there already may have been edited by hand, so that it is kept."""
    if path is not None and Path(path).exists():
        raise TraceExistsError(f"{path}: exists, and may have been edited; choose another path for --write-map")
    return None if path is None else Path(path)


def write_map_file(target: Path, text: str, said: str) -> None:
    """Write a map whole or not at all, and say what it is on standard error."""
    with storage(target, "write the map", "choose a path that you may write"), replacing(target) as file:
        file.write(text.encode())
    say(f"{target}: {said}", err=True)


def sites(count: int) -> str:
    """A number of sites for people."""
    return f"{count} site" if count == 1 else f"{count} sites"


def sizes(nbytes: int) -> str:
    """Bytes for people."""
    amount, units = float(nbytes), ["TiB", "GiB", "MiB", "KiB"]
    if nbytes < 1024:
        return f"{nbytes} B"
    while (amount := amount / 1024) >= 1024 and len(units) > 1:
        units.pop()
    return f"{amount:.1f} {units[-1]}"


@contextmanager
def drawn(
    description: str,
    total: int | None,
    columns: Callable[[Any], list[Any]],
    *,
    auto_refresh: bool = True,
    **fields: Any,
) -> Iterator[Callable[..., None]]:
    """Draw a bar on a terminal. Yields a function that takes what `rich.progress.Progress.update` takes by name.

    `columns` gets the module `rich.progress`, and returns what stands behind the bar; `fields` are theirs.
    """
    if not sys.stderr.isatty():
        yield lambda **changes: None
        return
    from rich import progress as rich_progress
    from rich.console import Console

    shown = [rich_progress.TextColumn("{task.description}"), rich_progress.BarColumn(), *columns(rich_progress)]
    shared = sys.stdout.isatty()  # lines must then go through the bar's console, and else must not
    console = Console(stderr=True)
    with rich_progress.Progress(
        *shown, console=console, transient=True, auto_refresh=auto_refresh, redirect_stdout=shared
    ) as bar:
        task = bar.add_task(description, total=total, **fields)
        yield lambda **changes: bar.update(task, **changes)


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to call with every number of bytes done; draws a bar when there is much to do.

    Without a total it shows that something goes on.
    """
    if total is not None and total < SHOW_PROGRESS_FROM:
        yield lambda nbytes: None
        return

    def columns(rich: Any) -> list[Any]:
        return [rich.DownloadColumn(binary_units=True), rich.TransferSpeedColumn(), rich.TimeRemainingColumn()]

    with drawn(description, total, columns) as update:
        yield within(lambda nbytes: update(advance=nbytes), total)


@contextmanager
def counted(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to call with every number of pieces done."""
    with drawn(description, total, lambda rich: [rich.MofNCompleteColumn(), rich.TimeRemainingColumn()]) as update:
        yield within(lambda count: update(advance=count), total)
