"""The program `firstdrift`, also as `python -m firstdrift`."""

import os
import sys

from .cli import interrupts


def main() -> None:
    """The entry point: listens to Ctrl-C before anything that takes time is imported."""
    interrupts.listen()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: the next file that is opened would take its place
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    try:
        from .cli.main import main as run

        run()
    except (KeyboardInterrupt, Exception):
        if not interrupts.heard():
            raise
        interrupts.end()


if __name__ == "__main__":
    main()
