"""What is known of live tensors: what was kept of them, which recorded sites they were computed from, and what a
loss is the mean or the sum of.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import count
from typing import Any

import torch

from ...core.sites import Site
from ..recorder import Kept
from .tensor_values import version_of

_SWEEP = 4096  # entries, from which on those of dead tensors are dropped
_numbers = count()


class _Entry:
    __slots__ = ("kept", "ref", "sites", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.ref = weakref.ref(tensor)
        self.version = version_of(tensor)
        self.sites: list[Site] = []
        self.kept: Kept | None = None


class Known:
    """The memory of one run, forgotten after every step."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._derived: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Site, ...]]] = {}
        self._limit = _SWEEP
        self._key = f"firstdrift-{next(_numbers)}"  # in a node's metadata; another trace has another one

    def forget(self) -> None:
        """Begin anew; marks on graphs of earlier steps are no longer read."""
        self._entries.clear()
        self._derived.clear()
        self._key = f"firstdrift-{next(_numbers)}"

    def kept(self, tensor: torch.Tensor) -> Kept | None:
        """What was kept of this very tensor, if it has not been written to since."""
        entry = self._entry(tensor)
        return None if entry is None or entry.version != version_of(tensor) or entry.version is None else entry.kept

    def keep(self, tensor: torch.Tensor, kept: Kept | None) -> None:
        """Remember what was kept of a tensor."""
        self._fresh(tensor).kept = kept

    def mark(self, tensor: torch.Tensor, site: Site) -> None:
        """Remember that a tensor, as it is now, is the one recorded at a site."""
        self._fresh(tensor).sites.append(site)
        if tensor.grad_fn is not None:
            self._marks(tensor.grad_fn).setdefault(tensor.output_nr, []).append(site)

    def derive(self, tensor: torch.Tensor, sites: Iterable[Site]) -> None:
        """Remember what a tensor was computed from, as seen by an observer of single operations."""
        self._entries.pop(id(tensor), None)  # of the value before, if it was written to in place
        self._derived[id(tensor)] = (weakref.ref(tensor), tuple(sites))

    def producers(self, tensor: torch.Tensor) -> list[Site] | None:
        """The recorded sites that a tensor was computed from; None if that is not known."""
        entry = self._entry(tensor)
        if entry is not None and entry.sites and entry.version == version_of(tensor):
            return list(entry.sites)
        derived = self._derived.get(id(tensor))
        if derived is not None and derived[0]() is tensor:
            return list(derived[1])
        if tensor.grad_fn is not None:
            return self._walk(tensor)
        if entry is None and tensor._base is not None:
            entry = self._entry(tensor._base)
        return None if entry is None or not entry.sites else list(entry.sites)

    def _walk(self, tensor: torch.Tensor) -> list[Site]:
        """The nearest marks above a tensor in its graph."""
        found: dict[Site, None] = {}
        waiting: list[tuple[Any, int]] = [(tensor.grad_fn, tensor.output_nr)]
        done = set()
        while waiting:
            node, output = waiting.pop()
            if node is None or (node, output) in done:
                continue
            done.add((node, output))
            marks = node.metadata.get(self._key, {})
            if marks.get(output):
                found.update(dict.fromkeys(marks[output]))
            elif hasattr(node, "variable"):  # a leaf: an input that wants a gradient, or a parameter
                entry = self._entry(node.variable)
                found.update(dict.fromkeys(entry.sites if entry else ()))
            elif "all" in marks:
                found.update(dict.fromkeys(marks["all"]))
            else:
                waiting.extend(node.next_functions)
        # Kept on the node, so that a long stretch without a recorded module is walked once.
        self._marks(tensor.grad_fn).setdefault("all", list(found))
        return list(found)

    def _marks(self, node: Any) -> dict[int | str, list[Site]]:
        marks: dict[int | str, list[Site]] = node.metadata.setdefault(self._key, {})
        return marks

    def _entry(self, tensor: torch.Tensor) -> _Entry | None:
        entry = self._entries.get(id(tensor))
        return entry if entry is not None and entry.ref() is tensor else None

    def _fresh(self, tensor: torch.Tensor) -> _Entry:
        """The entry of a tensor in its present version."""
        entry = self._entry(tensor)
        if entry is None or entry.version != version_of(tensor):
            if len(self._entries) >= self._limit:
                self._sweep()
            entry = self._entries[id(tensor)] = _Entry(tensor)
        return entry

    def _sweep(self) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry.ref() is not None}
        self._derived = {key: entry for key, entry in self._derived.items() if entry[0]() is not None}
        self._limit = max(_SWEEP, 2 * len(self._entries))


_MEAN, _SUM = 1, 2  # torch's own numbers for reductions
_PASS = ("ToCopyBackward", "ViewBackward", "SqueezeBackward", "CloneBackward", "AliasBackward", "UnsqueezeBackward")


def gradient_of(loss: torch.Tensor) -> dict[str, str | int] | None:
    """`{"reduction", "batch"}` of a loss whose last operation says it; None where that cannot be known for certain.

    `batch` is the number of terms that a mean is taken over: samples, tokens or elements, as the loss counts them.
    """
    node = loss.grad_fn
    while node is not None and node.name().startswith(_PASS):
        node = node.next_functions[0][0]
    if node is None:
        return None
    name = node.name()
    if name.startswith("MeanBackward"):
        return _said("mean", _size(node, "_saved_self_sym_numel"))
    if name.startswith("SumBackward"):
        return _said("sum", 1)
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (_MEAN, _SUM):
        return None
    if reduction == _SUM:
        return _said("sum", 1)
    if name.startswith("NllLoss"):
        if _is_hooked(node, "target") or _is_hooked(node, "weight") or node._saved_weight is not None:  # type: ignore[attr-defined]
            return None  # a weighted mean divides by the sum of the weights
        # Counted from the targets: torch's own count has the type of the logits, and bfloat16 cannot hold 1001.
        target, ignored = node._saved_target, node._saved_ignore_index  # type: ignore[attr-defined]
        return _said("mean", int((target != ignored).sum()))
    return None if _is_hooked(node, "self") else _said("mean", _size(node, "_saved_self"))


def _is_hooked(node: Any, name: str) -> bool:
    """Whether getting at a saved tensor would run code: the user's own, or a checkpoint's, which computes it again."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    return raw is None or getattr(raw, "unpack_hook", raw) is not None  # what cannot be asked may well be hooked


def _said(reduction: str, batch: int | None) -> dict[str, str | int] | None:
    return {"reduction": reduction, "batch": batch} if batch else None


def _size(node: Any, name: str) -> int | None:
    found = getattr(node, name, None)
    return found.numel() if isinstance(found, torch.Tensor) else found
