"""State that a step reads or moves otherwise: as it was before, begun anew, with rate and rest exchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ...program.calls import Call, Earlier, Leaf, Ref, reads
from ...program.edits import Fragment, local, made_by
from ...program.reruns import Rerun
from ..one_program.around import Around, Change, base
from ..one_program.values import name_of
from .constants import Constant, constants, plainly

LEFT = frozenset({"optim", "weight_after"})  # what a step leaves
NEW = frozenset({"zeros_like", "zeros", "new_zeros"})
MOST_CONSTANTS = 16  # of which any two are exchanged


def stale(rerun: Rerun) -> Iterator[Change]:
    """A state is read as it was before the step moved it, or as if there were none."""
    for ref, site in rerun.given.items():
        before = _before(rerun, ref) if site.phase in LEFT else None
        if before is not None and before.shape == rerun.shape(ref):
            zero = "" if before.any() else " (zero)"
            said = f"{name_of(rerun, ref)} is read as it was before the step{zero}"
            yield Change("stale", "stale-buffer", said, _read_as(rerun, ref, before), 3.0)
    for ref, leaf in rerun.leaves.items():
        if isinstance(leaf.source, Earlier) and leaf.source.site.phase == "optim":
            said = f"{name_of(rerun, ref)} is begun anew, with zero"
            anew = np.zeros(rerun.shape(ref))
            yield Change("anew", "optimizer-momentum", said, _read_as(rerun, ref, anew), 3.0)


def _read_as(rerun: Rerun, ref: Ref, array: Array) -> dict[int, Fragment]:
    """Every call that reads a value, reading an array in its place."""
    edit: dict[int, Fragment] = {}
    for number in rerun.readers[ref]:
        edit |= Around(rerun, number).reading(ref, local(0), made_by("clone.default", array))
    return edit


def _before(rerun: Rerun, ref: Ref) -> Array | None:
    """What a tensor held that a step writes to, before the first write."""
    node = rerun.step.nodes[ref.node]
    written = False
    while isinstance(node, Call) and node.op.split(".")[1].endswith("_"):
        read, written = reads(node), True
        if not read:
            return None
        ref = read[ref.at] if ref.at < len(read) else read[0]
        node = rerun.step.nodes[ref.node]
    if not written:
        return None
    if isinstance(node, Leaf):
        source = node.source.site if isinstance(node.source, Earlier) else node.source
        return rerun.recorded(source) if isinstance(source, Site) else None
    return np.zeros(rerun.shape_of(ref)) if base(node) in NEW else None


def complements(around: Around) -> Iterator[Change]:
    """An average keeps as much as it should take."""
    for constant in constants(around) if around.op == "lerp" else ():
        if constant.name == "weight" and 0 < constant.value < 1 and constant.value != 0.5:
            change = constant.change(1 - constant.value, free=0)
            yield Change("complement", change.label, change.said, change.edit, 3.0, 0, change.parameters)


def exchanged(arounds: Sequence[Around]) -> Iterator[Change]:
    """Two numbers stand in each other's place."""
    known = [constant for around in arounds for constant in constants(around) if around.kind == "f"]
    if len(known) > MOST_CONSTANTS:
        return
    for one, other in combinations(known, 2):
        if one.value != other.value and one.around.number != other.around.number:
            yield _exchanged(one, other)


def _exchanged(one: Constant, other: Constant) -> Change:
    said = f"{plainly(one.value)} and {plainly(other.value)} are exchanged: {one.said(other.value)}"
    edit = {**one.edit(other.value), **other.edit(one.value)}
    parameters = {"value": other.value, "reference_value": one.value}
    return Change("exchanged", one.label, said, edit, 6.0, 0, parameters)


TABLE = (complements,)
