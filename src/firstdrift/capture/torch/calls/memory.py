"""Which call made what a tensor holds now, without keeping it alive.

A program is functional: a value never changes. Memory does, so a value is *one storage, in one version, seen through
one geometry*. Views have the storage of what they view, writing makes a new version, and a tensor that is read after a
write through another view is a view of what the memory holds now; calls that say so are added as `implied`.

Storages are known by their address. A weak reference keeps an address from being used again, not the numbers there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from ....kernels.checksums import crc32

_free: Callable[[Any], None] = torch.UntypedStorage._free_weak_ref


# How a tensor looks at its storage: dtype, shape, strides, offset, and whether it is lazily negated (1) or conjugated
# (2). A plain tuple, because several are made for every call.
Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int, int]


class _Storage:
    __slots__ = ("known", "pending", "shared", "span", "whole")

    def __init__(self, geometry: Geometry, ref: str) -> None:
        self.known = {geometry: ref}  # values of the present version
        self.span = geometry
        self.whole: str | None = ref  # the value that everything else here can be viewed from
        self.pending: list[tuple[Geometry, str]] = []  # what was written through views since `whole`
        self.shared: int | None = None  # a checksum, where code outside torch can write to it


class Held:
    """Weak references to storages: their addresses are not used again, their numbers are not kept."""

    def __init__(self) -> None:
        self._weak: list[Any] = []  # one for each storage whose address is not to be used again

    def add(self, tensor: torch.Tensor) -> None:
        """Keep an address from being used again."""
        self._weak.append(tensor.untyped_storage()._weak_ref())

    def clear(self) -> None:
        """Let them be used again."""
        weak, self._weak = self._weak, []
        for one in weak:
            _free(one)


Leaf = Callable[[torch.Tensor, int, Geometry], str]
Implied = Callable[[str, str, torch.Tensor, Geometry], str]


class Memory:
    """The storages of one step. `leaf` is asked for tensors that no call made, `implied` adds a call.

    `strange` stands for tensors without storage: sparse, nested, wrapped ones.
    """

    def __init__(self, leaf: Leaf, implied: Implied, strange: Callable[[torch.Tensor], str]) -> None:
        self._leaf = leaf
        self._implied = implied
        self._strange = strange
        self._storages: dict[int, _Storage] = {}
        self._held = Held()

    def clear(self) -> None:
        """Forget everything."""
        self._storages.clear()
        self._held.clear()

    def ref(self, tensor: torch.Tensor) -> str:
        """What a tensor is now; one that is not known becomes a leaf."""
        try:
            key, geometry = geometry_of(tensor)
        except (RuntimeError, NotImplementedError):
            return self._strange(tensor)
        storage = self._storages.get(key)
        if storage is not None and storage.shared is not None:
            storage = self._unless_written(key, storage, tensor)
        if storage is None:
            found = self._leaf(tensor, key, geometry)
            self.given(key, tensor, geometry, found)
            return found
        known = storage.known.get(geometry)
        return self._derived(storage, tensor, key, geometry) if known is None else known

    def peek(self, tensor: torch.Tensor) -> str | None:
        """What a tensor is now, None where that is not known."""
        return self.peek_at(*geometry_of(tensor), tensor)

    def peek_at(self, key: int, geometry: Geometry, tensor: torch.Tensor) -> str | None:
        """The same for a tensor whose address and geometry have been asked for."""
        storage = self._storages.get(key)
        if storage is not None and storage.shared is not None:
            storage = self._unless_written(key, storage, tensor)
        if storage is None:
            return None
        known = storage.known.get(geometry)
        if known is None and storage.whole is not None and _covers(storage.span, geometry):
            return self._derived(storage, tensor, key, geometry)
        return known

    def made(self, tensor: torch.Tensor, ref: str) -> Geometry:
        """A call returned a tensor: new memory, or a view of what is known."""
        key, geometry = geometry_of(tensor)
        storage = self._storages.get(key)
        if storage is None:
            self.add(key, tensor, geometry, ref)
        else:
            storage.known[geometry] = ref
        return geometry

    def wrote(self, tensor: torch.Tensor, ref: str) -> Geometry:
        """A call wrote to a tensor: whatever else looks at that memory holds something else now."""
        key, geometry = geometry_of(tensor)
        storage = self._storages.get(key)
        if storage is None:
            self.add(key, tensor, geometry, ref)
        elif geometry == storage.span:
            storage.known, storage.whole = {geometry: ref}, ref
            storage.pending.clear()
        elif storage.whole is not None and _covers(storage.span, geometry):
            storage.known.clear()
            storage.pending.append((geometry, ref))
        else:  # memory that was never seen as a whole: this part of it is known now, and what lies beside it
            storage.known = {other: value for other, value in storage.known.items() if _are_apart(other, geometry)}
            storage.known[geometry] = ref
            storage.whole = None
        if storage is not None and storage.shared is not None:
            self.share(tensor)
        return geometry

    def share(self, tensor: torch.Tensor) -> None:
        """Code outside torch may write to a tensor from now on; its bytes will tell."""
        storage = self._storages.get(geometry_of(tensor)[0])
        if storage is not None:
            storage.shared = _checksum(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """Somebody whom we do not see may have written to a tensor."""
        self._storages.pop(geometry_of(tensor)[0], None)

    def given(self, key: int, tensor: torch.Tensor, geometry: Geometry, ref: str) -> None:
        """A tensor that no call of this step made, in memory of which nothing was known."""
        self.add(key, tensor, geometry, ref)
        if not tensor.untyped_storage().resizable():  # memory of somebody else's, as numpy's is
            self.share(tensor)

    def add(self, key: int, tensor: torch.Tensor, geometry: Geometry, ref: str) -> None:
        """A tensor in memory of which nothing was known."""
        self._storages[key] = _Storage(geometry, ref)
        self._held.add(tensor)

    def _unless_written(self, key: int, storage: _Storage, tensor: torch.Tensor) -> _Storage | None:
        """A storage that others can write to, unless they have."""
        if storage.shared == _checksum(tensor):
            return storage
        del self._storages[key]
        return None

    def _derived(self, storage: _Storage, tensor: torch.Tensor, key: int, geometry: Geometry) -> str:
        """A tensor as a view of what its memory holds now."""
        span = storage.span
        if storage.whole is None or not _covers(span, geometry):
            found = storage.known[geometry] = self._leaf(tensor, key, geometry)
            return found
        for written, ref in storage.pending:
            given = f"{storage.whole},{ref},{_view(written, span)}"
            storage.whole = self._implied("aten.as_strided_scatter.default", given, tensor, span)
        storage.pending.clear()
        storage.known[span] = storage.whole
        if geometry not in storage.known:
            given = f"{storage.whole},{_view(geometry, span)}"
            storage.known[geometry] = self._implied("aten.as_strided.default", given, tensor, geometry)
        return storage.known[geometry]


def geometry_of(tensor: torch.Tensor) -> tuple[int, Geometry]:
    """The address of a tensor's storage, and how it looks at it; raises for tensors that have no storage."""
    dtype = tensor.dtype
    turned = 2 if dtype.is_complex and tensor.is_conj() else 0
    if tensor.is_neg():
        turned += 1
    offset: Any = tensor.storage_offset()
    return tensor.untyped_storage()._cdata, (dtype, tensor.shape, tensor.stride(), offset, turned)


def _view(geometry: Geometry, span: Geometry) -> str:
    """Shape, strides and offset of a part of a span, as arguments of a call."""
    return f"{list(geometry[1])},{list(geometry[2])},{geometry[3] - span[3]}"


def _end(geometry: Geometry) -> int:
    """One behind the last element that a tensor reaches."""
    _, shape, strides, offset, _ = geometry
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return offset + 1 + reach if all(shape) else offset


def _covers(span: Geometry, other: Geometry) -> bool:
    """Whether everything that another tensor reaches can be had from one that reaches all its elements, each once."""
    same = span[0] == other[0] and not span[4] and not other[4]
    is_dense = _end(span) - span[3] == prod(span[1])
    return same and is_dense and span[3] <= other[3] and _end(other) <= _end(span)


def _are_apart(one: Geometry, other: Geometry) -> bool:
    """Whether two tensors of one storage lie behind each other, in bytes."""
    size, other_size = one[0].itemsize, other[0].itemsize
    return _end(one) * size <= other[3] * other_size or _end(other) * other_size <= one[3] * size


def _checksum(tensor: torch.Tensor) -> int:
    """Of all bytes of a tensor's storage."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        octets = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        return crc32(octets.numpy())
