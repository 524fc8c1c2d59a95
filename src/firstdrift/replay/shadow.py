"""Both runs once more, in float64: at every site, the error that it inherited and the error that it made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import sqrt

import numpy as np

from ..causes.evidence import Evidence
from ..compare.pairs import Pair
from ..sites import Site
from ..strict_json import Json
from ..traces import Array, Trace
from ..verdict.noise import local_limit
from .backward import Backward
from .distance import Distance, relative
from .fitting import fit, floor_of, unit_of
from .operation import Floats, as_floats
from .replayable import Replayable, joined
from .sources import Sources
from .steps import Steps

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Introduced:
    """The errors of one site, all relative L2.

    `introduced` is how far the candidate is from what the reference's operation and weights make of the candidate's
    own inputs, `own` the same with the candidate's weights where those differ; `inherited` is how far that in turn
    is from what they make of the reference's inputs. Weights that an earlier step has made are inputs like others.
    `reference` is how far the reference is from its own float64 result, and `noise` how large `introduced` may be in
    a right candidate. `fed` is the largest error of the inputs.
    """

    site: Site
    operation: str
    settings: Mapping[str, Json]
    total: float
    inherited: float
    introduced: float
    own: float | None
    reference: float
    noise: float
    fed: float

    @property
    def is_right(self) -> bool:
        """Whether noise explains what was introduced."""
        return self.introduced <= self.noise

    @property
    def is_right_with_own_weights(self) -> bool:
        """Whether noise explains it once the candidate's own weights are granted."""
        return self.is_right or (self.own is not None and self.own <= self.noise)

    @property
    def gain(self) -> float:
        """By how much the operation amplified the error of its inputs."""
        return self.inherited / self.fed if self.fed else 0.0


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Everything one replay needs, of both sides."""

    target: tuple[Array, Array]
    inputs: tuple[dict[str, Array], dict[str, Array]]
    parameters: tuple[dict[str, Floats], dict[str, Floats]]
    granted: dict[str, Floats]  # the reference's, but for those that the candidate itself has made
    weights_differ: bool


class Shadow:
    """Two aligned traces, and what in them can be computed once more. Keeps formulas and figures, no tensors."""

    def __init__(self, reference: Trace, candidate: Trace, pairs: Sequence[Pair]) -> None:
        self.sources = Sources(reference, candidate, pairs)
        self._forward: dict[Site, Replayable | None] = {}
        self._confirmed: dict[Site, tuple[Replayable, Introduced] | None] = {}

    def replay(
        self, sites: Sequence[Site] | None = None, advance: Advance = lambda nbytes: None
    ) -> dict[Site, Introduced]:
        """The figures of all sites, or of these, that can be replayed."""
        found = {}
        for site in self.sources.pairs if sites is None else sites:
            confirmed = self._confirm(site)
            if confirmed is not None:
                found[site] = confirmed[1]
            if site in self.sources.pairs:
                advance(self.sources.record(site).nbytes)
        return found

    def recipe(self, site: Site) -> Replayable | None:
        """How the reference computed a site, if a formula was found that reproduces all of it."""
        confirmed = self._confirm(site)
        return None if confirmed is None else confirmed[0]

    def fitted(self, site: Site) -> Replayable | None:
        """How the reference computed a forward site, as far as its first rows tell."""
        return _fitted(self.sources, self._forward, site)

    def expected_at(self, site: Site) -> Evidence | None:
        """What the reference makes of the candidate's inputs at a site, for the search for causes."""
        recipe = self.recipe(site)
        loaded = None if recipe is None else self._load(recipe)
        if recipe is None or loaded is None:
            return None
        record, theirs = self.sources.record(site), self.sources.pairs[site].candidate[0]
        maker = self.sources.record(recipe.through[0]) if recipe.through else record
        with np.errstate(all="ignore"):
            expected = recipe.compute(loaded.inputs[1], loaded.granted)
            distance = Distance()
            distance.add(expected, loaded.target[1])
            noise = self._noise(recipe, loaded, distance, side=1)
        inputs = joined(recipe, loaded.inputs[1])
        return Evidence(
            site, expected, as_floats(loaded.target[1]), noise, True, maker.op or recipe.operation, inputs, inputs,
            loaded.granted, loaded.parameters[1], {**recipe.settings, **maker.attrs}, theirs.attrs,
        )  # fmt: skip

    def _confirm(self, site: Site) -> tuple[Replayable, Introduced] | None:
        """The first way of computing a site that reproduces the reference up to noise, and the figures it gives."""
        if site not in self._confirmed:
            options = self._options(site) if site in self.sources.pairs else ()
            measured = ((option, self._tried(option)) for option in options)
            self._confirmed[site] = next(((option, found) for option, found in measured if found is not None), None)
        return self._confirmed[site]

    def _options(self, site: Site) -> Iterable[Replayable]:
        match site.phase:
            case "fwd":
                fitted = self.fitted(site)
                return () if fitted is None else (fitted,)
            case "agrad" | "grad":
                return self._backward.recipes(site)
            case "weight_after" | "optim":
                return self._steps.recipes(site)
        return ()

    def _tried(self, recipe: Replayable) -> Introduced | None:
        """The figures of one site; None if the formula does not fit the tensors, or has no way back."""
        try:
            return self._measure(recipe)
        except (ValueError, IndexError, KeyError):
            return None

    def _measure(self, recipe: Replayable) -> Introduced | None:
        """The figures of one site; None if the formula does not reproduce the reference."""
        loaded = self._load(recipe)
        if loaded is None:
            return None
        ours, theirs = loaded.target
        total, inherited, introduced, own, exact = (Distance() for _ in range(5))
        with np.errstate(all="ignore"):
            for rows, expected, reference, by_own in self._parts(recipe, loaded):
                if reference.shape != ours[rows].shape:
                    return None
                exact.add(reference, ours[rows])
                introduced.add(expected, theirs[rows])
                inherited.add(reference, expected)
                if by_own is not None:
                    own.add(by_own, theirs[rows])
            if exact.relative > self._noise(recipe, loaded, exact, side=0):
                return None
            total.add(ours, theirs)
            noise = self._noise(recipe, loaded, introduced, side=1)
        fed = max((relative(loaded.inputs[0][key], item) for key, item in loaded.inputs[1].items()), default=0.0)
        return Introduced(
            recipe.site, recipe.operation, recipe.settings, total.relative, inherited.relative, introduced.relative,
            own.relative if loaded.weights_differ else None, exact.relative, noise, fed,
        )  # fmt: skip

    @cached_property
    def _first_step(self) -> int:
        return min((site.step for site in self.sources.pairs), default=0)

    @cached_property
    def _backward(self) -> Backward:
        # Not handed a method: it would know whoever keeps it, and the two would keep both traces' files open.
        return Backward(self.sources, partial(_fitted, self.sources, self._forward))

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self.sources)

    def _load(self, recipe: Replayable) -> _Loaded | None:
        target = self.sources.load(recipe.site)
        before = None if recipe.base is None else self.sources.load(recipe.base)
        inputs = {key: self.sources.load(site) for key, site in recipe.inputs.items()}
        given = {key: self.sources.load(site) for key, site in recipe.parameters.items()}
        if target is None or (recipe.base is not None and before is None):
            return None
        if None in inputs.values() or None in given.values():
            return None
        if before is not None:
            target = (as_floats(target[0]) - as_floats(before[0]), as_floats(target[1]) - as_floats(before[1]))
        sides = [{key: pair[side] for key, pair in inputs.items() if pair is not None} for side in (0, 1)]
        weights = [{key: as_floats(pair[side]) for key, pair in given.items() if pair is not None} for side in (0, 1)]
        granted = {key: weights[site.step > self._first_step][key] for key, site in recipe.parameters.items()}
        differ = any(not np.array_equal(item, weights[1][key], equal_nan=True) for key, item in granted.items())
        return _Loaded(target, (sides[0], sides[1]), (weights[0], weights[1]), granted, differ)

    def _parts(
        self, recipe: Replayable, loaded: _Loaded
    ) -> Iterator[tuple[tuple[slice, ...], Floats, Floats, Floats | None]]:
        """Part by part: what is expected of the candidate, of the reference, and with the candidate's weights."""
        ours, theirs = loaded.inputs
        given, own = loaded.parameters
        runs = [self._run(recipe, ours, given)]
        alike = _alike(ours, theirs) and _alike(given, loaded.granted)
        if not alike:
            runs.append(self._run(recipe, theirs, loaded.granted))
        if loaded.weights_differ:
            runs.append(self._run(recipe, theirs, own))
        for parts in zip(*runs, strict=True):
            rows, reference = parts[0]
            expected = reference if alike else parts[1][1]
            yield rows, expected, reference, parts[-1][1] if loaded.weights_differ else None

    def _run(
        self, recipe: Replayable, inputs: dict[str, Array], parameters: dict[str, Floats]
    ) -> Iterator[tuple[tuple[slice, ...], Floats]]:
        if recipe.split == "rows":
            yield from recipe.parts(inputs, parameters)
        else:
            yield (), recipe.compute(inputs, parameters)

    def _noise(self, recipe: Replayable, loaded: _Loaded, error: Distance, side: int) -> float:
        """How large an error of one side may be; terms that cancel are looked for only where it matters."""
        unit, norm = unit_of(self.sources, recipe, side), sqrt(error.norm)
        if side and loaded.weights_differ:  # perhaps only for having been rounded
            unit = max([unit, *(max(self.sources.units(site)) for site in recipe.parameters.values())])
        limit = floor_of(self.sources, recipe, side, change=norm)
        limit += local_limit(unit, recipe.length, recipe.kind, error.count)
        if error.relative > limit and norm and np.isfinite(error.relative):
            given = loaded.granted if side else loaded.parameters[0]
            limit *= max(1.0, recipe.terms_of(loaded.inputs[side], given) / norm)
        return limit


def replay(
    reference: Trace, candidate: Trace, pairs: Sequence[Pair], advance: Advance = lambda nbytes: None
) -> Mapping[Site, Introduced]:
    """The errors that each site of two aligned traces introduced and inherited, wherever it can be replayed."""
    return Shadow(reference, candidate, pairs).replay(advance=advance)


def _fitted(sources: Sources, known: dict[Site, Replayable | None], site: Site) -> Replayable | None:
    if site not in known:
        known[site] = fit(sources, site)
    return known[site]


def _alike(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> bool:
    return all(item is theirs[key] or np.array_equal(item, theirs[key]) for key, item in ours.items())
