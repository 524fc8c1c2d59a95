"""Which tensors of a file a model already holds, under its own names and in its own layout.

A model that was loaded from elsewhere is a reference: numbers that are equal bit for bit say more than any name.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..arrays import as_array
from ..checkpoints.checkpoint import Array, Checkpoint
from ..checkpoints.rounding import FLOATS, as_dtype
from ..dtypes import dtype_name
from ..errors import FirstdriftError
from .destinations import Destination
from .elsewhere import find_whole, one_number, same_bits
from .map_lines import MapLine, joining, map_line, splitting


class ModelValues:
    """The numbers of a model beside those of a checkpoint. Only what lies plain in the file is read."""

    def __init__(self, places: Sequence[Destination], checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._held = {one.name: array for one in places if (array := _held(one)) is not None}
        self._read: dict[tuple[str, str | None], Array | None] = {}

    def turned(self, name: str, source: str) -> bool | None:
        """Whether the model holds a square matrix of the file transposed; None where it holds neither."""
        ours = self._held.get(name)
        theirs = None if ours is None else self._array(source, dtype_name(ours.dtype))
        if ours is None or theirs is None:
            return None
        if same_bits(ours, theirs):
            return False
        return True if same_bits(ours, theirs.T) else None

    def lines(self, names: Sequence[str], sources: Sequence[str]) -> list[MapLine]:
        """Lines for tensors of the model that are the file's: whole, joined of several, or parts of one."""
        found: list[MapLine] = []
        for dtype in dict.fromkeys(dtype_name(self._held[name].dtype) for name in names if name in self._held):
            ours = {n: self._held[n] for n in names if n in self._held and dtype_name(self._held[n].dtype) == dtype}
            read = {source: array for source in sources if (array := self._array(source, dtype)) is not None}
            found += _lines(ours, read)
        return found

    def _array(self, source: str, dtype: str | None) -> Array | None:
        """A tensor of the file as the model would hold it; None for what is quantized or does not fit the dtype."""
        key = source, dtype
        if key not in self._read:
            entry = self._checkpoint.entry(source)
            self._read[key] = None
            if not entry.quantized and (entry.dtype == dtype or {entry.dtype, dtype} <= set(FLOATS)):
                try:
                    array = self._checkpoint.array(source)
                    self._read[key] = array if dtype is None else as_dtype(array, dtype, source)[0]
                except FirstdriftError:
                    pass  # a tensor that cannot be read is reported by the load itself
        return self._read[key]


def _held(one: Destination) -> Array | None:
    """What a tensor holds; None without memory, and for one number alone, which says nothing."""
    if one.tensor.device.type == "meta" or one.dtype.startswith("torch.") or not one.size:
        return None
    array = as_array(one.tensor.detach().cpu(), one.name)
    return None if one_number(array) else array


def _lines(ours: dict[str, Array], theirs: dict[str, Array]) -> list[MapLine]:
    found: list[MapLine] = []
    pairs = [
        (name, source, turned)
        for name, array in ours.items()
        for source, other in theirs.items()
        if (turned := _equal(array, other)) is not None
    ]
    for name, source, turned in pairs:
        once = sum(name == one for one, *_ in pairs) == 1 == sum(source == one for _, one, _ in pairs)
        if once:  # numbers that two tensors have tell neither
            found.append(map_line(source, (name,), (("transpose", True),) if turned else ()))
    paired = {name for name, *_ in pairs} | {source for _, source, _ in pairs}
    ours = {name: array for name, array in ours.items() if name not in paired}
    theirs = {name: array for name, array in theirs.items() if name not in paired}
    for name, array in ours.items():
        whole = find_whole(name, array, list(theirs), theirs.__getitem__)
        found += joining(whole) if whole is not None else []
    for source, array in theirs.items():
        whole = find_whole(source, array, list(ours), ours.__getitem__)
        found += [splitting(whole)] if whole is not None else []
    return found


def _equal(ours: Array, theirs: Array) -> bool | None:
    """False when two arrays are equal, True when they are once one is transposed, None when they differ."""
    if same_bits(ours, theirs):
        return False
    return True if ours.ndim == 2 and same_bits(ours, theirs.T) else None
