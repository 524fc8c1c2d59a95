"""What of a run is written down: the forms in which a judge is given the two sides."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import firstdrift as fd

from .network import INPUT, Network, Values, at, canonical

DETAILS = frozenset({"op", "attrs", "from", "order", "aliases"})
CHAIN = frozenset({"op", "attrs", "aliases"})
GRAPH = frozenset({"from", "order", "aliases"})


@dataclass(frozen=True)
class Form:
    name: str
    program: bool = False
    details: frozenset[str] = DETAILS
    inputs: bool = True  # what modules are fed
    phases: frozenset[str] | None = None
    output_only: bool = False
    by_sample: bool = False

    def keeps(self, site: fd.Site) -> bool:
        if self.phases is not None and site.phase not in self.phases:
            return False
        if not self.inputs and site.port.startswith("in."):
            return False
        return not (self.output_only and site.phase == "fwd" and (site.name or site.port != "out"))

    def fits(self, network: Network) -> bool:
        if self.by_sample:
            return network.loss is None
        return self.name != "gradients" or network.loss is not None


FORMS = (
    Form("program", program=True),
    Form("recorded"),
    Form("no op", details=GRAPH),
    Form("no producers", details=CHAIN, inputs=False),
    Form("bare", details=frozenset(), inputs=False),
    Form("no weights", phases=frozenset({"input", "fwd", "loss", "lossgrad", "agrad", "grad"})),
    Form("outputs", details=frozenset(), phases=frozenset({"input", "weight", "fwd", "loss"}), output_only=True),
    Form("samples", details=CHAIN, inputs=False, by_sample=True),
    Form("gradients", details=frozenset(), phases=frozenset({"weight", "grad"})),
)


def sources(network: Network, site: fd.Site) -> list[fd.Site]:
    """The tensors that a tensor is computed from."""
    step = site.step

    def read(node) -> list[fd.Site]:
        made = [at(step, "input", "input", INPUT) if one == INPUT else at(step, "fwd", one) for one in node.inputs]
        return made + [at(step, "weight", node.owner, port) for port in node.op.shapes()]

    if site.phase == "fwd":
        return read(next(node for node in network.nodes if node.name == site.name))
    if site.phase == "loss":
        return [at(step, "fwd", network.last)]
    readers = [node for node in network.nodes if site.name in node.inputs]
    if site.phase == "agrad":
        if site.name == network.last:
            return [at(step, "fwd", network.last)]
        return [one for node in readers for one in (at(step, "agrad", node.name), *read(node))]
    if site.phase == "grad":
        users = [node for node in network.nodes if node.owner == site.name]
        return [one for node in users for one in (at(step, "agrad", node.name), *read(node))]
    if site.phase in ("optim", "weight_after"):
        port = site.port if site.phase == "weight_after" else site.port.rpartition(".")[0]
        kept = [at(step - 1, "optim", site.name, f"{port}.{key}") for key in network.optimizer.state()] if step else []
        return [at(step, "weight", site.name, port), at(step, "grad", site.name, port), *kept]
    if site.phase == "weight" and step and (site.name, site.port) in network.trainable():
        return [at(step - 1, "weight_after", site.name, site.port)]
    return []


def needs_target(network: Network, site: fd.Site) -> bool:
    """Whether a tensor is computed from the loss's target, which only a program holds."""
    return site.phase == "loss" or (site.phase == "agrad" and site.name == network.last)


class Recording:
    """The reference's trace, read once: its lines in the order written, and in causal order."""

    def __init__(self, network: Network, path: Path) -> None:
        trace = fd.open_trace(path)
        self.network, self.path, self.header = network, path, _header(trace)
        self.lines = [record for record in trace.lines if record.at is not None or record.absent]
        self.arrays = {record.site: np.array(trace.array(record)) for record in self.lines if record.at is not None}
        self.known = {record.site: canonical(network, record.site) for record in self.lines}
        order = [self.known[record.site] for record in trace.records if record.at is not None]
        self.order = list(dict.fromkeys(site for site in order if site is not None))

    def values(self) -> Values:
        found: Values = {}
        for site, array in self.arrays.items():
            if (known := self.known[site]) is not None:
                found.setdefault(known, _tensor(array))
        return found

    def seen(self, form: Form) -> set[fd.Site]:
        """The tensors that a form shows."""
        return {known for site, known in self.known.items() if known is not None and form.keeps(site)}

    def write(
        self, form: Form, path: Path, values: Values, stated: tuple[str, Mapping[str, float]] | None = None
    ) -> Path:
        """A run in this form, on the lines that the reference has."""
        shutil.rmtree(path, ignore_errors=True)
        with fd.Writer(path, **self.header) as writer:
            for record in self.lines:
                if form.keeps(record.site):
                    self._put(writer, form, record, values, stated)
        return path

    def _put(self, writer, form: Form, record, values: Values, stated) -> None:
        site, known = record.site, self.known[record.site]
        details = {key: value for key, value in record.details.items() if key in form.details}
        if "from" in details:
            details["producers"] = list(record.producers)
            del details["from"]
        if stated and site.phase == "fwd" and site.name == stated[0] and "attrs" in details:
            details["attrs"] = {**details["attrs"], **{k: v for k, v in stated[1].items() if k in details["attrs"]}}
        if record.at is None:
            writer.put_absent(site.name, site.phase, record.absent, port=site.port, step=site.step, **details)
            return
        array = values[known] if known in values else self.arrays[site]
        where = {"port": site.port, "step": site.step, "call": site.call}
        if form.by_sample and site.phase in ("fwd", "input"):
            for i, one in enumerate(array):
                writer.put(site.name, site.phase, one, sample=i, **where, **details)
            return
        writer.put(site.name, site.phase, array, **where, **details)


def _header(trace: fd.Trace) -> dict:
    kept = ("optimizer", "batch", "gradient_of")
    return {key: value for key, value in trace.header.items() if key in kept}


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)
