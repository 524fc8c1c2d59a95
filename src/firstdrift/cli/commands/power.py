"""`firstdrift power`: how small an error a comparison would have found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import counted, debug_option, json_option, only_option, phase_option, print_json, say

if TYPE_CHECKING:
    from ...compare.sensitivity import Power
    from ...core.sites import Site


@click.command("power", short_help="Measure the smallest error that diff finds.")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="[CAND]", required=False)
@only_option
@phase_option
@json_option
@debug_option
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
    if as_json:
        print_json(found.to_json())
    else:
        say(_text(found))
    click.get_current_context().exit(found.exit_code)


def _text(found: Power) -> str:
    """A line a tensor, and what to remember."""
    rows = [
        (visible.site.phase, _place(visible.site), _size(visible.everywhere), _size(visible.in_part))
        for visible in found.sites
    ]
    head = ("phase", "site", "everywhere", "row or column")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(4)]
    lines = [
        f"{phase:<{widths[0]}}  {site:<{widths[1]}}  {whole:>{widths[2]}}  {part:>{widths[3]}}"
        for phase, site, whole, part in (head, *rows)
    ]
    return "\n".join([*lines, _summary(found)])


def _summary(found: Power) -> str:
    left = f"; {len(found.open)} could not be compared, or have no counterpart" if found.open else ""
    return _found(found) + left


def _found(found: Power) -> str:
    seen = [site for site in found.sites if site.everywhere is not None]
    noise = "calibrated noise" if found.calibrated else "the noise of the two traces" if found.pair else "usual noise"
    if not seen:
        return f"with {noise}, no error would be found anywhere"
    worst = max(seen, key=lambda one: one.everywhere or 0.0)
    blind = f"; at {len(found.blind)} nothing would be found" if found.blind else ""
    return (
        f"with {noise}, errors of a tensor are found from {_size(worst.everywhere)} of it on in {len(seen)} of "
        f"{len(found.sites)} tensors, the least visible being {worst.site.phase} {_place(worst.site)}{blind}"
    )


def _size(size: float | None) -> str:
    return "none" if size is None else f"{size:.1e}"


def _place(site: Site) -> str:
    from ...core.sites import shown

    name = shown(site.name) or "(root)"
    port = "" if site.port in ("out", "weight") else f":{shown(site.port)}"
    told = (("step", site.step), ("call", site.call), ("sample", site.sample))
    return f"{name}{port}" + "".join(f" {word} {number}" for word, number in told if number)
