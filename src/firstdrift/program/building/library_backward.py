"""The backward pass of a step from the library: gradients arrive at a tensor through everything that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ...core.records import Record
from ...core.sites import Site
from ..calls import Ref
from ..interpreter import NotReplayableError
from .library_forward import Building

DEEPEST = 64  # tensors without a recorded gradient that one passes through
PART = "backward"


class Backward:
    """Makes the gradients of a step whose forward pass is there."""

    def __init__(self, building: Building) -> None:
        self._step = building
        self._derived: dict[tuple[Site, Ref], tuple[Ref | None, ...]] = {}

    def agrad(self, record: Record) -> None:
        """The gradient of an output: what arrives through all that read it, and from the loss."""
        own = record.site._replace(phase="fwd")
        terms = self._arriving(own, 0)
        if own in self._logits:
            terms.append(self._step.value(self._logits[own]))
        if not terms:
            raise NotReplayableError("nothing that reads its output has a gradient on record")
        self._step.settle(record, self._sum(terms, record), PART)

    def grad(self, record: Record) -> None:
        """A parameter's gradient: what comes from every operation that used it, in every sample."""
        weight = self._step.weights.get(record.site.name, {}).get(record.site.port)
        users = self._step.read_by.get(weight, []) if weight is not None else []
        samples = {user.sample for user, _ in users if user.sample is not None}
        batch = self._step.trace.header.get("batch")
        if samples and type(batch) is int and len(samples) != batch:
            raise NotReplayableError(f"it is summed over {batch} samples, and {len(samples)} were recorded")
        terms = self._through(users, 0)
        if not terms:
            raise NotReplayableError("no operation that used it has a gradient on record")
        self._step.settle(record, self._sum(terms, record), PART)

    def lossgrad(self, record: Record) -> None:
        """The gradient of the loss at what it reads, where its operation and its target are on record."""
        loss = next(
            (site for site in self._step.made if site.phase == "loss" and site.sample == record.site.sample), None
        )
        if loss is None:
            raise NotReplayableError("the loss's operation, or its target, is not on record")
        type_ = self._step.type(loss)
        ones = self._step.call(
            "aten.ones.default", (type_.shape,), type_, PART, loss.name, dtype={"dtype": type_.dtype}
        )
        found = self._derivative(loss, ones)[0]
        if found is None:
            raise NotReplayableError("the loss does not depend on what it reads")
        self._step.settle(record, found, PART)

    def _arriving(self, output: Site, depth: int) -> list[Ref]:
        """The gradients that come through the readers of a tensor."""
        stranger = self._step.strangers.get(output)
        if stranger is not None and stranger._replace(phase="agrad") in self._step.there:
            raise NotReplayableError(f"{stranger} reads its output, and the library has no call for that")
        return self._through(self._step.read_by.get(output, []), depth)

    def _through(self, readers: Sequence[tuple[Site, int]], depth: int) -> list[Ref]:
        found = []
        for reader, argument in readers:
            above = self._above(reader, depth)
            ref = None if above is None else self._derivative(reader, above)[argument]
            found += [] if ref is None else [ref]
        return found

    def _above(self, site: Site, depth: int) -> Ref | None:
        """The gradient of what an operation made: recorded, or what arrives at it; None where there is none."""
        gradient = site._replace(phase="agrad")
        if gradient in self._step.there:
            return self._step.value(gradient)
        if site.phase != "fwd" or depth > DEEPEST or gradient in self._absent:
            return None
        terms = self._arriving(site, depth + 1)
        return self._sum(terms, self._step.there[site]) if terms else None

    def _derivative(self, site: Site, above: Ref) -> tuple[Ref | None, ...]:
        """The gradients of everything that an operation reads, from that of what it made."""
        if (site, above) not in self._derived:
            made, template = self._step.made[site], self._step.made[site].template
            fitting = self._step.shaped(above, self._step.type(site).shape, PART, site.name)
            of = made.first + template.forward - 1 if template.forward else None
            calls = template.calls[template.forward :]
            first = self._step.calls(made, calls, PART, site.name, fitting, of)
            self._derived[site, above] = tuple(
                None if ref is None else made.at(ref, fitting, first) for ref in template.gradients
            )
        return self._derived[site, above]

    def _sum(self, terms: Sequence[Ref], record: Record) -> Ref:
        total, type_ = terms[0], self._step.known_type(terms[0])
        for term in terms[1:]:
            if self._step.known_type(term) != type_:
                raise NotReplayableError("its gradients arrive in several shapes or dtypes")
            total = self._step.call("aten.add.Tensor", (total, term), type_, PART, record.site.name)
        return total

    @cached_property
    def _absent(self) -> frozenset[Site]:
        return frozenset(record.site for record in self._step.records if record.absent is not None)

    @cached_property
    def _logits(self) -> dict[Site, Site]:
        """The outputs that the loss reads, with the loss's gradient there."""
        found: dict[Site, Site] = {}
        for gradient, record in self._step.there.items():
            if gradient.phase == "lossgrad":
                said = [one for one in record.producers or () if one.phase == "fwd"]
                options = said or [site for site in self._step.there if self._may_be_logits(site, record)]
                found.update({options[-1]: gradient} if options else {})
        return found

    def _may_be_logits(self, site: Site, gradient: Record) -> bool:
        """Whether the loss may read an output: it has that shape, and a gradient."""
        there = self._step.there
        is_output = site.phase == "fwd" and not site.port.startswith("in.") and site.sample == gradient.site.sample
        return is_output and there[site].shape == gradient.shape and site._replace(phase="agrad") in there
