"""Tensors of a checkpoint that another does not have by name: tied, copied, renamed, fused, split, laid out
otherwise, or missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .checkpoint import Array, Checkpoint, Entry
from .loading.layers import Layer, Tensor, layers_of, pair_layers, parted
from .loading.map_lines import (
    TURNED,
    Options,
    Read,
    TensorDifference,
    Whole,
    find_moved,
    lines_of,
    map_line,
    one_number,
    same_bits,
)


def elsewhere(
    reference: Checkpoint, candidate: Checkpoint, reference_only: list[str], candidate_only: list[str]
) -> Iterator[TensorDifference]:
    """What became of every tensor that only the reference has by name."""
    read_reference, read_candidate = _cached(reference, reference_only), _cached(candidate, candidate_only)
    left = list(candidate_only)
    found: dict[str, TensorDifference] = {}
    for whole in find_moved(reference_only, candidate_only, read_reference, read_candidate):
        found |= {one.name: one for one in _moved(whole)}
        left = [name for name in left if name != whole.name and not (whole.in_file and name in whole.parts)]
    silent = [name for name in reference_only if name not in found]
    found |= _constants(silent, left, read_reference, read_candidate, _same_layers(reference, candidate, found))
    for name in reference_only:
        yield found.get(name) or _tied(reference, candidate, name, found)


def tied_to(checkpoint: Checkpoint, name: str) -> str | None:
    """Another tensor of the same checkpoint with the very same numbers: a second copy of a tied weight."""
    entry = checkpoint.entry(name)
    if len(entry.shape) < 2:
        return None
    array = checkpoint.array(name)
    if constant(array):
        return None
    like = (
        other.name
        for other in checkpoint.entries.values()
        if other.name != name and (other.shape, other.dtype) == (entry.shape, entry.dtype)
    )
    return next((other for other in like if same_bits(checkpoint.array(other), array)), None)


def constant(array: Array) -> bool:
    """Whether a tensor is one number over and over, which is found everywhere and says nothing."""
    return not array.size or one_number(array)


def _moved(whole: Whole) -> Iterator[TensorDifference]:
    """What became of the tensors of the reference that make up one of the candidate's, or that it has in parts."""
    lines = lines_of(whole)
    if whole.in_file:
        yield TensorDifference(whole.name, "moved", str(whole), "split", None, whole.parts, lines[0])
        return
    turned = ", transposed" if whole.turned else ""
    for number, (name, line) in enumerate(zip(whole.parts, lines, strict=True), 1):
        label, said = "renamed", f"is called {whole.name}"
        if len(lines) > 1:
            label, said = "fused", f"part {number} of {len(lines)} of {whole.name}, joined along axis {whole.axis}"
        yield TensorDifference(name, "moved", said + turned, label, None, (whole.name,), line)


def _constants(
    reference_only: list[str],
    candidate_only: list[str],
    read_reference: Read,
    read_candidate: Read,
    same: dict[str, str],
) -> dict[str, TensorDifference]:
    """Biases of zeros and norms of ones: equal numbers whose names say which is which, or nothing does."""

    def fits(one: Layer, other: Layer) -> bool:
        pairs = one.shared(other)
        return bool(pairs) and all(same_bits(read_reference(a.name), read_candidate(b.name)) for a, b in pairs)

    pairs, options = pair_layers(
        _silent(reference_only, read_reference), _silent(candidate_only, read_candidate), fits, same
    )
    found = {
        a.name: TensorDifference(
            a.name, "moved", f"is called {b.name}", "renamed", None, (b.name,), map_line(a.name, (b.name,))
        )
        for one, other in pairs
        for a, b in one.shared(other)
    }
    for one, others in options.items():
        for a, _ in one.shared(others[0]):
            names = [b.name for other in others for tensor, b in one.shared(other) if tensor is a]
            said = f"ambiguous: {' or '.join(names[:4])} may be it, by their numbers"
            found[a.name] = TensorDifference(a.name, "missing", said)
    return found


def _silent(names: list[str], read: Read) -> list[Layer]:
    return layers_of(Tensor(name, read(name).shape) for name in names if constant(read(name)))


def _same_layers(reference: Checkpoint, candidate: Checkpoint, found: dict[str, TensorDifference]) -> dict[str, str]:
    """Layers that are known to be each other: by a name that both have, or by numbers."""
    known = {parted(name)[0]: parted(name)[0] for name in reference.entries if name in candidate}
    moved = [one for one in found.values() if one.label == "renamed"]
    return known | {parted(one.name)[0]: parted(one.others[0])[0] for one in moved}


def _tied(
    reference: Checkpoint, candidate: Checkpoint, name: str, found: dict[str, TensorDifference]
) -> TensorDifference:
    twin = tied_to(reference, name)
    if twin is not None and (twin in candidate or (twin in found and found[twin].verdict == "moved")):
        said = f"is the same as {twin}, which stands for both"
        return TensorDifference(name, "moved", said, "tied", None, (twin,), map_line(name))
    return TensorDifference(name, "missing", "the candidate has no such tensor")


def _cached(checkpoint: Checkpoint, names: list[str]) -> Read:
    """Arrays by name, each read once: plain ones are mapped, and only what is quantized is held."""
    held = {name: checkpoint.array(name) for name in names}
    return held.__getitem__


# How far a row of a copy may be off, as a share of its length: by 8 bits or more for a number, or by as few as 3 where
# one of both is stored that way. Rows of matrices that have nothing to do with each other are 1.4 apart.
ROUNDED, REQUANTIZED = 0.02, 0.25
CHUNK = 1 << 20  # elements looked at together


@dataclass(frozen=True, slots=True)
class Difference:
    """How two matrices differ: the largest difference, beside the largest value, and the row that is farthest off."""

    largest: float
    beside: float
    row: int
    share: float  # of the row's own length, or of the usual one where that is more
    allowed: float

    @property
    def is_copy(self) -> bool:
        """Whether one is the other but for rounding; a NaN is not."""
        return self.share <= self.allowed

    def __str__(self) -> str:
        return f"they differ by up to {self.largest:.3g}, where the largest value is {self.beside:.3g}"


def difference(one: Array, other: Array, stored: Sequence[Entry]) -> Difference:
    """Compare two arrays of one shape row by row, some rows at a time."""
    mine, its = _rows(one), _rows(other)
    together = max(1, CHUNK // max(1, mine.shape[1]))
    lengths, apart = np.zeros(len(mine)), np.zeros(len(mine))
    largest = beside = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(mine), together):
            part = slice(start, start + together)
            left = mine[part].astype(np.float64)
            gap = np.abs(its[part].astype(np.float64) - left)
            lengths[part] = np.sqrt(np.einsum("ij,ij->i", left, left))
            apart[part] = np.sqrt(np.einsum("ij,ij->i", gap, gap))
            largest = max(largest, float(gap.max(initial=0.0)))
            beside = max(beside, float(np.abs(left).max(initial=0.0)))
        usual = float(np.sqrt(np.mean(lengths**2))) if len(mine) else 0.0
        shares = apart / np.maximum(np.maximum(lengths, usual), np.finfo(np.float64).tiny)
    row = int(np.argmax(shares)) if len(shares) else 0  # the first NaN, if there is one
    coarse = any(entry.quantized or entry.dtype.startswith("f8") for entry in stored)
    share = float(shares[row]) if len(shares) else 0.0
    return Difference(largest, beside, row, share, REQUANTIZED if coarse else ROUNDED)


def _rows(array: Array) -> Array:
    return array.reshape(len(array), -1) if array.ndim >= 2 and array.size else array.reshape(1, -1)


def other_layout(a: Array, b: Array) -> Options | None:
    """The steps from one array to another of the same shape: a transpose, or rows interleaved by heads, either way."""
    if a.ndim == 2 and same_bits(a.T, b):
        return TURNED
    rows = a.shape[0] if a.ndim in (1, 2) else 0
    for heads in (count for count in range(1, rows // 2 + 1) if rows % (2 * count) == 0):
        half = rows // (2 * heads)
        for cut in ([heads, 2, half], [heads, half, 2]):
            rest = list(a.shape[1:])
            order = [0, 2, 1, 3][: 3 + len(rest)]
            if same_bits(a.reshape(cut + rest).transpose(order).reshape(a.shape), b):
                back = [-1, *rest]
                return (("steps", [{"reshape": cut + rest}, {"permute": order}, {"reshape": back}]),)
    return None
