"""Settings by the library's names: which argument of which operation a key means, and its default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.sites import Site
from ...program.operations.known_operations import OPERATIONS, is_exactly_named, named
from ...program.operations.op_table import Operation, Setting
from ..measure.stated import Stated, Unsaid, are_alike


def settled(found: Sequence[Stated]) -> list[Stated]:
    """Settings by the library's names; what a side did not state has the operation's default, where it has one. A
    module of another name, which somebody wrote, states nothing by its silence."""
    done: dict[tuple[str, str, tuple[Site, ...]], Stated] = {}
    for one in found:
        known = _settled(one)
        if known is not None:
            done.setdefault((known.where, known.key, known.sites), known)
    return list(done.values())


def _settled(one: Stated) -> Stated | None:
    setting = setting_of(one)
    if not isinstance(one.reference, Unsaid) and not isinstance(one.candidate, Unsaid):
        return one if setting is None else replace(one, key=setting.names[0])
    silent = one.op if isinstance(one.reference, Unsaid) else one.candidate_op
    if setting is None or not setting.is_choice or silent is None or not is_exactly_named(silent):
        return None
    ours = setting.default if isinstance(one.reference, Unsaid) else one.reference
    theirs = setting.default if isinstance(one.candidate, Unsaid) else one.candidate
    return None if are_alike(ours, theirs) else replace(one, key=setting.names[0], reference=ours, candidate=theirs)


def setting_of(one: Stated) -> Setting | None:
    """The setting of the library's operation that a key names."""
    made_by = None if one.op is None else named(one.op)
    return None if made_by is None else _named_setting(made_by, one.key)


def is_known(one: Stated) -> bool:
    """Whether a key is an argument of an operation that the library knows: its own name, or one that ends in it, as
    configs have them."""
    if one.op is not None:
        return setting_of(one) is not None
    if all(isinstance(value, str) and named(value) is not None for value in (one.reference, one.candidate)):
        return True
    key = one.key.rpartition(".")[2]
    names = {name for made_by in OPERATIONS for setting in made_by.settings for name in setting.names}
    return key in names or any(key.endswith(f"_{name}") for name in names)


def _named_setting(made_by: Operation, key: str) -> Setting | None:
    return next((setting for setting in made_by.settings if key in setting.names), None)
