"""How a load fails: every problem in one error, under the id that says in which step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...errors import FirstdriftError, WeightsError
from ..checkpoint import Checkpoint
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


OPEN = "FALSIFY-APR-PRETRAIN-INIT-003"  # there is no such file, or it cannot be read
MAGIC = "FALSIFY-APR-PRETRAIN-INIT-004"  # it is no checkpoint
ARCHITECTURE = "FALSIFY-APR-PRETRAIN-INIT-005"  # it does not say what model it is of
LOAD = "FALSIFY-APR-PRETRAIN-INIT-006"  # its tensors cannot be used
POPULATE = "FALSIFY-APR-PRETRAIN-INIT-007"  # its tensors are not those of the model
ENCODER = "FALSIFY-APR-PRETRAIN-ARCH-007"  # an encoder, where a decoder is wanted
FAMILY = "FALSIFY-INIT-ARCH-MATCH-001"  # metadata and tensor names speak of different families
MEAN = "PMAT-187"  # the check of values
