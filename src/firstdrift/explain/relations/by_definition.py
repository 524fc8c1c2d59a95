"""What a drift is by definition: other inputs, or, where nothing says how it came about, another loss or backward."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ..evidence import Evidence
from ..one_program.agreement import agree, distance, floats, limit
from .coarser import stored_coarser
from .elementwise import offset, scale
from .hypotheses import Finding, Hypothesis, residual
from .permutations import axis_order, index_shift, slices_moved

MOST_CHANNELS = 16
ROWS = 8  # per fitted number


def different_input(evidence: Evidence) -> Iterator[Finding]:
    """Whatever differs at an input: the sides were fed different data."""
    if evidence.site.phase != "input":
        return
    for hypothesis in (slices_moved, axis_order, index_shift, scale, offset, _normalised, stored_coarser):
        for finding in hypothesis(evidence):
            if residual(evidence, finding) <= limit(evidence):
                said = f"the two sides were fed different data: {finding.sentence}"
                yield Finding("different-input", said, None, 0, {"how": finding.label, **finding.parameters}, 0.0)
                return
    a, b = evidence.expected, evidence.found
    share = float((a != b).mean()) if a.size else 1.0
    said = f"the two sides were fed different data: {share:.1%} of the elements differ"
    yield Finding("different-input", said, None, 0, {"how": "unknown", "share": share}, 0.0)


def _normalised(evidence: Evidence) -> Iterator[Finding]:
    """Every channel has a factor and an offset of its own, as means and deviations give."""
    shape = evidence.expected.shape
    for axis in {1, len(shape) - 1} if len(shape) > 2 else ():
        channels = shape[axis]
        if not 1 < channels <= MOST_CHANNELS or evidence.expected.size // channels < 2 * ROWS:
            continue
        a, b = (
            np.moveaxis(floats(array), axis, 0).reshape(channels, -1) for array in (evidence.expected, evidence.found)
        )
        x, y = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
        square = (x * x).sum(axis=1)
        if not (square > 0).all():
            continue
        factors = (x * y).sum(axis=1) / square
        offsets = b.mean(axis=1) - factors * a.mean(axis=1)
        rest = tuple(size for one, size in enumerate(shape) if one != axis)
        predicted = np.moveaxis((a * factors[:, None] + offsets[:, None]).reshape(channels, *rest), 0, axis)
        said = f"every channel of axis {axis} is normalised otherwise"
        details = {"axis": axis, "factors": factors.tolist(), "offsets": offsets.tolist()}
        yield Finding("channel-scale", said, predicted, 2 * channels, details)


SHARED = 100_000_000  # elements of weights that are read to see whether one is used twice


def another_gradient(evidence: Evidence) -> Iterator[Finding]:
    """A gradient that differs although all it was computed from agrees: the backward computes something else."""
    site = evidence.site
    if site.phase not in ("agrad", "grad") or not _finite(evidence) or not np.any(evidence.found):
        return
    if not (evidence.replayed or _fed_alike(evidence)) or (site.phase == "grad" and _elsewhere_too(evidence)):
        return
    of = f" of {evidence.op}" if evidence.op else ""
    sentence = f"the backward{of} computes something else; what it is computed from is right"
    yield Finding("gradient-formula", sentence, general=True)


def another_loss(evidence: Evidence) -> Iterator[Finding]:
    """A loss that differs although the scores agree: another formula."""
    if (
        evidence.site.phase != "loss"
        or not _finite(evidence)
        or _other_targets(evidence)
        or not _scores_agree(evidence)
    ):
        return
    sentence = "the loss is computed by another formula: its scores are the same"
    sentence += "" if _targets_known(evidence) else " (its targets are not recorded)"
    yield Finding("loss-formula", sentence, general=True)


def _finite(evidence: Evidence) -> bool:
    return bool(np.isfinite(evidence.found).all() and np.isfinite(evidence.expected).all())


def _fed_alike(evidence: Evidence) -> bool:
    """Whether a gradient came in, and it and all else that a backward reads are the same on both sides."""
    reference, candidate = evidence.inputs, evidence.candidate_inputs
    if not any(key.startswith("agrad") for key in reference) or reference.keys() != candidate.keys():
        return False
    return all(agree(evidence, *_unmasked(reference[key], candidate[key])) for key in reference)


def _unmasked(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Two tensors without what both mask by the same infinity."""
    if reference.shape != candidate.shape or reference.dtype.kind != "f" or candidate.dtype.kind != "f":
        return reference, candidate
    kept = ~(np.isinf(reference) & (reference == candidate))
    return (reference, candidate) if kept.all() else (reference[kept], candidate[kept])


def _elsewhere_too(evidence: Evidence) -> bool:
    """Whether a weight is used by another module, whose part of the gradient may be what differs."""
    site = evidence.site
    own = evidence.around.reference(site._replace(phase="weight"))
    if own is None or own.ndim < 2:  # only matrices are shared; biases and gains are often alike by their start
        return False
    read = 0
    for other in evidence.around.sites("weight"):
        if other.step != site.step or (other.name, other.port) == (site.name, site.port):
            continue
        weight = evidence.around.reference(other)
        read += 0 if weight is None else weight.size
        if read > SHARED:
            return True  # not known
        if weight is not None and weight.shape == own.shape and np.array_equal(weight, own):
            return True
    return False


def _targets_known(evidence: Evidence) -> bool:
    return evidence.around.facts.get("target") is not None


def _other_targets(evidence: Evidence) -> bool:
    """Whether the sides are known to be given different targets."""
    candidate = evidence.around.facts.get("candidate_target")
    if candidate is None or not _targets_known(evidence):
        return False
    return not np.array_equal(np.asarray(evidence.around.facts["target"]), np.asarray(candidate))


def _scores_agree(evidence: Evidence) -> bool:
    """Whether all that the loss may have read is the same: every output of the model, where it gives several."""
    reference, candidate = evidence.inputs.get("logits"), evidence.candidate_inputs.get("logits")
    if reference is None or candidate is None or not agree(evidence, reference, candidate):
        return False
    return all(_same(evidence, site, limit(evidence)) is not False for site in _outputs(evidence))


def _outputs(evidence: Evidence) -> list[Site]:
    forward = evidence.around.sites("fwd")
    here = evidence.site.step, ""
    return [site for site in forward if (site.step, site.name) == here and site.port.startswith("out")]


def _same(evidence: Evidence, site: Site, allowed: float) -> bool | None:
    reference: Array | None = evidence.around.reference(site)
    candidate = evidence.around.candidate(site)
    if reference is None or candidate is None:
        return None
    return distance(reference, candidate) <= allowed


INPUTS: tuple[Hypothesis, ...] = (different_input,)
HYPOTHESES: tuple[Hypothesis, ...] = (another_gradient, another_loss)
