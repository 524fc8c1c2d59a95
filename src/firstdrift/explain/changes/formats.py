"""Calls whose results are rounded to a shorter format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...program.calls import Call
from ...program.edits import ROUNDED, Edit, local, made_by
from ...program.reruns import Rerun
from ..one_program.around import MOVES, Around, Change, replaced

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
