"""`firstdrift selftest`: plant known errors and show that each is found."""

from __future__ import annotations

import click

from ..options import debug_option, json_option, print_json, say

SCHEMA = "firstdrift-selftest-v1"


@click.command("selftest", short_help="Check that planted errors are found.")
@json_option
@debug_option
def command(as_json: bool) -> None:
    """Plant known errors in a small training step and check that each is found, and that noise is not.

    The candidate sums in another order and has one error at a time.
    """
    from ...compare.planted_errors import results

    rows = []
    for plant, result, was_found in results():
        rows.append({"plant": plant.name, "phase": plant.phase, "site": plant.site, "found": was_found})
        rows[-1]["sentence"] = result.sentence
        if not as_json:
            mark = "found" if was_found else "NOT FOUND"
            place = "noise" if plant.phase is None else f"{plant.phase} {plant.site}"
            say(f"{mark:<9} {plant.name:<32} {place}")
    lost = [row for row in rows if not row["found"]]
    if as_json:
        print_json({"schema": SCHEMA, "planted": len(rows), "found": len(rows) - len(lost), "plants": rows})
    else:
        say(f"{len(rows) - len(lost)} of {len(rows)} as they should be")
    click.get_current_context().exit(1 if lost else 0)
