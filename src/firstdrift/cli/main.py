"""`firstdrift`: the group of commands, and what becomes of errors."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from .._version import __version__
from ..errors import FirstdriftError
from . import interrupts
from .options import say

NAMES = (
    "c-header", "calibrate", "demo", "diff", "explain", "export", "isolate", "power", "pretrain", "selftest", "show",
    "sweep", "trace", "weights",
)  # fmt: skip
COMMANDS = {name: name.replace("-", "_") for name in NAMES}  # and the module of each

COULD_NOT_TELL = 2
INTERNAL_ERROR = 3


class LazyGroup(click.Group):
    """Imports a command when it is asked for, and turns exceptions into one sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f".commands.{COMMANDS[cmd_name]}", __package__).command
        assert isinstance(command, click.Command)
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except OSError as error:  # --help and --version write while options are read
            self._tell(_refusal(error))
            raise click.exceptions.Exit(COULD_NOT_TELL) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FirstdriftError as error:
            if interrupts.heard():  # what a library made of it
                self._end(ctx)
            self._report(ctx, f"firstdrift: {error}")
            ctx.exit(COULD_NOT_TELL)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # click's own way out
        except OSError as error:
            self._report(ctx, _refusal(error))
            ctx.exit(COULD_NOT_TELL)
        except SystemExit as error:  # nobody else's success, or failure, is a verdict
            self._report(ctx, f"firstdrift: code that was run here ended it by sys.exit({error.code!r}); mend it")
            ctx.exit(COULD_NOT_TELL)
        except KeyboardInterrupt:  # click's own way out would be 1, which is a drift
            self._end(ctx)
        except Exception as error:
            if interrupts.heard():
                self._end(ctx)
            self._report(ctx, f"firstdrift: internal error, {type(error).__name__}: {error}; --debug shows where")
            ctx.exit(INTERNAL_ERROR)

    def _end(self, ctx: click.Context) -> NoReturn:
        interrupts.ignore_more()
        self._report(ctx, interrupts.LINE)
        ctx.exit(interrupts.EXIT_CODE)

    def _report(self, ctx: click.Context, sentence: str) -> None:
        if ctx.meta.get("firstdrift.debug"):
            self._tell(traceback.format_exc())
        self._tell(sentence)

    def _tell(self, sentence: str) -> None:
        with suppress(OSError):  # where nobody can be told, the exit code still is
            say(sentence, err=True)


def _refusal(error: OSError) -> str:
    """What the system said no to. An error without a file is of the output."""
    if isinstance(error, BrokenPipeError):  # what is left to be written would be refused again, on the way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return "firstdrift: nobody reads the output to its end; ask for less of it (--limit, --quiet)"
    why = error.strerror or error
    if error.filename is None:
        return f"firstdrift: cannot write the output ({why}); free some space"
    return f"firstdrift: {os.fspath(error.filename)}: cannot use it ({why}); check the path and that you may use it"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="firstdrift")
def cli() -> None:
    """Find the first tensor where two implementations of a neural network differ, and why.

    Exit codes: 0 same, noise or flip; 1 drift; 2 could not tell; 3 internal error.
    """


def main() -> None:
    """The entry point."""
    sys.exit(cli.main(standalone_mode=True))
