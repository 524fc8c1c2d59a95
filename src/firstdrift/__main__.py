"""The program `firstdrift`, also as `python -m firstdrift`."""

from . import interrupts


def main() -> None:
    """The entry point: listens to Ctrl-C before anything that takes time is imported."""
    interrupts.listen()
    try:
        from .cli.main import main as run

        run()
    except (KeyboardInterrupt, Exception):
        if not interrupts.heard():
            raise
        interrupts.end()


if __name__ == "__main__":
    main()
