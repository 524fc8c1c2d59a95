"""Where observed stages go: APRT stage files, or a trace of our own format with shapes, true dtypes, steps and
producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..aprt import WHOLE_MODEL_LAYER, is_stage_file, write_stage_file
from ..core.arrays import as_array
from ..core.sites import Site
from ..core.stages import EXECUTION_RANK, INDEX_PAYLOAD, INPUT, PRODUCERS, WHOLE_MODEL
from ..core.strict_json import Json
from ..errors import FirstdriftError, TraceExistsError, storage
from ..store.background import BackgroundQueue
from ..store.files import forget, is_trace
from ..store.writer import QUEUE_BYTES, Writer
from .decoder_settings import DecoderConfig
from .stage_operations import operation_of

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
            with suppress(OSError):  # the failure before it is raised
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


Stage = tuple[str, int]
SOURCES = {
    **PRODUCERS,
    **{before: PRODUCERS[after] for after, before in BEFORE_ROPE.items()},
    **{after: (before,) for after, before in BEFORE_ROPE.items()},
}
RANK = {stage: 2 * rank for stage, rank in EXECUTION_RANK.items()}
RANK |= {before: RANK[after] - 1 for after, before in BEFORE_ROPE.items()}
RANKS = 128  # more than that, so that a layer's orders do not reach the next one's
CACHED = {"attn_scores": "k_post_rope", "attention": "qkv_bias"}  # what a stage reads of all steps so far
Weight = Callable[[str], Any]  # a model's tensor by its name; None where it has none of that name


class NativeTrace:
    """Records a run as a trace.

    Each stage goes to disk as it is seen: a copy for a background queue costs more than the write, and the model's
    threads want every core. With `weight`, what recorded stages read of the model's weights is recorded, too, once.
    """

    def __init__(
        self,
        directory: Path,
        config: DecoderConfig,
        selection: Selection,
        header: Mapping[str, Json],
        overwrite: bool,
        weight: Weight | None = None,
    ) -> None:
        self._config = config
        self._selection = selection
        self._step = 0
        self._position = self._next_position = 0  # of the first token of this step, and of the next one
        self._weight = weight
        self._weights: dict[str, Site] = {}
        self._directory = directory
        self._was_there = directory.exists()
        self._writer = Writer(directory, overwrite=overwrite, **header)

    def begin(self, step: int, tokens: Sequence[int]) -> None:
        """Record the tokens that the model reads."""
        self._step, self._position = step, self._next_position
        self._next_position += len(tokens)
        self._writer.put("input", "input", np.array([tokens], np.int64), port="tokens", step=step)

    def see(self, stage: str, layer: int, tensor: Any) -> None:
        """Record one stage."""
        whole = stage in WHOLE_MODEL
        details: dict[str, Any] = {} if whole else {"layer": layer}
        if stage in PRODUCERS:
            details["stage"] = stage
        made_by = operation_of(stage, layer, self._config, self._position)
        attrs = dict(made_by.attrs)
        if stage in INDEX_PAYLOAD:
            tensor = as_array(tensor, stage).astype(np.float32)  # as the stage is defined: ids stored as float32
            attrs["index"] = True
        order = (self._config.num_hidden_layers if whole else layer) * RANKS + RANK[stage]
        weights = [site for name in made_by.weights if (site := self._recorded(name, order)) is not None]
        self._writer.put(
            site_name(stage, layer), "fwd", tensor, step=self._step, order=order, op=made_by.op, attrs=attrs or None,
            producers=[*self._producers(stage, layer), *weights], **details,
        )  # fmt: skip

    def _producers(self, stage: str, layer: int) -> Iterator[Site]:
        if stage == "embedding":
            yield Site(self._step, "input", "input", "tokens")
        for producer in producers(stage, layer, self._selection, self._config):
            earlier = range(self._step) if CACHED.get(stage) == producer[0] else ()
            yield from (Site(step, "fwd", site_name(*producer), "out") for step in (*earlier, self._step))

    def _recorded(self, name: str, order: int) -> Site | None:
        """A weight's site; where weights are recorded, it is written when the first stage needs it."""
        if self._weight is None:
            return None
        tied = name == "lm_head.weight" and self._config.tie_word_embeddings
        stored = "model.embed_tokens.weight" if tied else name
        if stored not in self._weights:
            tensor = self._weight(stored)
            if tensor is None:
                return None
            module, _, port = stored.rpartition(".")
            own = stored == "model.embed_tokens.weight" and self._config.tie_word_embeddings
            aliases = ["lm_head.weight"] if own else None
            self._writer.put(module, "weight", tensor, port=port, step=self._step, order=order, aliases=aliases)
            self._weights[stored] = Site(self._step, "weight", module, port)
        return self._weights[stored]

    def close(self) -> None:
        """End the trace."""
        self._writer.close()

    def discard(self) -> None:
        """Take the trace back."""
        with suppress(FirstdriftError, OSError):  # the failure before it is raised
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
        producer = waiting.pop(0)
        if producer in seen:
            continue
        seen.add(producer)
        if selection.wants(*producer):
            found[producer] = None
        elif producer[0] not in PRODUCERS.keys() - WHOLE_MODEL - config.stages(producer[1]):
            waiting.extend(_direct(*producer))  # a layer has a dense network or experts, not both
    return list(found)


def _direct(stage: str, layer: int) -> Iterator[Stage]:
    for producer in SOURCES[stage]:
        if producer != INPUT:
            yield producer, layer
        elif layer:
            yield "post_ffn_residual", layer - 1
        else:
            yield "embedding", 0
