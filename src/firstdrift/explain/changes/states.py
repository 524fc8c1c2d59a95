"""State that a step reads or moves otherwise, other tables of the code, results rounded to a shorter format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from ...core.sites import Site
from ...core.traces import Array
from ...program.calls import Call, Earlier, Leaf, Ref, reads
from ...program.edits import ROUNDED, Edit, local, made_by
from ...program.reruns import Rerun
from ..naming import CHANGED, table_label
from ..one_program.around import MOVES, Around, Change, base, read_everywhere, replaced
from ..one_program.values import name_of, told
from ..two_programs.lined import Lined
from .constants import Constant, constants, plain, plainly

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
            yield Change(
                "stale", "stale-buffer", said, read_everywhere(rerun, ref, made_by("clone.default", before)), 3.0
            )
    for ref, leaf in rerun.leaves.items():
        if isinstance(leaf.source, Earlier) and leaf.source.site.phase == "optim":
            said = f"{name_of(rerun, ref)} is begun anew, with zero"
            anew = np.zeros(rerun.shape(ref))
            yield Change(
                "anew", "optimizer-momentum", said, read_everywhere(rerun, ref, made_by("clone.default", anew)), 3.0
            )


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


BITS = 4.0  # to say which table, of the few that a program holds
FEWEST = 2  # numbers of a table
MOST_TABLES = 64  # of either side, that are put in each other's place
SHOWN = 4
STRAIGHT = 1e-5  # relative: what logarithms of powers may be off a straight line in float32


def exchanged_tables(lined: Lined) -> Iterator[Change]:
    """The candidate's tables in the place of the reference's of the same shape."""
    for other in _tables(lined.candidate):
        for ref in _tables(lined.reference):
            reference, candidate = lined.reference.array(ref), lined.candidate.array(other)
            if other not in lined.twins and ref not in lined.equal and reference.shape == candidate.shape:
                yield _other_table(lined.reference, ref, reference, candidate)


def computed_tables(lined: Lined) -> Iterator[Change]:
    """Tables of the same size where one side at least computes it, of nothing that a model is given; the first ones
    first."""
    known = [ref for ref in _constant(lined.reference) if ref not in lined.equal]
    others = [ref for ref in _constant(lined.candidate) if ref not in lined.twins]
    for ref in known[:MOST_TABLES]:
        reference = lined.reference.array(ref)
        for other in others[:MOST_TABLES]:
            candidate = lined.candidate.array(other)
            if _sizes(candidate) != _sizes(reference):
                continue
            change = _other_table(lined.reference, ref, reference, candidate.reshape(reference.shape))
            bases, made = (_base(reference), _base(candidate)), other.node in lined.candidate.calls
            exponents = change.label == "rope-theta" and any(
                constant.value == plain(bases[0] or 0)
                for number in lined.candidate.calls
                for constant in constants(Around(lined.candidate, number))
            )
            if exponents:  # the candidate has the reference's base
                label = table_label(Around(lined.reference, lined.reference.readers[ref][0]))
                times = plain(float(np.log(bases[0] or 1) / np.log(bases[1] or 1)))
                said = f"{plainly(bases[0] or 0)} is raised to exponents that are divided by {times:g} times as much: "
                said += f"{_some(candidate)} instead of {_some(reference)}"
                change = replace(change, label=label, said=said, parameters={"divisor": times})
            label = CHANGED if change.label == "wrong-weight" else change.label  # it is computed
            yield replace(change, label=label, candidate=other.node if made else None)


def _sizes(array: Array) -> tuple[int, ...]:
    return tuple(size for size in array.shape if size != 1)


def _constant(rerun: Rerun) -> list[Ref]:
    """The tables of a program, and what it computes of them and of nothing else, in order."""
    given = [ref for ref, site in rerun.given.items() if site.phase == "weight"]
    rows = [ref for ref in (*given, *rerun.leaves) if len(_sizes(rerun.array(ref))) <= 1]  # no matrix
    steady = set(rows)
    found = {ref: None for ref in rows if rerun.kind(ref) == "f" and rerun.readers[ref]}
    for number, call in rerun.calls.items():
        if call.drawn is None and all(ref in steady for ref in reads(call)):
            some = [Ref(number, at) for at in range(len(call.results)) if Ref(number, at) not in rerun.given]
            steady |= set(some)
            tables = (ref for ref in some if rerun.kind(ref) == "f" and rerun.readers[ref])
            found |= dict.fromkeys(ref for ref in tables if rerun.array(ref).size >= FEWEST)
    return list(found)


def _tables(rerun: Rerun) -> list[Ref]:
    read = (ref for ref in rerun.leaves if rerun.readers[ref])
    return [ref for ref in read if rerun.kind(ref) == "f" and rerun.array(ref).size >= FEWEST]


def _other_table(rerun: Rerun, ref: Ref, reference: Array, candidate: Array) -> Change:
    edit = read_everywhere(rerun, ref, made_by("clone.default", candidate))
    around = Around(rerun, rerun.readers[ref][0])
    label, parameters = table_label(around), dict[str, Any]()
    bases = _base(reference), _base(candidate)
    if label == "rope-scaling" and None not in bases:
        label, parameters = "rope-theta", {"theta": bases[1], "reference_theta": bases[0]}
        said = f"the base of the frequencies is {plainly(bases[1] or 0)} instead of {plainly(bases[0] or 0)}"
    else:
        said = f"{told(rerun, ref)} holds {_some(candidate)} instead of {_some(reference)}"
    return Change("table", label, said, edit, BITS, parameters=parameters)


def _base(table: Array) -> float | None:
    """The base of a table that holds its powers, from 1 down, evenly; None of any other."""
    flat = np.asarray(table, np.float64).ravel()
    if len(flat) <= FEWEST or flat[0] != 1 or not (flat > 0).all():
        return None
    steps = np.diff(np.log(flat))
    if not np.allclose(steps, steps[0], rtol=STRAIGHT) or steps[0] >= 0:
        return None
    return float(np.exp(-steps.mean() * len(flat)))


def _some(table: Array) -> str:
    flat = np.asarray(table, np.float64).ravel()
    return ", ".join(plainly(float(one)) for one in flat[:SHOWN]) + (", ..." if len(flat) > SHOWN else "")


SHORT = ("f16", "bf16")
NAMES = {"f16": "float16", "bf16": "bfloat16"}
MOST_RANGES = 10  # calls, of which all ranges are tried in a shorter format


def formats(rerun: Rerun) -> Iterator[Change]:
    """Casts that are left out; calls that follow each other, computed in 16 bits: all, one, or a range."""
    arounds = [Around(rerun, number) for number in rerun.calls]
    for around in (one for one in arounds if one.op == "_to_copy" and one.kind == "f"):
        label = "rope-precision" if around.in_tables else "dtype-rounding"
        yield Change("uncast", label, f"{around.written} does not round", around.passing(around.tensors[0]), 4.0,
                     undone=f"{around.written} rounds, which the reference does not do")  # fmt: skip
    arounds = [one for one in arounds if one.kind == "f" and one.op not in MOVES]
    for some in _ranges(arounds):
        tables = any(one.in_tables for one in some)
        for dtype in SHORT:
            edit: dict[int, object] = {}
            for one in some:
                edit |= rounded(one, dtype)
            label = "rope-precision" if tables else "dtype-rounding"
            said = f"{some[0].written} is computed in {NAMES[dtype]}"
            yield Change(dtype, label, said, edit, 6.0, parameters={"dtype": NAMES[dtype]})  # type: ignore[arg-type]


def dtypes(rerun: Rerun) -> frozenset[str]:
    """The dtypes of the values of a step."""
    step = rerun.step
    refs = (Ref(number, at) for number, call in step.calls() for at in range(len(call.results)))
    return frozenset(found.dtype for ref in refs if (found := step.type_of(ref)) is not None)


def rounded(around: Around, dtype: str) -> Edit:
    """A call of which everything that it reads and makes is rounded."""
    floats = [ref for ref in dict.fromkeys(around.tensors) if around.rerun.kind(ref) == "f"]
    calls = [made_by(ROUNDED, ref, dtype) for ref in floats]
    args, kwargs = around.call.args, dict(around.call.kwargs)
    for at, ref in enumerate(floats):
        args, kwargs = replaced(args, ref, local(at)), replaced(kwargs, ref, local(at))
    call = Call(around.call.op, args, kwargs, ())
    rest = (local(len(calls), at) for at in range(1, len(around.call.results)))
    return around.instead(*calls, call, made_by(ROUNDED, local(len(calls)), dtype),
                          results=(local(len(calls) + 1), *rest))  # fmt: skip


def _ranges(arounds: Sequence[Around]) -> Iterator[Sequence[Around]]:
    count = len(arounds)
    for width in range(count, 0, -1):
        for start in range(count - width + 1):
            if count <= MOST_RANGES or width == 1 or start == 0 or start + width == count:
                yield arounds[start : start + width]


TABLE = (complements,)
