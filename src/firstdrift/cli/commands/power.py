"""`firstdrift power`: how small an error a comparison would have found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...core.sites import shown
from ..options import Command, counted, finish, selecting_options

if TYPE_CHECKING:
    from ...compare.sensitivity import Power
    from ...core.sites import Site


@click.command("power", cls=Command, short_help="Measure the smallest error that diff finds.")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="[CAND]", required=False)
@selecting_options
def command(
    reference: str, candidate: str | None, only: tuple[str, ...], phase: tuple[str, ...], as_json: bool
) -> None:
    """Perturb each tensor of a clean pair, and print the smallest error that diff finds.

    Without CAND, REF is compared with itself plus clean noise. An error is a factor on the whole tensor, or on one row
    or column. A pair that differs beyond noise is refused.

    \b
    firstdrift power ref/ cand/
    firstdrift power ref/ --only 'layers.3.*' --json
    """
    from ...compare.open_trace import open_trace
    from ...compare.sensitivity import power

    opened = open_trace(reference)
    with counted("measuring", len(opened)) as advance:
        found = power(opened, candidate, only=only, phases=phase, advance=advance)
    finish(found, lambda: _text(found), as_json=as_json)


def _text(found: Power) -> str:
    """A line a tensor, and what to remember."""
    head = ("phase", "site", "everywhere", "row or column")
    rows = [(at.site.phase, _place(at.site), _size(at.everywhere), _size(at.in_part)) for at in found.sites]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        f"{phase:<{widths[0]}}  {site:<{widths[1]}}  {whole:>{widths[2]}}  {part:>{widths[3]}}"
        for phase, site, whole, part in (head, *rows)
    ]
    left = f"; {len(found.open)} could not be compared, or have no counterpart" if found.open else ""
    return "\n".join([*lines, _summary(found) + left])


def _summary(found: Power) -> str:
    seen = [site for site in found.sites if site.everywhere is not None]
    noise = "calibrated noise" if found.calibrated else "the noise of the two traces" if found.pair else "usual noise"
    if not seen:
        return f"with {noise}, no error would be found anywhere"
    worst = max(seen, key=lambda site: site.everywhere or 0.0)
    blind = f"; at {len(found.blind)} nothing would be found" if found.blind else ""
    return (
        f"with {noise}, errors of a tensor are found from {_size(worst.everywhere)} of it on in {len(seen)} of "
        f"{len(found.sites)} tensors, the least visible being {worst.site.phase} {_place(worst.site)}{blind}"
    )


def _size(size: float | None) -> str:
    return "none" if size is None else f"{size:.1e}"


def _place(site: Site) -> str:
    name = shown(site.name) or "(root)"
    port = "" if site.port in ("out", "weight") else f":{shown(site.port)}"
    numbers = (("step", site.step), ("call", site.call), ("sample", site.sample))
    return f"{name}{port}" + "".join(f" {word} {number}" for word, number in numbers if number)
