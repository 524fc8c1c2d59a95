"""`firstdrift demo`: two implementations of one training step, recorded and compared.

Both sides are made here, in numpy: the candidate sums in another order, and has one planted bug.
"""

from __future__ import annotations

from pathlib import Path

import click

from .options import debug_option, json_option, print_json

DEFAULT_BUG = "wrong ReLU backward"


@click.command("demo", short_help="See the tool find a planted bug.")
@click.option("--bug", default=DEFAULT_BUG, show_default=True, help="What to plant; `nothing` for a clean candidate.")
@click.option("--out", default="demo-traces", show_default=True, help="Where the two traces go.")
@json_option
@debug_option
def command(bug: str, out: str, as_json: bool) -> None:
    """Record one training step of two implementations and name the first tensor where they part."""
    from ..comparison import diff
    from ..errors import SelectionError
    from ..report.text import render
    from ..selftest import PLANTS, record_pair

    plant = next((plant for plant in PLANTS if plant.name == bug), None)
    if plant is None:
        raise SelectionError(f"there is no bug {bug!r}; choose one of: {', '.join(plant.name for plant in PLANTS)}")
    reference, candidate = record_pair(plant, Path(out))
    result = diff(reference, candidate)
    if as_json:
        print_json(result.to_json())
        return
    click.echo(f"planted: {plant.name}\n$ firstdrift diff {reference} {candidate}\n")
    click.echo(render(result))
