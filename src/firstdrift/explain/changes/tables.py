"""A table that the code holds is another one on the candidate's side: frequencies, slopes, offsets made before the run.

Both tables are on record, so that nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...core.traces import Array
from ...program.calls import Ref
from ...program.edits import Fragment, local, made_by
from ...program.reruns import Rerun
from ..naming import table_label
from ..one_program.around import Around, Change
from ..one_program.values import told
from ..two_programs.lined import Lined
from .constants import plainly

BITS = 4.0  # to say which table, of the few that a program holds
FEWEST = 2  # numbers of a table
SHOWN = 4
STRAIGHT = 1e-5  # relative: what logarithms of powers may be off a straight line in float32


def exchanged_tables(lined: Lined) -> Iterator[Change]:
    """The candidate's tables in the place of the reference's of the same shape."""
    for other in _tables(lined.candidate):
        for ref in _tables(lined.reference):
            reference, candidate = lined.reference.array(ref), lined.candidate.array(other)
            if other not in lined.twins and ref not in lined.equal and reference.shape == candidate.shape:
                yield _exchanged(lined.reference, ref, reference, candidate)


def _tables(rerun: Rerun) -> list[Ref]:
    read = (ref for ref in rerun.leaves if rerun.readers[ref])
    return [ref for ref in read if rerun.kind(ref) == "f" and rerun.array(ref).size >= FEWEST]


def _exchanged(rerun: Rerun, ref: Ref, reference: Array, candidate: Array) -> Change:
    edit: dict[int, Fragment] = {}
    for number in rerun.readers[ref]:
        edit |= Around(rerun, number).reading(ref, local(0), made_by("clone.default", candidate))
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
