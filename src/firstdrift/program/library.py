"""A program for a trace that holds none: from what it says of its operations, their settings and what they read.

It is made without a look at any number. What makes it safe is asked site by site, when a site is asked for: calls
that do not give the reference's own tensor from the reference's own inputs are no program of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..records import Record
from ..sites import Site
from ..strict_json import Json
from ..traces import Trace
from .call_templates import Template, template_of
from .calls import Call, Earlier, Leaf, Node, Program, Ref, Step, Type
from .cuts import Cut
from .interpreter import NotReplayableError
from .op_table import Operation, named
from .reproduction import why_not

NOTE = "operations from the library"
MOST_NODES = 2_000_000  # of a step
DEEPEST = 64  # tensors without a recorded gradient that one passes through
GRADIENTS = ("grad_scaled", "grad")  # what an optimizer was given, the surest first
OUTPUTS = {"out": 0, "out.0": 0, "out.1": 1, "out.1.0": 1, "out.2": 2, "out.1.1": 2}
# What stage files can say without settings and weights: the stage is the operation.
STAGE_OPERATIONS = {
    "qkv_bias": "Identity", "post_attn_residual": "Add", "post_ffn_residual": "Add", "ffn_silu": "SiLU",
    "ffn_swigl": "Mul",
}  # fmt: skip


class Told(NamedTuple):
    """An operation by name, with its settings; `reads` where it was found out what it reads, too."""

    op: str
    attrs: Mapping[str, Json]
    reads: tuple[Site, ...] | None = None


Inferred = Mapping[Site, Told]


@dataclass(frozen=True)
class LibraryProgram(Program):
    """A program from the library. `find` gives only sites whose calls reproduce what the trace recorded there."""

    trace: Trace | None = None
    inferred: Inferred = field(default_factory=dict)
    _asked: dict[Site, str | None] = field(default_factory=dict, compare=False, repr=False)

    def find(self, site: Site) -> tuple[Step, Ref] | None:
        """The step and the value of a site, if what is said of it holds."""
        return super().find(site) if self.why_not(site) is None else None

    def why_not(self, site: Site) -> str | None:
        """Why a site has no call; None if it has one that reproduces it."""
        if site not in self._asked:
            self._asked[site] = self._why_not(site)
        return self._asked[site]

    def why_not_cut(self, cut: Cut, step: Step) -> str | None:
        """Why a part of the program cannot be trusted: a recorded tensor that it makes anew does not hold."""
        inside = set(cut.nodes)
        for site, ref in step.sites.items():
            if ref.node in inside and isinstance(step.nodes[ref.node], Call) and (why := self.why_not(site)):
                return f"{site}: {why}"
        return None

    def _why_not(self, site: Site) -> str | None:
        assert self.trace is not None
        if not isinstance(self.steps, Steps) or site.step not in self.steps:
            return "the trace has no such step"
        built = self.steps.built(site.step)
        if site in built.step.sites:
            return why_not(self.trace, built.step, site)
        return built.reasons.get(site, "the library has no call for it")


def library_program(trace: Trace, inferred: Inferred | None = None) -> LibraryProgram | None:
    """The program that a trace's `op` and `attrs` mean; None where it names no operation that the library has.

    `inferred` adds operations that were found by trying them, for sites that name none.
    """
    steps = Steps(trace, inferred or {})
    if not any(told_of(record, steps.inferred) for record in trace.records):
        return None
    return LibraryProgram({"program": 1, "notes": [NOTE]}, steps, trace=trace, inferred=steps.inferred)


def told_of(record: Record, inferred: Inferred) -> Told | None:
    """The operation of the library that a record names."""
    found = inferred.get(record.site)
    if found is None and record.op is not None:
        found = Told(record.op, record.attrs)
    elif found is None and (stage := record.details.get("stage")) in STAGE_OPERATIONS:
        found = Told(STAGE_OPERATIONS[stage], {})
    return found if found is not None and named(found.op) is not None else None


class Built(NamedTuple):
    """A step, and why sites have no call in it."""

    step: Step
    reasons: Mapping[Site, str]


class Steps(Mapping[int, Step]):
    """The steps of a trace, each made when it is asked for."""

    def __init__(self, trace: Trace, inferred: Inferred) -> None:
        self.trace = trace
        self.inferred = inferred
        self._made: dict[int, Built] = {}
        self._records: dict[int, list[Record]] | None = None

    def built(self, number: int) -> Built:
        """A step with the reasons for what it lacks."""
        if number not in self._made:
            self._made[number] = self.building(number).build()
        return self._made[number]

    def building(self, number: int) -> Building:
        """A step with nothing in it yet."""
        return Building(self.trace, self._by_step().get(number, []), number, self.inferred)

    def __getitem__(self, number: int) -> Step:
        return self.built(number).step

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_step())

    def __len__(self) -> int:
        return len(self._by_step())

    def __contains__(self, number: object) -> bool:
        return number in self._by_step()

    def _by_step(self) -> dict[int, list[Record]]:
        if self._records is None:
            self._records = {}
            for record in self.trace.records:
                self._records.setdefault(record.site.step, []).append(record)
        return self._records


class _Made(NamedTuple):
    """An operation in place: its template, the values that it reads, and the number of its first call."""

    template: Template
    reads: tuple[Ref, ...]
    sites: tuple[Site, ...]
    first: int


class Building:
    """One step, made record by record in causal order."""

    def __init__(self, trace: Trace, records: Sequence[Record], number: int, inferred: Inferred) -> None:
        self.trace, self.records, self.number, self.inferred = trace, records, number, inferred
        self.there = {record.site: record for record in records if record.at is not None}
        self.nodes: list[Node] = []
        self.sites: dict[Site, Ref] = {}
        self.reasons: dict[Site, str] = {}
        self.notes: dict[str, None] = {NOTE: None}
        self._leaves: dict[Site, Ref] = {}
        self._made: dict[Site, _Made] = {}
        self._read_by: dict[Site, list[tuple[Site, int]]] = defaultdict(list)  # who reads it, as which argument
        self._unknown_readers: dict[Site, Site] = {}
        self._derived: dict[tuple[Site, Ref], tuple[Ref | None, ...]] = {}
        self._graph = any("from" in record.details for record in records)
        self._weights = _weights(trace, number)
        self._entered, self._before = _entered(records), _before(records)
        self._rank = {record.site: rank for rank, record in enumerate(records)}

    def build(self) -> Built:
        """The step."""
        for record in self.records:
            if record.at is None or record.shape is None:
                continue
            try:
                if len(self.nodes) > MOST_NODES:
                    raise NotReplayableError(f"the step has more than {MOST_NODES} calls")
                self._add(record)
            except NotReplayableError as error:
                self.reasons[record.site] = str(error)
        step = Step(self.number, tuple(self.nodes), (), self.sites, (), tuple(self.notes))
        return Built(step, self.reasons)

    def _add(self, record: Record) -> None:
        phase = record.site.phase
        if phase in ("input", "weight"):
            self.sites[record.site] = self.leaf(record.site)
        elif phase == "fwd" or phase == "loss":
            self._operation(record)
        else:
            ref = _BACKWARD[phase](self, record)
            self.sites[record.site] = self._recast(ref, record)

    # ---- forward

    def _operation(self, record: Record) -> None:
        site, told = record.site, told_of(record, self.inferred)
        try:
            inputs, weights = self.sources(record, is_known=told is not None)
        except NotReplayableError:
            if told is None:
                raise NotReplayableError(_unknown(record)) from None
            raise
        if told is not None and told.reads is not None:
            inputs = list(told.reads)
        elif site.port.startswith("in."):
            told = Told("Reshape" if len(inputs) == 1 else "Add", {})  # what lies between modules
            weights = []
        elif told is None and len(inputs) == 1 and inputs[0].name.startswith(f"{site.name}." if site.name else ""):
            told = Told("Reshape", {})  # what a container returns, its last child made
        if told is None:
            for one in inputs:
                self._unknown_readers[one] = site
            raise NotReplayableError(_unknown(record))
        self.place(record, told, inputs, weights)

    def place(self, record: Record, told: Told, inputs: Sequence[Site], weights: Sequence[tuple[str, Site]]) -> None:
        """Put the calls of an operation into the step."""
        operation = named(told.op)
        assert operation is not None
        inputs = _as_many(operation, inputs)
        settings, missing = operation.settled(told.attrs)
        if missing and record.op is not None:
            said = ", ".join(f"{name} {_shown(settings[name])}" for name in missing)
            self.notes[f"{told.op}: not recorded, so that its defaults were taken: {said}"] = None
        at = OUTPUTS.get(record.site.port, 0)
        if at >= operation.outputs and not record.site.port.startswith("in."):
            raise NotReplayableError(f"{told.op} has no output {record.site.port}")
        sites = (*inputs, *(site for _, site in weights))
        self._put(record, operation, settings, [port for port, _ in weights], sites, len(inputs), at)
        for number, one in enumerate(sites):
            self._read_by[one].append((record.site, number))

    def _put(
        self, record: Record, operation: Operation, settings: Mapping[str, Any], ports: Sequence[str],
        sites: tuple[Site, ...], inputs: int, at: Any, part: str = "forward",
    ) -> None:  # fmt: skip
        assert record.shape is not None
        function = operation.function(settings, inputs, ports, record.shape, record.dtype or "", at)
        template = template_of(function, [self._type(site) for site in sites])
        made = _Made(template, tuple(map(self.value, sites)), sites, len(self.nodes))
        part = "loss" if record.site.phase == "loss" else part
        for call in template.calls[: template.forward]:
            self.nodes.append(replace(call, **self._moved(call, made), part=part, module=record.site.name))
        self._made[record.site] = made
        self.sites[record.site] = self._of(made, template.result)

    def sources(self, record: Record, *, is_known: bool = True) -> tuple[list[Site], list[tuple[str, Site]]]:
        """What an operation reads: its module's inputs, its producers, or what came before it; and its weights.

        Of one that is not known its producers are better: of a container, they are what its last child made.
        """
        site, producers = record.site, record.producers
        own = self._entered.get((site.name, site.call, site.sample), [])
        data = own if own and not site.port.startswith("in.") and (is_known or producers is None) else None
        if data is None and producers is not None:
            data = [one for one in producers if one.phase not in ("weight", "weight_after")]
        if data is None:
            data = [] if self._graph or site.phase != "fwd" or site.port.startswith("in.") else self._before[site]
        if not data:
            raise NotReplayableError("what it was computed from is not on record")
        for one in data:
            self._type(one)
        return list(data), self.weights_of(record)

    def weights_of(self, record: Record) -> list[tuple[str, Site]]:
        """The weights that an operation reads, by port: those among its producers, else its module's own."""
        said = [one for one in record.producers or () if one.phase == "weight"]
        if not said:
            return [] if record.site.port.startswith("in.") else list(self._weights.get(record.site.name, {}).items())
        return [(one.port, self._weights[one.name][one.port]) for one in said
                if one.port in self._weights.get(one.name, {})]  # fmt: skip

    def chain(self, record: Record) -> list[Site]:
        """The outputs that came before one, in order."""
        return [site for site in self._before if site.sample == record.site.sample
                and self._rank[site] < self._rank[record.site]]  # fmt: skip

    # ---- values

    def leaf(self, site: Site) -> Ref:
        """A recorded tensor as it is."""
        if site not in self._leaves:
            source = site if site.step == self.number else Earlier(site, self.number - site.step)
            self._leaves[site] = Ref(len(self.nodes))
            self.nodes.append(Leaf(self._type(site), source, f"{site.name}.{site.port}"))
        return self._leaves[site]

    def value(self, site: Site) -> Ref:
        """A recorded tensor as a call made it, or as it is."""
        return self.sites[site] if site in self.sites else self.leaf(site)

    def _type(self, site: Site) -> Type:
        if site not in self.trace:
            raise NotReplayableError(f"{site}, which it was computed from, is not in the trace")
        record = self.trace[site]
        if record.at is None or record.dtype is None or record.shape is None:
            raise NotReplayableError(f"{site}, which it was computed from, was recorded without its values")
        return Type(record.dtype, record.shape)

    def _of(self, made: _Made, ref: Ref) -> Ref:
        """A reference of a template in the step."""
        own = made.template.arguments
        return made.reads[ref.node] if ref.node < own - 1 else Ref(made.first + ref.node - own, ref.at)

    def _moved(self, call: Call, made: _Made, above: Ref | None = None, shift: int = 0) -> dict[str, Any]:
        """Arguments of a template's call in the step; those of the derivative lie `shift` further on."""
        border, gradient = made.template.arguments + made.template.forward, made.template.arguments - 1

        def moved(item: Any) -> Any:
            if isinstance(item, Ref):
                if item.node == gradient:
                    return above
                return (
                    self._of(made, item)
                    if item.node < border
                    else self._of(made, item)._replace(node=item.node - border + shift)
                )
            if isinstance(item, tuple):
                return tuple(moved(one) for one in item)
            return item

        return {"args": moved(call.args), "kwargs": {key: moved(item) for key, item in call.kwargs.items()}}

    def _call(self, op: str, args: tuple[Any, ...], type_: Type, part: str, module: str) -> Ref:
        self.nodes.append(Call(op, args, {}, (type_,), part=part, module=module))
        return Ref(len(self.nodes) - 1)

    def _recast(self, ref: Ref, record: Record) -> Ref:
        """A value in the shape and dtype that were recorded, as a value of its own."""
        assert record.shape is not None
        node = self.nodes[ref.node]
        type_ = node.type if isinstance(node, Leaf) else node.results[ref.at]
        if type_ is None:
            raise NotReplayableError("its calls do not say what they give")
        part, name = _PARTS[record.site.phase], record.site.name
        if type_.shape != record.shape:
            type_ = type_._replace(shape=record.shape)
            ref = self._call("aten.reshape.default", (ref, record.shape), type_, part, name)
        if isinstance(node, Leaf) or ref in self.sites.values():
            ref = self._call("aten.clone.default", (ref,), type_, part, name)
        if type_.dtype != record.dtype and record.dtype is not None:
            type_ = type_._replace(dtype=record.dtype)
            self.nodes.append(Call("aten._to_copy.default", (ref,), {"dtype": {"dtype": record.dtype}}, (type_,),
                                   part=part, module=name))  # fmt: skip
            ref = Ref(len(self.nodes) - 1)
        return ref

    # ---- backward

    def _agrad(self, record: Record) -> Ref:
        """The gradient of an output: what arrives through all that read it, and from the loss."""
        own = record.site._replace(phase="fwd")
        terms = self._arriving(own, 0)
        if own in self._logits:
            terms.append(self.value(self._logits[own]))
        if not terms:
            raise NotReplayableError("nothing that reads its output has a gradient on record")
        return self._sum(terms, record)

    def _arriving(self, output: Site, depth: int) -> list[Ref]:
        """The gradients that come through the readers of a tensor."""
        stranger = self._unknown_readers.get(output)
        if stranger is not None and self._has_gradient(stranger):
            raise NotReplayableError(f"{stranger} reads its output, and the library has no call for that")
        found = []
        for reader, argument in self._read_by.get(output, ()):
            above = self._above(reader, depth)
            if above is not None and (ref := self._derivative(reader, above)[argument]) is not None:
                found.append(ref)
        return found

    def _has_gradient(self, site: Site) -> bool:
        return site._replace(phase="agrad") in self.there

    def _above(self, site: Site, depth: int) -> Ref | None:
        """The gradient of what an operation made: recorded, or what arrives at it; None where there is none."""
        gradient = site._replace(phase="agrad")
        if gradient in self.there:
            return self.value(gradient)
        if site.phase == "loss" or depth > DEEPEST or any(one.site == gradient for one in self._absent):
            return None
        terms = self._arriving(site, depth + 1)
        if not terms:
            return None
        return terms[0] if len(terms) == 1 else self._sum(terms, self.there[site])

    def _derivative(self, site: Site, above: Ref) -> tuple[Ref | None, ...]:
        """The gradients of everything that an operation reads, from that of what it made."""
        made = self._made[site]
        if (site, above) not in self._derived:
            template, first = made.template, len(self.nodes)
            above = self._fitting(above, self._type(site), site.name)
            first = len(self.nodes)
            for call in template.calls[template.forward :]:
                of = made.first + template.forward - 1 if template.forward else None
                moved = self._moved(call, made, above, first)
                self.nodes.append(replace(call, **moved, part="backward", module=site.name, of=of))
            border = template.arguments + template.forward
            self._derived[site, above] = tuple(
                None if ref is None else above if ref.node == template.arguments - 1
                else self._of(made, ref) if ref.node < border else Ref(ref.node - border + first, ref.at)
                for ref in template.gradients
            )  # fmt: skip
        return self._derived[site, above]

    def _fitting(self, ref: Ref, type_: Type, module: str) -> Ref:
        """A gradient in the shape of what it is the gradient of."""
        node = self.nodes[ref.node]
        own = node.type if isinstance(node, Leaf) else node.results[ref.at]
        if own is None or own.shape == type_.shape:
            return ref
        return self._call(
            "aten.reshape.default", (ref, type_.shape), own._replace(shape=type_.shape), "backward", module
        )

    def _sum(self, terms: Sequence[Ref], record: Record) -> Ref:
        total, type_ = terms[0], self._type(record.site)
        for one in terms[1:]:
            total = self._call("aten.add.Tensor", (total, one), type_, "backward", record.site.name)
        return total

    @property
    def _absent(self) -> list[Record]:
        return [record for record in self.records if record.absent is not None]

    @property
    def _logits(self) -> dict[Site, Site]:
        """The outputs that the loss reads, with the loss's gradient there."""
        found: dict[Site, Site] = {}
        for gradient in self.there:
            if gradient.phase != "lossgrad":
                continue
            said = [one for one in self.there[gradient].producers or () if one.phase == "fwd"]
            options = said or [
                site for site in self.there
                if site.phase == "fwd" and site.sample == gradient.sample and not site.port.startswith("in.")
                and self.there[site].shape == self.there[gradient].shape and self._has_gradient(site)
            ]  # fmt: skip
            if options:
                found[options[-1]] = gradient
        return found

    def _lossgrad(self, record: Record) -> Ref:
        loss = record.site._replace(phase="loss", port="out")
        loss = loss if loss in self._made else Site(self.number, "loss", "loss", "loss", 0, record.site.sample)
        if loss not in self._made:
            raise NotReplayableError("the loss's operation, or its target, is not on record")
        one = self._call("aten.ones.default", ((*self._type(loss).shape,),), self._type(loss), "loss", "loss")
        found = self._derivative(loss, one)[0]
        if found is None:
            raise NotReplayableError("the loss does not depend on what it reads")
        return found

    def _grad(self, record: Record) -> Ref:
        """A parameter's gradient: what comes from every operation that used it, in every sample."""
        weight = self._weights.get(record.site.name, {}).get(record.site.port)
        users = self._read_by.get(weight, ()) if weight is not None else ()
        samples = {user.sample for user, _ in users if user.sample is not None}
        batch = self.trace.header.get("batch")
        if samples and type(batch) is int and len(samples) != batch:
            raise NotReplayableError(f"it is summed over {batch} samples, and {len(samples)} were recorded")
        terms = []
        for user, argument in users:
            above = self._above(user, 0)
            ref = None if above is None else self._derivative(user, above)[argument]
            terms += [] if ref is None else [ref]
        if not terms:
            raise NotReplayableError("no operation that used it has a gradient on record")
        return self._sum(terms, record)

    def _grad_scaled(self, record: Record) -> Ref:
        raw = record.site._replace(phase="grad")
        if raw not in self.there:
            raise NotReplayableError("the gradient before it was scaled is not on record")
        said = self.trace.header.get("gradient_of")
        batch = said.get("batch") if isinstance(said, dict) and said.get("reduction") == "sum" else None
        if type(batch) is int and batch > 1:
            args = (self.value(raw), float(batch))
            return self._call("aten.div.Scalar", args, self._type(raw), "optimizer", record.site.name)
        return self.value(raw)

    # ---- the optimizer's step

    def _update(self, record: Record) -> Ref:
        """A parameter after the step, its optimizer's state, or a running statistic."""
        site = record.site
        port, _, state = site.port.rpartition(".") if site.phase == "optim" else (site.port, "", "")
        weight = self._weights.get(site.name, {}).get(port)
        if weight is None:
            raise NotReplayableError("the parameter before the step is not on record")
        if port in ("running_mean", "running_var"):
            return self._running(record, weight)
        if port == "num_batches_tracked":
            return self._call("aten.add.Scalar", (self.value(weight), 1), self._type(weight), "after", site.name)
        gradient = next((one for phase in GRADIENTS if (one := weight._replace(phase=phase)) in self.there), None)
        if gradient is None:
            raise NotReplayableError("the gradient that the optimizer saw is not on record")
        rule, attrs = self._optimizer(site._replace(phase="weight_after", port=port))
        settings, _ = rule.settled(attrs)
        states = self._states(site.name, port, settings)
        sites = (weight, gradient, *states.values())
        self._put(record, rule, settings, list(states), sites, 2, state or "weight", "optimizer")
        return self.sites.pop(site)

    def _optimizer(self, after: Site) -> tuple[Operation, Mapping[str, Json]]:
        said = self.trace.header.get("optimizer")
        said = said[0] if isinstance(said, list) and said else said
        told = said if isinstance(said, dict) else {}
        name = str(said if isinstance(said, str) else told.get("class") or told.get("name") or "")
        rule = named(name)
        if rule is None or "lr" not in {setting.names[0] for setting in rule.settings}:
            raise NotReplayableError(f"the optimizer is {name or 'not on record'}, which the library does not have")
        own = self.there[after].attrs if after in self.there else {}
        return rule, {**told, **own}

    def _states(self, name: str, port: str, settings: Mapping[str, Any]) -> dict[str, Site]:
        """The optimizer's state before the step; none is there before the first one that was recorded."""
        found = {
            record.site.port.rpartition(".")[2]: record.site for record in self.trace.records
            if record.site.phase == "optim" and record.site.step == self.number - 1 and record.site.name == name
            and record.site.port.rpartition(".")[0] == port and record.at is not None
        }  # fmt: skip
        keeps = settings.get("momentum") or "betas" in settings
        if keeps and not found and any(record.site.step < self.number for record in self.trace.records):
            raise NotReplayableError("the optimizer's state before this step is not on record")
        return found

    def _running(self, record: Record, weight: Site) -> Ref:
        norm = next((site for site in self._made if site.phase == "fwd" and site.name == record.site.name), None)
        if norm is None:
            raise NotReplayableError("what the norm read is not on record")
        rule = named("RunningStatistics")
        assert rule is not None
        settings, _ = rule.settled(self.there[norm].attrs)
        self._put(record, rule, settings, [], (weight, self._made[norm].sites[0]), 2, record.site.port, "after")
        return self.sites.pop(record.site)


_BACKWARD = {
    "agrad": Building._agrad, "lossgrad": Building._lossgrad, "grad": Building._grad,
    "grad_scaled": Building._grad_scaled, "optim": Building._update, "weight_after": Building._update,
}  # fmt: skip
_PARTS = {
    "lossgrad": "backward", "agrad": "backward", "grad": "backward", "grad_scaled": "optimizer", "optim": "optimizer",
    "weight_after": "optimizer",
}  # fmt: skip


def _as_many(operation: Operation, inputs: Sequence[Site]) -> Sequence[Site]:
    """As many inputs as an operation reads; what a module is given beyond them is no tensor that it computes with."""
    least = 2 if operation.inputs < 0 else max(1, operation.inputs)
    if len(inputs) < least:
        raise NotReplayableError(f"{operation.names[0]} reads {least} tensors, and {len(inputs)} are on record")
    return inputs if operation.inputs <= 0 else inputs[: operation.inputs]


def _unknown(record: Record) -> str:
    return f"the library has no {record.op}" if record.op else "its operation was not recorded"


def _weights(trace: Trace, step: int) -> dict[str, dict[str, Site]]:
    """By module and port, where a step's parameters stand: its own, or what the last step before it left."""
    found: dict[tuple[str, str], tuple[tuple[int, bool], Site]] = {}
    for record in trace.records:
        site = record.site
        if site.phase not in ("weight", "weight_after") or record.at is None:
            continue
        after = site.phase == "weight_after"
        age = (site.step + after, not after)
        if age[0] > step:
            continue
        for name, port in [(site.name, site.port), *(alias.rpartition(".")[::2] for alias in record.aliases)]:
            if (name, port) not in found or found[name, port][0] < age:
                found[name, port] = age, site
    modules: dict[str, dict[str, Site]] = {}
    for (name, port), (_, site) in found.items():
        modules.setdefault(name, {})[port] = site
    return modules


def _entered(records: Sequence[Record]) -> dict[tuple[str, int, int | None], list[Site]]:
    """What goes into each call of a module, in the order of its arguments."""
    found: dict[tuple[str, int, int | None], list[Site]] = defaultdict(list)
    for record in records:
        site = record.site
        if site.phase == "fwd" and site.port.startswith("in.") and record.at is not None:
            found[site.name, site.call, site.sample].append(site)
    for sites in found.values():
        sites.sort(key=lambda site: [(part.isdecimal(), part.zfill(9)) for part in re.split(r"\W", site.port)])
    return found


def _before(records: Sequence[Record]) -> dict[Site, list[Site]]:
    """In a chain, what came before each output: the output before it, or what the model was fed."""
    fed: dict[int | None, list[Site]] = defaultdict(list)
    last: dict[int | None, list[Site]] = {}
    found: dict[Site, list[Site]] = {}
    for record in records:
        site = record.site
        if record.at is None:
            continue
        if site.phase == "input":
            fed[site.sample].append(site)
        elif site.phase == "fwd" and not site.port.startswith("in."):
            found[site] = last.get(site.sample) or fed[site.sample] or fed[None]
            last[site.sample] = [site]
    return found


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)
