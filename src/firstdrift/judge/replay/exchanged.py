"""Settings by the library's names, and calls and traces with one side's value exchanged for the other's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from ...core.records import Record
from ...core.sites import Site
from ...core.strict_json import Json
from ...core.traces import Trace
from ...program.calls import Call, Ref, Step
from ...program.cuts import Cut
from ...program.interpreter import NotReplayableError, operation
from ...program.operations.known_operations import OPERATIONS, is_exactly_named, named
from ...program.operations.op_table import Setting
from ..measure.stated import OPTIMIZER, Stated, Unsaid, are_alike


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
    if are_alike(reference, candidate):
        return None
    return replace(stated, key=setting.names[0], reference=reference, candidate=candidate)


def setting_of(stated: Stated) -> Setting | None:
    """The setting of the library's operation that a key names."""
    made_by = None if stated.op is None else named(stated.op)
    return next((one for one in made_by.settings if stated.key in one.names), None) if made_by is not None else None


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


def alike(stated: Stated) -> str:
    """What settings have in common that are changed together."""
    return repr((stated.op, stated.key, stated.reference, stated.candidate))


def stating(stated: Stated, said: AbstractSet[Site], trace: Trace) -> Trace:
    """The reference as the candidate states it, in one setting of some lines."""

    def line(record: Record) -> Record:
        stepped = record.site.phase in ("optim", "weight_after")
        if record.site not in said and not (stated.where == OPTIMIZER and not said and stepped):
            return record
        attrs = dict(record.attrs)
        if record.site not in said and stated.key not in attrs:
            return record
        setting = setting_of(stated)
        for name in () if setting is None else setting.names:
            attrs.pop(name, None)
        return record._replace(details={**record.details, "attrs": {**attrs, stated.key: stated.candidate}})

    header = dict(trace.header)
    if stated.where == OPTIMIZER:
        header["optimizer"] = _stepping(stated, header.get("optimizer"))
    return trace.stating(line, header)


def _stepping(stated: Stated, said: Json) -> Json:
    """An optimizer with another setting, in all of its groups or in one."""
    told = said[0] if isinstance(said, list) and said else said
    told = dict(told) if isinstance(told, dict) else {"class": told}
    if stated.key == "class":
        return {**told, "class": stated.candidate}
    where, _, rest = stated.key.partition(".")
    number, _, key = rest.partition(".") if where == "groups" else ("", "", stated.key)
    groups = told.get("groups")
    if not isinstance(groups, list):
        return {**told, key: stated.candidate}
    changed = [
        {**group, key: stated.candidate} if not number or at == int(number) else group
        for at, group in enumerate(groups)
    ]
    return {**told, "groups": changed}


def calls(step: Step, cut: Cut) -> dict[int, Call]:
    """The calls of a part, by number."""
    return {number: node for number in cut.nodes if isinstance(node := step.nodes[number], Call)}


def with_constants_of(call: Call, other: Call) -> Call | None:
    """A call with what another one of its kind was passed that is no tensor; None where those differ, too."""
    if len(call.args) != len(other.args) or call.kwargs.keys() != other.kwargs.keys():
        return None
    try:
        args = tuple(_constants(a, b) for a, b in zip(call.args, other.args, strict=True))
        kwargs = {key: _constants(item, other.kwargs[key]) for key, item in call.kwargs.items()}
    except ValueError:
        return None
    return replace(call, args=args, kwargs=kwargs)


def _constants(reference: Any, candidate: Any) -> Any:
    if isinstance(reference, Ref) or isinstance(candidate, Ref):
        if not (isinstance(reference, Ref) and isinstance(candidate, Ref)):
            raise ValueError("a tensor on one side alone")
        return reference
    if isinstance(reference, tuple | list) and isinstance(candidate, tuple | list) and len(reference) == len(candidate):
        return tuple(_constants(a, b) for a, b in zip(reference, candidate, strict=True))
    if any(isinstance(item, tuple | list) for item in (reference, candidate)):
        raise ValueError("lists of other lengths")
    return reference if isinstance(reference, Mapping) or are_alike(reference, candidate) else candidate


def with_value(call: Call, stated: Stated) -> Call | None:
    """A call that is passed the candidate's value in the place of the reference's: by its name, or as the same number
    where it has none."""
    try:
        schema = operation(call.op)[0]._schema  # type: ignore[attr-defined]
    except NotReplayableError:
        return None
    value = tuple(stated.candidate) if isinstance(stated.candidate, list) else stated.candidate
    for at, argument in enumerate(schema.arguments):
        if argument.name != stated.key:
            continue
        now = call.args[at] if at < len(call.args) else call.kwargs.get(argument.name, argument.default_value)
        if isinstance(now, Ref) or not are_alike(now, stated.reference):
            return None
        if at < len(call.args):
            return replace(call, args=(*call.args[:at], value, *call.args[at + 1 :]))
        return replace(call, kwargs={**call.kwargs, argument.name: value})
    if type(stated.reference) is not float or type(value) is not float:
        return None
    places = [at for at, item in enumerate(call.args) if type(item) is float and are_alike(item, stated.reference)]
    args = tuple(value if at in places else item for at, item in enumerate(call.args))
    return replace(call, args=args) if places else None
