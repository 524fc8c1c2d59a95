"""Gradients once more: of an output, from the gradients of all that read it; of a parameter, from all that used it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from ..sites import Site
from ..strict_json import Json
from .operation import Floats
from .replayable import Replayable, Tensors
from .sources import Sources

SIGNS = 0  # seed of the random signs by which terms are kept from cancelling
DEEPEST = 8  # tensors between modules that a gradient passes through without being recorded


@dataclass(frozen=True, slots=True)
class _Term:
    """One way in which a gradient arrives: through `recipe`, from the gradient of what it made."""

    recipe: Replayable
    reads: Mapping[str, str]  # the recipe's own names to those of the whole sum
    uses: Mapping[str, str]
    gradient: str | tuple[_Term, ...]  # a recorded one by its name, or the sum of others
    target: str  # the input or parameter that the gradient is of
    is_parameter: bool = False

    def operations(self) -> Iterator[str]:
        """The operations that the gradient came through last; what only hands tensors on is seen through."""
        if self.recipe.operation == "identity" and not isinstance(self.gradient, str):
            for term in self.gradient:
                yield from term.operations()
        else:
            yield self.recipe.operation

    def outputs(self) -> Iterator[Site]:
        """What those operations made."""
        if self.recipe.operation == "identity" and not isinstance(self.gradient, str):
            for term in self.gradient:
                yield from term.outputs()
        else:
            yield self.recipe.site

    def keeps_rows(self) -> bool:
        """Whether the samples along the first axis do not mix on the way."""
        before = () if isinstance(self.gradient, str) else self.gradient
        return self.recipe.split == "rows" and all(term.keeps_rows() for term in before)

    def value(self, inputs: Tensors, parameters: Tensors) -> Floats:
        """The gradient that arrives this way."""
        gradient = (
            inputs[self.gradient]
            if isinstance(self.gradient, str)
            else sum(term.value(inputs, parameters) for term in self.gradient)
        )
        operation = self.recipe.made_by
        assert operation is not None
        assert operation.backward is not None
        keys = list(self.recipe.inputs)
        read = [inputs[self.reads[key]] for key in keys]
        used = {port: parameters[key] for port, key in self.uses.items()}
        into, of_parameters = operation.backward(read, used, np.asarray(gradient))
        found = of_parameters.get(self.target) if self.is_parameter else into[keys.index(self.target)]
        if found is None:
            raise ValueError(f"{operation} has no backward for {self.target}")
        return found() if callable(found) else found


class Backward:
    """Finds how a gradient came about, from the recipes of the forward pass."""

    def __init__(self, sources: Sources, forward: Callable[[Site], Replayable | None]) -> None:
        self.sources = sources
        self.forward = forward

    def recipes(self, site: Site) -> Iterator[Replayable]:
        """Ways in which the gradient at a site may have been computed; each is still to be confirmed."""
        return self._of_parameter(site) if site.phase == "grad" else self._of_output(site)

    def _of_output(self, site: Site) -> Iterator[Replayable]:
        names, own = _Names(), site._replace(phase="fwd")
        if own in self.sources.pairs:
            names.name("fwd", own)
        terms = self._arriving(self._first(own), names, 0)
        if terms:
            yield self._sum(site, terms, names, all(term.keeps_rows() for term in terms))
        loss = [s for s in self.sources.pairs if (s.phase, s.step, s.sample) == ("lossgrad", site.step, site.sample)]
        for other in loss:
            if self.sources.shape(other) == self.sources.shape(site):
                key = names.name("lossgrad", other)
                yield self._sum(site, terms or (), names, rows=False, also=key)

    def _of_parameter(self, site: Site) -> Iterator[Replayable]:
        owner = site._replace(phase="weight")
        if owner not in self.sources.pairs:
            return
        stored = self.sources.record(owner).site
        names, terms = _Names(), []
        for recipe in self._users.get((site.step, stored), ()):
            port = next(port for port, used in recipe.parameters.items() if self.sources.record(used).site == stored)
            term = self._through(recipe, port, names, 0, is_parameter=True)
            if term is None:
                return
            if term.gradient:
                terms.append(term)
        if terms:
            yield self._sum(site, tuple(terms), names, all(term.keeps_rows() for term in terms), split="sum")

    def _arriving(self, output: Site, names: _Names, depth: int) -> tuple[_Term, ...] | None:
        """All ways in which a gradient arrives at a tensor; None if one of them cannot be followed."""
        terms = []
        for recipe in self._readers.get(output, ()):
            if self.sources.same_tensor(recipe.site, output) and not recipe.site.port.startswith("in."):
                continue  # the same tensor under the name of the module around it
            for key, read in recipe.inputs.items():
                if read == output:
                    term = self._through(recipe, key, names, depth)
                    if term is None:
                        return None
                    terms.append(term)
        return tuple(term for term in terms if term.gradient)  # others read it, and made nothing of it

    def _through(
        self, recipe: Replayable, target: str, names: _Names, depth: int, *, is_parameter: bool = False
    ) -> _Term | None:
        """The way through one operation, from the gradient of what it made."""
        if recipe.made_by is None or recipe.made_by.backward is None or depth > DEEPEST:
            return None
        made = recipe.site
        gradient: str | tuple[_Term, ...]
        if (recorded := made._replace(phase="agrad")) in self.sources.pairs:
            gradient = names.name("agrad" if is_parameter else f"agrad {made.name}", recorded)
        elif (followed := self._arriving(made, names, depth + 1)) is not None:
            gradient = followed
        else:
            return None
        reads = {key: names.name(key, site) for key, site in recipe.inputs.items()}
        uses = {port: names.parameter(port, site) for port, site in recipe.parameters.items()}
        return _Term(recipe, reads, uses, gradient, target, is_parameter)

    def _sum(
        self, site: Site, terms: tuple[_Term, ...], names: _Names, rows: bool, *, also: str | None = None,
        split: str = "rows",
    ) -> Replayable:  # fmt: skip
        def formula(inputs: Tensors, parameters: Tensors) -> Floats:
            found = [term.value(inputs, parameters) for term in terms]
            if also is not None:
                found.append(inputs[also])
            total = found[0]
            for item in found[1:]:
                total = total + item
            return total

        def without_cancelling(inputs: Tensors, parameters: Tensors) -> float:
            generator = np.random.default_rng(SIGNS)
            signed = {
                key: item * generator.choice((-1.0, 1.0), item.shape) if names.is_gradient(key) else item
                for key, item in inputs.items()
            }
            return float(np.linalg.norm(formula(signed, parameters).reshape(-1)))

        made = ", ".join(dict.fromkeys(name for term in terms for name in term.operations()))
        length = max([1, *(self._length(term, site) for term in terms)])
        return Replayable(
            site, f"{made} backward" if made else "loss gradient", "linear", length, dict(names.inputs),
            dict(names.parameters), formula, without_cancelling, self._settings(terms),
            split if rows else None, through=tuple(dict.fromkeys(one for term in terms for one in term.outputs())),
        )  # fmt: skip

    def _settings(self, terms: tuple[_Term, ...]) -> Mapping[str, Json]:
        """Those of the one operation, which may have run on one sample after the other."""
        said = [term.recipe.settings for term in terms]
        return said[0] if said and all(one == said[0] for one in said) else {}

    def _length(self, term: _Term, site: Site) -> int:
        made = self.sources.shape(term.recipe.site)
        return prod(made) if site.phase == "grad" else max(1, prod(made[1:]))

    def _first(self, output: Site) -> Site:
        """Of several names of one tensor, the one by which it is read."""
        if output in self._readers:
            return output
        inner = self.forward(output) if output in self.sources.pairs else None
        if inner is not None and inner.operation == "identity" and len(inner.inputs) == 1:
            (before,) = inner.inputs.values()
            if self.sources.same_tensor(before, output):
                return self._first(before)
        return output

    @cached_property
    def _readers(self) -> dict[Site, list[Replayable]]:
        """By tensor, everything that was computed from it."""
        found: dict[Site, list[Replayable]] = {}
        for site in self.sources.pairs:
            recipe = self.forward(site) if site.phase == "fwd" else None
            for read in dict.fromkeys(recipe.inputs.values()) if recipe is not None else ():
                found.setdefault(read, []).append(recipe)  # type: ignore[arg-type]
        return found

    @cached_property
    def _users(self) -> dict[tuple[int, Site], list[Replayable]]:
        """By parameter, as it is stored, everything that was computed with it."""
        found: dict[tuple[int, Site], list[Replayable]] = {}
        for site in self.sources.pairs:
            recipe = self.forward(site) if site.phase == "fwd" else None
            for used in recipe.parameters.values() if recipe is not None else ():
                found.setdefault((site.step, self.sources.record(used).site), []).append(recipe)  # type: ignore[arg-type]
        return found


class _Names:
    """Tensors that a gradient is computed from, each under a name of its own."""

    def __init__(self) -> None:
        self.inputs: dict[str, Site] = {}
        self.parameters: dict[str, Site] = {}

    def name(self, wanted: str, site: Site) -> str:
        """The name of a forward tensor or gradient."""
        return _place(self.inputs, wanted, site)

    def parameter(self, wanted: str, site: Site) -> str:
        """The name of a parameter."""
        return _place(self.parameters, wanted, site)

    def is_gradient(self, key: str) -> bool:
        """Whether a name is that of a gradient."""
        return self.inputs[key].phase in ("agrad", "lossgrad")


def _place(known: dict[str, Site], wanted: str, site: Site) -> str:
    for key, other in known.items():
        if other == site:
            return key
    key, number = wanted, 1
    while key in known:
        key, number = f"{wanted} ({number})", number + 1
    known[key] = site
    return key
