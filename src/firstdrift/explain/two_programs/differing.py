"""What two calls differ in that make the same value on either side: the first changes to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np

from ...program.calls import Call, Inline, Leaf, Ref, reads
from ...program.edits import Edit, local, made_by
from ...program.reruns import Rerun
from ..changes.constants import Constant, constants, plainly, table_change
from ..changes.several import read_otherwise
from ..naming import CHANGED, additional_label, kind_label, setting_label
from ..one_program.around import Around, Change, base, hidden, number
from ..one_program.narrowing import Lined, Narrow, telling_call
from ..one_program.values import told

MOST_NUMBERS = 64  # of a table that is told
MOST_AXES = 4  # whose orders are all tried


def differences(lined: Lined, reference: Rerun, narrow: Narrow) -> Iterator[Change]:
    """The settings, tensors and operation that the candidate's call has and the reference's has not."""
    mine, other = telling_call(reference, narrow.ref), telling_call(lined.candidate, narrow.candidate)
    if mine not in reference.calls or other not in lined.candidate.calls:
        return
    around, candidate = Around(reference, mine), Around(lined.candidate, other)
    if around.op == candidate.op:
        yield from settings_apart(around, candidate)
        yield from _turned(lined, around, candidate)
        yield from _given(lined, around, candidate)
        yield from _masked(lined, around, candidate)
    yield from _sources(lined, around, candidate)
    if (
        _is_constant(reference, mine)
        and narrow.value.size <= MOST_NUMBERS
        and around.kind == "f"
        and around.result == narrow.ref
    ):
        yield table_change(around, narrow.value)


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
        said = f"{name} of {around.written} is {_plain(setting.value)} instead of {_plain(reference.value)}"
        parameters = {name: setting.value, f"reference_{name}": reference.value}
        yield Change(f"{name} {setting.value}", setting_label(around, name), said, around.set(name, setting.value), 1.0,
                     parameters=parameters)  # fmt: skip


def _plain(value: object) -> str:
    found = number(value)
    return str(value) if found is None else plainly(found)


def _sources(lined: Lined, around: Around, candidate: Around) -> Iterator[Change]:
    """The candidate's call as the reference could make it, of values that both have."""
    args = _in_reference(lined, candidate.call.args)
    kwargs = _in_reference(lined, dict(candidate.call.kwargs))
    if args is None or kwargs is None:
        return
    same = around.op == candidate.op
    edit = around.instead(Call(candidate.call.op, args, kwargs, ()))  # type: ignore[arg-type]
    if same:
        pairs = [(a, b) for a, b in zip(around.tensors, _refs(args, kwargs), strict=False) if a != b]
        if not pairs:
            return
        if len(pairs) == 1:
            old, new = pairs[0]
            label, said = read_otherwise(around, old, new)
            yield Change("source", label, said, edit, 3.0, parameters={"reads": told(around.rerun, new)})
            return
    said = f"{call_told(around.rerun, candidate, args)} instead of {call_told(around.rerun, around, around.call.args)}"
    more = around.result in _refs(args, kwargs)  # the candidate's call works on what the reference's gives
    label = CHANGED if same else additional_label(candidate.op, around) if more else kind_label(around.op, candidate.op)
    yield Change(
        f"call {base(candidate.call)}",
        label,
        said,
        edit,
        8.0,
        parameters={"call": candidate.written, "reference_call": around.written},
    )


def call_told(rerun: Rerun, around: Around, args: object) -> str:
    """A call as a reader knows it, with the reference's values."""
    return f"{around.written}({', '.join(_argument(rerun, one) for one in args)})"  # type: ignore[attr-defined]


def _argument(rerun: Rerun, item: object) -> str:
    if isinstance(item, Ref):
        return told(rerun, item)
    if isinstance(item, tuple | list):
        return f"[{', '.join(_argument(rerun, one) for one in item)}]"
    return _plain(item)


def _refs(args: object, kwargs: object) -> list[Ref]:
    return reads(Call("", (args, kwargs), {}, ()))


def _in_reference(lined: Lined, item: object) -> object:
    """Arguments with the reference's values in the place of the candidate's; None where it has not all of them."""
    if isinstance(item, Ref):
        own = lined.same.get(item)
        return own if own is not None and _is_equal(lined, own, item) else None
    if isinstance(item, dict):
        found = {key: _in_reference(lined, one) for key, one in item.items()}
        return None if any(found[key] is None and item[key] is not None for key in found) else found
    if isinstance(item, tuple | list):
        some = tuple(_in_reference(lined, one) for one in item)
        return None if any(new is None and old is not None for new, old in zip(some, item, strict=True)) else some
    return item


def _given(lined: Lined, around: Around, candidate: Around) -> Iterator[Change]:
    """A recorded tensor that the candidate's call reads, and nothing of the reference's here."""
    strange = [
        (mine, other) for mine, other in zip(around.tensors, candidate.tensors, strict=False) if other not in lined.same
    ]
    if len(strange) != 1 or strange[0][1] not in lined.candidate.given:
        return
    mine, other = strange[0]
    site = lined.candidate.given[other]
    name = ".".join(part for part in (site.name, site.port) if part)
    label = "residual-source" if around.op == "add" and not around.of_scores else CHANGED
    said = f"{around.written} reads {name} instead of {told(around.rerun, mine)}"
    yield Change("source", label, said, _constant(lined, around, mine, other), 3.0, parameters={"reads": name})


def _constant(lined: Lined, around: Around, mine: Ref, other: Ref) -> Edit:
    return around.reading(mine, local(0), made_by("clone.default", lined.candidate.array(other)))


def _masked(lined: Lined, around: Around, candidate: Around) -> Iterator[Change]:
    """Masks that hide other places: which of them, and by how many."""
    for mine, other in zip(around.tensors, candidate.tensors, strict=False):
        one, two = lined.reference.array(mine), lined.candidate.array(other)
        first, second = hidden(one), hidden(two)
        if first is None or second is None or (one.dtype == bool) != (two.dtype == bool):
            continue
        try:
            reference, his = np.broadcast_arrays(first, second)
        except ValueError:
            continue
        reference, his = (reference, his) if one.dtype != bool or around.op == "masked_fill" else (~reference, ~his)
        more, less = int(np.count_nonzero(his & ~reference)), int(np.count_nonzero(reference & ~his))
        if not more and not less:
            continue
        label = "mask-missing" if not more else CHANGED
        said = (
            f"the candidate's mask hides {more} places more and {less} fewer than the reference's, of {reference.size}"
        )
        yield Change(
            "mask", label, said, _constant(lined, around, mine, other), 10.0, parameters={"more": more, "fewer": less}
        )


def _is_equal(lined: Lined, ref: Ref, other: Ref) -> bool:
    """Whether two values are the same in the same shape, not only in another order of axes."""
    reference, candidate = lined.reference.array(ref), lined.candidate.array(other)
    return reference.shape == candidate.shape and bool(
        np.allclose(reference, candidate, rtol=1e-5, atol=1e-30, equal_nan=True)
    )


def _turned(lined: Lined, around: Around, candidate: Around) -> Iterator[Change]:
    """A tensor that both read, and that one of them turns first."""
    for ref, other in zip(around.tensors, candidate.tensors, strict=False):
        reference, value = lined.reference.array(ref), lined.candidate.array(other)
        if (
            reference.size != value.size
            or reference.shape != value.shape
            or np.array_equal(reference, value)
            or reference.ndim > MOST_AXES
        ):
            continue
        for order in permutations(range(reference.ndim)):
            turned = reference.transpose(order)
            if turned.shape == value.shape and np.allclose(turned, value, rtol=1e-6, atol=1e-30):
                label = (
                    "transpose"
                    if reference.ndim == 2 or order[-2:] == (reference.ndim - 1, reference.ndim - 2)
                    else "axis-order"
                )
                how = "transposed" if label == "transpose" else f"with its axes in the order {order}"
                said = f"{around.written} reads {told(around.rerun, ref)} {how}"
                edit = around.reading(ref, local(0), made_by("permute.default", ref, order))
                yield Change("turned", label, said, edit, 2.0, parameters={"order": list(order)})
                break


def _is_constant(rerun: Rerun, start: int) -> bool:
    """Whether a value is computed from nothing but numbers of the code."""
    left, seen = [start], set[int]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        node = rerun.step.nodes[one]
        if isinstance(node, Leaf):
            if not isinstance(node.source, Inline):
                return False
            continue
        if any(ref in rerun.given for ref in reads(node)):
            return False
        left += [ref.node for ref in reads(node)]
    return True
