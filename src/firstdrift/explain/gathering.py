"""Evidence of a drift, gathered from two traces and, where there is one, from a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..core.dtypes import roundoff
from ..core.sites import Site
from ..core.traces import Array, Trace
from ..errors import FirstdriftError
from ..judge.graph import Graph
from ..pair.pairs import Pair, ReconcileError
from .evidence import Evidence, Surroundings
from .masked_fills import load_without_fills, without_fills

Tensors = dict[str, Array]


@dataclass(frozen=True)
class Runs(Surroundings):
    """Both runs, by the reference's sites."""

    graph: Graph
    pairs: Mapping[Site, Pair]
    reference_trace: Trace
    candidate_trace: Trace
    facts: Mapping[str, Any] = field(default_factory=dict)

    def sites(self, phase: str) -> Sequence[Site]:
        """The compared sites of a phase, in causal order."""
        return [site for site in self.pairs if site.phase == phase]

    def reference(self, site: Site) -> Array | None:
        """The reference's tensor, or None where there is none."""
        both = self.both(site)
        return self._alone(site, self.reference_trace) if both is None else both[0]

    def candidate(self, site: Site) -> Array | None:
        """The candidate's tensor, or None where there is none."""
        both = self.both(site)
        return self._alone(site, self.candidate_trace) if both is None else both[1]

    def op(self, site: Site) -> str:
        """The operation that the reference recorded for a site."""
        if site in self.pairs:
            return self.pairs[site].reference.op or ""
        return (self.reference_trace[site].op or "") if site in self.reference_trace else ""

    def producers(self, site: Site) -> Sequence[Site]:
        """The compared sites that a tensor was computed from."""
        return self.graph.producers(site) if site in self.pairs or site in self.reference_trace else ()

    def both(self, site: Site) -> tuple[Array, Array] | None:
        """Both tensors of a site as float64 (integers as they are), None where one has no values."""
        if site not in self.pairs:
            return None
        try:
            reference, candidate = load_without_fills(self.pairs[site], self.reference_trace, self.candidate_trace)
        except (FirstdriftError, ReconcileError):
            return None
        return plain(reference), plain(candidate)

    def recorded(self, site: Site) -> tuple[Array, Array] | None:
        """Both tensors of a site as they were recorded, whose shapes may differ; None where a side has none."""
        pair = self.pairs.get(site)
        if pair is None or pair.reference_steps or pair.candidate_steps or len(pair.candidate) > 1:
            return None
        reference = _recorded(self.reference_trace, pair.reference.site)
        candidate = _recorded(self.candidate_trace, pair.candidate[0].site)
        return None if reference is None or candidate is None else (reference, candidate)

    def _alone(self, site: Site, trace: Trace) -> Array | None:
        """The tensor of a site that only one side has."""
        return _recorded(trace, site) if site not in self.pairs and site in trace else None


def _equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool(np.array_equal(plain(one), plain(other)))


def gather(site: Site, runs: Runs, noise: float) -> Evidence | None:
    """Everything known of the drift at a site; None where there are no numbers to explain."""
    both = runs.both(site)
    if both is None or both[0].shape != both[1].shape:
        return None
    wanted, found = both
    if site.phase == "weight_after" and (before := runs.both(site._replace(phase="weight"))) is not None:
        wanted, found = np.subtract(wanted, before[0]), np.subtract(found, before[1])
    reference, candidate = _inputs(site, runs)
    out = runs.pairs.get(_updated(site)) if site.phase in ("weight_after", "optim") else _out(_maker(site, runs), runs)
    op, attrs = (out.reference.op or "", out.reference.attrs) if out else ("", {})
    noise = max(noise, _rounding(site, runs))
    return Evidence(site, wanted, found, noise, False, op, reference, candidate, attrs, runs)


def with_replay(
    evidence: Evidence, expected: Array, found: Array, before: Array | None, inputs: Mapping[str, Array]
) -> Evidence:
    """The same drift, with what a replay makes of the candidate's inputs as what was expected; `inputs` are those of
    its module, where they are known better than by what was recorded."""
    wanted, there = without_fills(plain(expected), plain(found))
    if before is not None:
        wanted, there = np.subtract(wanted, plain(before)), np.subtract(there, plain(before))
    read = {port: plain(array) for port, array in inputs.items()} or evidence.candidate_inputs
    return replace(evidence, expected=wanted, found=there, replayed=True, inputs=read, candidate_inputs=read)


def _recorded(trace: Trace, site: Site) -> Array | None:
    try:
        return plain(trace.array(site))
    except FirstdriftError:
        return None


def plain(array: Array) -> Array:
    """Numbers as float64; integers, booleans and complex numbers as they are."""
    return array if array.dtype.kind in "iubc" else np.asarray(array, np.float64)


def _rounding(site: Site, runs: Runs) -> float:
    """What storing a weight or an input costs: whatever was done to it, it was rounded afterwards."""
    if site.phase not in ("weight", "input"):
        return 0.0
    pair = runs.pairs[site]
    return roundoff(pair.reference.dtype, *(one.dtype for one in pair.candidate))


def _updated(site: Site) -> Site:
    """The parameter that an optimizer's state belongs to, after the step, where its settings are recorded."""
    return site._replace(phase="weight_after", port=site.port.split(".")[0])


def _maker(site: Site, runs: Runs) -> Site:
    """The output of the module whose operation made a tensor, as a site of the forward pass."""
    forward = site._replace(phase="fwd", port="out", sample=None)
    if site.phase == "fwd" and site.port.startswith("in."):
        return forward._replace(name=site.name.rpartition(".")[0], call=0)
    if site.phase == "agrad":
        consumers = runs.graph.consumers(site)
        return consumers[0]._replace(phase="fwd", port="out") if consumers else forward
    return forward._replace(call=0) if site.phase != "fwd" else forward


def _out(maker: Site, runs: Runs) -> Pair | None:
    """A module's output, whatever its port is called."""
    if maker in runs.pairs:
        return runs.pairs[maker]
    here = maker.step, "fwd", maker.name
    outs = (other for other in runs.pairs if (other.step, other.phase, other.name) == here)
    return next((runs.pairs[other] for other in outs if other.port.startswith("out")), None)


def _inputs(site: Site, runs: Runs) -> tuple[Tensors, Tensors]:
    """What a tensor was computed from, on both sides."""
    reference: Tensors = {}
    candidate: Tensors = {}
    for key, other in _sources(site, runs):
        both = runs.both(other)
        if both is not None:
            reference.setdefault(key, both[0])
            candidate.setdefault(key, both[1])
    return reference, candidate


def _sources(site: Site, runs: Runs) -> Iterator[tuple[str, Site]]:
    match site.phase:
        case "fwd":
            yield from _forward_sources(site, runs)
        case "loss" | "lossgrad":
            root = site._replace(phase="fwd", name="", port="out", call=0)
            yield from (("logits", other) for other in (root, *runs.graph.producers(site)) if other in runs.pairs)
        case "agrad":
            yield "fwd", site._replace(phase="fwd")
            for other in runs.graph.producers(site):
                if other.phase == "agrad":
                    yield f"agrad {other.name}", other
            maker = _maker(site, runs)
            yield from _ports(maker, runs)
        case "grad":
            yield from (("agrad", other) for other in runs.graph.producers(site) if other.phase == "agrad")
            yield from _ports(site._replace(phase="fwd"), runs)
        case "weight_after" | "optim":
            yield from _update_sources(site, runs)


def _forward_sources(site: Site, runs: Runs) -> Iterator[tuple[str, Site]]:
    inside = f"{site.name}." if site.name else ""
    has_parts = any(
        other.phase == "fwd" and other.name != site.name and other.name.startswith(inside) for other in runs.pairs
    )
    if not site.port.startswith("in.") and not has_parts:
        ports = list(_ports(site, runs))
        if ports:
            yield from ports
            return
    for other in _made_from(site, runs):
        if other.phase == "input":
            yield f"input {other.port}", other
        elif other.phase == "fwd":
            yield other.name if other.port in ("out", "in.0") else f"{other.name}:{other.port}", other


def _made_from(site: Site, runs: Runs) -> Iterator[Site]:
    """What a tensor was made from. A module around that was handed the very tensor did not make it."""
    for other in runs.graph.producers(site):
        if site.port.startswith("in.") and other.port.startswith("in.") and _is_handed_on(other, site, runs):
            yield from _made_from(other, runs)
        else:
            yield other


def _is_handed_on(outer: Site, inner: Site, runs: Runs) -> bool:
    """Whether a module's input is that of a module around it, on both sides."""
    if outer.phase != "fwd" or (outer.name and not inner.name.startswith(f"{outer.name}.")):
        return False
    made, handed = runs.both(outer), runs.both(inner)
    return made is not None and handed is not None and all(map(_equal, made, handed))


def _ports(site: Site, runs: Runs) -> Iterator[tuple[str, Site]]:
    """The inputs of a module's call."""
    for other in runs.pairs:
        here = (other.step, other.phase, other.name, other.call) == (site.step, "fwd", site.name, site.call)
        if here and other.port.startswith("in."):
            yield other.port, other


def _update_sources(site: Site, runs: Runs) -> Iterator[tuple[str, Site]]:
    parameter = site.port.split(".")[0] if site.phase == "optim" else site.port
    yield "weight", site._replace(phase="weight", port=parameter)
    for phase in ("grad_scaled", "grad"):
        yield "grad", site._replace(phase=phase, port=parameter)
    for other in runs.pairs:
        if other.phase == "optim" and other.name == site.name and other.step == site.step - 1:
            name, _, key = other.port.partition(".")
            if name == parameter:
                yield key, other
    yield from _ports(site._replace(phase="fwd", call=0), runs)
