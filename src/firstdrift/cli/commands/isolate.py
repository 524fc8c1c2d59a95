"""`firstdrift isolate`: replay one module on the candidate's own inputs, and say whether it is right by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Command, finish, map_option, order_option, progress

if TYPE_CHECKING:
    from ...judge.isolation import Figures, Isolated

HEAD = ("site", "total", "inherited", "introduced", "own weights", "noise")


@click.command("isolate", cls=Command, short_help="Test one module on the candidate's own inputs.")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="CAND")
@click.option("--module", required=True, metavar="NAME", help="Module, by REF's name.")
@map_option
@order_option
def command(
    reference: str, candidate: str, module: str, map_file: str | None, order: str | None, as_json: bool
) -> None:
    """Run REF's module in float64 on the inputs that CAND recorded, and compare CAND's output with that.

    This separates the module's own error from its inputs' error, and wrong weights from a wrong operation.

    Exit codes: 0 the module is right; 1 it or its weights are wrong; 2 could not tell; 3 internal error.

    \b
    firstdrift isolate ref/ cand/ --module layers.3.attn.q_proj
    """
    from ...compare.comparison import align_traces
    from ...judge.isolation import isolate

    opened = align_traces(reference, candidate, map=map_file, order=order)
    size = sum(pair.reference.nbytes for pair in opened.alignment.pairs)
    with progress("replaying", size) as advance:
        found = isolate(opened.reference, opened.candidate, opened.alignment, module, advance)
    finish(found, lambda: text_of(found), as_json=as_json)


def text_of(found: Isolated) -> str:
    """The table of figures, and the conclusion under it."""
    rows = [HEAD, *(_row(figure) for figure in found.figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    forward = next((figure for figure in found.figures if figure.site.phase == "fwd"), None)
    where = found.module or "the model"
    said = [] if forward is None else [f"{where}: {forward.operation}, computed in float64 from the candidate's inputs"]
    return "\n".join([*said, *(line.rstrip() for line in lines if found.figures), f"{found.verdict}: {found.sentence}"])


def _row(figures: Figures) -> tuple[str, ...]:
    numbers = (figures.total, figures.inherited, figures.introduced, figures.own, figures.noise)
    return str(figures.site), *("" if number is None else f"{number:.1e}" for number in numbers)
