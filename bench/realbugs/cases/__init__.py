"""All cases: one file a package."""

from __future__ import annotations

import importlib
import pkgutil

from ..case import Case


def all_cases() -> list[Case]:
    """Every case of every package, in the order of the files."""
    found: list[Case] = []
    for module in pkgutil.iter_modules(__path__):
        found += importlib.import_module(f"{__name__}.{module.name}").CASES
    return found
