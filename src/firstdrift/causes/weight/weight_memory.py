"""Weights whose memory was read otherwise: as another dtype, at another stride, from another place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...dtypes import numpy_dtype
from ..agreement import Floats, distance, floats, limit
from ..evidence import Evidence
from ..hypotheses import Finding, Hypothesis
from .weight_layouts import SCREEN, is_weight

DTYPES = ("f32", "bf16", "f16", "f64")
LEAST = 16  # numbers that must have come over
FARTHEST = 4096  # numbers between which a stride is sought
READ = 0.05  # of the tensor that must have been read, lest the rest be the matter


def read_as_another_dtype(evidence: Evidence) -> Iterator[Finding]:
    """The bytes of the reference's weights in one dtype, taken for another: too few numbers, or too many."""
    if not is_weight(evidence) or evidence.found.size < LEAST:
        return
    expected, found = (floats(one).ravel() for one in (evidence.expected, evidence.found))
    for stored in DTYPES:
        with np.errstate(all="ignore"):
            part = expected[:SCREEN].astype(numpy_dtype(stored))
        for name, read in _readings(stored):
            seen = _floats(part.tobytes(), read)[: min(SCREEN, found.size)]
            if len(seen) >= min(LEAST, found.size // 4) and _same(evidence, seen, found[: len(seen)]):
                with np.errstate(all="ignore"):
                    whole = _floats(expected.astype(numpy_dtype(stored)).tobytes(), read)[: found.size]
                yield from _told(evidence, f"the bytes of {stored} numbers are read as {name}", whole, stored, name)
                return


def _told(evidence: Evidence, said: str, whole: Floats, stored: str, name: str) -> Iterator[Finding]:
    found = floats(evidence.found).ravel()
    rest = found[len(whole) :]
    predicted = np.concatenate([whole, rest]).reshape(evidence.found.shape)
    if len(rest):
        said += f"; they fill {len(whole)} of {found.size} elements, and the rest is {_rest(rest)}"
    free = 0 if not len(rest) or _one_number(rest) else 1
    yield Finding("wrong-weight", said, predicted, free, {"stored": stored, "read": name})


def _readings(stored: str) -> Iterator[tuple[str, np.dtype[np.generic]]]:
    for read in DTYPES:
        if read != stored:
            yield read, np.dtype(numpy_dtype(read))
    if stored in ("f32", "f64", "f16"):
        yield f"{stored} of the other byte order", np.dtype(numpy_dtype(stored)).newbyteorder()


def _floats(raw: bytes, dtype: np.dtype[np.generic]) -> Floats:
    usable = len(raw) // dtype.itemsize * dtype.itemsize
    with np.errstate(all="ignore"):
        return np.asarray(np.frombuffer(raw[:usable], dtype).astype(np.float64))


def _same(evidence: Evidence, a: Floats, b: Floats) -> bool:
    """Whether two runs of numbers, NaN and infinity among them, are the same. Rounding is of every number's own size:
    bytes that are misread give numbers of all sizes, and the largest would decide."""
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or finite.sum() < len(a) // 2:
        return False
    close = np.abs(a - b)[finite] <= 2 * limit(evidence) * np.abs(a[finite]) + 1e-45
    return bool(close.all()) and bool(np.any(a[finite] != 0))


def read_at_a_stride(evidence: Evidence) -> Iterator[Finding]:
    """The reference's numbers in the order of memory, but every n-th of them, or from another one on."""
    if not is_weight(evidence) or evidence.found.size < 2 * LEAST:
        return
    expected, found = (floats(one).ravel() for one in (evidence.expected, evidence.found))
    for start, stride in _strides(expected, found, evidence):
        count = len(range(start, found.size, stride))
        if count < max(LEAST, READ * found.size) or (start, stride) == (0, 1):
            continue
        if distance(expected[start::stride][:SCREEN], found[:count][:SCREEN]) > limit(evidence):
            continue
        rest = found[count:]
        if stride > 1 and not _one_number(rest):  # the numbers go on otherwise: transposed, and not skipped
            continue
        predicted = np.concatenate([expected[start::stride], rest]).reshape(evidence.found.shape)
        said = f"the weights are read from element {start} on" if start else "the weights are read"
        said += f", every {_ordinal(stride)} of them" if stride > 1 else ", in the order of memory"
        said += f"; the last {len(rest)} elements are {_rest(rest)}" if len(rest) else ""
        free = (start > 0) + (stride > 1) + (bool(len(rest)) and not _one_number(rest))
        rows = stride == 1 and start % (found.size // len(evidence.found)) == 0
        label = "index-shift" if rows and evidence.found.ndim > 1 else "wrong-weight"
        yield Finding(label, said, predicted, int(free), {"start": start, "stride": stride})
        return


def _strides(expected: Floats, found: Floats, evidence: Evidence) -> Iterator[tuple[int, int]]:
    """Where the first number comes from, and how far on the next ones do."""
    first, second = (_places(expected, found[at], evidence) for at in (0, 1))
    for start in first[:4]:
        for next_one in second[(second > start) & (second <= start + FARTHEST)][:4]:
            yield int(start), int(next_one - start)


def _places(values: Floats, wanted: float, evidence: Evidence) -> NDArray[np.intp]:
    if wanted == 0.0:
        return np.array([], np.intp)
    return np.flatnonzero(np.abs(values - wanted) <= limit(evidence) * abs(wanted))


def _one_number(rest: Floats) -> bool:
    return bool(np.all(rest == rest[0]))


def _rest(rest: Floats) -> str:
    return f"{rest[0]:g}" if _one_number(rest) else "something else"


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


HYPOTHESES: tuple[Hypothesis, ...] = (read_as_another_dtype, read_at_a_stride)
