"""From an ONNX model and its inputs to a trace: every tensor that ONNX Runtime computes, under its module's name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime as ort

from ..._version import __version__
from ...core.sites import Site
from ...core.strict_json import Json
from ...core.traces import Array
from ...errors import CaptureWarning
from ...store.writer import Writer
from ..recorder import Recorder
from ..scope import Scope
from .onnx_graph import Graph
from .onnx_running import Engine, read_inputs


def record(
    source: Any,
    path: str | os.PathLike[str],
    inputs: Any,
    *,
    optimize: bool,
    scope: Mapping[str, Any],
    overwrite: bool,
    checksum: bool,
    header: Mapping[str, Json],
) -> None:
    """Run a model once and write its trace. Nothing is written before the model has run without taps."""
    chosen = Scope.of(**scope)
    engine = Engine(source, optimize=optimize)
    given = read_inputs(engine, inputs)
    plain = engine.untapped(given)
    graph = engine.settle(given)
    with Writer(path, overwrite=overwrite, checksum=checksum, **{**_header(engine), **header}) as writer:
        recorder = Recorder(writer, chosen)
        for order, (name, array) in enumerate(given.items()):
            recorder.put(Site(0, "input", "input", name), array, order=order)
        _put_weights(graph, recorder)
        changed = _put_tensors(engine, given, plain, recorder)
        if changed:
            note = f"reading all tensors changes the outputs {', '.join(changed)}: ONNX Runtime fuses what is not read"
            writer.describe(notes=[note])
            warnings.warn(f"{engine.name}: {note}", CaptureWarning, stacklevel=4)


def _put_weights(graph: Graph, recorder: Recorder) -> None:
    for tensor, sites in graph.weights.items():
        if "weight" in recorder.scope.phases:
            _put(recorder, sites, graph.arrays[tensor], note=f"initializer {tensor}")


def _put_tensors(
    engine: Engine, inputs: Mapping[str, Array], plain: Mapping[str, Array], recorder: Recorder
) -> list[str]:
    """Record what every node computes; returns the outputs that differ from those of a run without taps."""
    graph = engine.graph
    copies = graph.copies()
    wanted = [tensor for tensor in graph.makers if tensor in graph.sites and tensor not in graph.settled]
    changed = []
    for tensor, array in engine.tensors(graph, wanted, inputs):
        number = graph.makers[tensor]
        op = graph.nodes[number].op_type
        sites = [site for site in graph.sites[tensor] if recorder.scope.takes(site.name.partition("/")[0])]
        if tensor in copies and op == "Identity":
            continue
        if tensor in copies:
            sites = [site._replace(port=f"{site.port}.{op}") for site in graph.weights[copies[tensor]]]
        _put(
            recorder, sites, array, op=op, attrs=graph.attrs(number), order=number,
            producers=_producers(graph, number), note=f"tensor {tensor}",
        )  # fmt: skip
        if tensor in plain and plain[tensor].tobytes() != array.tobytes():
            changed.append(tensor)
    return changed


def _put(recorder: Recorder, sites: list[Site], array: Array, **details: Json) -> None:
    """One tensor at all its sites: its bytes once."""
    kept = None
    for site in sites:
        if site.phase not in recorder.scope.phases:
            continue
        if kept is None or not recorder.again(site, kept, **details):
            kept = recorder.put(site, array, **details)


def _producers(graph: Graph, number: int) -> list[Site]:
    """What a node reads that is recorded, in its order."""
    return [
        Site(0, "input", "input", tensor) if tensor in graph.inputs
        else (graph.weights.get(tensor) or graph.sites[tensor])[0]
        for tensor in graph.sources(number)
    ]  # fmt: skip


def _header(engine: Engine) -> dict[str, Json]:
    model = engine.graph.model
    return {
        "producer": f"firstdrift {__version__}, onnxruntime {ort.__version__}",
        "model": model.graph.name or engine.name,
        "options": {"optimize": engine.optimize, "opsets": {k or "ai.onnx": v for k, v in engine.graph.opsets.items()}},
        "environment": {
            "onnxruntime": ort.__version__, "onnx": onnx.__version__, "threads": engine.threads,
            "exporter": f"{model.producer_name} {model.producer_version}".strip(),
        },
    }  # fmt: skip
