"""Two checkpoints, tensor by tensor: which are the same, which moved, and what became of those that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from os import PathLike

import numpy as np

from .._kernels.checksums import crc32
from ..causes.agreement import distance
from ..causes.evidence import Evidence
from ..causes.hypotheses import Hypothesis, explain
from ..causes.weight import weight_grids, weight_layouts, weight_values, weights
from ..checkpoints.checkpoint import Array, Checkpoint
from ..checkpoints.opening import open_checkpoint
from ..checkpoints.rounding import FLOATS, as_dtype
from ..compare.result import Cause
from ..dtypes import dtype_name, roundoff
from ..errors import FormatError
from ..sites import Site
from .diff_result import CheckpointDifference, TensorDifference
from .elsewhere import Read, Whole, find_whole, same_bits

LAYOUTS = weight_layouts.HYPOTHESES
EVERYTHING = (weights.not_loaded, *LAYOUTS, *weight_values.HYPOTHESES, *weight_grids.HYPOTHESES)
FULLY_EXPLAINED = 16  # tensors; what the others suffered from is mostly the same, and looked for among layouts alone


@dataclass(slots=True)
class _Sides:
    """Both checkpoints, and the checksum of every tensor that was read, in the candidate's dtype."""

    reference: Checkpoint
    candidate: Checkpoint
    sums: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))
    explained: int = 0


def diff_checkpoints(
    reference: str | PathLike[str], candidate: str | PathLike[str],
    advance: Callable[[int], None] = lambda nbytes: None,
) -> CheckpointDifference:  # fmt: skip
    """Compare two checkpoints in any formats by their tensors' names, numbers and layouts."""
    with open_checkpoint(reference) as ours, open_checkpoint(candidate) as theirs:
        return compare(ours, theirs, advance)


def compare(
    ours: Checkpoint, theirs: Checkpoint, advance: Callable[[int], None] = lambda nbytes: None
) -> CheckpointDifference:
    """Compare two open checkpoints."""
    sides = _Sides(ours, theirs)
    found: dict[str, TensorDifference] = {}
    suspects = []
    for name in ours.entries:
        if name in theirs:
            one = _compared(sides, name)
            found[name] = one
            suspects += [name] if one.verdict == "drift" else []
            advance(ours.entry(name).nbytes)
    for name in suspects:
        found[name] = _explained(sides, name, found[name])
    ours_only = [name for name in ours.entries if name not in found]
    theirs_only = [name for name in theirs.entries if name not in ours]
    for one in _elsewhere(sides, ours_only, theirs_only):
        found[one.name] = one
    explained = {other for one in found.values() if one.verdict == "moved" for other in one.others}
    left = tuple(name for name in theirs_only if name not in explained and not _tied_to(theirs, name))
    for side in (ours, theirs):
        side.check_unchanged()
    return CheckpointDifference(str(ours.path), str(theirs.path), tuple(found[name] for name in ours.entries), left)


def _compared(sides: _Sides, name: str) -> TensorDifference:
    """A tensor that both have, by its bits; across dtypes after rounding the reference to the candidate's."""
    a, b = sides.reference.array(name), sides.candidate.array(name)
    rounded, problem = _rounded(a, b, name)
    if problem is not None:
        return TensorDifference(name, "drift", problem, "dtype")
    ours, theirs = sides.sums
    ours[name], theirs[name] = crc32(np.ascontiguousarray(rounded)), crc32(np.ascontiguousarray(b))
    if a.shape != b.shape:
        said = f"shape {list(a.shape)} in the reference, {list(b.shape)} in the candidate"
        return TensorDifference(name, "drift", said, "shape")
    if rounded is not a:
        back = _rounded(b, a, name)[0]
        equal, exact = same_bits(rounded, b), same_bits(back, a)
        if equal or exact:  # whichever is the coarser of the two
            kinds = f"{dtype_name(a.dtype)} in the reference, {dtype_name(b.dtype)} in the candidate"
            how = "the same numbers" if equal and exact else "the same but for one rounding"
            return TensorDifference(name, "same" if equal and exact else "rounded", f"{how}: {kinds}")
    if not same_bits(rounded, b):
        error = distance(a, b)
        said = f"relative error {error:.2g}" if np.isfinite(error) else "values that are no numbers on one side"
        return TensorDifference(name, "drift", said, None, error if np.isfinite(error) else None)
    return TensorDifference(name, "same")


def _rounded(a: Array, b: Array, name: str) -> tuple[Array, str | None]:
    """The reference in the candidate's dtype, or why it cannot be had in it."""
    ours, theirs = dtype_name(a.dtype), dtype_name(b.dtype)
    if ours == theirs:
        return a, None
    if ours not in FLOATS or theirs not in FLOATS:
        return a, f"dtype {ours} in the reference, {theirs} in the candidate"
    try:
        return as_dtype(a, theirs, name)[0], None
    except FormatError:
        return a, f"dtype {ours} in the reference, {theirs} in the candidate, which has no room for its values"


def _explained(sides: _Sides, name: str, one: TensorDifference) -> TensorDifference:
    """What happened to a tensor that differs: another's numbers, another layout, other values; or no more than that."""
    exchanged = _exchanged(sides, name)
    if exchanged is not None:
        return exchanged
    if one.label == "dtype":
        return one
    a, b = sides.reference.array(name), sides.candidate.array(name)
    if a.shape != b.shape:
        turned = _axes_exchanged(_rounded(a, b, name)[0], b)
        if turned is None:
            return one
        label = "transpose" if a.ndim == 2 else "axis-order"
        said = "the matrix is transposed" if a.ndim == 2 else f"the axes are stored in the order {list(turned)}"
        return TensorDifference(name, "drift", f"{said} ({one.sentence})", label)
    sides.explained += 1
    cause = _cause(name, a, b, EVERYTHING if sides.explained <= FULLY_EXPLAINED else LAYOUTS)
    if cause is None:
        return one
    return TensorDifference(name, "drift", f"{cause.sentence} ({one.sentence})", cause.label, one.error)


def _exchanged(sides: _Sides, name: str) -> TensorDifference | None:
    """The numbers of another tensor, when it is one other alone that has them."""
    ours, theirs = sides.sums
    if name not in theirs or _constant(sides.candidate.array(name)):
        return None
    shape = sides.candidate.entry(name).shape
    same = [
        other
        for other, crc in ours.items()
        if other != name and crc == theirs[name] and sides.reference.entry(other).shape == shape
    ]
    if len(same) != 1:
        return None
    (other,) = same
    if theirs.get(other) == ours[name]:
        return TensorDifference(name, "drift", f"exchanged with {other}", "weight-swap", None, (other,))
    return TensorDifference(name, "drift", f"these are the numbers of {other}", "wrong-weight", None, (other,))


def _axes_exchanged(a: Array, b: Array) -> tuple[int, ...] | None:
    if a.ndim != b.ndim or not 2 <= a.ndim <= 5:
        return None
    orders = (axes for axes in permutations(range(a.ndim)) if tuple(a.shape[i] for i in axes) == b.shape)
    return next((axes for axes in orders if same_bits(a.transpose(axes), b)), None)


def _cause(name: str, a: Array, b: Array, table: Sequence[Hypothesis]) -> Cause | None:
    if a.dtype.kind in "iub" or not (np.isfinite(_wide(a)).all() and np.isfinite(_wide(b)).all()):
        return None
    module, _, port = name.rpartition(".")
    coarser = roundoff(dtype_name(a.dtype), dtype_name(b.dtype)) if a.dtype != b.dtype else 0.0
    found = explain(Evidence(Site(0, "weight", module, port), _wide(a), _wide(b), coarser), table)
    return None if found.label == "unknown" or not found.confidence else found


def _elsewhere(sides: _Sides, ours_only: list[str], theirs_only: list[str]) -> Iterator[TensorDifference]:
    """Tensors without a counterpart by name: tied, renamed, fused, split, or missing."""
    read_ours, read_theirs = _cached(sides.reference, ours_only), _cached(sides.candidate, theirs_only)
    left = list(theirs_only)
    fused: dict[str, Whole] = {}
    for theirs in theirs_only:
        whole = find_whole(theirs, read_theirs(theirs), [one for one in ours_only if one not in fused], read_ours)
        if whole is not None:
            left.remove(theirs)
            fused |= dict.fromkeys(whole.parts, whole)
    for name in ours_only:
        yield _moved(sides, name, fused.get(name), left, read_ours, read_theirs)


def _moved(
    sides: _Sides, name: str, whole: Whole | None, left: list[str], read_ours: Read, read_theirs: Read
) -> TensorDifference:
    if whole is not None:
        turned = ", transposed" if whole.turned else ""
        if len(whole.parts) == 1:
            return TensorDifference(name, "moved", f"is called {whole.name}{turned}", "renamed", None, (whole.name,))
        said = (
            f"part {whole.parts.index(name) + 1} of {len(whole.parts)} of {whole.name}, joined along axis {whole.axis}"
        )
        return TensorDifference(name, "moved", said + turned, "fused", None, (whole.name,))
    split = find_whole(name, read_ours(name), left, read_theirs)
    if split is not None:
        return TensorDifference(name, "moved", str(split), "split", None, split.parts)
    twin = _tied_to(sides.reference, name)
    if twin is not None and twin in sides.candidate:
        return TensorDifference(name, "moved", f"is the same as {twin}, which stands for both", "tied", None, (twin,))
    return TensorDifference(name, "missing", "the candidate has no such tensor")


def _tied_to(checkpoint: Checkpoint, name: str) -> str | None:
    """Another tensor of the same checkpoint with the very same numbers: a second copy of a tied weight."""
    entry = checkpoint.entry(name)
    if len(entry.shape) < 2:
        return None
    array = checkpoint.array(name)
    if _constant(array):
        return None
    like = (
        other.name
        for other in checkpoint.entries.values()
        if other.name != name and (other.shape, other.dtype) == (entry.shape, entry.dtype)
    )
    return next((other for other in like if same_bits(checkpoint.array(other), array)), None)


def _cached(checkpoint: Checkpoint, names: list[str]) -> Read:
    """Arrays by name, each read once: plain ones are mapped, and only what is quantized is held."""
    held = {name: checkpoint.array(name) for name in names}
    return held.__getitem__


def _wide(array: Array) -> Array:
    return np.asarray(array, np.float64)


def _constant(array: Array) -> bool:
    return not array.size or bool((array == array.reshape(-1)[0]).all())
