"""Conditions and masks: ignored, inverted, without their edge, filled with something else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.traces import Array
from ...program.calls import Call, Ref
from ...program.edits import local, made_by
from ..naming import CHANGED, CHOOSING, mask_label
from ..one_program.around import ATTENTION, LOW, MOVES, Around, Change, number

FILLS = (0.0, -1.0, 1.0, -1e4, -1e9, float("-inf"))
BOTH = frozenset({"logical_and", "logical_or", "bitwise_and", "bitwise_or", "mul"})


def conditions(around: Around) -> Iterator[Change]:
    """A condition is taken to hold everywhere, nowhere, or where it does not; one of two is ignored."""
    if around.kind != "b" or around.op in MOVES - {"_to_copy", "slice", "select", "copy"}:
        return
    label, said = mask_label(around), f"{around.written} is taken to hold"
    for op, told, name in (
        ("ones_like.default", "everywhere", label), ("zeros_like.default", "nowhere", label),
        ("logical_not.default", "where it does not", CHANGED),
    ):  # fmt: skip
        yield Change(told, name, f"{said} {told}", around.instead(around.call, made_by(op, local(0))), 3.0)
    if around.op in BOTH and len(around.tensors) == 2:
        for at in (0, 1):
            said = f"the {('first', 'second')[at]} of two conditions is ignored{_what(around, around.tensors[at])}"
            yield Change(f"without {at}", label, said, around.passing(around.tensors[1 - at]), 2.0)
    if around.op in ("tril", "triu"):
        yield Change("whole", label, "the mask is not cut at the diagonal", around.passing(around.tensors[0]), 2.0)


def _what(around: Around, ref: Ref) -> str:
    maker = around.rerun.calls.get(ref.node)
    return "" if maker is None or ref in around.rerun.given else f" ({Around(around.rerun, ref.node).written})"


def fills(around: Around) -> Iterator[Change]:
    """A mask is inverted, or filled with something else."""
    if around.op == "masked_fill":
        _, mask, fill = around.call.args[:3]
        edit = around.read_as(mask, made_by("logical_not.default", mask))
        yield Change("inverted", CHANGED, "the mask is inverted", edit, 3.0)
        now = number(fill)
        for other in FILLS if now is not None else ():
            if other != now:
                given = {"float": "-inf"} if other == float("-inf") else other
                said = f"what is masked is filled with {other:g} instead of {now:g}"
                edit, parameters = around.given(2, given), {"fill": other, "reference_fill": now}
                yield Change(f"fill {other}", CHANGED, said, edit, 3.0, parameters=parameters)
    if around.op == "where" and len(around.tensors) == 3:
        condition, one, two = around.tensors
        said = "the condition is taken to hold"
        yield Change("first", mask_label(around), f"{said} everywhere", around.passing(one), 2.0)
        yield Change("second", mask_label(around), f"{said} nowhere", around.passing(two), 2.0)
        edit = around.instead(Call(around.call.op, (condition, two, one), {}, ()))
        is_fill = () in (around.rerun.shape(one), around.rerun.shape(two))  # then it is a mask that is inverted
        label = CHANGED if is_fill else "swapped-operands"
        yield Change("exchanged", label, "both branches are exchanged", edit, 3.0)


def casts_of_masks(around: Around) -> Iterator[Change]:
    """A mask that is counted or multiplied with is taken to hold everywhere."""
    if around.kind == "b" or not around.tensors:
        return
    source = around.tensors[0]
    is_cast = around.op == "_to_copy" and around.rerun.kind(source) == "b"
    if is_cast:
        edit = around.instead(made_by("ones_like.default", around.result))
        yield Change("ones", mask_label(around), "the mask is taken to hold everywhere", edit, 3.0)


def kinds_of_scores(around: Around) -> Iterator[Change]:
    """What is chosen among many is made to sum to one."""
    if around.op not in ("topk", "gather", "_softmax", "sigmoid") or not (
        CHOOSING & (around.before | around.after | {around.op})
    ):
        return
    calls = (around.call, made_by("sum.dim_IntList", local(0), (-1,), True), made_by("div.Tensor", local(0), local(1)))
    results = (local(2), *(local(0, at) for at in range(1, len(around.call.results))))
    said = f"what {around.written} gives is made to sum to one"
    yield Change("renormalised", "router-renorm", said, around.instead(*calls, results=results), 4.0)


def added(around: Around, found: Array) -> Iterator[Change]:
    """A mask that the reference has not: where what was found is hidden, if that is the future, or some keys."""
    if around.shape != found.shape or found.ndim < 3 or around.kind != "f":
        return
    own = around.array(around.result)
    if around.op in ATTENTION and around.op.endswith("softmax"):
        hides, x = (found == 0) & (own != 0), around.tensors[0]
        edit = around.read_as(x, made_by("masked_fill.Scalar", x, hides, {"float": "-inf"}))
    elif around.result == around.rerun.target:
        hides = (np.asarray(found, np.float64) <= LOW) & (np.asarray(own, np.float64) > LOW)
        edit = around.then("masked_fill.Scalar", hides, {"float": "-inf"})
    else:
        return
    what = _hidden_part(hides)
    if what:
        said = f"what {around.written} works on is masked, which hides {what}"
        yield Change("added mask", "mask-missing", said, edit, 4.0, parameters={"hides": what})


def _hidden_part(hides: Array) -> str:
    """What a mask hides in words; nothing of one without such a form."""
    if not hides.any() or hides.all():
        return ""
    future = np.triu(np.ones(hides.shape[-2:], bool), 1)
    if (hides == future).all():
        return "what comes after a query"
    return "the same keys from every query" if (hides == hides[..., :1, :]).all() else ""


TABLE = (conditions, fills, casts_of_masks, kinds_of_scores)
