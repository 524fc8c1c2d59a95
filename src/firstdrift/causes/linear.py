"""Linear maps: a bias left out or added again, a transposed or coarser weight, and short accumulators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

import numpy as np
from numpy.typing import NDArray

from .evidence import Evidence
from .hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis
from .precision.operands import Coarsening, coarsenings, shortened
from .variants import Screen, Variant, distance, findings, forward, parameter, reproduces, slight, telling

Floats = NDArray[np.float64]

ROWS, CHANNELS = 64, 64  # of the output, to try variants on
COST = 2 * 10**9  # multiplications that the whole may cost
MOST_BIASES = 64  # a bias added on every rank
CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ACCUMULATED = 512  # elements of which an accumulator is followed


@dataclass(frozen=True, slots=True)
class Product:
    """A linear map of some rows to some outputs: `weight` is (outputs, width), or all that a module has of it."""

    x: Floats
    candidate_x: Floats
    weight: Floats
    bias: Floats | None
    rows: NDArray[np.intp]
    outputs: NDArray[np.intp]
    shape: tuple[int, ...]

    def __call__(self, x: Floats, weight: Floats) -> Floats:
        """The outputs, given all of an input and all of a weight."""
        y = x[self.rows] @ weight[self.outputs].T
        return np.asarray(y if self.bias is None else y + self.bias[self.outputs]).reshape(self.shape)

    def coarser(self, coarse: Coarsening) -> Floats:
        """The outputs with coarser operands; only what is needed of them is rounded."""
        x, weight = self.candidate_x[self.rows], self.weight[self.outputs]
        x = x if coarse.input is None else coarse.input(x)
        y = x @ (weight if coarse.weight is None else coarse.weight(weight)).T
        return np.asarray(y if self.bias is None else y + self.bias[self.outputs]).reshape(self.shape)


def bias_count(evidence: Evidence) -> Iterable[Finding]:
    """The bias of a module is missing, or is added more than once."""
    if not forward(evidence):
        return
    weight = parameter(evidence, "weight")
    for name, vector in evidence.parameters.items():
        if "bias" not in name and name not in ("beta", "b"):
            continue
        bias = np.asarray(vector, np.float64)
        for axis in _axes(evidence, bias, weight):
            yield from _counted(evidence, bias.reshape(-1, *[1] * (evidence.expected.ndim - 1 - axis)), name)


def _axes(evidence: Evidence, bias: Floats, weight: Floats | None) -> list[int]:
    """Along which axis of the output a bias lies: channels for a convolution or a batch norm, else the last."""
    ndim, shape = evidence.expected.ndim, evidence.expected.shape
    if bias.ndim != 1 or not bias.size:
        return []
    channels = weight is not None and weight.ndim > 2
    order = [1, ndim - 1] if channels or "running_mean" in evidence.parameters else [ndim - 1, 1]
    return [axis for axis in dict.fromkeys(order) if 0 <= axis < ndim and shape[axis] == bias.size]


def _counted(evidence: Evidence, bias: Floats, name: str) -> Iterator[Finding]:
    expected, found = (np.asarray(one, np.float64) for one in (evidence.expected, evidence.found))
    size = float((bias**2).sum()) * expected.size / bias.size
    with np.errstate(all="ignore"):
        times = float(((found - expected) * bias).sum()) / size if size > 0 else np.nan
    if not np.isfinite(times) or not (round(times) == -1 or 1 <= round(times) <= MOST_BIASES):
        return
    more = round(times)
    if more == -1:
        yield Finding("missing-bias", f"the {name} is not added", expected - bias)
    else:
        parameters = {"times": more + 1}
        yield Finding("double-bias", f"the {name} is added {more + 1} times", expected + more * bias, 0, parameters)


def product(evidence: Evidence) -> Iterable[Finding]:
    """A linear map whose weight is transposed, coarser, or not scaled, or whose operands are coarser."""
    read = _read(evidence)
    if read is None:
        return
    whole, part = read
    seen = replace(evidence, expected=_cut(evidence.expected, part), found=_cut(evidence.found, part))
    affordable = len(whole.rows) * whole.weight.size <= COST
    variants = [*_transposed(whole.weight), *(_coarse(whole.weight) if slight(seen) else ())]
    yield from findings(evidence, Screen(part, seen, whole if affordable else None), variants)
    if slight(seen):
        yield from _accumulated(evidence, part, seen)


def _read(evidence: Evidence) -> tuple[Product, Product] | None:
    """The map and a part of it, whichever way round the module keeps its weight."""
    weight, bias = parameter(evidence, "weight"), parameter(evidence, "bias")
    x = evidence.inputs.get("in.0", next(iter(evidence.inputs.values()), None))
    if not forward(evidence) or weight is None or weight.ndim != 2 or x is None or x.dtype.kind != "f" or not x.ndim:
        return None
    key = next(key for key, one in evidence.inputs.items() if one is x)
    seen = evidence.candidate_inputs.get(key, x)
    for untransposed in (False, True):
        matrix = weight.T if untransposed else weight
        out, width = matrix.shape
        if x.shape[-1:] != (width,) or (*x.shape[:-1], out) != evidence.expected.shape or seen.shape != x.shape:
            continue
        flat, candidate = (np.asarray(one, np.float64).reshape(-1, width) for one in (x, seen))
        usable = bias if bias is not None and bias.shape == (out,) else None
        whole = Product(flat, candidate, matrix, usable, np.arange(len(flat)), np.arange(out), evidence.expected.shape)
        expected, found = (one.reshape(-1, out) for one in (evidence.expected, evidence.found))
        rows, outputs = telling(expected, found, ROWS), telling(expected.T, found.T, CHANNELS)
        part = replace(whole, rows=rows, outputs=outputs, shape=(len(rows), len(outputs)))
        if reproduces(part(flat, matrix), _cut(evidence.expected, part), evidence.noise):
            return whole, part
    return None


def _cut(tensor: NDArray[np.generic], part: Product) -> Floats:
    out = tensor.shape[-1]
    return np.asarray(tensor, np.float64).reshape(-1, out)[np.ix_(part.rows, part.outputs)]


def _transposed(weight: Floats) -> Iterator[Variant[Product]]:
    if weight.shape[0] == weight.shape[1]:
        yield Variant("transpose", "the weight is used transposed", partial(_with, weight.T))
    elif min(weight.shape) > 1:
        sentence = "the weight's memory is read as that of its transpose"
        for other in (weight.T.reshape(weight.shape), weight.reshape(weight.shape[::-1]).T):
            yield Variant("transpose", sentence, partial(_with, other))


def _coarse(weight: Floats) -> Iterator[Variant[Product]]:
    for coarse in coarsenings(weight):
        yield Variant(coarse.label, coarse.sentence, methodcaller("coarser", coarse))


def _with(weight: Floats, one: Product) -> Floats:
    return one(one.candidate_x, weight)


def _accumulated(evidence: Evidence, part: Product, seen: Evidence) -> Iterator[Finding]:
    """Sums kept in a short float between chunks: followed on a few outputs, as the whole would take too long."""
    columns = max(ACCUMULATED // len(part.rows), 1)
    rows, outputs = part.rows, part.outputs[:columns]
    found, expected = (np.asarray(one, np.float64)[:, :columns] for one in (seen.found, seen.expected))
    scale = max(float(np.linalg.norm(found)), float(np.linalg.norm(expected)))
    whole = distance(found, expected, scale)
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    if not np.isfinite(whole) or whole <= limit:
        return
    for dtype in ("bf16", "f16"):
        for rounded in (False, True):
            x, weight = part.candidate_x[rows], part.weight[outputs]
            if rounded:
                x, weight = shortened(x, dtype), shortened(weight, dtype)
            for chunk in (one for one in CHUNKS if one < x.shape[1]):
                y = accumulated(x, weight, chunk, dtype)
                y = y if part.bias is None else y + part.bias[outputs]
                left = min(distance(found, one, scale) for one in (y, shortened(y, dtype)))
                if left <= max(limit, whole / 10):
                    sentence = f"the sum is kept in {dtype} after every {chunk} products"
                    known = {"dtype": dtype, "chunk": chunk}
                    yield Finding("accumulator-precision", sentence, None, 1, known, left)
                    return


def accumulated(x: Floats, weight: Floats, chunk: int, dtype: str) -> Floats:
    """x W^T, summed in chunks to an accumulator of a short float."""
    total = np.zeros((len(x), len(weight)))
    for start in range(0, x.shape[1], chunk):
        at = slice(start, start + chunk)
        total = shortened(total + x[:, at] @ weight[:, at].T, dtype)
    return total


HYPOTHESES: tuple[Hypothesis, ...] = (bias_count, product)
