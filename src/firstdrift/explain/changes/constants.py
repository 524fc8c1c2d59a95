"""Numbers, flags and names that calls are given, and which others in their place give the candidate's tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import isfinite, prod

from ...program.edits import Edit
from ...program.reruns import Rerun, Setting
from ..naming import (  # fmt: skip
    added_label,
    clamp_label,
    factor_label,
    offset_label,
    position_label,
    power_label,
    setting_label,
)
from ..one_program.around import MOVES, Around, Change, number

OPERANDS: Mapping[str, str] = {  # what the second operand does, where it is a number
    "add": "{} is added", "sub": "{} is subtracted", "mul": "multiplied by {}", "div": "divided by {}",
    "pow": "raised to {}", "lt": "compared with {}", "le": "compared with {}", "gt": "compared with {}",
    "ge": "compared with {}", "eq": "compared with {}", "ne": "compared with {}", "remainder": "taken modulo {}",
    "floor_divide": "divided by {}", "rsub": "subtracted from {}",
}  # fmt: skip
CHOICES: Mapping[str, tuple[object, ...]] = {"approximate": ("none", "tanh"), "reduction": (0, 1, 2)}
UNNAMED = frozenset({"other", "self", "exponent", "factor", "offset"})  # numbers that no argument names
KNOWN_DIGITS = 2  # that a number takes as many bits as, which the other side is given
MOST_SIZES = 12  # of tensors, that a number may be taken for
SHAPES = frozenset({
    "view", "_unsafe_view", "reshape", "expand", "empty", "zeros", "ones", "full", "unsqueeze", "new_zeros",
    "as_strided", "eye", "scalar_tensor", "squeeze", "empty_like", "rand", "randn", "empty_strided",
})  # fmt: skip
NUMBERS = frozenset({"number", "float", "Optional[float]", "Scalar", "Optional[number]", "Union[int, float, complex]"})


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that a call is given, and how the call is written with another; `whole` where it counts something."""

    around: Around
    name: str
    value: float
    whole: bool
    named: Callable[[], str]  # names are looked up for those that are told
    edit: Callable[[float], Edit]
    phrase: str = "{name} is {}"
    others: tuple[float, ...] = ()  # which it may have been taken for

    @property
    def label(self) -> str:
        """What it is called if it is another one."""
        return self.named()

    def said(self, value: float) -> str:
        """The sentence that tells another value."""
        return self._told(value, self.value)

    def _told(self, now: float, before: float) -> str:
        told = self.phrase.format(plainly(now), name=f"{self.name} of {self.around.written}")
        return f"{told} instead of {plainly(before)}"

    def change(self, value: float, *, free: int, known: bool = False) -> Change:
        """The change to another value; one that is `known` is one of few that the other side is given."""
        key = "value" if self.name in UNNAMED else self.name
        parameters = {key: plain(value), f"reference_{key}": self.value}
        digits = min(len(plainly(value).strip("-0.")), KNOWN_DIGITS if known else 12)
        bits = 3.0 + digits * (1.0 if free == 0 else 3.3)
        back = self._told(self.value, value)
        return Change(f"number {self.name}", self.label, self.said(value), self.edit(value), bits, free, parameters,
                      undone=back)  # fmt: skip


def constants(around: Around) -> Iterator[Constant]:
    """The numbers that a call is given, and that could be others."""
    if around.op in SHAPES:
        return
    second = around.call.args[1] if len(around.call.args) > 1 else None
    for name, one in around.settings.items():
        value = number(one.value)
        if value is None or not isfinite(value) or one.kind not in NUMBERS:
            continue
        if name == "alpha" and number(second) is not None:  # times a number: another number says the same
            continue
        whole = isinstance(one.value, int) and around.kind != "f"
        phrase = OPERANDS.get(around.op, "") if name in ("other", "exponent", "self") else ""
        phrase = "the base is {}" if (around.op, name) == ("pow", "self") else phrase
        edit = partial(_with, around, name, whole)
        yield Constant(around, name, value, whole, partial(_label, around, name, value), edit, phrase or "{name} is {}")
    value = number(second)
    if "other" not in around.settings and value is not None and around.op in OPERANDS and isfinite(value):
        whole = isinstance(second, int) and around.kind == "i"
        edit = partial(_second, around, whole)
        yield Constant(
            around, "other", value, whole, partial(_label, around, "other", value), edit, OPERANDS[around.op]
        )


def usual(rerun: Rerun, value: float) -> list[float]:
    """What a number may be mistaken for: its relatives, other numbers of the program, sizes of its tensors."""
    found = [0.0, 1.0, -value, 1 - value, value * value, 2 * value, value / 2, value + 1, value - 1]
    found += [1 / value, abs(value) ** 0.5] if value else []
    sizes = dict.fromkeys(size for ref in rerun.refs for size in (*rerun.shape(ref), prod(rerun.shape(ref))))
    some = [float(size) for size in sizes if size > 1][:MOST_SIZES]
    found += [one for size in some for one in (size, 1 / size, value * size, value / size)]
    found += [one for size in some for one in (value * size / (size - 1), value * (size - 1) / size)]
    found += [constant.value for number in rerun.calls for constant in constants(Around(rerun, number))]
    return list(dict.fromkeys(found))


def _with(around: Around, name: str, whole: bool, value: float) -> Edit:
    return around.set(name, round(value) if whole else value)


def _second(around: Around, whole: bool, value: float) -> Edit:
    return around.given(1, round(value) if whole else value)


def _label(around: Around, name: str, value: float) -> str:
    op = around.op
    if op in ("lt", "le", "gt", "ge", "eq", "ne"):
        floats = around.rerun.kind(around.tensors[0]) == "f"
        return "offset" if floats else position_label(around, abs(value) > 1)
    if name in ("other", "self"):
        if op in ("add", "sub", "rsub"):
            return added_label(around, value)
        return power_label(around) if op == "pow" else factor_label(around)
    if op == "pow":
        return power_label(around)
    if name in ("min", "max"):
        return clamp_label(around)
    if around.in_tables and op in ("arange", "linspace"):
        return "rope-theta"
    return setting_label(around, name)


def without(around: Around) -> Iterator[Change]:
    """A number that is added or multiplied with is not there."""
    for constant in constants(around):
        neutral = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}.get(around.op)
        is_term = constant.name == "alpha"  # which is left out as an operand
        if neutral is not None and constant.value != neutral and around.kind == "f" and not is_term:
            word = "added" if neutral == 0 else "there"
            said = f"{plainly(constant.value)} of {around.written} is not {word}"
            parameters = {"value": neutral, "reference_value": constant.value}
            back = constant.said(constant.value).split(" instead")[0] + ", which the reference does not do"
            edit = constant.edit(neutral)
            yield Change(
                f"without {constant.name}", constant.label, said, edit, 2.0, parameters=parameters, undone=back
            )


def settings(around: Around) -> Iterator[Change]:
    """Flags turned round, names and axes that are others, whole numbers one further."""
    for name, one in around.settings.items() if around.op not in SHAPES else ():
        for other in _others(around, name, one):
            if other != one.value:
                said = f"{name} of {around.written} is {other} instead of {one.value}"
                back = f"{name} of {around.written} is {one.value} instead of {other}"
                parameters = _parameters(name, other, one.value)
                bits = 4.0 + (name not in CHOICES)
                edit, label = around.set(name, other), setting_label(around, name)
                yield Change(f"{name} {_step(other, one.value)}", label, said, edit, bits, parameters=parameters,
                             undone=back)  # fmt: skip


def _others(around: Around, name: str, setting: Setting) -> Iterator[object]:
    if isinstance(setting.value, bool):
        yield not setting.value
    elif name in CHOICES:
        yield from CHOICES[name]
    elif name in ("dim", "dims") and around.tensors:
        yield from _axes(around, setting.value)
    elif name == "group":
        channels = around.rerun.shape(around.tensors[0])[1]
        yield from (count for count in range(1, channels + 1) if channels % count == 0)
    elif isinstance(setting.value, int) and setting.kind in ("int", "Optional[int]", "number") and name != "alpha":
        yield from (setting.value + by for by in (1, -1, 2, -2) if not setting.value < 0 <= setting.value + by)
        yield from (_other_end(around),) if name == "diagonal" else ()


def _other_end(around: Around) -> int:
    rows, columns = around.shape[-2:]
    return columns - rows


def _step(value: object, before: object) -> str:
    both = isinstance(value, int) and isinstance(before, int) and not isinstance(value, bool)
    return f"{value - before:+d}" if both else str(value)  # type: ignore[operator]


def _parameters(name: str, value: object, before: object) -> dict[str, object]:
    if name in ("start", "end", "index") and isinstance(value, int) and isinstance(before, int):
        return {"shift": value - before}
    return {name: value, f"reference_{name}": before, "value": value, "reference_value": before}


def _axes(around: Around, value: object) -> Iterator[object]:
    count = len(around.rerun.shape(around.tensors[0]))
    if isinstance(value, int):
        yield from (dim for dim in range(count) if dim != value % max(count, 1))
    elif isinstance(value, tuple | list):
        now = {dim % count for dim in value}
        for size in range(1, count + 1):
            yield from (tuple(dims) for dims in combinations(range(count), size) if set(dims) != now)


def settings_apart(around: Around, candidate: Around) -> Iterator[Change]:
    """Numbers, flags and axes that two calls of one operation are given otherwise."""
    known: dict[str, Constant] = {constant.name: constant for constant in constants(around)}
    for constant in constants(candidate):
        mine = known.get(constant.name)
        if mine is not None and mine.value != constant.value:
            yield replace(mine.change(constant.value, free=0), bits=1.0)
    for name, setting in candidate.settings.items():
        reference = around.settings.get(name)
        if (
            reference is None
            or reference.value == setting.value
            or name in known
            or (setting.kind.startswith("List[int]") and around.op == "view")
        ):
            continue
        said = f"{name} of {around.written} is {_shown(setting.value)} instead of {_shown(reference.value)}"
        parameters = {name: setting.value, f"reference_{name}": reference.value}
        yield Change(f"{name} {setting.value}", setting_label(around, name), said, around.set(name, setting.value), 1.0,
                     parameters=parameters)  # fmt: skip


def _shown(value: object) -> str:
    found = number(value)
    return str(value) if found is None else plainly(found)


def extras(around: Around) -> Iterator[Constant]:
    """A factor or an offset that the code does not have, behind a call."""
    if around.kind != "f" or around.op in MOVES:
        return
    made = f"what {around.written} makes is"
    times, plus = partial(_then, around, "mul.Tensor"), partial(_then, around, "add.Tensor")
    yield Constant(around, "factor", 1.0, False, partial(factor_label, around), times, f"{made} multiplied by {{}}")
    yield Constant(around, "offset", 0.0, False, partial(offset_label, around), plus, f"{made} increased by {{}}")


def _then(around: Around, op: str, value: float) -> Edit:
    return around.then(op, value)


def plain(value: float) -> float:
    """The number of fewest digits that is as near as a fit is good."""
    short = (float(f"{value:.{digits}g}") for digits in range(1, 7))
    return next((one for one in short if abs(one - value) <= 1e-6 * abs(value)), value)


def plainly(value: float) -> str:
    """A number for people."""
    return f"{plain(value):g}"
