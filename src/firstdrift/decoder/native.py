"""A trace of our own format: shapes, true dtypes, steps, and what each stage was computed from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import as_array
from ..errors import FirstdriftError, storage
from ..sites import Site
from ..stages import EXECUTION_RANK, INDEX_PAYLOAD, INPUT, PRODUCERS, WHOLE_MODEL
from ..store.directory import forget
from ..store.writer import Writer
from ..strict_json import Json
from .recording import BEFORE_ROPE, Selection
from .settings import DecoderConfig

Stage = tuple[str, int]
SOURCES = {
    **PRODUCERS,
    **{before: PRODUCERS[after] for after, before in BEFORE_ROPE.items()},
    **{after: (before,) for after, before in BEFORE_ROPE.items()},
}
RANK = {stage: 2 * rank for stage, rank in EXECUTION_RANK.items()}
RANK |= {before: RANK[after] - 1 for after, before in BEFORE_ROPE.items()}
RANKS = 128  # more than that, so that a layer's orders do not reach the next one's


class NativeTrace:
    """Records a run as a trace.

    Each stage goes to disk as it is seen: a copy for a background queue costs more than the write, and the model's
    threads want every core.
    """

    def __init__(
        self,
        directory: Path,
        config: DecoderConfig,
        selection: Selection,
        header: Mapping[str, Json],
        overwrite: bool,
    ) -> None:
        self._config = config
        self._selection = selection
        self._step = 0
        self._directory = directory
        self._was_there = directory.exists()
        self._writer = Writer(directory, overwrite=overwrite, **header)

    def begin(self, step: int, tokens: Sequence[int]) -> None:
        """Record what is fed."""
        self._step = step
        self._writer.put("input", "input", np.array([tokens], np.int64), port="tokens", step=step)

    def see(self, stage: str, layer: int, tensor: Any) -> None:
        """Record one stage."""
        whole = stage in WHOLE_MODEL
        details: dict[str, Any] = {} if whole else {"layer": layer}
        if stage in PRODUCERS:
            details["stage"] = stage
        if stage in INDEX_PAYLOAD:
            tensor = as_array(tensor, stage).astype(np.float32)  # as the stage is defined: ids stored as float32
            details["attrs"] = {"index": True}
        made_of = producers(stage, layer, self._selection, self._config)
        self._writer.put(
            site_name(stage, layer), "fwd", tensor, step=self._step,
            order=(self._config.num_hidden_layers if whole else layer) * RANKS + RANK[stage],
            producers=[Site(self._step, "fwd", site_name(*one), "out") for one in made_of], **details,
        )  # fmt: skip

    def close(self) -> None:
        """End the trace."""
        self._writer.close()

    def discard(self) -> None:
        """Take the trace back."""
        with suppress(FirstdriftError, OSError):  # the failure before it is told
            self._writer.abort()
            forget([self._directory])
            if not self._was_there:
                self._directory.rmdir()

    def files(self) -> list[Path]:
        """The files of the trace."""
        with storage(self._directory, "list the trace", "check that you may read it"):
            return sorted(file for file in self._directory.iterdir() if file.is_file() and file.stat().st_size)


def site_name(stage: str, layer: int) -> str:
    """The name of a stage's site, as APRT directories have it too."""
    return stage if stage in WHOLE_MODEL else f"layer-{layer}.{stage}"


def producers(stage: str, layer: int, selection: Selection, config: DecoderConfig) -> list[Stage]:
    """The nearest recorded stages that one is computed from."""
    found: dict[Stage, None] = {}
    waiting = list(_direct(stage, layer))
    seen = set()
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        if selection.wants(*one):
            found[one] = None
        elif one[0] not in PRODUCERS.keys() - WHOLE_MODEL - config.stages(one[1]):
            waiting.extend(_direct(*one))  # a layer has a dense network or experts, not both
    return list(found)


def _direct(stage: str, layer: int) -> Iterator[Stage]:
    for producer in SOURCES[stage]:
        if producer != INPUT:
            yield producer, layer
        elif layer:
            yield "post_ffn_residual", layer - 1
        else:
            yield "embedding", 0
