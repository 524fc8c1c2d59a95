"""Settings of an optimizer behind the numbers that its step is given: one that is another changes all of them alike.

A step is given numbers that were computed from its rates and from how many steps there were. Each is held against the
usual ways to compute it; a setting is then changed like a number of the code, with all that follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from math import isfinite, sqrt
from typing import Any

from ...program.edits import Edit
from ...program.reruns import Rerun
from ..one_program.around import Around
from ..step_names import PARAMETER, role
from .constants import Constant, constants

NEAR = 1e-6  # relative: what a number may be off the way in which it was computed
MOST_WAYS = 12  # to take numbers together that come of several ways each
LABELS: Mapping[str, str] = {
    "lr": "optimizer-lr", "decay": "weight-decay-coupling", "one": "optimizer-momentum", "two": "optimizer-momentum",
    "count": "optimizer-bias-correction",
}  # fmt: skip
NAMES: Mapping[str, str] = {"decay": "weight_decay", "one": "the first beta", "two": "the second beta",
                            "count": "the count of steps"}  # fmt: skip
MOMENTS = ("one", "two")
Settings = Mapping[str, float]


def rates(rerun: Rerun, fewest: int = 2) -> Iterator[Constant]:
    """The settings that so many numbers of a step follow from."""
    calls = [Around(rerun, number) for number in rerun.calls]
    known = [constant for around in calls if around.call.part == "optimizer" for constant in constants(around)]
    groups = [group for optimizer in rerun.step.optimizers for group in optimizer.get("groups", ())]
    every = [_settings(group, rerun.step.number + 1) for group in groups]
    for settings in every:
        for name in settings:
            ways = [(constant, some) for constant in known if (some := _found(constant, name, settings))]
            for taken in islice(product(*(some for _, some in ways)), MOST_WAYS):  # a number may come of two by chance
                follow = [(one, way) for (one, _), way in zip(ways, taken, strict=True)]
                if len({one.around.number for one, _ in follow}) >= fewest:
                    edit, label = partial(_edit, follow, name, settings), partial(LABELS.__getitem__, name)
                    phrase = f"{NAMES.get(name, name)} is {{}}"
                    yield Constant(follow[0][0].around, name, settings[name], name == "count", label, edit, phrase,
                                   tuple(one[name] for one in every if name in one))  # fmt: skip


def set_there(name: str, value: float, before: float, rerun: Rerun) -> Edit | None:
    """The change of a setting in the program of another tensor or step; None where no number follows from it there. A
    count of steps is as far off there."""
    known = (one for one in rates(rerun, fewest=1) if one.name == name)
    same = next((one for one in known if name == "count" or one.value == before), None)
    if same is None:
        return None
    return same.edit(same.value + value - before if name == "count" else value)


def _settings(group: Mapping[str, Any], count: int) -> dict[str, float]:
    betas = group.get("betas")
    one, two = betas if isinstance(betas, list | tuple) and len(betas) == 2 else (None, None)
    found = {"lr": group.get("lr"), "decay": group.get("weight_decay"), "one": one, "two": two, "count": count}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float) and value}


def _ways(now: Settings) -> Iterator[tuple[str, float]]:
    """What a step computes of its settings, with the names of those that it is computed of."""
    lr, decay, count = now.get("lr", 0.0), now.get("decay", 0.0), now.get("count", 1.0)
    yield "lr", lr
    yield "lr decay", lr * decay
    yield "lr decay", 1 - lr * decay
    moments = [(name, max(now.get(name, 0.0), 0.0)) for name in MOMENTS]
    for name, rate in moments:
        left = 1 - rate ** max(count, 0)
        yield f"{name} count", left
        yield f"{name} count", sqrt(max(left, 0.0))
        yield name, rate
        yield name, 1 - rate
    first, second = (1 - rate ** max(count, 0) for _, rate in moments)
    yield "lr one count", lr / first if first else 0.0
    yield "lr one two count", lr * sqrt(max(second, 0.0)) / first if first else 0.0


def _found(constant: Constant, name: str, settings: Settings) -> list[tuple[int, float]]:
    """The ways that give a number, of those that a setting takes part in, and its sign; with the rate first where it is
    the parameter that is moved."""
    rerun, tensors = constant.around.rerun, constant.around.tensors
    is_moved = bool(tensors) and role(rerun, tensors[0]) == PARAMETER
    found = [
        (("lr" in names) != is_moved, at, 1.0 if constant.value * made > 0 else -1.0)
        for at, (names, made) in enumerate(_ways(settings))
        if name in names.split() and made and abs(abs(constant.value) - abs(made)) <= NEAR * abs(made)
    ]
    return [(at, sign) for _, at, sign in sorted(found)]


def _edit(follow: Sequence[tuple[Constant, tuple[int, float]]], name: str, settings: Settings, value: float) -> Edit:
    edit: dict[int, Any] = {}
    if (name in MOMENTS and not 0 <= value <= 1) or (name == "count" and value < 0):
        return edit  # no such setting can be
    made = [one for _, one in _ways({**settings, name: value})]
    for constant, (at, sign) in follow:
        if isfinite(made[at]):
            edit |= constant.edit(sign * made[at])
    return edit
