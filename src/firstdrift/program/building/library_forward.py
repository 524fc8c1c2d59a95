"""The forward pass of a step from the library: what each operation reads, and its calls in a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...core.records import Record
from ...core.sites import Site
from ...core.strict_json import Json
from ...core.traces import Trace
from ..calls import Call, Earlier, Leaf, Node, Ref, Type
from ..interpreter import NotReplayableError
from ..operations.known_operations import named
from ..operations.op_table import Operation
from .call_templates import Template, template_of
from .step_inputs import StepInputs

NOTE = "operations from the library"
NONE = Ref(0)  # the gradient, where no derivative is asked for
OUTPUTS = {"out": 0, "out.0": 0, "out.1": 1, "out.1.0": 1, "out.2": 2, "out.1.1": 2}
# What stage files can say without settings and weights: the stage is the operation.
STAGE_OPERATIONS = {
    "qkv_bias": "Identity", "post_attn_residual": "Add", "post_ffn_residual": "Add", "ffn_silu": "SiLU",
    "ffn_swigl": "Mul",
}  # fmt: skip


class OpSpec(NamedTuple):
    """An operation by name, with its settings; `reads` where it was found out what it reads, too."""

    op: str
    attrs: Mapping[str, Json]
    reads: tuple[Site, ...] | None = None

    def __str__(self) -> str:
        said = ", ".join(f"{key}={item}" for key, item in self.attrs.items())
        return f"{self.op}({said})" if said else self.op


class Made(NamedTuple):
    """An operation in place: its template, the values that it reads, whose they are, and its first call's number."""

    template: Template
    reads: tuple[Ref, ...]
    sites: tuple[Site, ...]
    first: int

    def at(self, ref: Ref, above: Ref, derivative: int) -> Ref:
        """A reference of the template in the step; its derivative's calls begin at a number of their own."""
        arguments, border = self.template.arguments, self.template.arguments + self.template.forward
        if ref.node < arguments:
            return above if ref.node == arguments - 1 else self.reads[ref.node]
        start = self.first - arguments if ref.node < border else derivative - border
        return ref._replace(node=ref.node + start)


def op_spec_of(record: Record, inferred: Mapping[Site, OpSpec]) -> OpSpec | None:
    """The operation of the library that a record names."""
    found = inferred.get(record.site)
    if found is None and record.op is not None:
        found = OpSpec(record.op, record.attrs)
    elif found is None and (stage := record.details.get("stage")) in STAGE_OPERATIONS:
        found = OpSpec(STAGE_OPERATIONS[stage], {})
    return found if found is not None and named(found.op) is not None else None


class Building(StepInputs):
    """One step in the making: its nodes, the values of its sites, and who reads what."""

    def __init__(
        self, trace: Trace, records: Sequence[Record], number: int, inferred: Mapping[Site, OpSpec],
        templates: dict[tuple[object, ...], Template] | None = None,
    ) -> None:  # fmt: skip
        self._templates = {} if templates is None else templates  # layers repeat, and finding calls takes long
        super().__init__(trace, records, number)
        self.inferred = inferred
        self.nodes: list[Node] = []
        self.sites: dict[Site, Ref] = {}
        self.optimizers: list[dict[str, Json]] = []  # with the settings of their groups
        self.notes: dict[str, None] = {NOTE: None}
        self.made: dict[Site, Made] = {}
        self.read_by: dict[Site, list[tuple[Site, int]]] = defaultdict(list)  # who reads it, as which argument
        self.strangers: dict[Site, Site] = {}  # who reads it by an operation that the library has not
        self._leaves: dict[Site, Ref] = {}
        self._taken: set[Ref] = set()

    # ---- operations

    def operation(self, record: Record) -> None:
        """The calls of what a record names."""
        site, spec = record.site, op_spec_of(record, self.inferred)
        unknown = f"the library has no {record.op}" if record.op else "its operation was not recorded"
        if spec is not None and spec.reads is not None:
            self.place(record, spec, spec.reads, self.weights_of(record))
            return
        inputs = self.reads(record, is_known=spec is not None)
        if site.port.startswith("in."):  # what lies between modules
            spec = OpSpec("Reshape" if len(inputs) == 1 else "Add", {})
        elif spec is None and len(inputs) == 1 and inputs[0].name.startswith(f"{site.name}." if site.name else ""):
            spec = OpSpec("Reshape", {})  # what a container returns, its last child made
        if spec is None:
            self.strangers.update(dict.fromkeys(inputs, site))
            raise NotReplayableError(unknown)
        if not inputs:
            raise NotReplayableError("what it was computed from is not on record")
        self.place(record, spec, inputs, self.weights_of(record))

    def _template(
        self, operation: Operation, settings: Mapping[str, Any], inputs: int, ports: Sequence[str], record: Record,
        at: int | str, types: Sequence[Type],
    ) -> Template:  # fmt: skip
        assert record.shape is not None
        assert record.dtype is not None
        key = (operation.names, repr(settings), inputs, *ports, record.shape, record.dtype, at, *types)
        if key not in self._templates:
            function = operation.function(settings, inputs, ports, record.shape, record.dtype, at)
            self._templates[key] = template_of(function, types)
        return self._templates[key]

    def place(self, record: Record, spec: OpSpec, inputs: Sequence[Site], weights: Sequence[tuple[str, Site]]) -> None:
        """Put the calls of an operation into the step."""
        operation = named(spec.op)
        assert operation is not None
        inputs = as_many(operation, inputs)
        settings, missing = operation.settled(spec.attrs)
        if missing and record.op is not None:
            said = ", ".join(f"{name} {_shown(settings[name])}" for name in missing)
            self.notes[f"{spec.op}: not recorded, so that its defaults were taken: {said}"] = None
        at = OUTPUTS.get(record.site.port, 0)
        if at >= operation.outputs:
            raise NotReplayableError(f"{spec.op} has no output {record.site.port}")
        part = "loss" if record.site.phase == "loss" else "forward"
        made = self.put(record, operation, settings, inputs, weights, at, part)
        for number, one in enumerate(made.sites):
            self.read_by[one].append((record.site, number))

    def put(
        self, record: Record, operation: Operation, settings: Mapping[str, Any], inputs: Sequence[Site],
        weights: Sequence[tuple[str, Site]], at: int | str, part: str,
    ) -> Made:  # fmt: skip
        """Put the calls of an operation with settings into the step, as those of a site."""
        sites = (*inputs, *(site for _, site in weights))
        ports = [port for port, _ in weights]
        template = self._template(
            operation, settings, len(inputs), ports, record, at, [self.type(one) for one in sites]
        )
        values = tuple(map(self.value, sites))  # before the number of the first call: they may be leaves to be added
        made = Made(template, values, sites, len(self.nodes))
        self.calls(made, template.calls[: template.forward], part, record.site.name)
        self.made[record.site] = made
        self.sites[record.site] = made.at(template.result, NONE, 0)
        return made

    def calls(
        self, made: Made, calls: Sequence[Call], part: str, module: str, above: Ref = NONE, of: int | None = None
    ) -> int:
        """Append calls of a template; gives the number of the first."""
        first = len(self.nodes)

        def moved(item: Any) -> Any:
            if isinstance(item, Ref):
                return made.at(item, above, first)
            return tuple(map(moved, item)) if isinstance(item, tuple) else item

        for call in calls:
            kwargs = {key: moved(item) for key, item in call.kwargs.items()}
            self.nodes.append(replace(call, args=moved(call.args), kwargs=kwargs, part=part, module=module, of=of))
        return first

    # ---- values

    def given(self, record: Record) -> None:
        """What the model was fed, and its weights."""
        self.sites[record.site] = self.leaf(record.site)

    def leaf(self, site: Site) -> Ref:
        """A recorded tensor as it is."""
        if site not in self._leaves:
            source = site if site.step == self.number else Earlier(site)
            self._leaves[site] = Ref(len(self.nodes))
            self.nodes.append(Leaf(self.type(site), source, f"{site.name}.{site.port}"))
        return self._leaves[site]

    def value(self, site: Site) -> Ref:
        """A recorded tensor as a call made it, or as it is."""
        return self.sites[site] if site in self.sites else self.leaf(site)

    def call(self, op: str, args: tuple[Any, ...], type_: Type, part: str, module: str, **kwargs: Json) -> Ref:
        """Append one call with one result."""
        self.nodes.append(Call(op, args, kwargs, (type_,), part=part, module=module))
        return Ref(len(self.nodes) - 1)

    def shaped(self, ref: Ref, shape: tuple[int, ...], part: str, module: str) -> Ref:
        """A value in another shape, if it is not in that one."""
        type_ = self.known_type(ref)
        if type_.shape == shape:
            return ref
        return self.call("aten.reshape.default", (ref, shape), type_._replace(shape=shape), part, module)

    def settle(self, record: Record, ref: Ref, part: str) -> None:
        """Say what a site is: a value of its own, in the shape and dtype that were recorded."""
        assert record.shape is not None
        name = record.site.name
        ref = self.shaped(ref, record.shape, part, name)
        type_ = self.known_type(ref)
        if isinstance(self.nodes[ref.node], Leaf) or ref in self._taken:
            ref = self.call("aten.clone.default", (ref,), type_, part, name)
        if type_.dtype != record.dtype and record.dtype is not None:
            type_ = type_._replace(dtype=record.dtype)
            ref = self.call("aten._to_copy.default", (ref,), type_, part, name, dtype={"dtype": record.dtype})
        self._taken.add(ref)
        self.sites[record.site] = ref

    def known_type(self, ref: Ref) -> Type:
        """The type of a value."""
        node = self.nodes[ref.node]
        found = node.type if isinstance(node, Leaf) else node.results[ref.at]
        if found is None:
            raise NotReplayableError("its calls do not say what they give")
        return found


def as_many(operation: Operation, inputs: Sequence[Site]) -> Sequence[Site]:
    """As many inputs as an operation reads; what a module is given beyond them is no tensor that it computes with."""
    least = 2 if operation.inputs < 0 else max(1, operation.inputs)
    if len(inputs) < least:
        raise NotReplayableError(f"{operation.names[0]} reads {least} tensors, and {len(inputs)} are on record")
    return inputs if operation.inputs <= 0 else inputs[: operation.inputs]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)
