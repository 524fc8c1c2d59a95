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
    for stated in found:
        known = _settled(stated)
        if known is not None:
            done.setdefault((known.where, known.key, known.sites), known)
    return list(done.values())


def _settled(stated: Stated) -> Stated | None:
    setting = setting_of(stated)
    if not isinstance(stated.reference, Unsaid) and not isinstance(stated.candidate, Unsaid):
        return stated if setting is None else replace(stated, key=setting.names[0])
    silent = stated.op if isinstance(stated.reference, Unsaid) else stated.candidate_op
    if setting is None or not setting.is_choice or silent is None or not is_exactly_named(silent):
        return None
    reference = setting.default if isinstance(stated.reference, Unsaid) else stated.reference
    candidate = setting.default if isinstance(stated.candidate, Unsaid) else stated.candidate
    return (
        None
        if are_alike(reference, candidate)
        else replace(stated, key=setting.names[0], reference=reference, candidate=candidate)
    )


def setting_of(stated: Stated) -> Setting | None:
    """The setting of the library's operation that a key names."""
    made_by = None if stated.op is None else named(stated.op)
    return None if made_by is None else _named_setting(made_by, stated.key)


def is_known(stated: Stated) -> bool:
    """Whether a key is an argument of an operation that the library knows: its own name, or one that ends in it, as
    configs have them."""
    if stated.op is not None:
        return setting_of(stated) is not None
    if all(isinstance(value, str) and named(value) is not None for value in (stated.reference, stated.candidate)):
        return True
    key = stated.key.rpartition(".")[2]
    names = {name for made_by in OPERATIONS for setting in made_by.settings for name in setting.names}
    return key in names or any(key.endswith(f"_{name}") for name in names)


def _named_setting(made_by: Operation, key: str) -> Setting | None:
    return next((setting for setting in made_by.settings if key in setting.names), None)
