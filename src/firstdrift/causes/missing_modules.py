"""Modules that the candidate never runs: what should have gone through one goes around it, in whatever layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ..judge.apriori.kinds import kind_of
from ..sites import Site
from ..traces import Array
from .agreement import distance, limit
from .evidence import Evidence
from .hypotheses import Finding, Hypothesis
from .screening import positions, sampled
from .sums.branches import ancestors

TRIED = 1024  # elements by which a tensor is recognised
FEWEST = 16  # different numbers among them
MOST_AXES = 5

Shape = tuple[int, ...]
Way = tuple[Shape, Shape]  # a tensor is read as of a shape, its axes are put in an order, and it is read as it is here


def around_a_module(evidence: Evidence) -> Iterator[Finding]:
    """found is what went into a module that the candidate does not run, where expected is what came out of it."""
    if evidence.site.phase != "fwd" or evidence.expected.shape != evidence.found.shape:
        return
    missing = _missing(evidence)
    if not missing or not _is_telling(evidence):
        return
    for out in (one for one in missing if one.port.startswith("out")):
        value = evidence.around.reference(out)
        way = None if value is None else _way(evidence, value, evidence.expected)
        if way is None:
            continue
        for entered in _entrances(evidence, missing, out):
            for given in _values(evidence, entered):
                predicted = _arranged(given, way, evidence.found.shape)
                if predicted is not None and distance(predicted, evidence.found) <= limit(evidence):
                    yield _told(evidence, entered, out, predicted)
                    return


def _entrances(evidence: Evidence, missing: list[Site], out: Site) -> Iterator[Site]:
    """The inputs of a module, then those of the modules before it that are missing too."""
    inputs = [one for one in missing if one.port.startswith("in.")]
    yield from (one for one in inputs if (one.name, one.call) == (out.name, out.call))
    before = ancestors(evidence.around, [out])
    yield from (one for one in inputs if one in before and one.name != out.name)


def _missing(evidence: Evidence) -> list[Site]:
    """The tensors of the modules that only the reference runs, outer modules first."""
    site = evidence.site
    found = [
        one
        for one in evidence.around.facts.get("reference_only", ())
        if (one.step, one.phase, one.sample) == (site.step, "fwd", site.sample)
    ]
    return sorted(found, key=lambda one: one.name.count("."))


def _is_telling(evidence: Evidence) -> bool:
    """Whether the tensors have enough numbers to be recognised by, and are two."""
    some = sampled(evidence.found, positions(evidence.found.size, TRIED))
    if not np.isfinite(some).all() or len(np.unique(some)) < FEWEST:
        return False
    return distance(evidence.expected, evidence.found) > 2 * limit(evidence)


def _values(evidence: Evidence, entered: Site) -> Iterator[Array]:
    """What goes into a module: what the reference says, and what the candidate has of what that was made from."""
    value = evidence.around.reference(entered)
    if value is None:
        return
    yield value
    for one in evidence.around.producers(entered):
        own = evidence.around.candidate(one)
        if own is not None and own.shape == value.shape:
            yield own


def _way(evidence: Evidence, value: Array, wanted: Array) -> Way | None:
    """How a tensor has to be read and its axes be put to give another one; None where it does not."""
    if value.size != wanted.size or max(value.ndim, wanted.ndim) > MOST_AXES or value.dtype.kind != "f":
        return None
    at = positions(wanted.size, TRIED)
    some = sampled(wanted, at)
    flat = value.reshape(-1)
    for split, axes in dict.fromkeys(_ways(value.shape, wanted.shape)):
        if distance(np.asarray(flat[_source(split, axes, at)], np.float64), some) <= 2 * limit(evidence):
            return split, axes
    return None


def _ways(shape: Shape, wanted: Shape) -> Iterator[Way]:
    """The axes as they are, or in another order; before an axis is split, or after."""
    for axes in permutations(range(len(wanted))):
        yield tuple(wanted[axes.index(axis)] for axis in range(len(wanted))), axes
    for axes in permutations(range(len(shape))):
        yield shape, axes


def _source(split: Shape, axes: Shape, at: NDArray[np.intp]) -> NDArray[np.intp]:
    """Where the elements lie that come to these places."""
    there = np.unravel_index(at, tuple(split[axis] for axis in axes))
    here = [there[axes.index(axis)] for axis in range(len(split))]
    return np.asarray(np.ravel_multi_index(here, split)) if split else at


def _arranged(value: Array, way: Way, shape: Shape) -> Array | None:
    split, axes = way
    return value.reshape(split).transpose(axes).reshape(shape) if value.size == int(np.prod(shape)) else None


def _told(evidence: Evidence, entered: Site, out: Site, predicted: Array) -> Finding:
    modules = list(dict.fromkeys((entered.name, out.name)))
    is_norm = all(_is_norm(evidence, out._replace(name=name)) for name in modules)
    said = f"{' to '.join(modules)} {'is' if len(modules) == 1 else 'are'} not run: its input goes on as it is"
    return Finding("norm-missing" if is_norm else "skipped-op", said, predicted, 0, {"module": modules[0]})


def _is_norm(evidence: Evidence, site: Site) -> bool:
    return kind_of(evidence.around.op(site)) == "norm" or "norm" in site.name.rpartition(".")[2].lower()


HYPOTHESES: tuple[Hypothesis, ...] = (around_a_module,)
