"""Casts to shorter formats that a model's own code asks for: what it computes is meant to lose digits there.

A cast by autocast is none of these, nor one to the format that a tensor is recorded in: where 16-bit activations are
rounded is nobody's formula.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..core.dtypes import roundoff
from .calls import Call, Step, reads
from .cuts import Cut

CASTS = frozenset({"_to_copy", "to", "copy_"})
WRITTEN = frozenset({"to", "type", "type_as", "half", "bfloat16", "float", "copy_"})


PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu"})


def runs_in(step: Step) -> str | None:
    """The dtype that most products of a step are made in: what a run under autocast declares, though single parts of
    it are kept out. None where there are no products."""
    made = Counter(
        node.results[0].dtype for node in step.nodes
        if isinstance(node, Call) and node.op.split(".")[1] in PRODUCTS and node.results[0]
    )  # fmt: skip
    return made.most_common(1)[0][0] if made else None


def written_casts(step: Step, cut: Cut) -> frozenset[str]:
    """The shorter formats that code casts to, in a part of a step."""
    return frozenset(dtype for _, dtype in _casts(step, cut))


def dtypes_of(step: Step, cut: Cut) -> frozenset[str]:
    """The formats of floats that the calls of a part give."""
    calls = (node for number in cut.nodes if isinstance(node := step.nodes[number], Call))
    return frozenset(result.dtype for call in calls for result in call.results if result and roundoff(result.dtype))


def meant_casts(step: Step, cut: Cut, unit: float) -> frozenset[int]:
    """The calls of a part that code casts by, to a format that is coarser than `unit`."""
    return frozenset(number for number, dtype in _casts(step, cut) if roundoff(dtype) > unit)


def _casts(step: Step, cut: Cut) -> Iterator[tuple[int, str]]:
    for number in cut.nodes:
        node = step.nodes[number]
        if not isinstance(node, Call) or node.op.split(".")[1] not in CASTS or not node.results[0]:
            continue
        written = step.as_written(number).op.split(".")[-1] if number in step.function_of else ""
        before = [step.type_of(ref) for ref in reads(node)]
        unit = roundoff(node.results[0].dtype)
        lost = any(one and one.dtype != "bool" and roundoff(one.dtype) < unit for one in before)
        if lost and (not written or written in WRITTEN):
            yield number, node.results[0].dtype
