"""Where observed stages go: which of them are wanted, and APRT stage files of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..aprt import WHOLE_MODEL_LAYER, is_stage_file, write_stage_file
from ..arrays import as_array
from ..errors import FirstdriftError, TraceExistsError, storage
from ..stages import WHOLE_MODEL
from ..store.background import BackgroundQueue
from ..store.directory import is_trace
from ..store.writer import QUEUE_BYTES

# What turns into a stage that aprender names; a trace of ours holds it too, so that a wrong rotation can be explained.
BEFORE_ROPE = {"q_post_rope": "q_pre_rope", "k_post_rope": "k_pre_rope"}


@dataclass(frozen=True, slots=True)
class Selection:
    """The stages of a model that are to be recorded, by name and layer; whole-model stages have layer None."""

    layers: dict[int, frozenset[str]]
    whole: frozenset[str] = frozenset()

    def wants(self, stage: str, layer: int) -> bool:
        """Whether a stage of a layer is to be recorded."""
        return stage in self.whole if stage in WHOLE_MODEL else stage in self.layers.get(layer, ())

    @property
    def count(self) -> int:
        """How many tensors a step leaves."""
        return len(self.whole) + sum(map(len, self.layers.values()))


class Recording(Protocol):
    """Takes what a run computes, step by step."""

    def begin(self, step: int, tokens: Sequence[int]) -> None:
        """A step begins, with these tokens fed."""

    def see(self, stage: str, layer: int, tensor: Any) -> None:
        """A stage of the step that has begun."""

    def close(self) -> None:
        """The run is over; raises what could not be written."""

    def discard(self) -> None:
        """The run failed: nothing of it stays."""

    def files(self) -> list[Path]:
        """Everything that was written, in order of its name."""


def refuse_trace(directory: Path) -> None:
    """Stage files are not mixed with a trace."""
    if is_trace(directory):
        raise TraceExistsError(f"{directory}: holds a trace, not stage files; choose another directory")


class StageFiles:
    """`layer-N/<stage>.bin` in a directory; with several steps, in `step-K` of it. Written while the model goes on."""

    def __init__(self, directory: Path, steps: int = 1) -> None:
        refuse_trace(directory)
        self._was_there = directory.exists()
        self._directory = self._at = directory
        self._steps = steps
        self._written: set[Path] = set()
        self._queue = BackgroundQueue(QUEUE_BYTES)

    def begin(self, step: int, tokens: Sequence[int]) -> None:
        """Stage files say nothing of tokens; each step has its own directory."""
        self._at = self._directory / f"step-{step}" if self._steps > 1 else self._directory

    def see(self, stage: str, layer: int, tensor: Any) -> None:
        """Write one stage; APRT holds float32, in which every narrower number is exact."""
        array = as_array(tensor, stage)
        number = WHOLE_MODEL_LAYER if stage in WHOLE_MODEL else layer
        at = self._at
        weight = self._queue.reserve(array.size * 4)
        values = np.array(array, np.float32, order="C")  # a copy: the model may go on to change the tensor
        self._queue.submit(lambda: self._write(at, number, stage, values), weight)

    def _write(self, at: Path, layer: int, stage: str, values: Any) -> None:
        self._written.add(write_stage_file(at, layer, stage, values))

    def close(self) -> None:
        """Wait for what is not written yet; raises what could not be written."""
        self._queue.close()

    def discard(self) -> None:
        """Take back the files of this run, and the directories that it made and nobody else uses."""
        with suppress(FirstdriftError):  # it was raised already
            self._queue.close()
        for file in self._written:
            with suppress(OSError):  # the failure before it is told
                file.unlink()
        for directory in sorted({parent for file in self._written for parent in file.parents}, reverse=True):
            if directory.is_relative_to(self._directory) and (directory != self._directory or not self._was_there):
                with suppress(OSError):  # others have files in it
                    directory.rmdir()

    def files(self) -> list[Path]:
        """The stage files of this run."""
        return sorted(self._written)

    def others(self) -> list[Path]:
        """Stage files that an earlier run left here; the directory is never cleaned."""
        with storage(self._directory, "list the stage files", "check that you may read it"):
            return sorted(
                file for file in self._directory.rglob("*.bin") if file not in self._written and is_stage_file(file)
            )
