"""Tensors that no call of a step made: what the program says of each, and where its bytes are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ....core.sites import Site
from ....core.strict_json import encode
from ....program.written.program_writer import MOST_INLINE
from ..names import parameters_of
from ..run import Run
from ..tensor_values import NotComparableError, array_of, version_of, without_values
from .memory import Geometry, Held, geometry_of

_FULL = '"missing":"the disk was full"'

Owner = Callable[[], tuple[str, nn.Module] | None]


class Leaves:
    """The leaves of a run. `owner` is the module that runs, with its path; None outside the model."""

    def __init__(self, run: Run, owner: Owner) -> None:
        self._run = run
        self._owner = owner
        self._stored: dict[bytes, tuple[int, int, int]] = {}  # what is in the data files already, by content
        self._left = _Left()  # what the step before left
        self._leaving = _Left()  # what this step will leave

    def end_step(self) -> None:
        """What this step left is what the next one begins with."""
        self._left.clear()
        self._left, self._leaving = self._leaving, self._left

    def clear(self) -> None:
        """Forget what steps left."""
        self._left.clear()

    def leaves(self, site: Site, key: int, geometry: Geometry, tensor: torch.Tensor) -> None:
        """The next step may begin with what a site holds."""
        self._leaving.add(site, key, geometry, tensor)

    def left(self, key: int, geometry: Geometry, tensor: torch.Tensor) -> Site | None:
        """The site of an earlier step that holds what a tensor is now."""
        return self._left.find(key, geometry, tensor)

    def source(self, tensor: torch.Tensor) -> str:
        """Where the numbers of a leaf are."""
        try:
            array = array_of(tensor)
        except NotComparableError as error:
            return f'"missing":{encode(str(error))}'
        if array.size <= MOST_INLINE and array.dtype.kind in "fiub" and bool(np.isfinite(array).all()):
            return f'"value":{encode(array.reshape(-1).tolist())}'
        name = self._attribute(tensor)
        if (why := self._why_not_stored(tensor)) is not None:
            return f'"missing":{encode(why)}{name}'
        at = self._store_once(array)
        return f"{_FULL}{name}" if at is None else f'"at":[{at[0]},{at[1]},{at[2]}]{name}'

    def drawn(self, tensor: torch.Tensor, *, bits: bool) -> str:
        """Where random numbers are, so that nobody has to draw them again; `bits` of them is one an element."""
        if (why := self._why_not_stored(None)) is not None:
            return f'"missing":{encode(why)}'
        try:
            array = array_of(tensor)
        except NotComparableError as error:
            return f'"missing":{encode(str(error))}'
        if bits:
            array = np.packbits(np.ascontiguousarray(array).reshape(-1) != 0)
        stored = self._run.recorder.store_for_program(array, "random numbers")
        if stored is None or stored.at is None:
            return _FULL
        packed = ',"bits":true' if bits else ""
        return f'"at":[{stored.at[0]},{stored.at[1]},{stored.at[2]}]{packed}'

    def _why_not_stored(self, tensor: torch.Tensor | None) -> str | None:
        """Why the bytes of a leaf are not wanted: what the user left out stays out."""
        owner = self._owner()
        path = "" if owner is None else owner[0]
        if self._run.scope.mode(path) != "full":
            return "statistics only are kept here"
        if not self._run.takes("fwd", path):
            return "its module is not recorded"
        if tensor is not None and (name := self._weight(tensor)) is not None:
            return f"weight {name} is not recorded"
        return None

    def _weight(self, tensor: torch.Tensor) -> str | None:
        """The name of a parameter or buffer that no site holds, because its phase was left out."""
        if "weight" in self._run.scope.phases:
            return None
        key = geometry_of(tensor)[0]
        for parameter in parameters_of(self._run.model):
            if parameter.tensor.layout == torch.strided and geometry_of(parameter.tensor)[0] == key:
                return ".".join(filter(None, (parameter.module, parameter.port)))
        return None

    def _attribute(self, tensor: torch.Tensor) -> str:
        """What a module calls a tensor that it holds as a plain attribute."""
        owner = self._owner()
        if owner is None:
            return ""
        for name, item in vars(owner[1]).items():
            if isinstance(item, torch.Tensor) and without_values(item) is None and item.data_ptr() == tensor.data_ptr():
                return f',"name":{encode(f"{owner[0]}.{name}" if owner[0] else name)}'
        return ""

    def _store_once(self, array: np.ndarray[Any, Any]) -> tuple[int, int, int] | None:
        """Keep a tensor; the same content is kept once."""
        key = _digest(array)
        if key not in self._stored:
            stored = self._run.recorder.store_for_program(array, "a leaf of the program")
            if stored is None or stored.at is None:
                return None
            self._stored[key] = stored.at
        return self._stored[key]


class _Left:
    """Sites by the tensors that they hold, for as long as nobody writes to these; none of them is kept alive."""

    def __init__(self) -> None:
        self._sites: dict[int, tuple[Site, int | None, Geometry]] = {}
        self._held = Held()

    def add(self, site: Site, key: int, geometry: Geometry, tensor: torch.Tensor) -> None:
        """A site holds a tensor as it is now."""
        self._sites[key] = (site, version_of(tensor), geometry)
        self._held.add(tensor)

    def find(self, key: int, geometry: Geometry, tensor: torch.Tensor) -> Site | None:
        """The site that holds a tensor as it is now."""
        found = self._sites.get(key)
        return found[0] if found is not None and found[1:] == (version_of(tensor), geometry) else None

    def clear(self) -> None:
        """Forget all of them."""
        self._sites.clear()
        self._held.clear()


def _digest(array: np.ndarray[Any, Any]) -> bytes:
    data = np.ascontiguousarray(array)
    digest = hashlib.sha256(f"{data.dtype}{data.shape}".encode())
    digest.update(data.reshape(-1).view(np.uint8))
    return digest.digest()
