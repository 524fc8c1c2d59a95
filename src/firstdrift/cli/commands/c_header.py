"""`firstdrift c-header`: print firstdrift.h, which records traces from C and C++."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import Command, print_json

SCHEMA = "firstdrift-c-header-v1"


@click.command("c-header", cls=Command, short_help="Print firstdrift.h, to record from C and C++.")
def command(as_json: bool) -> None:
    """Print firstdrift.h, which records traces from C and C++.

    --json prints its path and version.

    \b
    firstdrift c-header > firstdrift.h
    """
    from ..._version import __version__
    from ...errors import storage

    path = Path(__file__).parents[2] / "include" / "firstdrift.h"
    with storage(path, "read the header", "install firstdrift again"):
        text = path.read_bytes()
    if as_json:
        print_json({"schema": SCHEMA, "path": str(path), "version": __version__, "bytes": len(text)})
    else:
        click.echo(text, nl=False)
