"""A program for a trace that holds none: from what it says of its operations, their settings and what they read.

It is made without a look at any number. What makes it safe is asked site by site, when a site is asked for: calls
that do not give the reference's own tensor from the reference's own inputs are no program of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..core.records import Record
from ..core.sites import Site
from ..core.traces import Trace
from .building.call_templates import Template
from .building.library_backward import Backward
from .building.library_forward import NOTE, Building, OpSpec, op_spec_of
from .building.library_updates import Updates
from .building.reproduction import cuts_of, why_not
from .calls import Call, Program, Ref, Step
from .cuts import Cut, Cuts
from .interpreter import NotReplayableError

MOST_NODES = 2_000_000  # of a step


@dataclass(frozen=True)
class LibraryProgram(Program):
    """A program from the library. `find` gives only sites whose calls reproduce what the trace recorded there."""

    asked: Steps = field(kw_only=True)
    _answers: dict[Site, str | None] = field(default_factory=dict, compare=False, repr=False)

    def find(self, site: Site) -> tuple[Step, Ref] | None:
        """The step and the value of a site, if what is said of it holds."""
        return super().find(site) if self.why_not(site) is None else None

    def why_not(self, site: Site) -> str | None:
        """Why a site has no call; None if it has one that reproduces it."""
        if site not in self._answers:
            self._answers[site] = self.asked.why_not(site)
        return self._answers[site]

    def why_not_cut(self, step: Step, cut: Cut) -> str | None:
        """Why a part of a step is not to be believed: a recorded tensor that it makes on its way does not hold."""
        inside = {number for number in cut.nodes if isinstance(step.nodes[number], Call)}
        for site, ref in step.sites.items():
            if ref.node in inside and (why := self.why_not(site)) is not None:
                return f"{site}: {why}"
        return None

    def is_inferred(self, step: Step, cut: Cut) -> bool:
        """Whether no run said one of the operations, and it was found by trying."""
        inside = set(cut.nodes)
        return any(site in step.sites and step.sites[site].node in inside for site in self.asked.inferred)

    @property
    def inferred(self) -> Mapping[Site, OpSpec]:
        """The operations that no run said, and that were found by trying them."""
        return self.asked.inferred


def library_program(trace: Trace, inferred: Mapping[Site, OpSpec] | None = None) -> LibraryProgram | None:
    """The program that a trace's `op` and `attrs` mean; None where it names no operation that the library has.

    `inferred` adds operations that were found by trying them, for sites that name none.
    """
    if not any(op_spec_of(record, inferred or {}) for record in trace.records):
        return None
    steps = Steps(trace, inferred)
    return LibraryProgram({"program": 1, "notes": [NOTE]}, steps, asked=steps)


class Steps(Mapping[int, Step]):
    """The steps of a trace, each made when it is asked for."""

    def __init__(self, trace: Trace, inferred: Mapping[Site, OpSpec] | None = None) -> None:
        self.trace = trace
        self.inferred = inferred or {}
        self._made: dict[int, tuple[Step, Cuts]] = {}
        self._reasons: dict[Site, str] = {}  # why sites have no call
        self._templates: dict[tuple[object, ...], Template] = {}
        self._records: dict[int, list[Record]] = {}
        for record in trace.records:
            self._records.setdefault(record.site.step, []).append(record)

    def __getitem__(self, number: int) -> Step:
        return self._built(number)[0]

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, number: object) -> bool:
        return number in self._records

    def building(self, number: int) -> Building:
        """A step with nothing in it yet."""
        return Building(self.trace, self._records[number], number, self.inferred, self._templates)

    def why_not(self, site: Site) -> str | None:
        """Why a site has no call that reproduces it."""
        if site.step not in self:
            return "the trace has no such step"
        step, cuts = self._built(site.step)
        if site not in step.sites:
            return self._reasons.get(site, "the library has no call for it")
        return why_not(self.trace, step, site, cuts)

    def _built(self, number: int) -> tuple[Step, Cuts]:
        """A step, made record by record in causal order, and its cuts."""
        if number not in self._made:
            step = self._build(self.building(number))
            self._made[number] = step, cuts_of(self.trace, step)
        return self._made[number]

    def _build(self, building: Building) -> Step:
        backward, updates = Backward(building), Updates(building)
        makers = {
            "input": building.given, "weight": building.given, "fwd": building.operation, "loss": building.operation,
            "lossgrad": backward.lossgrad, "agrad": backward.agrad, "grad": backward.grad,
            "grad_scaled": updates.grad_scaled, "optim": updates.update, "weight_after": updates.update,
        }  # fmt: skip
        for record in building.records:
            if record.at is None or record.shape is None:
                continue
            try:
                if len(building.nodes) > MOST_NODES:
                    raise NotReplayableError(f"the step has more than {MOST_NODES} calls")
                makers[record.site.phase](record)
            except NotReplayableError as error:
                self._reasons[record.site] = str(error)
        optimizers, notes = tuple(building.optimizers), tuple(building.notes)
        return Step(building.number, tuple(building.nodes), (), building.sites, optimizers, notes)
