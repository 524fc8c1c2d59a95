"""Numbers from arrays: `measure` two tensors, take the `stats` of one.

`definition` says in plain numpy what each number is. Contiguous tensors of the common float formats go
through the native twin, which gives the same numbers (see `definition` for sums); everything else, and an
installation without the compiled module, through the definition.
"""

from __future__ import annotations

from types import ModuleType

import ml_dtypes
import numpy as np

from . import definition, pieces
from .pieces import Array, compiled
from .results import Detail as Detail
from .results import Measurement as Measurement
from .results import Region as Region
from .results import Stats as Stats
from .results import Sums, stats_of
from .threads import share

native = compiled("native")

__all__ = ["Detail", "Measurement", "Region", "Stats", "measure", "native_available", "stats"]

# In the order of Kind in pair.h.
_KINDS = {np.dtype(t): i for i, t in enumerate((np.float64, np.float32, np.float16, ml_dtypes.bfloat16))}
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_SMALL_BYTES = 1 << 22  # up to here a tensor that is not contiguous is copied


def native_available() -> bool:
    """Whether the compiled kernel is in use."""
    return native is not None


def measure(reference: Array, candidate: Array, *, full: bool = True, threads: int = 1) -> Measurement:
    """Measure what separates two tensors of equal shape; see `definition.measure`.

    The native kernel shares large tensors among up to `threads` threads; the result does not depend on their
    number. numpy's operations are too short to be shared: handing over the interpreter's lock costs more.
    """
    reference, candidate = definition.checked_pair(reference, candidate)
    kind = _KINDS.get(reference.dtype)
    if native is None or kind is None or candidate.dtype != reference.dtype:
        return definition.measure(reference, candidate, full=full)
    left, right = _buffer(reference), _buffer(candidate)
    if left is None or right is None:
        return definition.measure(reference, candidate, full=full)
    rows, columns = pieces.matrix_shape(reference.shape)
    if threads > 1 and reference.size > pieces.BAND_SIZE:
        sums = _in_threads(native, (left, right, kind, rows, columns, full), threads)
    else:
        sums = Sums._make(native.measure(left, right, kind, rows, columns, full))
    if kind == 0 and definition.out_of_range(sums):
        return definition.measure(reference, candidate, full=full)
    return definition.finish(reference, candidate, sums, full)


def stats(array: Array) -> Stats:
    """Statistics of one tensor; see `definition.stats`."""
    array = pieces.in_memory_order(pieces.components(np.asarray(array)))
    kind = _KINDS.get(array.dtype)
    buffer = None if native is None or kind is None else _buffer(array)
    if native is None or buffer is None:
        return definition.stats(array)
    nan_count, inf_count, low, high, origin, *sums = native.stats(buffer, kind)
    if kind == 0 and definition.square_out_of_range(sums[2]):
        return definition.stats(array)
    return stats_of(array.size, nan_count, inf_count, (low, high), origin, sums)


def _buffer(array: Array) -> Array | None:
    """The tensor as the native kernel takes it: contiguous and of a dtype that exports its memory."""
    if not array.flags.c_contiguous:
        if array.nbytes > _SMALL_BYTES:
            return None
        array = np.ascontiguousarray(array)
    return array.view(np.uint16) if array.dtype == _BFLOAT16 else array


def _in_threads(native: ModuleType, pair: tuple[Array, Array, int, int, int, bool], threads: int) -> Sums:
    """Measure the bands of a pair in several threads; they are merged in their order, whoever was first."""
    shape = pair[3:]
    bands, size = native.partials_size(*shape)
    partials = np.empty(size, np.uint8)
    share(lambda band: native.part(*pair, partials, band, band + 1), bands, threads)
    return Sums._make(native.merge(partials, *shape))
