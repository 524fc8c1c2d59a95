"""Images that are resized between modules: by another kind of interpolation, or with other corners.

What is resized may be any tensor that came before. What is made of it may stand alone, be some of the channels of a
concatenation, or be a term of a sum, of which the others need not be known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from ...sites import Site
from ...traces import Array
from ..agreement import floats, limit
from ..evidence import Evidence
from ..formulas.resize import Floats
from ..hypotheses import Finding, Hypothesis
from ..variants import ROUNDED, forward, reproduces
from .pooling import PLANES, WAYS, Way

FEWEST_AXES, MOST_AXES = 3, 5
MOST_SOURCES = 32  # tensors that may have been resized, the nearest first
MOST_READ = 1 << 25  # elements that are read to look for them
PLAIN = 16.0  # times what noise explains: how large a difference is that two ways of resizing may make


@dataclass(frozen=True, slots=True)
class View:
    """A tensor as (samples, channels, *space), whichever axis holds the channels."""

    last: bool

    def of(self, array: Array) -> Floats:
        """The tensor as it is viewed."""
        return np.moveaxis(floats(array), -1, 1) if self.last else floats(array)

    def back(self, viewed: Floats) -> Floats:
        """The tensor as it was."""
        return np.moveaxis(viewed, 1, -1) if self.last else viewed


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that may have been resized, on both sides, and the channels that it may have become."""

    name: str
    ours: Floats
    theirs: Floats
    channels: slice


def resized_image(evidence: Evidence) -> Iterator[Finding]:
    """What is handed to a module holds an earlier tensor, resized; in the candidate, resized in another way."""
    between = evidence.site.port.startswith("in.") or not evidence.parameters
    if not forward(evidence) or not between or not FEWEST_AXES <= evidence.expected.ndim <= MOST_AXES:
        return
    if not np.isfinite(evidence.expected).all() or not np.isfinite(evidence.found).all():
        return
    for view in (View(False), View(True)):
        expected, found = view.of(evidence.expected), view.of(evidence.found)
        changed = _changed(evidence, expected, found)
        for source in _sources(evidence, view, changed) if changed is not None else ():
            made = _alone(evidence, expected, found, source) or _added(evidence, expected, found, source)
            if made is not None:
                predicted, way, own = made
                said = f"{source.name} is resized by {way} instead of {own}"
                yield Finding("interpolation", said, view.back(predicted), 0, asdict(way))
                return


def _changed(evidence: Evidence, expected: Floats, found: Floats) -> slice | None:
    """The channels from the first to the last that differ."""
    others = (0, *range(2, expected.ndim))
    error, size = (np.sqrt(np.square(one).mean(others)) for one in (found - expected, expected))
    far = np.flatnonzero(error > limit(evidence) * np.maximum(size, float(size.mean())))
    return slice(int(far[0]), int(far[-1]) + 1) if len(far) else None


def _sources(evidence: Evidence, view: View, changed: slice) -> Iterator[Source]:
    """The tensors before the drift that have its samples, as many channels as differ or all, and another space."""
    shape = view.of(evidence.expected).shape
    blocks = {changed.stop - changed.start: changed, shape[1]: slice(0, shape[1])}
    tried: set[bytes] = set()
    for name, ours, theirs in _before(evidence):
        if ours.ndim != len(shape) or theirs.shape != ours.shape or ours.dtype.kind != "f" or len(ours) != shape[0]:
            continue
        seen = view.of(ours).shape
        mark = np.ascontiguousarray(ours[:1]).tobytes() if seen[1] in blocks and seen[2:] != shape[2:] else b""
        if not mark or mark in tried:  # a tensor is recorded by all who hand it on
            continue
        tried.add(mark)
        yield Source(name, view.of(ours), view.of(theirs), blocks[seen[1]])
        if len(tried) == MOST_SOURCES:
            return


def _before(evidence: Evidence) -> Iterator[tuple[str, Array, Array]]:
    """What the tensor was made from, the model's inputs, then all that came before it, nearest first."""
    for name, value in evidence.inputs.items():
        yield name, value, evidence.candidate_inputs.get(name, value)
    around, site = evidence.around, evidence.site
    sites = list(around.sites("fwd"))
    before = sites[: sites.index(site)] if site in sites else sites
    read = 0
    for other in (*around.sites("input"), *reversed(before)):
        if (other.step, other.sample) != (site.step, site.sample) or read > MOST_READ:
            continue
        ours = around.reference(other)
        read += 0 if ours is None else ours.size
        if ours is None or ours.ndim != evidence.expected.ndim or len(ours) != len(evidence.expected):
            continue
        theirs = around.candidate(other)
        if theirs is not None:
            yield _named(other), ours, theirs


def _named(site: Site) -> str:
    if site.phase == "input":
        return f"the input {site.port}"
    return f"{site.name or 'the model'}{'' if site.port == 'out' else f' ({site.port})'}"


def _alone(evidence: Evidence, expected: Floats, found: Floats, source: Source) -> tuple[Floats, Way, Way] | None:
    """What the candidate has where these channels are the source, resized: seen on a few planes of the reference."""
    here = (slice(None), source.channels)
    rows, out = _rows(source.ours, expected[here], found[here]), expected.shape[2:]
    own = next(
        (way for way in WAYS if reproduces(way(_planes(source.ours)[rows], out),
                                           _planes(expected[here])[rows], evidence.noise)),
        None,
    )  # fmt: skip
    if own is None:
        return None
    wanted, given = _planes(found[here])[rows], _planes(source.theirs)[rows]
    for way in WAYS:
        if way != own and _near(way(given, out), wanted, 2 * limit(evidence)):
            predicted = expected.copy()
            predicted[here] = way(source.theirs, out)
            return predicted, way, own
    return None


def _added(evidence: Evidence, expected: Floats, found: Floats, source: Source) -> tuple[Floats, Way, Way] | None:
    """What the candidate has where the source, resized, is a term: the sides differ by two ways of resizing it."""
    here = (slice(None), source.channels)
    rows, out = _rows(source.ours, expected[here], found[here]), expected.shape[2:]
    terms = _planes(expected[here])[rows]
    wanted = _planes(found[here])[rows] - terms
    enough = max(limit(evidence), ROUNDED) * float(np.linalg.norm(terms))
    if float(np.linalg.norm(wanted)) < PLAIN * enough:
        return None
    ours, theirs = ([way(_planes(one)[rows], out) for way in WAYS] for one in (source.ours, source.theirs))
    left = {
        (i, j): float(np.linalg.norm(b - a - wanted))
        for i, a in enumerate(ours)
        for j, b in enumerate(theirs)
        if i != j
    }
    least = min(left.values())
    if not least <= 2 * enough:
        return None
    # Ways that are the same at these sizes are called by their plainest name.
    i, j = min(pair for pair, error in left.items() if error <= 2 * least + 0.1 * enough)
    predicted = expected.copy()
    predicted[here] += WAYS[j](source.theirs, out) - WAYS[i](source.ours, out)
    return predicted, WAYS[j], WAYS[i]


def _rows(source: Floats, expected: Floats, found: Floats) -> Array:
    """A few planes: those that differ most, and some others."""
    error = np.square(_planes(found) - _planes(expected)).reshape(source.shape[0] * source.shape[1], -1).sum(1)
    most = np.argsort(error)[::-1][: PLANES // 2]
    spread = np.linspace(0, len(error) - 1, PLANES - PLANES // 2).astype(np.intp)
    return np.unique(np.concatenate((most, spread)))


def _planes(images: Floats) -> Floats:
    return images.reshape(-1, *images.shape[2:])


def _near(made: Floats, wanted: Floats, enough: float) -> bool:
    size = max(float(np.linalg.norm(made)), float(np.linalg.norm(wanted)))
    return float(np.linalg.norm(made - wanted)) <= enough * size


HYPOTHESES: tuple[Hypothesis, ...] = (resized_image,)
