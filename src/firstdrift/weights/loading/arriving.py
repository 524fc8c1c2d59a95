"""Numbers on their way into a model: read, held, checked, written, and read back."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch

from ...core.dtypes import dtype_name
from ...core.scratch import scratch
from ...errors import FirstdriftError, FormatError
from ...kernels.checksums import crc32
from ..checkpoint import Array, Checkpoint
from ..dtype_rounding import FLOATS, as_dtype
from ..relocated import difference
from .destinations import Destination
from .plan import Assignment, Piece
from .proof import scan

MOST_IN_MEMORY = 2 << 30  # bytes of all tensors together; more of them wait in files that vanish


class Hand:
    """Keeps arrays until they are written; several threads may give it theirs.

    `stable` says that nobody can write to the source meanwhile, so that its own memory is as good as a copy; `given`
    that the source is a table of arrays, whose memory is never ours.
    """

    def __init__(self, *, stable: bool, given: bool) -> None:
        self._stable = stable
        self._given = given
        self._room = MOST_IN_MEMORY
        self._lock = Lock()

    def keep(self, array: Array) -> Array:
        """The same numbers, where nobody changes them."""
        computed = not self._given and _is_numpys(array)  # dequantized, rounded or joined
        if self._stable and not computed:
            return array
        fits = self._fits(array.nbytes)
        if computed and fits:
            return array
        kept = scratch(array.shape, array.dtype, array.nbytes if fits else 0)
        kept[...] = array
        return kept

    def _fits(self, nbytes: int) -> bool:
        with self._lock:
            fits = nbytes <= self._room
            self._room -= nbytes if fits else 0
        return fits


def _is_numpys(array: Array) -> bool:
    """Whether an array lies in memory that numpy allocated, not in a mapping."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is None


@dataclass(frozen=True, slots=True)
class Expected:
    """What a destination has to hold: the numbers, the checksum of their bytes, how many were rounded; or a problem.

    A trial keeps no numbers, only the checksum that they had in a tensor like the destination's.
    """

    assignment: Assignment
    crc32: int = 0
    rounded: int = 0
    problem: str | None = None
    array: Array | None = None
    tried: int | None = None
    notes: tuple[str, ...] = ()


def stored_dtype(checkpoint: Checkpoint, piece: Piece) -> str:
    """The dtype that a tensor of the file is read as; quantized ones are read as float32."""
    entry = checkpoint.entry(piece.source)
    return "f32" if entry.quantized else entry.dtype


def refused_dtype(assignment: Assignment, checkpoint: Checkpoint, cast: bool) -> str | None:
    """Why the numbers may not be had in the destination's dtype; None when they may."""
    place = assignment.destination
    for piece in (*assignment.pieces, *assignment.twins):
        dtype = stored_dtype(checkpoint, piece)
        what = f"{place.name}: {piece.source} is {dtype} in the file and {place.dtype} in the model"
        if dtype != place.dtype and not {dtype, place.dtype} <= set(FLOATS):
            return f"{what}; convert one of them"
        if dtype != place.dtype and not cast:
            return f"{what}; ask for the change with cast=True (--cast), or make the model in the file's dtype"
    return None


def expect(assignment: Assignment, checkpoint: Checkpoint, hand: Hand | None) -> Expected:
    """Read what a destination has to hold, check it, and keep it in hand; without one, try it. Nothing is written."""
    place = assignment.destination
    try:
        array, rounded = gather(assignment, checkpoint)
        if hand is not None:
            array = hand.keep(array)  # first, for what is checked has to be what is kept
        crc, wrong = scan(array)
        if wrong is not None:
            return Expected(assignment, problem=f"{place.name}: {wrong}, in {_origin(assignment)} of {checkpoint.path}")
        notes, another = compare_twins(assignment, checkpoint, array, crc)
        if another is not None:
            return Expected(assignment, problem=another)
    except FirstdriftError as error:
        return Expected(assignment, problem=f"{place.name}: {error}")
    if hand is not None:
        return Expected(assignment, crc, rounded, array=array, notes=notes)
    return Expected(assignment, crc, rounded, tried=_through_a_tensor(place, array), notes=notes)


def compare_twins(
    assignment: Assignment, checkpoint: Checkpoint, array: Array, crc: int
) -> tuple[tuple[str, ...], str | None]:
    """What is to be said of tensors that are copies but for rounding, and the problem with one that is another."""
    place, origin = assignment.destination, _origin(assignment)
    notes = []
    for twin in assignment.twins:
        other = gather(Assignment(place, (twin,)), checkpoint)[0]
        if crc32(other) == crc:
            continue
        found = difference(array, other, tuple(checkpoint.entry(piece.source) for piece in (*assignment.pieces, twin)))
        if not found.is_copy or array.dtype.kind in "iub":
            return (), (
                f"{place.name}: {origin} and {twin.source} are tied in the model but not the same in the file (shape "
                f"{list(place.shape)}, other values): {found}, and row {found.row} is off by {found.share:.0%} of its "
                "length; make an untied model to keep both (pretrain --untie)"
            )
        notes.append(f"{twin.source} is a rounded copy of {origin}, which is used for both: {found}")
    return tuple(notes), None


def gather(assignment: Assignment, checkpoint: Checkpoint) -> tuple[Array, int]:
    """The numbers as the destination has to hold them, contiguous, and how many of them were rounded.

    What needs neither step nor change of dtype is the file's own memory.
    """
    place = assignment.destination
    parts, rounded = [], 0
    for piece in assignment.pieces:
        part = piece.of(checkpoint.array(piece.source))
        if dtype_name(part.dtype) != place.dtype:
            part, rounding = as_dtype(part, place.dtype, f"{checkpoint.path}, tensor {piece.source!r}")
            rounded += rounding.changed
        parts.append(part)
    whole = parts[0] if assignment.axis is None else np.concatenate(parts, assignment.axis)
    if whole.shape != place.shape:
        raise FormatError(
            f"{piece.source!r} came with shape {list(whole.shape)}, not {list(place.shape)}; open it again"
        )
    return np.ascontiguousarray(whole).reshape(place.shape), rounded  # numpy makes scalars one-dimensional


def write(tensor: torch.Tensor, array: Array) -> None:
    """Put numbers into a tensor, bit for bit. They are contiguous, of its shape and of its dtype."""
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        if array.nbytes != tensor.nbytes:
            raise ValueError(f"{array.nbytes} bytes for a tensor of {tensor.nbytes}")
        # torch takes no array that may not be written, such as a mapped one; this releases the GIL as well
        ctypes.memmove(tensor.data_ptr(), array.ctypes.data, array.nbytes)
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)  # as every change of a tensor must, for autograd
        return
    bits = torch.from_numpy(np.array(array.reshape(-1).view(np.uint8)))
    tensor.detach().copy_(bits.view(tensor.dtype).reshape(tensor.shape))


def held_crc32(tensor: torch.Tensor) -> int:
    """The checksum of what a tensor holds now."""
    return crc32(_bytes(tensor.detach().cpu().contiguous()))


def _through_a_tensor(destination: Destination, array: Array) -> int:
    """The checksum of numbers that were written to a tensor like a destination's, which has no memory of its own."""
    tensor = torch.empty(destination.shape, dtype=destination.tensor.dtype)
    write(tensor, array)
    return held_crc32(tensor)


def _bytes(tensor: torch.Tensor) -> Array:
    flat: Array = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat


def _origin(assignment: Assignment) -> str:
    return " and ".join(dict.fromkeys(piece.source for piece in assignment.pieces))
