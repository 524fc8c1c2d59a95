"""Two checkpoints, tensor by tensor: which are the same, which moved, what became of those that differ, and the map
that follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np

from ..core.arrays import wide
from ..core.dtypes import dtype_name, roundoff
from ..core.sites import Site
from ..errors import FormatError
from ..explain.evidence import Evidence
from ..explain.one_program.agreement import distance
from ..explain.relations.hypotheses import Hypothesis, explain
from ..explain.relations.strange_weights import ALONE, LAYOUTS
from ..judge.measure.result import Cause
from ..kernels.checksums import crc32
from ..pair.mapping.quoting import comment
from .checkpoint import Array, Checkpoint, in_natural_order
from .dtype_rounding import FLOATS, as_dtype
from .loading.map_lines import TURNED, CheckpointDifference, MapLine, TensorDifference, map_line, map_text, same_bits
from .relocated import constant, elsewhere, other_layout, tied_to

LAYOUT_LABELS = ("transpose", "rope-interleave")  # what a map can undo, if it is that bit for bit
FULLY_EXPLAINED = 16  # tensors; what the others suffered from is mostly the same, and looked for among layouts alone


@dataclass(slots=True)
class _Sides:
    """Both checkpoints, and the checksum of every tensor that was read, in the candidate's dtype."""

    reference: Checkpoint
    candidate: Checkpoint
    sums: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))
    explained: int = 0


@np.errstate(all="ignore")  # any bits may be on record: what is not finite is counted
def compare(
    reference: Checkpoint, candidate: Checkpoint, advance: Callable[[int], None] = lambda nbytes: None
) -> CheckpointDifference:
    """Compare two open checkpoints."""
    sides = _Sides(reference, candidate)
    found: dict[str, TensorDifference] = {}
    suspects = []
    for name in reference.entries:
        if name in candidate:
            found[name] = _compared(sides, name)
            suspects += [name] if found[name].verdict == "drift" else []
            advance(reference.entry(name).nbytes)
    for name in suspects:
        found[name] = _explained(sides, name, found[name])
    reference_only = [name for name in reference.entries if name not in found]
    candidate_only = [name for name in candidate.entries if name not in reference]
    for moved in elsewhere(reference, candidate, reference_only, candidate_only):
        found[moved.name] = moved
    explained = {other for difference in found.values() if difference.verdict == "moved" for other in difference.others}
    twins = {name: twin for name in candidate_only if name not in explained and (twin := tied_to(candidate, name))}
    left = tuple(in_natural_order(name for name in candidate_only if name not in explained and name not in twins))
    tensors = tuple(found[name] for name in in_natural_order(reference.entries))
    for side in (reference, candidate):
        side.check_unchanged()
    return CheckpointDifference(str(reference.path), str(candidate.path), tensors, left, twins)


def _compared(sides: _Sides, name: str) -> TensorDifference:
    """A tensor that both have, by its bits; across dtypes after rounding the reference to the candidate's."""
    a, b = sides.reference.array(name), sides.candidate.array(name)
    rounded, problem = _rounded(a, b, name)
    if problem is not None:
        return TensorDifference(name, "drift", problem, "dtype")
    reference, candidate = sides.sums
    reference[name], candidate[name] = crc32(np.ascontiguousarray(rounded)), crc32(np.ascontiguousarray(b))
    if a.shape != b.shape:
        said = f"shape {list(a.shape)} in the reference, {list(b.shape)} in the candidate"
        return TensorDifference(name, "drift", said, "shape")
    if not a.size:
        return TensorDifference(name, "same", "empty", is_empty=True)
    if (lost := _nan_on_both(a, b)) is not None:
        return TensorDifference(name, "not comparable", lost)
    if rounded is not a:
        back = _rounded(b, a, name)[0]
        equal, exact = same_bits(rounded, b), same_bits(back, a)
        if equal or exact:  # whichever is the coarser of the two
            kinds = f"{dtype_name(a.dtype)} in the reference, {dtype_name(b.dtype)} in the candidate"
            how = "the same numbers" if equal and exact else "the same but for one rounding"
            return TensorDifference(name, "same" if equal and exact else "rounded", f"{how}: {kinds}")
    if not same_bits(rounded, b) and np.array_equal(rounded, b):
        return TensorDifference(name, "same", "the same numbers; zeros have other signs")
    if not same_bits(rounded, b):
        error = distance(a, b)
        said = f"relative error {error:.2g}" if np.isfinite(error) else "values that are no numbers on one side"
        return TensorDifference(name, "drift", said, None, error if np.isfinite(error) else None)
    return TensorDifference(name, "same")


def _nan_on_both(a: Array, b: Array) -> str | None:
    """What is no number on either side, where the rest is the same: nobody knows what it should be."""
    if dtype_name(a.dtype) not in FLOATS or dtype_name(b.dtype) not in FLOATS:
        return None
    reference, candidate = np.isnan(wide(a)), np.isnan(wide(b))
    if not reference.any() or not np.array_equal(reference, candidate):
        return None
    rest = np.array_equal(wide(a)[~reference], wide(b)[~reference])
    return f"{int(reference.sum())} of {a.size} elements are NaN on both sides" if rest else None


def _rounded(a: Array, b: Array, name: str) -> tuple[Array, str | None]:
    """The reference in the candidate's dtype, or why it cannot be had in it."""
    reference, candidate = dtype_name(a.dtype), dtype_name(b.dtype)
    if reference == candidate:
        return a, None
    if reference not in FLOATS or candidate not in FLOATS:
        return a, f"dtype {reference} in the reference, {candidate} in the candidate"
    try:
        return as_dtype(a, candidate, name)[0], None
    except FormatError:
        return a, f"dtype {reference} in the reference, {candidate} in the candidate, which has no room for its values"


def _explained(sides: _Sides, name: str, difference: TensorDifference) -> TensorDifference:
    """What happened to a tensor that differs: another's numbers, another layout, other values; or no more than that."""
    exchanged = _exchanged(sides, name)
    if exchanged is not None:
        return exchanged
    if difference.label == "dtype":
        return difference
    a, b = sides.reference.array(name), sides.candidate.array(name)
    if a.shape != b.shape:
        turned = _axes_exchanged(_rounded(a, b, name)[0], b)
        if turned is None:
            return difference
        label = "transpose" if a.ndim == 2 else "axis-order"
        said = "the matrix is transposed" if a.ndim == 2 else f"the axes are stored in the order {list(turned)}"
        options = TURNED if a.ndim == 2 else (("permute", turned),)
        return TensorDifference(
            name, "drift", f"{said} ({difference.sentence})", label, line=map_line(name, (name,), options)
        )
    sides.explained += 1
    cause = _cause(name, a, b, ALONE if sides.explained <= FULLY_EXPLAINED else LAYOUTS)
    if cause is None:
        return difference
    layout = other_layout(_rounded(a, b, name)[0], b) if cause.label in LAYOUT_LABELS else None
    line = None if layout is None else map_line(name, (name,), layout)
    return TensorDifference(
        name, "drift", f"{cause.sentence} ({difference.sentence})", cause.label, difference.error, line=line
    )


def _exchanged(sides: _Sides, name: str) -> TensorDifference | None:
    """The numbers of another tensor, when it is one other alone that has them."""
    reference, candidate = sides.sums
    if name not in candidate or constant(sides.candidate.array(name)):
        return None
    shape = sides.candidate.entry(name).shape
    same = [
        other
        for other, crc in reference.items()
        if other != name and crc == candidate[name] and sides.reference.entry(other).shape == shape
    ]
    if len(same) != 1:
        return None
    (other,) = same
    if candidate.get(other) == reference[name]:
        line = map_line(name, (other,))
        return TensorDifference(name, "drift", f"exchanged with {other}", "weight-swap", None, (other,), line)
    return TensorDifference(name, "drift", f"these are the numbers of {other}", "wrong-weight", None, (other,))


def _axes_exchanged(a: Array, b: Array) -> tuple[int, ...] | None:
    if a.ndim != b.ndim or not 2 <= a.ndim <= 5:
        return None
    orders = (axes for axes in permutations(range(a.ndim)) if tuple(a.shape[i] for i in axes) == b.shape)
    return next((axes for axes in orders if same_bits(a.transpose(axes), b)), None)


def _cause(name: str, a: Array, b: Array, table: Sequence[Hypothesis]) -> Cause | None:
    if a.dtype.kind in "iubc" or not (np.isfinite(wide(a)).all() and np.isfinite(wide(b)).all()):
        return None
    module, _, port = name.rpartition(".")
    coarser = roundoff(dtype_name(a.dtype), dtype_name(b.dtype)) if a.dtype != b.dtype else 0.0
    found = explain(Evidence(Site(0, "weight", module, port), wide(a), wide(b), coarser), table)
    return None if found.label == "unknown" or not found.confidence else found


HEAD = """# {reference} for a model whose tensors are called as in {candidate}, found by their numbers.
# fd.load_weights(model, {reference!r}, map=...), or firstdrift weights verify MODEL {reference} --map ...
"""


def map_of_difference(found: CheckpointDifference) -> str:
    """The map as YAML, what it could not say as comments at its end. The reference's names stand on the left."""
    lines = {tensor.name: tensor.line for tensor in found.tensors if tensor.line is not None}
    tied = _tied(lines, found.candidate_tied)
    names = [tensor.name for tensor in found.tensors]
    head = HEAD.format(reference=comment(found.reference), candidate=comment(found.candidate))
    body = map_text(tied, names, [*_doubts(found.tensors), *_unused(found.candidate_only)])
    return head + body.lstrip("\n")


def _tied(lines: Mapping[str, MapLine], twins: Mapping[str, str]) -> list[MapLine]:
    """The lines, with further names for tensors that the candidate holds twice."""
    found = list(lines.values())
    for name, twin in twins.items():
        own, further = map_line(twin).source, map_line(name).source
        whole = [line for line in found if own in line.targets and not {"split", "join"} & dict(line.options).keys()]
        if whole:
            options = {**dict(whole[0].options), "tie": True}
            tied = replace(whole[0], targets=(*whole[0].targets, further), options=tuple(options.items()))
            found[found.index(whole[0])] = tied
        elif not any(own in line.targets for line in found):
            found.append(map_line(twin, (twin, name), (("tie", True),)))
    return found


def _doubts(tensors: tuple[TensorDifference, ...]) -> list[str]:
    said = []
    for tensor in tensors:
        if tensor.verdict == "missing":
            said.append(f"{tensor.name}: {tensor.sentence}; write a line for it, or null to drop it")
        elif tensor.label == "weight-swap":
            said.append(f"{tensor.name}: {tensor.sentence}; keep its line only if the names are meant so")
        elif tensor.verdict == "drift" and tensor.line is None:
            said.append(f"{tensor.name}: differs, and no other layout explains it: {tensor.sentence}")
    return said


def _unused(names: tuple[str, ...]) -> list[str]:
    return [f"nothing fills {name}, which only the candidate has" for name in names]
