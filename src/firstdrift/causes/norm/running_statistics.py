"""Running statistics of a batch norm that were updated otherwise."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..hypotheses import EXACT, LEAST_NOISE, Finding
from ..variants import floats, reproduces

Floats = NDArray[np.float64]


def running_statistics(evidence: Evidence) -> Iterable[Finding]:
    """The update of a running mean or variance, momentum * (batch - old), with another momentum or variance."""
    x, before = evidence.inputs.get("in.0"), evidence.inputs.get("weight")
    port = evidence.site.port
    if evidence.site.phase != "weight_after" or port not in ("running_mean", "running_var") or not floats(evidence):
        return
    if x is None or before is None or x.ndim < 2 or not before.shape == evidence.expected.shape == (x.shape[1],):
        return
    old, expected = np.asarray(before, np.float64), np.asarray(evidence.expected, np.float64)
    seen = np.asarray(evidence.candidate_inputs.get("in.0", x), np.float64)
    batches = [
        (_statistic(np.asarray(x, np.float64), port, ddof), _statistic(seen, port, ddof), ddof) for ddof in (1, 0)
    ]
    for batch, candidate_batch, ddof in batches if port == "running_var" else batches[1:]:
        momentum = _momentum(batch - old, expected)
        if momentum is None or not reproduces(momentum * (batch - old), expected, evidence.noise):
            continue
        yield from _momenta(evidence, candidate_batch - old, momentum)
        if port == "running_var":
            other = next(candidate for _, candidate, kind in batches if kind != ddof)
            name = "biased" if ddof else "unbiased"
            sentence = f"the running variance is updated with the {name} variance of the batch"
            yield Finding("batchnorm-unbiased", sentence, momentum * (other - old))
        return


def _statistic(x: Floats, port: str, ddof: int) -> Floats:
    axes = (0, *range(2, x.ndim))
    if port == "running_mean":
        return np.asarray(x.mean(axes))
    count = x.size // x.shape[1]
    return np.asarray(x.var(axes) * count / max(count - ddof, 1))


def _momentum(step: Floats, update: Floats) -> float | None:
    size = float((step**2).sum())
    return float((step * update).sum()) / size if size > 0 else None


def _momenta(evidence: Evidence, step: Floats, reference: float) -> Iterable[Finding]:
    fitted = _momentum(step, np.asarray(evidence.found, np.float64))
    if fitted is None or abs(fitted - reference) <= EXACT * max(evidence.noise, LEAST_NOISE) * abs(reference):
        return
    if not np.any(evidence.found):
        sentence = f"the running statistics are not updated; the reference's momentum is {reference:.4g}"
        known = {"momentum": 0.0, "reference_momentum": reference}
        yield Finding("batchnorm-momentum", sentence, np.zeros_like(step), 0, known)
        return
    swapped = 1.0 - reference  # the share of the old value, as some frameworks have it
    for momentum, free in ((swapped, 0), (float(f"{fitted:.2g}"), 1), (fitted, 1)):
        sentence = f"the momentum of the running statistics is {momentum:.4g} instead of {reference:.4g}"
        known = {"momentum": momentum, "reference_momentum": reference}
        yield Finding("batchnorm-momentum", sentence, momentum * step, free, known)
