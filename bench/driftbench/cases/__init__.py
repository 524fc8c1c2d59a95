"""The cases, network by network."""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib import import_module

from ..case import Case

MODULES = (
    "llama", "gemma", "gpt2", "vit", "bert", "spotter", "resnet", "unet", "tagger", "moe", "quantised", "shared",
    "training",
    "deep", "traps", "behind", "c_port", "benign",
)  # fmt: skip


def all_cases() -> list[Case]:
    """Every case; names are unique."""
    found = [case for module in MODULES for case in import_module(f"{__name__}.{module}").CASES]
    names = [case.name for case in found]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise ValueError(f"two cases have one name: {', '.join(sorted(doubled))}")
    return found


def chosen_cases(pattern: str) -> list[Case]:
    """The cases whose name fits a glob."""
    return [case for case in all_cases() if fnmatchcase(case.name, pattern)]
