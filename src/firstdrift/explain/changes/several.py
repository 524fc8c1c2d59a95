"""Changes of what is read: another tensor in the place of one, turned, moved, left out; and of two calls at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, permutations
from math import log2
from typing import Any

import numpy as np

from ...core.traces import Array
from ...program.calls import Call, Ref, reads
from ...program.edits import Fragment, local, made_by
from ...program.reruns import Rerun
from ..naming import (
    CHANGED,
    LOSSES,
    RECURRENT,
    ROOTS,
    interleave_label,
    mask_label,
    order_label,
    source_label,
    swapped_label,
)
from ..one_program.around import MOVES, Around, Change, are_positions, base, read_everywhere, replaced
from ..one_program.values import PART, left_out, name_of, told

FUSED_CELLS = frozenset({"mkldnn_rnn_layer", "_cudnn_rnn", "lstm", "gru"})
GATES = (3, 4)  # blocks of a recurrent layer's weights
PIECES = frozenset({"slice", "narrow", "getitem"})
MOST_EXCHANGED = 64  # pairs of values made alike
MOST_READ = 24  # tensors of one shape, beyond which none is read in the place of another
TRIVIAL = MOVES | {"arange", "zeros", "ones", "full", "scalar_tensor", "empty"}


def orders(around: Around) -> Iterator[Change]:
    """Neighbours that are exchanged: one works on what the other made, and nothing else does."""
    first = around.call.args[0] if around.call.args else None
    if not isinstance(first, Ref) or first in around.rerun.given or first.node not in around.rerun.calls:
        return
    before = Around(around.rerun, first.node)
    alone = len(around.rerun.readers[first]) == 1 and len(before.call.results) == 1
    if not alone or not before.tensors or {around.op, before.op} <= MOVES or before.op == around.op:
        return
    if around.op == "rsqrt" and before.op == "add":
        root = made_by("sqrt.default", before.call.args[0])
        edit = around.instead(root, made_by("add.Tensor", local(0), *before.call.args[1:]),
                              made_by("reciprocal.default", local(1)))  # fmt: skip
        said = "what is added under the root is added to the root"
        yield Change("root", order_label(around, before.op), said, edit, 4.0)
    source = before.call.args[0]
    if not isinstance(source, Ref) or around.rerun.shape(source) != around.rerun.shape(first):
        return
    edit = {
        before.number: Fragment((), (source,)),
        around.number: Fragment((
            Call(around.call.op, around.call.args, around.call.kwargs, ()),
            Call(before.call.op, (local(0), *before.call.args[1:]), before.call.kwargs, ()),
        )),
    }  # fmt: skip
    said = f"{around.written} comes before {before.written}"
    back = f"{before.written} comes before {around.written}"
    yield Change("order", order_label(around, before.op), said, edit, 4.0, undone=back)


def leaves(rerun: Rerun) -> Iterator[Change]:
    """A tensor that the program is given is turned, moved, rounded or left out."""
    for ref in (*rerun.given, *rerun.leaves):
        for number in rerun.readers[ref][:1]:
            for name, label, said, calls in _turned(rerun, ref, Around(rerun, number)):
                edit = read_everywhere(rerun, ref, *calls)
                yield Change(name, label, f"{name_of(rerun, ref)} {said}", edit, 6.0)


def absent(rerun: Rerun, refs: Sequence[Ref]) -> Iterator[Change]:
    """A parameter that only one side reads does nothing: it is zero, or one."""
    for ref in refs:
        readers = [one for one in rerun.readers[ref] if rerun.calls[one].part != PART]
        for number in readers[: rerun.given[ref].phase == "weight"]:
            for name, label, said, calls in _replaced_by(rerun, ref, Around(rerun, number)):
                if name in ("zeros", "ones"):
                    told = name_of(rerun, ref)
                    back = f"the candidate reads {told}, which the reference does not"
                    yield Change(name, label, f"{told} {said}", read_everywhere(rerun, ref, *calls), 3.0,
                                 undone=back, undone_label=CHANGED)  # fmt: skip


def _replaced_by(rerun: Rerun, ref: Ref, reader: Around) -> Iterator[tuple[str, str, str, tuple[Call, ...]]]:
    """Zeros, ones, positions counted anew, or the same less its mean, in the place of a value."""
    shape = rerun.shape(ref)
    if rerun.kind(ref) == "f" and shape:
        label = CHANGED
        if reader.is_parameter(ref):
            label = "missing-bias" if len(shape) == 1 and reader.op not in ("mul", "addcmul") else "missing-term"
        yield "zeros", label, "is taken to be zero", (made_by("zeros_like.default", ref),)
        yield "ones", CHANGED, "is taken to be one", (made_by("ones_like.default", ref),)
    if rerun.kind(ref) in "bi" and shape and reader.op not in ("embedding", "index"):
        yield "ones", mask_label(reader), "is taken to be one everywhere", (made_by("ones_like.default", ref),)
    if are_positions(rerun, ref):
        counted = made_by("arange.default", shape[-1]), made_by("expand.default", local(0), shape)
        yield "counted", "position-shift", f"is taken to be 0 to {shape[-1] - 1} in every row", counted
    if rerun.kind(ref) == "f" and len(shape) >= 2 and not reader.is_parameter(ref) and ROOTS & reader.after:
        mean = made_by("mean.dim", ref, (-1,), True)
        yield ("centred", "rms-vs-layernorm", "has its mean over the last axis subtracted",
               (mean, made_by("sub.Tensor", ref, local(0))))  # fmt: skip


def _turned(rerun: Rerun, ref: Ref, reader: Around) -> Iterator[tuple[str, str, str, tuple[Call, ...]]]:
    yield from _replaced_by(rerun, ref, reader)
    yield from _other_labels(rerun, ref)
    shape = rerun.shape(ref)
    own = reader.is_parameter(ref)
    if len(shape) >= 2 and shape[-1] == shape[-2] and shape[-1] > 1:
        yield "transposed", "transpose", "is transposed", (made_by("transpose.int", ref, -1, -2),)
    if len(shape) >= 2 and shape[0] == shape[1] and shape[0] > 1 and len(shape) > 2:
        yield "turned", "axis-order", "has its first two axes exchanged", (made_by("transpose.int", ref, 0, 1),)
    for axis in range(len(shape)):
        if shape[axis] > 1 and rerun.kind(ref) != "b":
            label = "position-shift" if own and axis == 0 and _is_of_positions(reader) else "index-shift"
            label = "label-shift" if LOSSES & (reader.after | {reader.op}) else label
            for by in (1, -1):
                rolled, said = made_by("roll.default", ref, (by,), (axis,)), f"is rolled by {by} along axis {axis}"
                yield f"rolled {axis} {by}", label, said, (rolled,)
            flipped = made_by("flip.default", ref, (axis,))
            yield f"flipped {axis}", "permutation", f"is reversed along axis {axis}", (flipped,)
        if shape[axis] > 2 and shape[axis] % 2 == 0:
            half = shape[axis] // 2
            rolled, said = made_by("roll.default", ref, (half,), (axis,)), f"has its halves exchanged along axis {axis}"
            yield f"halves {axis}", "swapped-halves", said, (rolled,)
            sizes = (*shape[:axis], 2, half, *shape[axis + 1 :])
            turned = (*range(axis), axis + 1, axis, *range(axis + 2, len(shape) + 1))
            mixed = (made_by("reshape.default", ref, sizes), made_by("permute.default", local(0), turned),
                     made_by("reshape.default", local(1), shape))  # fmt: skip
            yield f"mixed {axis}", interleave_label(reader), f"has its halves interleaved along axis {axis}", mixed


def _other_labels(rerun: Rerun, ref: Ref) -> Iterator[tuple[str, str, str, tuple[Call, ...]]]:
    """Labels of a sequence moved against what they are held against; the one that none is left for does not count."""
    shape = rerun.shape(ref)
    behind = Around(rerun, rerun.readers[ref][0]).behind(frozenset())
    losses = [around for around in behind if around.op == "nll_loss_forward"]
    if rerun.kind(ref) != "i" or not shape or shape[-1] < 2 or not losses:
        return
    ignored = losses[0].call.args[4]
    for by in (-1, 1):
        moved = made_by("roll.default", ref, (by,), (len(shape) - 1,))
        freed = np.array([shape[-1] - 1 if by < 0 else 0])
        said = f"is moved by {-by}, and the {'last' if by < 0 else 'first'} place does not count"
        freeing = made_by("index_fill.int_Scalar", local(0), -1, freed, ignored)
        yield f"labels {by}", "label-shift", said, (moved, freeing)


def _is_of_positions(around: Around) -> bool:
    """Whether a table is looked up by positions, as far as that can be seen."""
    found = [ref for ref in around.tensors if around.rerun.kind(ref) == "i"]
    return not found or any(are_positions(around.rerun, ref) for ref in found)


def blocks(rerun: Rerun) -> Iterator[Change]:
    """The gates of a recurrent layer lie in another order, in all of its weights alike."""
    ops = {base(call) for call in rerun.calls.values()}
    if not (ops & FUSED_CELLS or ops >= RECURRENT):
        return
    for count, size in ((one, size) for one in GATES for size in _heights(rerun, one)):
        weights = [ref for ref in rerun.given if _is_weight(rerun, ref) and rerun.shape(ref)[:1] == (size,)]
        readers = dict.fromkeys(number for ref in weights for number in rerun.readers[ref])
        for order in islice(permutations(range(count)), 1, None):
            taken = np.array([one * (size // count) + at for one in order for at in range(size // count)])
            edit = {number: _reading_rows(Around(rerun, number), weights, taken) for number in readers}
            said = f"the {count} blocks of the gates are read in the order {order}"
            yield Change(f"gates {order}", "gate-order", said, edit, 6.0, parameters={"order": list(order)})


def _reading_rows(around: Around, refs: Sequence[Ref], rows: Array) -> Fragment:
    """A call that reads the rows of some values in another order."""
    calls: list[Call] = []
    args, kwargs = around.call.args, dict(around.call.kwargs)
    for ref in (one for one in refs if one in around.tensors):
        args, kwargs = replaced(args, ref, local(len(calls))), replaced(kwargs, ref, local(len(calls)))
        calls.append(made_by("index_select.default", ref, 0, rows))
    return Fragment((*calls, Call(around.call.op, args, kwargs, ())))


def _heights(rerun: Rerun, count: int) -> list[int]:
    sizes = [rerun.shape(ref)[0] for ref in rerun.given if _is_weight(rerun, ref) and len(rerun.shape(ref)) == 2]
    return [size for size in dict.fromkeys(sizes) if size % count == 0]


def _is_weight(rerun: Rerun, ref: Ref) -> bool:
    return rerun.given[ref].phase == "weight" and 1 <= len(rerun.shape(ref)) <= 2


def sources(around: Around) -> Iterator[Change]:
    """A call reads another tensor that is there."""
    if around.op in TRIVIAL - {"clone", "expand", "view", "transpose", "unsqueeze"}:
        return
    for ref in dict.fromkeys(around.tensors):
        shape, kind = around.rerun.shape(ref), around.rerun.kind(ref)
        if not shape:
            continue
        there = [other for other in around.rerun.refs if other != ref and around.rerun.shape(other) == shape
                 and around.rerun.kind(other) == kind and _is_before(around, other)]  # fmt: skip
        for other in there[-MOST_READ:]:
            bits = 4.0 + log2(1 + len(there))
            edit, later = around.reading(ref, other), partial(_names, around, ref, other)
            yield Change(
                "source", CHANGED, "", edit, bits, parameters={"reads": told(around.rerun, other)}, later=later
            )


def _names(around: Around, ref: Ref, other: Ref) -> Mapping[str, str]:
    label, said = read_otherwise(around, ref, other)
    back = f"{around.written} reads {told(around.rerun, ref)} instead of {told(around.rerun, other)}"
    if _is_cast(around.rerun, ref, other):
        label = "rope-precision" if around.in_tables else "dtype-rounding"
        said, back = f"{said}, before it is rounded", f"{back}, behind where it is rounded"
    more = CHANGED if left_out(around, ref, other) else ""
    return {"label": label, "said": said, "undone": back, "undone_label": more}


def _is_cast(rerun: Rerun, ref: Ref, other: Ref) -> bool:
    """Whether one value is another one rounded."""
    ops = list[str]()
    while ref != other and ref.node in rerun.calls and base(rerun.calls[ref.node]) in MOVES:
        ops.append(base(rerun.calls[ref.node]))
        ref = reads(rerun.calls[ref.node])[0] if reads(rerun.calls[ref.node]) else other
    return ref == other and "_to_copy" in ops


def read_otherwise(around: Around, old: Ref, new: Ref) -> tuple[str, str]:
    """What it is called, and how it is told, if a call reads another tensor: what its own was made of, or any."""
    said = f"{around.written} reads {told(around.rerun, new)} instead of {told(around.rerun, old)}"
    return left_out(around, old, new) or (source_label(around, old, new), said)


def _is_before(around: Around, ref: Ref) -> bool:
    return ref.node < around.number or ref in around.rerun.given


def exchanged(rerun: Rerun) -> Iterator[Change]:
    """Two values that are made alike stand in each other's place, wherever they are read."""
    makers = [Around(rerun, number) for number in rerun.calls if base(rerun.calls[number]) not in TRIVIAL]
    made = [(maker.op, maker.shape, maker.kind) for maker in makers]
    pairs = ((a, b) for at, a in enumerate(makers) for b in makers[at + 1 :] if made[at] == (b.op, b.shape, b.kind))
    for one, other in islice(pairs, MOST_EXCHANGED):
        if other.depends(other.result, one.result):
            continue
        edit: dict[int, Fragment] = {}
        for number in dict.fromkeys((*rerun.readers[one.result], *rerun.readers[other.result])):
            around = Around(rerun, number)
            there = {one.result: other.result, other.result: one.result}
            args = _in_place_of(around.call.args, there)
            edit[number] = Fragment((Call(around.call.op, args, _in_place_of(dict(around.call.kwargs), there), ()),))
        if edit:
            first, second = told(rerun, one.result), told(rerun, other.result)
            said = f"{first} and {second} are read in each other's place"
            yield Change(
                "exchanged", swapped_label(Around(rerun, min(edit)), one.result, other.result), said, edit, 5.0
            )


def _in_place_of(item: Any, there: Mapping[Ref, Ref]) -> Any:
    if isinstance(item, Ref):
        return there.get(item, item)
    if isinstance(item, Mapping):
        return {key: _in_place_of(one, there) for key, one in item.items()}
    return tuple(_in_place_of(one, there) for one in item) if isinstance(item, tuple | list) else item


def conjugates(rerun: Rerun) -> Iterator[Change]:
    """The halves of the last axis are interleaved in what is read and in what is made: pairs of a rotation, of all of
    the axis or of the part of it that is turned."""
    if rerun.target.node not in rerun.calls or rerun.target.at or rerun.target in rerun.given:
        return
    last = Around(rerun, rerun.target.node)
    parts = [Around(rerun, ref.node) for ref in last.tensors if ref.node in rerun.calls] if last.op == "cat" else []
    for end in (last, *parts):
        shape = end.shape
        if not shape or shape[-1] % 2 or shape[-1] < 4 or end.kind != "f" or len(end.call.results) != 1:
            continue
        begun = [Ref(one) for one, call in rerun.calls.items() if base(call) in PIECES] if parts else []
        for ref in (*rerun.given, *begun):
            if rerun.shape(ref) == shape and end.number not in rerun.readers[ref]:
                yield from _conjugated(rerun, ref, end)


def _conjugated(rerun: Rerun, ref: Ref, end: Around) -> Iterator[Change]:
    """The halves of a value interleaved, and those of what is made of it the other way round."""
    shape = end.shape
    there = (*shape[:-1], 2, -1), (*shape[:-1], -1, 2)
    for one, back in (there, there[::-1]):
        calls = (made_by("reshape.default", ref, one), made_by("transpose.int", local(0), -1, -2),
                 made_by("reshape.default", local(1), shape))  # fmt: skip
        behind = (end.call, made_by("reshape.default", local(0), back), made_by("transpose.int", local(1), -1, -2),
                  made_by("reshape.default", local(2), shape))  # fmt: skip
        edit = {**read_everywhere(rerun, ref, *calls), end.number: Fragment(behind)}
        said = "pairs are neighbours instead of halves, or the other way round"
        yield Change("pairs", interleave_label(end), said, edit, 5.0, undone=said)
