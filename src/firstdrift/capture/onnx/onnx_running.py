"""ONNX Runtime over a graph: the same model with every tensor as an output, a slice of them at a time."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import inliner, numpy_helper

from ...core.arrays import as_array
from ...core.dtypes import numpy_dtype
from ...core.traces import Array
from ...errors import CaptureError
from .onnx_graph import Graph, is_setting

SLICE_BYTES = 256 << 20  # of outputs held at once
UNKNOWN_BYTES = 8 << 20  # a tensor whose shape is not known before it is there
EXTERNAL = "session.model_external_initializers_file_folder_path"
OPTIMIZED = "optimized.onnx"
SHORT_FLOATS = {
    onnx.TensorProto.BFLOAT16: "bf16", onnx.TensorProto.FLOAT8E4M3FN: "f8e4m3fn", onnx.TensorProto.FLOAT8E5M2: "f8e5m2",
    onnx.TensorProto.FLOAT8E4M3FNUZ: "f8e4m3fnuz", onnx.TensorProto.FLOAT8E5M2FNUZ: "f8e5m2fnuz",
}  # fmt: skip


class Engine:
    """A model and how ONNX Runtime is to run it: as its file says, or as its optimizations leave it."""

    def __init__(self, source: Any, *, optimize: bool) -> None:
        self._options = ort.SessionOptions()
        self._providers = ["CPUExecutionProvider"]
        if isinstance(source, ort.InferenceSession):
            self._options, self._providers = source.get_session_options(), source.get_providers()
            source = source._model_path or source._model_bytes
        self.name = "a model in memory" if isinstance(source, bytes | onnx.ModelProto) else Path(source).name
        self._folder = None if isinstance(source, bytes | onnx.ModelProto) else Path(source).resolve().parent
        if self._folder is not None:  # where weights that are kept beside the model are found
            self._options.add_session_config_entry(EXTERNAL, str(self._folder))
        self.optimize = optimize
        model = self._read(source)
        self._plain = model.SerializeToString()
        self.graph = _graph(model, self._folder)
        if optimize:
            self.graph = replace(_graph(self._optimized(model), self._folder), origin=self.graph)

    @property
    def threads(self) -> int:
        """Threads of one operation; 0 is as many as there are cores."""
        return int(self._options.intra_op_num_threads)

    def untapped(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The model's outputs as whoever runs it gets them."""
        session = self._session(self._plain, self.optimize)
        return dict(_run(session, self.graph.outputs, inputs))

    def tensors(self, graph: Graph, wanted: Sequence[str], inputs: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """The values of a graph's tensors, in order, in runs that hold a bounded number of bytes each."""
        for names in _slices(wanted, _sizes(graph.model, inputs)):
            yield from _run(self._session(_with_outputs(graph.model, names), optimize=False), names, inputs)

    def settle(self, inputs: Mapping[str, Array]) -> Graph:
        """The graph with the shapes that it computes known, as they are for these inputs."""
        self.graph = self._settled(self.graph, inputs)
        return self.graph

    def _settled(self, graph: Graph, inputs: Mapping[str, Array]) -> Graph:
        found = {name: array for name, array in self.tensors(graph, graph.of_shapes, inputs) if is_setting(array)}
        return replace(graph, settled=found, origin=graph.origin and self._settled(graph.origin, inputs))

    def _read(self, source: Any) -> onnx.ModelProto:
        try:
            if isinstance(source, onnx.ModelProto):
                model = onnx.ModelProto()
                model.CopyFrom(source)
            elif isinstance(source, bytes):
                model = onnx.load_model_from_string(source)
            else:
                model = onnx.load(str(source), load_external_data=False)
            return inliner.inline_local_functions(model) if model.functions else model
        except FileNotFoundError:
            raise CaptureError(f"{source}: there is no such file; give an ONNX model") from None
        except Exception as error:  # protobuf's and onnx's own, of many kinds
            raise CaptureError(f"{self.name}: not an ONNX model ({_first_line(error)}); give a .onnx file") from None

    def _optimized(self, model: onnx.ModelProto) -> onnx.ModelProto:
        with tempfile.TemporaryDirectory() as folder:
            options = self._settings(ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
            options.optimized_model_filepath = str(Path(folder, OPTIMIZED))
            self._open(model.SerializeToString(), options)
            return onnx.load(options.optimized_model_filepath, load_external_data=False)  # it is where it was

    def _session(self, data: bytes, optimize: bool) -> ort.InferenceSession:
        level = ort.GraphOptimizationLevel
        return self._open(data, self._settings(level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL))

    def _settings(self, level: Any) -> ort.SessionOptions:
        options = self._options
        options.graph_optimization_level = level
        options.optimized_model_filepath = ""
        options.log_severity_level = 3
        return options

    def _open(self, data: bytes, options: ort.SessionOptions) -> ort.InferenceSession:
        try:
            return ort.InferenceSession(data, options, providers=self._providers)
        except Exception as error:  # ONNX Runtime's own, of many kinds
            raise CaptureError(
                f"{self.name}: ONNX Runtime {ort.__version__} does not run it ({_first_line(error)}); if it has custom "
                "operations, give an InferenceSession with their library in place of the file"
            ) from None


def read_inputs(engine: Engine, given: Any) -> dict[str, Array]:
    """What the model is to be fed, by name: from a mapping, a tuple in order, one array, or an .npz file."""
    wanted = list(engine.graph.inputs)
    if isinstance(given, str | Path):
        with np.load(given, allow_pickle=False) as archive:
            given = {name: archive[name] for name in archive.files} if hasattr(archive, "files") else archive
    if not isinstance(given, Mapping):
        row = given if isinstance(given, tuple | list) else (given,)
        if len(row) != len(wanted):
            raise CaptureError(
                f"{engine.name} reads {_listed(wanted)}, and {len(row)} inputs were given; give each by name"
            )
        given = dict(zip(wanted, row, strict=True))
    if set(given) != set(wanted):
        raise CaptureError(f"{engine.name} reads {_listed(wanted)}, and was given {_listed(given)}; give these by name")
    return {name: _fitting(name, as_array(given[name], f"input {name}"), engine.graph.inputs[name]) for name in wanted}


def _fitting(name: str, array: Array, value: onnx.ValueInfoProto) -> Array:
    tensor = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if array.dtype != dtype:
        raise CaptureError(f"input {name} is {dtype} in the model and {array.dtype} here; convert it")
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
    if tensor.HasField("shape"):
        fits = len(sizes) == array.ndim and all(
            size in (None, here) for size, here in zip(sizes, array.shape, strict=True)
        )
        if not fits:
            raise CaptureError(
                f"input {name} has shape {[size or '?' for size in sizes]} in the model and {list(array.shape)} here; "
                "give this shape, or export the model with dynamic shapes"
            )
    return np.ascontiguousarray(array)


def _graph(model: onnx.ModelProto, folder: Path | None) -> Graph:
    base = str(folder or "")
    arrays = {item.name: numpy_helper.to_array(item, base) for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = onnx.helper.get_attribute_value(node.attribute[0])
            array = numpy_helper.to_array(value, base) if isinstance(value, onnx.TensorProto) else np.asarray(value)
            arrays[node.output[0]] = array
    return Graph(model, arrays)


def _sizes(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The bytes of tensors, as far as shapes can be inferred from those of the inputs."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        if value.name in inputs:
            del value.type.tensor_type.shape.dim[:]
            value.type.tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=size) for size in inputs[value.name].shape
            )
    try:
        inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    except Exception:  # a model too large for it, or an operation it knows otherwise: sizes are only an estimate
        return {}
    found = {}
    for value in inferred.graph.value_info:
        sizes = [size.dim_value for size in value.type.tensor_type.shape.dim if size.HasField("dim_value")]
        if len(sizes) == len(value.type.tensor_type.shape.dim):
            found[value.name] = 8 * int(np.prod(sizes, dtype=np.int64))
    return found


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """A model with these tensors as its outputs."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    del tapped.graph.output[:]
    tapped.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    data: bytes = tapped.SerializeToString()
    return data


def _slices(names: Sequence[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    held, part = 0, list[str]()
    for name in names:
        size = sizes.get(name, UNKNOWN_BYTES)
        if part and held + size > SLICE_BYTES:
            yield part
            held, part = 0, []
        held, part = held + size, [*part, name]
    if part:
        yield part


def _run(
    session: ort.InferenceSession, names: Sequence[str], inputs: Mapping[str, Array]
) -> Iterator[tuple[str, Array]]:
    given = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
    try:
        values = session.run_with_ort_values(list(names), given)
    except Exception as error:  # ONNX Runtime's own, of many kinds
        raise CaptureError(f"ONNX Runtime could not run the model ({_first_line(error)}); check its inputs") from None
    for name, value in zip(names, values, strict=True):
        if value.is_tensor():
            yield name, _array(value)


def _array(value: ort.OrtValue) -> Array:
    short = SHORT_FLOATS.get(value.element_type())
    if short is None:
        found: Array = value.numpy()
        return found
    dtype, shape = numpy_dtype(short), tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
