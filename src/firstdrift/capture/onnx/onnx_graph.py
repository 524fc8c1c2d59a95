"""An ONNX graph as sites: which module made a tensor, by which operation, with which settings, from what.

Exporters write the module of a node into its metadata (torch's dynamo exporter) or its name (`/layers.0/mlp/MatMul`).
A tensor that is the only one to leave a module is the module's output. Small constants are settings of the nodes that
read them, other initializers are weights of the module that reads them.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from ...core.arrays import shortest
from ...core.sites import Site
from ...core.strict_json import Json
from ...core.traces import Array

SCOPES = "pkg.torch.onnx.name_scopes"  # of torch's exporter: the modules around a node, outermost first, and a function
SETTING_ELEMENTS = 64  # a constant of more elements is a weight
SHAPES = frozenset({"Shape", "Size"})
COPIES = frozenset({"Identity", "DequantizeLinear", "Cast"})  # of a weight: the same weight, as it is computed with

# The parameter that an input of an operation is, where the initializer's own name does not say it.
ROLES: Mapping[str, Mapping[int, str]] = {
    "MatMul": {0: "weight", 1: "weight"},
    "Gemm": {1: "weight", 2: "bias"},
    "Gather": {0: "weight"},
    "Conv": {1: "weight", 2: "bias"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "LayerNormalization": {1: "weight", 2: "bias"},
    "SkipLayerNormalization": {2: "weight", 3: "bias"},
    "RMSNormalization": {1: "weight"},
    "SimplifiedLayerNormalization": {1: "weight"},
    "SkipSimplifiedLayerNormalization": {2: "weight"},
    "InstanceNormalization": {1: "weight", 2: "bias"},
    "GroupNormalization": {1: "weight", 2: "bias"},
    "BatchNormalization": {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
    "PRelu": {1: "weight"},
    "Add": {0: "bias", 1: "bias"},
    "Mul": {0: "weight", 1: "weight"},
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands: the modules around it from the outside in, and a name of its own in the innermost."""

    modules: tuple[str, ...]
    name: str

    @property
    def module(self) -> str:
        """The innermost module; without modules, the node itself."""
        return self.modules[-1] if self.modules else self.name


@dataclass(frozen=True)
class Graph:
    """A model's graph. `arrays` are its constants by tensor, `origin` is the graph before optimizations, whose tensors
    keep their names, and `settled` are the tensors that hold shapes, with what they held in this run."""

    model: onnx.ModelProto
    arrays: Mapping[str, Array]
    origin: Graph | None = None
    settled: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> list[NodeProto]:
        """The nodes that compute, in order; a constant is none."""
        return [node for node in self.model.graph.node if node.op_type != "Constant"]

    @cached_property
    def inputs(self) -> dict[str, onnx.ValueInfoProto]:
        """What the model is fed, by name."""
        return {value.name: value for value in self.model.graph.input if value.name not in self.arrays}

    @cached_property
    def outputs(self) -> list[str]:
        """What the model gives."""
        return [value.name for value in self.model.graph.output]

    @cached_property
    def opsets(self) -> dict[str, int]:
        """The version of each domain of operations."""
        return {item.domain: item.version for item in self.model.opset_import}

    @cached_property
    def readers(self) -> dict[str, list[tuple[int, int]]]:
        """Of each tensor the nodes that read it, and as which input."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, node in enumerate(self.nodes):
            for at, tensor in enumerate(node.input):
                found[tensor].append((number, at))
        return found

    @cached_property
    def makers(self) -> dict[str, int]:
        """Of each computed tensor the node that makes it."""
        return {tensor: number for number, node in enumerate(self.nodes) for tensor in node.output if tensor}

    @cached_property
    def places(self) -> list[Place]:
        """Where each node stands: one that optimizations put there, where the node stood that made its tensor."""
        if self.origin is None:
            return [_place(node) for node in self.nodes]
        makers, places = self.origin.makers, self.origin.places
        kept = [next((tensor for tensor in node.output if tensor in makers), None) for node in self.nodes]
        return [
            Place((), node.name or node.op_type) if tensor is None else places[makers[tensor]]
            for node, tensor in zip(self.nodes, kept, strict=True)
        ]

    @cached_property
    def of_shapes(self) -> list[str]:
        """Tensors that depend on shapes and small constants alone, whatever numbers the model is fed."""
        known = {"", *(tensor for tensor in self.arrays if not self.is_weight(tensor))}
        found: list[str] = []
        for node in self.nodes:
            if node.op_type in SHAPES or (not _draws(node) and all(tensor in known for tensor in node.input)):
                known.update(node.output)
                found += filter(None, node.output)
        return found

    @cached_property
    def sites(self) -> dict[str, tuple[Site, ...]]:
        """The sites of each computed tensor: the first is what others refer to, the rest are modules around it."""
        leaving = self._leaving() if self.origin is None else self.origin.sites
        names: Counter[str] = Counter()
        found: dict[str, tuple[Site, ...]] = {}
        for node, place in zip(self.nodes, self.places, strict=True):
            name = f"{place.module}/{place.name}" if place.modules else place.name
            names[name] += 1
            own = name if names[name] == 1 else f"{name}_{names[name] - 1}"
            outputs = [tensor for tensor in node.output if tensor]
            for at, tensor in enumerate(outputs):
                port = "out" if len(outputs) == 1 else f"out.{at}"
                found[tensor] = tuple(leaving.get(tensor, ())) or (Site(0, "fwd", own, port),)
        return found

    @cached_property
    def weights(self) -> dict[str, list[Site]]:
        """The sites of each initializer that is no setting: those of its own name, and of further modules it serves."""
        modules = {module for place in self.places for module in place.modules}
        found: dict[str, list[Site]] = {}
        taken: set[tuple[str, str]] = set()
        for tensor in filter(self.is_weight, self.arrays):
            served = list(dict.fromkeys(self._served(tensor)))
            places = [
                (owner, port) for name in self._names_of(tensor)
                for owner, dot, port in [name.rpartition(".")]
                if dot and (not served or not modules or {owner, owner.rpartition(".")[0]} & modules)
            ] or served[:1] or [(tensor, "weight")]  # fmt: skip
            if len(served) > 1:  # an exporter keeps equal parameters of several modules once
                places += [place for place in served if place not in places and place[1] == places[0][1]]
            places = [place for place in places if place not in taken] or [(tensor, "weight")]
            taken.update(places)
            found[tensor] = [Site(0, "weight", *place) for place in places]
        return found

    def is_weight(self, tensor: str) -> bool:
        """Whether a constant is a weight: no whole numbers, no single number, no short list of them."""
        array = self.arrays.get(tensor)
        return array is not None and tensor in self.readers and not is_setting(array)

    def copies(self) -> dict[str, str]:
        """Computed tensors that are a weight as it is computed with, by that weight."""
        found: dict[str, str] = {}
        for node in self.nodes:
            source = node.input[0] if node.input else ""
            if node.op_type in COPIES and (self.is_weight(source) or source in found):
                found[node.output[0]] = found.get(source, source)
        return found

    def attrs(self, number: int) -> dict[str, Json]:
        """A node's settings: its attributes or their defaults, and the small constants and shapes that it reads, by the
        operation's names for them."""
        node = self.nodes[number]
        schema = _schema(node, self.opsets)
        defaults = [item.default_value for item in schema.attributes.values()] if schema else []
        said = [*(item for item in defaults if item.name), *node.attribute]
        found = {item.name: value for item in said if (value := _attribute(item)) is not None}
        names = [item.name for item in schema.inputs] if schema else []
        for at, tensor in enumerate(node.input):
            array = self.settled.get(tensor, None if self.is_weight(tensor) else self.arrays.get(tensor))
            if array is not None:
                found.setdefault(names[at] if at < len(names) else f"input_{at}", _plain(array))
        return found

    def sources(self, number: int) -> list[str]:
        """The tensors a node reads that are no settings, in its order."""
        return [
            tensor for tensor in self.nodes[number].input
            if tensor and tensor not in self.settled and (tensor not in self.arrays or self.is_weight(tensor))
        ]  # fmt: skip

    def _names_of(self, tensor: str) -> list[str]:
        """What an initializer is called, by itself and by those who got a copy of it."""
        copies = [self.nodes[number] for number, _ in self.readers[tensor] if self.nodes[number].op_type == "Identity"]
        return [tensor, *(copy.output[0] for copy in copies)]

    def _served(self, tensor: str) -> Iterator[tuple[str, str]]:
        """The modules that read an initializer, directly or as a copy of it, and as which parameter."""
        for number, at in self.readers.get(tensor, ()):
            node, place = self.nodes[number], self.places[number]
            if node.op_type in COPIES and at == 0:
                yield from self._served(node.output[0])
            elif node.op_type == "Transpose":
                yield from ((name, "weight") for name, _ in self._served(node.output[0]))
            elif (role := ROLES.get(node.op_type, {}).get(at)) is not None:
                yield place.module, role

    def _leaving(self) -> dict[str, list[Site]]:
        """Of each tensor that leaves modules, their outputs: the innermost module first."""
        inside: dict[str, list[int]] = defaultdict(list)
        for number, place in enumerate(self.places):
            for module in place.modules:
                inside[module].append(number)
        found: dict[str, list[Site]] = defaultdict(list)
        for module in sorted(inside, key=lambda name: (-name.count("."), -len(name), name)):
            made = [tensor for number in inside[module] for tensor in self.nodes[number].output]
            out = [tensor for tensor in made if self._leaves(tensor, frozenset(inside[module]))]
            calls = self._are_calls(out, inside[module])
            for at, tensor in enumerate(out):
                port, call = ("out", at) if calls else ("out" if len(out) == 1 else f"out.{at}", 0)
                found[tensor].append(Site(0, "fwd", module, port, call))
        for at, tensor in enumerate(self.outputs):
            found[tensor].append(Site(0, "fwd", "", "out" if len(self.outputs) == 1 else f"out.{at}"))
        return found

    def _leaves(self, tensor: str, inside: frozenset[int]) -> bool:
        if not tensor or tensor in self.settled:
            return False
        return tensor in self.outputs or any(reader not in inside for reader, _ in self.readers.get(tensor, ()))

    def _are_calls(self, out: list[str], inside: list[int]) -> bool:
        """Whether several outputs are those of several calls: the operations repeat, one output a time."""
        times = len(out)
        if times < 2 or len(inside) % times:
            return False
        period = len(inside) // times
        operations = [self.nodes[number].op_type for number in inside]
        parts = [inside[start : start + period] for start in range(0, len(inside), period)]
        ended = all(self.makers[tensor] in part for tensor, part in zip(out, parts, strict=True))
        return ended and operations == operations[:period] * times


def is_setting(array: Array) -> bool:
    """Whether a constant is a setting of whoever reads it: one number, or a short list of sizes or flags."""
    listed = array.dtype.kind == "b" or (array.dtype.kind == "i" and array.dtype.itemsize >= 4)
    return array.size <= 1 or (array.size <= SETTING_ELEMENTS and listed)


def _place(node: NodeProto) -> Place:
    """A node's modules by what its exporter wrote; a node that says nothing stands in none."""
    said = next((item.value for item in node.metadata_props if item.key == SCOPES), "")
    if said:
        try:
            scopes = ast.literal_eval(said)
        except (SyntaxError, ValueError):
            scopes = []
        if isinstance(scopes, list) and all(isinstance(scope, str) for scope in scopes):
            return Place(tuple(dict.fromkeys(filter(None, scopes[:-1]))), node.op_type)
    path = [part for part in (node.name or next(iter(node.output), "")).split("/") if part]
    if len(path) > 1:
        return Place(tuple(_dotted(path[:end]) for end in range(1, len(path))), node.op_type)
    named = "" if node.name.startswith("/") else node.name or next(filter(None, node.output), "")
    return Place((), named or node.op_type)


def _dotted(path: list[str]) -> str:
    """A path of module names with dots. A container's item has its container's name again: `/blocks/blocks.0`."""
    kept = [part for part, after in zip(path, [*path[1:], ""], strict=True) if not after.startswith(f"{part}.")]
    return ".".join(kept)


def _draws(node: NodeProto) -> bool:
    return "Random" in node.op_type or node.op_type in ("Bernoulli", "Multinomial")


def _schema(node: NodeProto, opsets: Mapping[str, int]) -> Any:
    """What ONNX says of an operation; None for one that it does not know."""
    try:
        return onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return None


def _attribute(item: onnx.AttributeProto) -> Json:
    """An attribute as JSON; None for what is no setting, such as a graph or a large tensor."""
    value: Any = onnx.helper.get_attribute_value(item)
    if isinstance(value, onnx.TensorProto):
        array = numpy_helper.to_array(value)
        return _plain(array) if array.size <= SETTING_ELEMENTS else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, int | float | str):
        return _short(value)
    items = list(value) if isinstance(value, Iterable) else []
    if all(isinstance(part, bytes) for part in items):
        return [part.decode("utf-8", "replace") for part in items]
    return [_short(part) for part in items] if all(isinstance(part, int | float) for part in items) else None


def _plain(array: Array) -> Json:
    """Few numbers as JSON: one of them by itself."""
    plain = (array if array.dtype.kind in "iub" else array.astype(np.float32)).reshape(-1).tolist()
    return _short(plain[0]) if array.ndim == 0 else [_short(number) for number in plain]


def _short(value: Any) -> Any:
    """A number as people write it."""
    return shortest(value) if isinstance(value, float) else value
