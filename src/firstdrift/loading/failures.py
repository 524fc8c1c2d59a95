"""How a load fails: every problem in one error, under the id that says in which step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..checkpoints.checkpoint import Checkpoint
from ..errors import FirstdriftError, WeightsError
from .identifiers import LOAD
from .map_lines import AMBIGUOUS


def failure(identifier: str, what: str, problems: Sequence[str], suggestion: str | None = None) -> WeightsError:
    """The error that carries every problem."""
    count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
    lines = [f"{identifier}: {what}, {count}:", *(f"  {problem}" for problem in problems)]
    if suggestion is not None:
        decide = "; decide where it says ambiguous" if AMBIGUOUS in suggestion else ""
        lines += [
            f"a map that may be meant (read it, then give it as map=, or --map FILE){decide}:",
            suggestion.rstrip("\n"),
        ]
    return WeightsError("\n".join(lines), tuple(problems), suggestion)


def not_present(name: str, checkpoint: Checkpoint) -> str:
    """The first half of the sentence about a tensor that a checkpoint lacks."""
    place = f"init APR ({checkpoint.path})" if checkpoint.format.startswith("apr") else str(checkpoint.path)
    return f"{name}: not present in {place}"


@contextmanager
def opening() -> Iterator[None]:
    """Let the error of a checkpoint that cannot be opened, or is damaged, carry the id of a failure to load."""
    try:
        yield
    except FirstdriftError as error:
        error.args = (f"{error} [{LOAD}]",)
        raise
