"""APRT stage directories (`layer-N/<stage>.bin`, `<stage>.bin`) and single stage files as traces.

Order and producers come from the stage table; where a producer was not saved, its own producers stand in.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path

from ...aprt import HEADER_BYTES, WHOLE_MODEL_LAYER, is_stage_file, output_path, read_header, write_stage_file
from ...core.records import Record, encode_producer
from ...core.sites import Site, check_name
from ...core.stages import ALIASES, EXECUTION_RANK, INDEX_PAYLOAD, INPUT, MAX_LAYER, PRODUCERS, WHOLE_MODEL
from ...core.traces import Trace
from ...errors import FormatError, NotATraceError, SiteError, TraceExistsError, naming, storage, without_raising

NAME = "aprt"
Stage = tuple[int, str]  # layer (or the sentinel) and stage name
NO_LAYER = -1  # of a directory such as layer-00, which no header can mean
_LAYER = re.compile(r"layer-([0-9]{1,99})")
_SITE = re.compile(r"layer-(0|[1-9][0-9]{0,9})\.(.+)", re.DOTALL)


@without_raising
def recognise(path: Path) -> bool:
    """Whether a path is a stage file, or a directory with stage files where they belong."""
    return is_stage_file(path) if path.is_file() else any(is_stage_file(file) for file, _ in _stage_files(path))


def read(path: Path) -> Trace:
    """Open a stage directory, or a single stage file."""
    with storage(path, "read the stage files", "check that it exists and that you may read it"):
        path.stat()
        if path.is_file():
            place = _LAYER.fullmatch(path.absolute().parent.name)
            found = [(path, int(place[1]) if place else read_header(path).layer)]
        else:
            found = sorted(_stage_files(path))
            if not found:
                raise NotATraceError(f"{path}: holds no stage files; expected layer-N/<stage>.bin or <stage>.bin")
        stages: dict[Stage, Path] = {}
        for file, layer in found:
            if layer == NO_LAYER:
                raise FormatError(f"{file.parent}: is not layer-N with N from 0 to {MAX_LAYER}, unpadded; rename it")
            stage = (layer, ALIASES.get(file.stem, file.stem))
            with naming(str(file)):
                check_name(file.stem, "stage")
            if stage in stages:
                raise FormatError(f"{file} and {stages[stage].name}: are the same stage; remove one")
            stages[stage] = file
        files = list(stages.values())
        graph = _Graph(stages)
        lines = [_record(stage, file, number, graph) for number, (stage, file) in enumerate(stages.items())]
    return Trace(path, NAME, lines, files.__getitem__, header={"graph": "stage table"})


def write(trace: Trace, path: Path, *, overwrite: bool, advance: Callable[[int], None]) -> list[str]:
    """Write a trace of decoder stages as stage files."""
    targets = {_target(record): record for record in trace.records if record.at is not None}
    left = sum(record.at is None for record in trace.lines)
    if len(targets) + left < len(trace.lines):
        raise SiteError(f"{trace.path}: has a stage and its alias in one layer; choose with --only")
    with storage(path, "write stage files here", "choose a directory that you may write"):
        if path.exists() and not overwrite and not (path.is_dir() and not any(path.iterdir())):
            raise TraceExistsError(f"{path}: is not empty; choose another path, or overwrite (--force)")
        for stale, _ in list(_stage_files(path)):
            if is_stage_file(stale):
                stale.unlink()  # stages of an earlier run must not mix with these
    for (layer, stage), record in targets.items():
        write_stage_file(path, layer, stage, trace.array(record))
        advance(record.nbytes)
    trace.check_unchanged()
    flattened = sum(len(record.shape or ()) != 1 for record in targets.values())
    return [
        *([f"{flattened} tensors were flattened: APRT holds no shapes"] if flattened else []),
        *([f"{left} sites without values were left out: APRT can only hold tensors"] if left else []),
    ]


def _target(record: Record) -> Stage:
    step, phase, name, port, call, sample = record.site
    if phase != "fwd" or port != "out" or step or call or sample is not None or record.dtype != "f32":
        raise SiteError(
            f"{record.site} ({record.dtype}): APRT holds only float32 forward outputs of one step; choose with --only"
        )
    layer, stage = WHOLE_MODEL_LAYER, name
    if match := _SITE.fullmatch(name):
        layer, stage = int(match[1]), match[2]
        if layer > MAX_LAYER:
            raise SiteError(f"{record.site}: layer {layer} is above {MAX_LAYER}, which APRT cannot say; rename it")
    stage = ALIASES.get(stage, stage)
    output_path("", layer, stage)  # refuses what is no file name, before anything is written
    return layer, stage


def _stage_files(directory: Path) -> Iterable[tuple[Path, int]]:
    """Every .bin where stage files belong, with the layer its place means."""
    if not directory.is_dir():
        return
    for entry in sorted(directory.iterdir()):
        if match := _LAYER.fullmatch(entry.name):
            canonical = match[1] == str(int(match[1])) and int(match[1]) <= MAX_LAYER
            for file in sorted(entry.glob("*.bin")):
                yield file, int(match[1]) if canonical else NO_LAYER
        elif entry.suffix == ".bin" and entry.is_file():
            yield entry, WHOLE_MODEL_LAYER


def _record(stage: Stage, file: Path, number: int, graph: _Graph) -> Record:
    layer, name = stage
    header = read_header(file)
    if header.layer != layer:
        raise FormatError(
            f"{file}: its header says {_words(header.layer)}, its place {_words(layer)}; move or rewrite it"
        )
    site = _site(stage)
    rank = EXECUTION_RANK.get(name, len(EXECUTION_RANK))
    details = {
        "order": (layer * 64 if layer != WHOLE_MODEL_LAYER else (WHOLE_MODEL_LAYER + 1) * 64) + rank,
        "stage": name,
    }
    if layer != WHOLE_MODEL_LAYER:
        details["layer"] = layer
    if name in INDEX_PAYLOAD:
        details["attrs"] = {"index": True}
    if name in PRODUCERS and (name in WHOLE_MODEL) == (layer == WHOLE_MODEL_LAYER):  # else it only shares the name
        details["from"] = [encode_producer(_site(producer), site) for producer in graph.producers(stage)]
    nbytes = header.total_size - HEADER_BYTES
    return Record(site, "f32", (header.dim_product,), (number, HEADER_BYTES, nbytes), details)


def _site(stage: Stage) -> Site:
    layer, name = stage
    return Site(0, "fwd", name if layer == WHOLE_MODEL_LAYER else f"layer-{layer}.{name}", "out")


def _words(layer: int) -> str:
    return "whole model" if layer == WHOLE_MODEL_LAYER else f"layer {layer}"


class _Graph:
    """The stage table, cut down to the stages that were recorded."""

    def __init__(self, recorded: Iterable[Stage]) -> None:
        self._recorded = set(recorded)
        self._layers = sorted({layer for layer, _ in self._recorded if layer != WHOLE_MODEL_LAYER})

    def producers(self, stage: Stage) -> list[Stage]:
        """The nearest recorded stages this one is computed from."""
        found: dict[Stage, None] = {}
        seen: set[Stage] = set()
        waiting = self._direct(stage)
        while waiting:
            producer = waiting.pop(0)
            if producer in seen:
                continue
            seen.add(producer)
            if producer in self._recorded:
                found[producer] = None
            else:
                waiting.extend(self._direct(producer))
        return list(found)

    def _direct(self, stage: Stage) -> list[Stage]:
        layer, name = stage
        experts = any((layer, moe) in self._recorded for moe in ("moe_router", "moe_router_indices", "moe_ffn_out"))
        direct: list[Stage] = []
        for producer in PRODUCERS.get(name, ()):
            if producer == INPUT:
                below = bisect_left(self._layers, layer)
                direct.append((self._layers[below - 1], "post_ffn_residual") if below else (0, "embedding"))
            elif producer == ("ffn_out" if experts else "moe_ffn_out") and (layer, producer) not in self._recorded:
                continue  # a layer has a dense network or experts, not both
            else:
                direct.append((WHOLE_MODEL_LAYER if producer in WHOLE_MODEL else layer, producer))
        return direct
