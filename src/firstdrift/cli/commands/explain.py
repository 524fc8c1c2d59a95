"""`firstdrift explain`: what a cause means, how it is recognised, and how to confirm it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...core.sites import shown
from ...errors import SelectionError
from ..options import Command, print_json, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...core.strict_json import Json
    from ...explain.labels import Label

SCHEMA = "firstdrift-explain-v1"


@click.command("explain", cls=Command, short_help="Explain a cause and how to confirm it.")
@click.argument("label", required=False)
def command(label: str | None, as_json: bool) -> None:
    """Explain the cause LABEL: how it is recognised, how to confirm it, where it has happened.

    Without LABEL, list all causes.

    \b
    firstdrift explain gqa-order
    """
    from ...explain.labels import LABELS, nearest

    if label is None:
        if as_json:
            print_json({"schema": SCHEMA, "labels": [_json(name, found) for name, found in LABELS.items()]})
        else:
            _print(_listing())
    elif label not in LABELS:
        near = nearest(label)
        hint = f"near it: {', '.join(near)}" if near else "`firstdrift explain` lists all"
        raise SelectionError(f"no cause is called {shown(label)!r}; {hint}")
    elif as_json:
        print_json({"schema": SCHEMA, **_json(label, LABELS[label])})
    else:
        _print(_page(label, LABELS[label]))


def _json(name: str, label: Label) -> dict[str, Json]:
    from ...explain.labels import link

    return {
        "label": name, "meaning": label.meaning, "recognised": label.recognised, "confirm": label.confirm,
        "cases": [{"case": case, "link": link(case)} for case in label.cases], "specificity": label.specificity,
    }  # fmt: skip


def _listing() -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from ...explain.labels import LABELS

    table = Table("label", "meaning", box=SIMPLE_HEAD, pad_edge=False)
    for name, label in LABELS.items():
        table.add_row(name, label.meaning)
    return table


def _page(name: str, label: Label) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from ...explain.labels import link

    page = Table.grid(padding=(0, 2))
    page.add_column(style="bold", no_wrap=True)
    page.add_column(overflow="fold")
    page.add_row(name, Text(label.meaning, "bold"))
    page.add_row("recognised", Text(label.recognised))
    page.add_row("confirm", Text(label.confirm))
    for number, case in enumerate(label.cases):
        page.add_row("real cases" if number == 0 else "", Text(case))
        page.add_row("", Text(link(case), "dim"))
    return page


def _print(what: RenderableType) -> None:
    """As wide as the terminal; plain text where there is none, without spaces at the ends of lines."""
    from rich.console import Console

    console = Console()
    with console.capture() as captured:
        console.print(what)
    say("\n".join(line.rstrip() for line in captured.get().split("\n")).strip("\n"), colour=console.is_terminal)
