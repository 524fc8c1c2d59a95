"""Options and output that several commands share, bars among them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from ..core.bars import within
from ..core.strict_json import Json, plain
from ..errors import printable

SHOW_PROGRESS_FROM = 64 << 20  # bytes; less than this is done before a bar could be read


def _set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta["firstdrift.debug"] = True


debug_option = click.option("--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show tracebacks.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
format_option = click.option("--format", "format", help="Format, if a directory fits two.")
order_option = click.option("--order", metavar="FILE", help="Probes of npy steps in forward order, one a line.")
only_option = click.option("--only", multiple=True, metavar="GLOB", help="Only matching names (repeatable).")
phase_option = click.option("--phase", multiple=True, metavar="GLOB", help="Only matching phases (repeatable).")


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


def sites(count: int) -> str:
    """A number of sites for people."""
    return f"{count} site" if count == 1 else f"{count} sites"


def sizes(nbytes: int) -> str:
    """Bytes for people."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to call with every number of bytes done; draws a bar on a terminal when there is much to do.

    Without a total it shows that something goes on.
    """
    if not sys.stderr.isatty() or (total is not None and total < SHOW_PROGRESS_FROM):
        yield lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns: list[Any] = [
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield within(lambda nbytes: bar.advance(task, nbytes), total)


@contextmanager
def counted(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to call with every number of pieces done; draws a bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    ]  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield within(lambda count: bar.advance(task, count), total)
