"""Two releases of one package in one process: each has its own modules, which never see those of the other."""

from __future__ import annotations

import fractions
import importlib
import math
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar


class StandIn(ModuleType):
    """A module that is not installed: every name in it can be imported, none can be used."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Release:
    """An unpacked release. Its modules are in `sys.modules` only while something is imported from it."""

    def __init__(self, folder: Path, absent: Collection[str] = ()) -> None:
        self.folder = folder
        self._absent = tuple(absent)  # modules that it imports and never uses here: stand-ins take their places
        self._tops = frozenset(_top_names(folder))
        self._modules: dict[str, ModuleType] = {}

    def find(self, path: str) -> Any:
        """What `package.module:Name` is in this release."""
        module, _, name = path.partition(":")
        with self._shown():
            found: Any = importlib.import_module(module)
            for part in name.split(".") if name else ():
                found = getattr(found, part)
        return found

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Its own modules in place of those of the same name, which come back afterwards."""
        hidden = self._taken()
        sys.modules.update(self._modules)
        stand_ins = {name: StandIn(name) for name in self._absent}
        sys.modules.update(stand_ins)
        fractions.gcd = math.gcd  # type: ignore[attr-defined]  # where Python had it when the oldest were made
        sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            del fractions.gcd  # type: ignore[attr-defined]
            sys.path.remove(str(self.folder))
            self._modules = self._taken()
            for name in stand_ins:
                del sys.modules[name]
            sys.modules.update(hidden)

    def _taken(self) -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] in self._tops]
        return {name: sys.modules.pop(name) for name in names}


def _top_names(folder: Path) -> Iterator[str]:
    """The names that are imported from a folder."""
    for entry in folder.iterdir():
        if entry.suffix == ".py" or (entry.is_dir() and entry.name.isidentifier()):
            yield entry.stem
