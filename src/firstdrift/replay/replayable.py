"""A tensor that can be computed once more: from which sites, by which formula, and how exactly a right one agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..sites import Site
from ..strict_json import Json
from ..traces import Array
from .operation import Floats, Operation, as_floats

Tensors = Mapping[str, Floats]
AT_ONCE = 1 << 22  # elements of a tensor that are computed at a time, where its rows do not depend on each other


@dataclass(frozen=True, slots=True)
class Replayable:
    """How the reference computes the tensor of a site from those of others.

    `inputs` are tensors that the run made, `parameters` those it was given. With `split` "rows", every part of the
    inputs along the first axis makes that part of the result; with "sum", the results of all parts add up.
    """

    site: Site
    operation: str
    kind: str  # as the precision ladder knows it
    length: int  # of the sums behind each element
    inputs: Mapping[str, Site]
    parameters: Mapping[str, Site]
    formula: Callable[[Tensors, Tensors], Floats]
    terms: Callable[[Tensors, Tensors], float] = lambda inputs, parameters: 0.0
    settings: Mapping[str, Json] = field(default_factory=dict)
    split: str | None = None
    base: Site | None = None  # what was there before, where the tensor is looked at as a change
    made_by: Operation | None = None  # of a forward tensor
    through: tuple[Site, ...] = ()  # outputs whose operations a gradient came back through

    def parts(self, inputs: Mapping[str, Array], parameters: Tensors) -> Iterator[tuple[tuple[slice, ...], Floats]]:
        """The result, part by part: which rows, and their numbers."""
        for rows in self._rows(inputs):
            yield rows, self.formula({key: as_floats(item[rows]) for key, item in inputs.items()}, parameters)

    def compute(self, inputs: Mapping[str, Array], parameters: Tensors) -> Floats:
        """The whole result."""
        found = [part for _, part in self.parts(inputs, parameters)]
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if self.split == "rows" else np.asarray(np.sum(found, axis=0))

    def terms_of(self, inputs: Mapping[str, Array], parameters: Tensors) -> float:
        """The norm of the result if the terms that it sums did not cancel."""
        found = 0.0
        for rows in self._rows(inputs):
            found += self.terms({key: as_floats(item[rows]) for key, item in inputs.items()}, parameters) ** 2
        return float(np.sqrt(found))

    def _rows(self, inputs: Mapping[str, Array]) -> list[tuple[slice, ...]]:
        """Parts of the first axis; of everything at once where it cannot be parted, or need not be."""
        counts = {len(item) if item.ndim else 0 for item in inputs.values()}
        largest = max((item.size for item in inputs.values()), default=0)
        if self.split is None or len(counts) != 1 or largest <= AT_ONCE:
            return [()]
        count = counts.pop()
        step = max(1, AT_ONCE * count // largest)
        return [(slice(start, start + step),) for start in range(0, count, step)]


def joined(recipe: Replayable, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs as the search for causes names them, numbers as float64.

    A parameter's gradient has those of its module, all samples in one tensor where they were recorded one by one.
    """
    found = {key: item if item.dtype.kind in "iub" else as_floats(item) for key, item in inputs.items()}
    if recipe.site.phase != "grad":
        return found
    samples: dict[Site, list[str]] = {}
    for key, site in recipe.inputs.items():
        samples.setdefault(site._replace(sample=None), []).append(key)
    whole = {keys[0]: _one(found, keys, recipe) for keys in samples.values()}
    read = [key for key in whole if not key.startswith(("agrad", "in."))]
    return {"in.0" if read == [key] else key: item for key, item in whole.items()}


def _one(found: Mapping[str, Array], keys: list[str], recipe: Replayable) -> Array:
    if len(keys) == 1:
        return found[keys[0]]
    return np.concatenate([found[key] for key in sorted(keys, key=lambda key: recipe.inputs[key].sample or 0)])
