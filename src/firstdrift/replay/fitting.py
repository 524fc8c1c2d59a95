"""Which operation made a tensor: the one that reproduces the reference from what the reference read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, prod

import numpy as np

from ..records import Record
from ..sites import Site
from ..traces import Array
from ..verdict.noise import forward_length, local_limit
from .distance import relative
from .guesses import Facts, by_class, by_shape
from .operation import Floats, Operation, as_floats
from .replayable import Replayable, Tensors
from .sources import Sources

ROUNDINGS = 3.0  # of a weight in one step: scaled by its decay, moved, stored
SCREEN = 1 << 16  # elements on which operations are tried before one is confirmed on all


def fit(sources: Sources, site: Site) -> Replayable | None:
    """How the reference computed a forward tensor, tried on its first rows; None if nothing we know reproduces it."""
    for reads in sources.reads(site):
        for parameters in _parameter_sets(sources, site, reads):
            found = _Trial(sources, site, reads, parameters).best()
            if found is not None:
                return found
    return None


def unit_of(sources: Sources, replayable: Replayable, side: int) -> float:
    """The unit roundoff at which a side computed: that of the result, and of gradients that it came from.

    Whatever the candidate computes in, an operation is known no better than the reference shows it.
    """
    gradients = [site for site in replayable.inputs.values() if site.phase in ("agrad", "lossgrad")]
    return max(unit for site in (replayable.site, *gradients) for unit in sources.units(site)[: side + 1])


def floor_of(sources: Sources, replayable: Replayable, side: int, change: float) -> float:
    """The relative error that storing forces on a change: what it is added to is rounded to its own size."""
    if replayable.base is None:
        return 0.0
    before = sources.load(replayable.base)
    if before is None or not change:
        return inf
    size = float(np.linalg.norm(as_floats(before[side]).reshape(-1)))
    return ROUNDINGS * max(sources.units(replayable.site)[: side + 1]) * size / change


class _Trial:
    """All guesses for one tensor, tried on the first rows of what the reference recorded."""

    def __init__(self, sources: Sources, site: Site, reads: Mapping[str, Site], parameters: Mapping[str, Site]) -> None:
        self.sources, self.site, self.reads, self.parameters = sources, site, reads, parameters
        record = sources.record(site)
        self.shapes = [sources.shape(other) for other in reads.values()]
        self.given = {port: sources.shape(other) for port, other in parameters.items()}
        self.shape = sources.shape(site)
        op = record.op or "" if not site.port.startswith("in.") else ""
        self.facts = Facts(self.shape, self.shapes, self.given, op, _attrs(record), site.port)

    def best(self) -> Replayable | None:
        loaded = [self.sources.load(other) for other in (*self.reads.values(), *self.parameters.values(), self.site)]
        if not prod(self.shape) or any(pair is None for pair in loaded):
            return None
        arrays = [pair[0] for pair in loaded if pair is not None]
        self.inputs, self.target = arrays[: len(self.reads)], arrays[-1]
        self.weights = {
            port: as_floats(array) for port, array in zip(self.parameters, arrays[len(self.reads) : -1], strict=True)
        }
        for operation, taken in self._guesses(by_class):
            if self._error(operation, taken)[0] <= 1:
                return self._made(operation, taken)
        if not np.any(self.target):
            return None  # many operations give nothing but zeros
        best, least = None, inf
        for operation, taken in self._guesses(by_shape):
            score, error = self._error(operation, taken)
            if score <= 1 and error < least:
                best, least = (operation, taken), error
            if not error:
                break
        return None if best is None else self._made(*best)

    def _guesses(self, guess) -> Iterator[tuple[Operation, int]]:  # type: ignore[no-untyped-def]
        """Operations, each with how many of the inputs it takes."""
        yield from ((operation, len(self.inputs)) for operation in guess(self.facts))
        if len(self.inputs) > 1 and all(key.startswith("in.") for key in self.reads):
            first = Facts(self.shape, self.shapes[:1], self.given, self.facts.op, self.facts.attrs, self.facts.port)
            yield from ((operation, 1) for operation in guess(first))

    def _error(self, operation: Operation, taken: int) -> tuple[float, float]:
        """The error over what noise explains, and the error itself, on the first rows where rows do not mix."""
        inputs: list[Floats] = [as_floats(item) for item in self._few(operation, self.inputs[:taken])]
        (target,) = self._few(operation, [self.target])
        try:
            with np.errstate(all="ignore"):
                made = operation.forward(inputs, self.weights)
                if made.shape != target.shape:
                    return inf, inf
                error = relative(made, target)
                limit = local_limit(
                    self.sources.units(self.site)[0], self._length(operation, taken), operation.kind, target.size
                )
                norm = float(np.linalg.norm(target.astype(np.float64)))
                if error > limit and norm and error < 1:
                    limit *= max(1.0, operation.terms(inputs, self.weights) / norm)
        except (ValueError, IndexError, KeyError, FloatingPointError):  # shapes that the guess did not foresee
            return inf, inf
        if not limit:
            return (inf if error else 0.0), error
        return error / limit, error

    def _few(self, operation: Operation, arrays: list[Array]) -> list[Array]:
        largest = max(item.size for item in (*self.inputs, self.target))
        count = self.shape[0] if self.shape else 0
        if not operation.rows or not count or largest <= SCREEN or any(len(i) != count for i in self.inputs if i.ndim):
            return arrays
        rows = max(1, SCREEN * count // largest)
        return [item[:rows] for item in arrays]

    def _length(self, operation: Operation, taken: int) -> int:
        length = forward_length(operation.kind, self.shape, self.shapes[:taken], list(self.given.values()))
        steps = max(self.shapes[0][:2], default=1) if "batch_first" in operation.settings else 1
        return length * steps

    def _made(self, operation: Operation, taken: int) -> Replayable:
        keys = list(self.reads)[:taken]

        def formula(inputs: Tensors, parameters: Tensors) -> Floats:
            return operation.forward([inputs[key] for key in keys], parameters)

        def terms(inputs: Tensors, parameters: Tensors) -> float:
            return operation.terms([inputs[key] for key in keys], parameters)

        return Replayable(
            self.site, operation.name, operation.kind, self._length(operation, taken),
            {key: self.reads[key] for key in keys}, self.parameters, formula, terms, operation.settings,
            "rows" if operation.rows else None, made_by=operation,
        )  # fmt: skip


def _parameter_sets(sources: Sources, site: Site, reads: Mapping[str, Site]) -> Iterator[dict[str, Site]]:
    """A module's own parameters; none for what is made between modules."""
    own = {} if site.port.startswith("in.") else sources.parameters(site.name, site.step)
    yield own
    container = any(other.name != site.name for other in reads.values()) and sources.recorded
    if own and container:
        yield {}


def _attrs(record: Record) -> Mapping[str, object]:
    return record.attrs
