"""What is true of a run: how far each tensor is from float64, in units of what legal rewrites show there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import firstdrift as fd

from .network import Network, Values
from .running import run, run_from

REWRITES = 16
HELD_OUT = 8  # further rewrites, which the noise must account for
GREEN_FROM = 8.0  # a change of this size must not be green
FOUND_FROM = 32.0  # a change of this size must be found at its site
CLEAN_UNDER = 4.0  # where a right twin is further off than this, a case is not counted
CANCELLED = 1e-3  # of a usual row: below this, a row has the noise of a usual one
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float8_e4m3fn: 2.0**-4}
SMALLEST = {torch.float32: 2.0**-149, torch.float16: 2.0**-25, torch.bfloat16: 2.0**-133, torch.float8_e4m3fn: 2.0**-10}
COPIED = ("input", "weight")  # what no rounding touches


@dataclass(frozen=True)
class Noise:
    """The largest distance from float64 that a legal rewrite shows: in the mean of each row, and at each element."""

    row: np.ndarray
    element: np.ndarray


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return np.atleast_1d(tensor.detach().double().numpy())


def rms(array: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    return np.sqrt(np.mean(array * array, axis=axes, keepdims=True))


def measure(runs: Sequence[Values], truths: Sequence[Values], store: torch.dtype) -> dict[fd.Site, Noise]:
    """Noise pooled per row, of the rewrite that shows most: a mean over rewrites would be that of the exact ones.

    Never below what makes two roundings a change of size eight, nor below what is usual for this tensor's rows.
    """
    found = {}
    for site, exact in truths[0].items():
        if not exact.is_floating_point():
            continue
        t = numbers(exact)
        errors = np.stack([numbers(one[site]) - numbers(true[site]) for one, true in zip(runs, truths, strict=True)])
        size, row = rms(t, -1), rms(errors, -1).max(0)
        usual = float(np.median(row[size > 0] / size[size > 0])) if (size > 0).any() else 0.0
        copied = site.phase in COPIED and site.step == 0
        floor = max(UNIT[store] * (0.5 if copied else 0.25), usual)
        row = np.maximum(np.maximum(row, floor * size), SMALLEST[store])
        if (size > 0).any():  # what cancels to nothing may be off by a rounding of what was cancelled
            middle = np.median(size[size > 0])
            row = np.where(size > CANCELLED * middle, row, np.maximum(row, np.median(row[size > 0])))
        element = np.maximum(np.abs(errors).max(0), UNIT[store] * 0.25 * np.abs(t))
        found[site] = Noise(row, np.maximum(element, row))
    return found


def sizes(values: Values, truth: Values, noise: Mapping[fd.Site, Noise]) -> dict[fd.Site, float]:
    """For every tensor its distance from the truth over the noise, in the worst row or element."""
    found = {}
    for site, exact in truth.items():
        if site not in noise:
            found[site] = 0.0 if torch.equal(values[site], exact) else np.inf
            continue
        error = numbers(values[site]) - numbers(exact)
        if not np.isfinite(error).all():
            found[site] = np.inf
            continue
        rows = rms(error, -1) / noise[site].row
        found[site] = float(max(rows.max(), (np.abs(error) / noise[site].element).max()))
    return found


def _noise(runs: Sequence[Values], truths: Sequence[Values], store: torch.dtype) -> dict[fd.Site, Noise]:
    """Measured by the first rewrites, and widened until the others stay below half of what must not be green."""
    noise = measure(runs[:REWRITES], truths[:REWRITES], store)
    others = [sizes(one, true, noise) for one, true in zip(runs[REWRITES:], truths[REWRITES:], strict=True)]
    wider = {site: max(1.0, *(one[site] / CLEAN_UNDER for one in others)) for site in noise}
    return {site: Noise(one.row * wider[site], one.element * wider[site]) for site, one in noise.items()}


@dataclass(frozen=True)
class Truth:
    """Both kinds of noise of one network in one dtype: of single operations, and of whole runs."""

    network: Network
    store: torch.dtype
    exact: Values
    local: Mapping[fd.Site, Noise]
    free: Mapping[fd.Site, Noise]

    @classmethod
    def of(cls, network: Network, store: torch.dtype, seed: int, reference: Network | None = None) -> Truth:
        """Measured by free runs in legal ways: against float64 from the start, and from each run's own tensors. A
        reference that stores more digits starts from other numbers: correct runs are that far from it as well."""
        seeds = [None, *(seed * 1000 + k for k in range(1, REWRITES + HELD_OUT))]
        runs = [run(network, store, one) for one in seeds]
        exact = run(reference or network, torch.float64, None)
        truths = [run_from(network, torch.float64, None, one) for one in runs]
        return cls(network, store, exact, _noise(runs, truths, store), _noise(runs, [exact] * len(runs), store))

    def local_sizes(self, values: Values) -> dict[fd.Site, float]:
        """What every operation added to what it read."""
        return sizes(values, run_from(self.network, torch.float64, None, values), self.local)

    def free_sizes(self, values: Values) -> dict[fd.Site, float]:
        """How far the run has come from a run in float64."""
        return sizes(values, self.exact, self.free)
