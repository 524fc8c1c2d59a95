"""`firstdrift selftest`: plant known errors and show that each is found."""

from __future__ import annotations

import click

from ..options import Command, print_json, say

SCHEMA = "firstdrift-selftest-v1"


@click.command("selftest", cls=Command, short_help="Check that planted errors are found.")
def command(as_json: bool) -> None:
    """Plant known errors in a small training step and check that each is found, and that noise is not.

    The candidate sums in another order and has one error at a time.
    """
    from ...compare.planted_errors import results

    rows = []
    for plant, result, was_found in results():
        rows.append(
            {"plant": plant.name, "phase": plant.phase, "site": plant.site, "found": was_found,
             "sentence": result.sentence}
        )  # fmt: skip
        if not as_json:
            mark = "found" if was_found else "NOT FOUND"
            place = "noise" if plant.phase is None else f"{plant.phase} {plant.site}"
            say(f"{mark:<9} {plant.name:<32} {place}")
    found = sum(bool(row["found"]) for row in rows)
    if as_json:
        print_json({"schema": SCHEMA, "planted": len(rows), "found": found, "plants": rows})
    else:
        say(f"{found} of {len(rows)} as they should be")
    click.get_current_context().exit(int(found < len(rows)))
