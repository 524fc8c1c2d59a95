"""What a replay takes, counted before it runs: an answer must not depend on the speed or the memory of a machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from ..core.dtypes import ITEMSIZE, UNIT_ROUNDOFF
from .calls import Call, Leaf, NotReplayableError, Ref, Step, Type, reads
from .cuts import Cut


@dataclass(frozen=True, slots=True)
class Cost:
    """Calls to make, elements that they read from the trace or give, and bytes of tensors held at once at most."""

    calls: int
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a replay may take. Bytes are those of tensors; what a kernel takes for itself is not counted."""

    calls: int = 200_000
    elements: int = 1 << 34
    bytes: int = 8 << 30


LIMITS = Limits()
_VIEWS = frozenset({
    "_reshape_alias", "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "narrow", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "swapaxes", "t", "transpose", "unbind", "unflatten", "unfold",
    "unsqueeze", "view",
})  # fmt: skip


def cost_of(step: Step, cut: Cut, *, exact: bool) -> Cost:
    """What a cut takes, from the types that the program states; a view takes nothing and keeps what it looks at."""
    owners = _owners(step, cut)
    left = Counter(owners.get(ref, ref) for number in cut.nodes for ref in step.needs(number))
    left[owners.get(cut.target, cut.target)] += 1
    held = {ref: _bytes(step.type_of(ref), exact) for ref in cut.given}
    elements = sum(_elements(step.type_of(ref)) for ref in cut.given)
    calls = 0
    most = now = sum(held.values())
    for number in cut.nodes:
        node = step.nodes[number]
        calls += isinstance(node, Call)
        types = (node.type,) if isinstance(node, Leaf) else node.results
        elements += sum(map(_elements, types))
        own = {Ref(number, at): _bytes(one, exact) for at, one in enumerate(types)}
        made = {ref: size for ref, size in own.items() if ref not in held and ref not in owners}
        held |= made
        now += sum(made.values())
        most = max(most, now)
        read = [owners.get(ref, ref) for ref in step.needs(number)]
        left.subtract(read)
        for ref in {*read, *own}:
            if left[ref] <= 0:
                now -= held.pop(ref, 0)
    return Cost(calls, elements, most)


def _owners(step: Step, cut: Cut) -> dict[Ref, Ref]:
    """What holds the memory of each view."""
    found: dict[Ref, Ref] = {}
    for number in cut.nodes:
        node = step.nodes[number]
        if isinstance(node, Call) and node.op.split(".")[1] in _VIEWS and (given := reads(node)):
            for at in range(len(node.results)):
                if Ref(number, at) not in cut.given:
                    found[Ref(number, at)] = found.get(given[0], given[0])
    return found


def why_too_much(cost: Cost, limits: Limits) -> str | None:
    """The first count that is passed; None where a replay may run."""
    for name in ("calls", "elements", "bytes"):
        counted, allowed = getattr(cost, name), getattr(limits, name)
        if counted > allowed:
            return f"running this takes {counted:,} {name}, and {allowed:,} are allowed"
    return None


def check_cost(cost: Cost, limits: Limits) -> None:
    """Refuse what takes too much, and say which count."""
    why = why_too_much(cost, limits)
    if why is not None:
        raise NotReplayableError(f"{why}; record tensors between, or raise the limit")


def _elements(type_: Type | None) -> int:
    return 0 if type_ is None else prod(type_.shape)


def _bytes(type_: Type | None, exact: bool) -> int:
    if type_ is None:
        return 0
    size = ITEMSIZE.get(type_.dtype, 8)
    if exact and type_.dtype in UNIT_ROUNDOFF:
        size = 16 if type_.dtype.startswith("c") else 8
    return prod(type_.shape) * size
