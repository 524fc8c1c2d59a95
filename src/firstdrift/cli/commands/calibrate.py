"""`firstdrift calibrate`: record a reference together with its own noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ...errors import CaptureError
from ..factories import call
from ..options import Command, counted, finish

GIVEN = ("model", "inputs", "loss_fn", "target", "optimizer")


@click.command("calibrate", cls=Command, short_help="Record a reference with its own noise.")
@click.argument("place", metavar="FUNCTION")
@click.argument("out", metavar="OUT")
@click.option("--runs", type=click.IntRange(min=1), default=2, show_default=True, help="Runs with perturbed inputs.")
@click.option("--train", is_flag=True, help="Use training mode.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed before every run.")
@click.option("--force", is_flag=True, help="Replace OUT.")
def command(place: str, out: str, runs: int, train: bool, seed: int | None, force: bool, as_json: bool) -> None:
    """Record a reference trace, and how far its own rounding noise reaches.

    The model runs as it is, in float64, and perturbed by one rounding. `diff` against OUT uses the measured noise.

    FUNCTION is FILE.py:function or pkg.module:function. It returns (model, inputs), or a dict with model, inputs and,
    if needed, loss_fn, target and optimizer (a function of the model).

    \b
    firstdrift calibrate model.py:make ref
    firstdrift diff ref cand
    """
    from ...live.calibration import calibrate

    given = _given(call(place), place)
    with counted("calibrating", runs + 3) as advance:
        found = calibrate(
            given.pop("model"), given.pop("inputs"), out, train=train, runs=runs, seed=seed, overwrite=force,
            advance=advance, **given,
        )  # fmt: skip
    finish(found, lambda: str(found), as_json=as_json)


def _given(returned: Any, place: str) -> dict[str, Any]:
    """What a function returned, by name."""
    if isinstance(returned, tuple) and len(returned) == 2:
        return {"model": returned[0], "inputs": returned[1]}
    if isinstance(returned, Mapping) and {"model", "inputs"} <= returned.keys() <= set(GIVEN):
        return dict(returned)
    what = f"a dict of {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else type(returned).__name__
    raise CaptureError(f"{place} returned {what}; return (model, inputs), or a dict of {', '.join(GIVEN)}")
