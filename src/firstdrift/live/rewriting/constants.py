"""Numbers in the reference's code, and which other number in their place gives the candidate's tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from .arithmetic import PRODUCTS, QUOTIENTS, SUMS
from .program import Change
from .view import JOINS, SOFTMAX, View

FITTED = 1e-6  # relative: how well a fitted number is known
NUMBERS: Mapping[str, tuple[tuple[int, str], ...]] = {
    **dict.fromkeys((*SUMS, *PRODUCTS, *QUOTIENTS, "pow", "__rpow__"), ((0, "input"), (1, "other"))),
    **dict.fromkeys(("lt", "le", "gt", "ge"), ((1, "other"),)),
    **dict.fromkeys(("clamp", "clip", "clamp_"), ((1, "min"), (2, "max"))),
    **dict.fromkeys(("clamp_min", "clamp_max"), ((1, "min"),)),
    "leaky_relu": ((1, "negative_slope"),), "elu": ((1, "alpha"),),
    "softplus": ((1, "beta"),), "linspace": ((0, "start"), (1, "end")),
}  # fmt: skip
ROOTS = frozenset({"rsqrt", "sqrt", "pow", "__rpow__"})


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that a call is given."""

    view: View
    place: int
    name: str
    value: float
    whole: bool

    def changed(self, value: float) -> Change:
        """The call with another number."""
        given = round(value) if self.whole else value
        return self.view.changed(**{self.name: (self.place, given)})


def constants(view: View) -> Iterator[Constant]:
    """The numbers that a call is given, and that could be others."""
    for place, name in NUMBERS.get(view.call.name, ()):
        value = view.argument(place, name)
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            whole = isinstance(value, int) and not view.result.is_floating_point()
            yield Constant(view, place, name, float(value), whole)


def label(constant: Constant) -> str:
    """What it is called if this number is another one."""
    view, name = constant.view, constant.view.call.name
    if name in ("lt", "le", "gt", "ge") and view.tensors[0].is_floating_point():
        return "offset"
    if not view.result.is_floating_point():
        return _of_positions(view, abs(constant.value) > 1)
    if name.startswith(("clamp", "clip")):
        return "norm-eps" if {"div", "mul"} & view.next and {"norm", "sum", "sqrt"} & view.before else "clamp"
    if name in ("leaky_relu", "elu", "softplus"):
        return "activation-variant"
    if name in ("pow", "__rpow__", "linspace"):
        return _of_tables(view, "rope-theta") if view.in_tables else "scale"
    if name in ("add", "add_", "sub", "sub_", "__rsub__"):
        return _of_sums(constant)
    return factor_label(view)


def _of_positions(view: View, wide: bool) -> str:
    if SOFTMAX & view.after:
        return "window-off-by-one" if wide else "mask-off-by-one"
    return "position-shift" if view.in_tables or "embedding" in view.after else "index-shift"


def _of_sums(constant: Constant) -> str:
    view = constant.view
    if constant.value == 1 and any(isinstance(one, torch.nn.Parameter) for one in view.tensors):
        return "norm-plus-one"
    if ROOTS & view.next or ("div" in view.next and {"sqrt", "norm", "std"} & view.before):
        return "norm-eps"
    if view.in_tables:
        return "position-shift"
    return "offset"


def table_label(view: View) -> str:
    """What it is called if a small table holds other numbers."""
    if view.in_tables:
        return _of_tables(view, "rope-scaling")
    return "alibi-slope" if view.is_bias_of_scores else "wrong-weight"


def offset_label(view: View) -> str:
    """What it is called if something is added that the code does not have."""
    return "zero-point" if "round" in (view.after | view.before | {view.call.name}) else "offset"


def factor_label(view: View) -> str:
    """What a factor is called that is another one, or one too many."""
    if _is_cap(view):
        return "softcap"
    if view.in_tables:
        return _of_tables(view, "rope-theta" if {"__rpow__", "pow", "exp"} & view.after else "rope-scaling")
    if view.is_bias_of_scores:
        return "alibi-slope"
    return "attention-scale" if SOFTMAX & view.after else "scale"


def _is_cap(view: View) -> bool:
    """Whether a number divides before a tanh, or multiplies behind it."""
    calls = view.program.calls
    bent = [number for number, call in calls.items() if call.name == "tanh"]
    behind = {reader for number in bent for reader in view.program.readers(number) if calls[reader].name in PRODUCTS}
    before = {ref.call for number in bent for ref in calls[number].reads if behind & set(view.program.readers(number))}
    return view.number in before | behind


def _of_tables(view: View, turned: str) -> str:
    """Tables of positions that are joined are added to something; those of a rotation stay two."""
    behind = [n for n, call in view.program.calls.items() if call.name in ("cos", "sin")]
    joined = any(JOINS & View(view.program, number).next for number in behind)
    return "frequency-table" if joined else turned


def plain(value: float) -> float:
    """The number of fewest digits that is as near as a fit is good."""
    short = (float(f"{value:.{digits}g}") for digits in range(1, 7))
    return next((one for one in short if abs(one - value) <= FITTED * abs(value)), value)


def plainly(value: float) -> str:
    """A number for people."""
    return f"{plain(value):g}"
