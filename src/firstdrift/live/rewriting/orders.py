"""Changes of more than one call: two in the other order, tensors exchanged, all in a shorter format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from .program import Change, Program, Ref
from .view import Rewrite, View, is_parameter

SHORT = (torch.float16, torch.bfloat16)
MOST_RANGES = 12  # calls, of which all ranges are tried in a shorter format
MOVES = frozenset({"view", "reshape", "permute", "transpose", "contiguous", "unsqueeze", "squeeze", "expand", "clone",
                   "flatten", "mT", "to", "float", "__getitem__", "detach", "type_as"})  # fmt: skip
ROOTS = frozenset({"sqrt", "rsqrt"})

Several = tuple[Rewrite, dict[int, Change]]


def orders(program: Program) -> Iterator[Several]:
    """Neighbours that are exchanged: one works on what the other made, and nothing else does."""
    for number, call in program.calls.items():
        made = call.args[0] if call.args else None
        if not isinstance(made, Ref) or len(list(program.readers(made.call))) != 1:
            continue
        before = program.calls[made.call]
        if not before.args or {call.name, before.name} <= MOVES or before.name == call.name:
            continue
        change = _exchanged(program, number, made.call)
        placed = {call.name, before.name} & ROOTS and "add" in (call.name, before.name)
        moved = "axis-order" if call.name in MOVES or before.name in MOVES else "op-order"
        said = f"{call.name} comes before {before.name}"
        rewrite = Rewrite("order", "norm-eps-placement" if placed else moved, said, change)
        yield rewrite, {number: change, made.call: _passed_on}


def _exchanged(program: Program, second: int, first: int) -> Change:
    rest, named = program.arguments(first)

    def call(*args: Any, **kwargs: Any) -> Any:
        return program.calls[first].func(program.calls[second].func(*args, **kwargs), *rest[1:], **named)

    return call


def _passed_on(*args: Any, **_: Any) -> Any:
    return args[0] + 0


def leaves(program: Program) -> Iterator[Several]:
    """Two tensors that the program is given are exchanged, or one stands for the other."""
    known: dict[int, torch.Tensor] = {}
    for call in program.calls.values():
        for item in tree_flatten((call.args, dict(call.kwargs)))[0]:
            if isinstance(item, torch.Tensor) and item.is_floating_point() and item.numel() > 1:
                known[id(item)] = item
    for one, other in combinations(known.values(), 2):
        if one.shape == other.shape:
            owned = is_parameter(one) and is_parameter(other)
            label = "weight-swap" if owned else "swapped-operands"
            change = _substituted(program, {id(one): other, id(other): one})
            yield Rewrite("exchanged", label, "two tensors that it reads are exchanged", change[min(change)]), change
            for first, second in ((one, other), (other, one)):
                change = _substituted(program, {id(first): second})
                label = "wrong-weight" if owned else "residual-source"
                yield Rewrite("instead", label, "one tensor is read in place of another", change[min(change)]), change


def _substituted(program: Program, others: dict[int, torch.Tensor]) -> dict[int, Change]:
    reading = (
        number
        for number, call in program.calls.items()
        if any(id(item) in others for item in tree_flatten((call.args, dict(call.kwargs)))[0])
    )
    return {number: _reading_others(program.calls[number].func, others) for number in reading}


def _reading_others(func: Change, others: dict[int, torch.Tensor]) -> Change:
    def call(*args: Any, **kwargs: Any) -> Any:
        now = tree_map(lambda item: others.get(id(item), item), (args, kwargs))
        return func(*now[0], **now[1])

    return call


def conjugates(program: Program) -> Iterator[Several]:
    """The halves of the last axis are interleaved in what is read and in what is made: pairs of a rotation."""
    made = program.made
    if made.dim() == 0 or made.shape[-1] % 2 or made.shape[-1] < 4:
        return
    size = made.shape[-1]
    mixed = torch.arange(size).reshape(2, -1).T.reshape(-1)
    apart = torch.argsort(mixed)
    last = program.result.call
    known = {id(item): item for call in program.calls.values() for item in tree_flatten(call.args)[0]
             if isinstance(item, torch.Tensor) and item.shape == made.shape}  # fmt: skip
    label = "rope-interleave" if program.angles or len(known) == 1 else "interleave"
    for item in known.values():
        for there, back in ((mixed, apart), (apart, mixed)):
            changes = _substituted(program, {id(item): item[..., there]})
            func = changes.get(last, program.calls[last].func)
            changes[last] = _behind(func, back)
            said = "pairs are neighbours instead of halves, or the other way round"
            yield Rewrite("pairs", label, said, changes[last]), changes


def _behind(func: Change, order: torch.Tensor) -> Change:
    return lambda *args, **kwargs: func(*args, **kwargs)[..., order]


def precisions(program: Program) -> Iterator[Several]:
    """Calls that follow each other, computed in 16 bits: all, one, or a range."""
    numbers = [n for n, call in program.calls.items() if call.results[0].is_floating_point() and call.name not in MOVES]
    for some in _ranges(numbers):
        tables = any(View(program, number).in_tables for number in some)
        for dtype in SHORT:
            name = str(dtype).removeprefix("torch.")
            changes = {number: _short(View(program, number), dtype) for number in some}
            label = "rope-precision" if tables else "dtype-rounding"
            yield Rewrite(name, label, f"computed in {name}", changes[some[0]], parameters={"dtype": name}), changes


def _ranges(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    count = len(numbers)
    for width in range(count, 0, -1):
        for start in range(count - width + 1):
            if count <= MOST_RANGES or width == 1 or start == 0 or start + width == count:
                yield numbers[start : start + width]


def _short(view: View, dtype: torch.dtype) -> Change:
    def call(*args: Any, **kwargs: Any) -> Any:
        given = tree_map(lambda item: _to(item, dtype), (args, dict(kwargs)))
        return tree_map(lambda item: _to(item, view.result.dtype), view.call.func(*given[0], **given[1]))

    return call


def _to(item: Any, dtype: torch.dtype) -> Any:
    return item.to(dtype) if isinstance(item, torch.Tensor) and item.is_floating_point() else item
