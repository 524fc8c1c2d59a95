"""All tensors of a checkpoint at once, for whoever fills a model by himself."""

from __future__ import annotations

from os import PathLike

from ..checkpoints.checkpoint import Array
from ..checkpoints.opening import open_checkpoint
from ..errors import FirstdriftError
from .failures import failure, opening
from .identifiers import LOAD
from .values import wrong_values


def load_init_tensors(path: str | PathLike[str]) -> dict[str, Array]:
    """Read every tensor of a checkpoint by name, quantized ones as float32.

    Raises, with all reasons, if a tensor has NaN, infinity or a mean beyond ±100. Plain tensors are memory-mapped.
    """
    with opening():
        checkpoint = open_checkpoint(path)
        checkpoint.verify()
    tensors: dict[str, Array] = {}
    problems = []
    with checkpoint:
        for name in [*checkpoint.entries, *checkpoint.aliases]:
            try:
                tensors[name] = checkpoint.array(name)
                wrong = wrong_values(tensors[name])
            except FirstdriftError as error:
                wrong = str(error)
            if wrong is not None:
                problems.append(f"{name}: {wrong}")
    if problems:
        raise failure(LOAD, f"{checkpoint.path}: its tensors cannot be loaded", problems)
    return tensors
