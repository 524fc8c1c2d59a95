"""The program that a run is judged by: the one it recorded, or one that the library makes of what it says.

Where a trace names no operations, some are inferred: only those that a doubt asks for, each tried on the reference's
own tensors until one reproduces them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from multiprocessing import get_start_method, parent_process
from typing import TYPE_CHECKING

from ...core.records import Record
from ...core.sites import BACKWARD_PHASES, Site
from ...core.traces import Trace
from ...pair.pairs import Pair

if TYPE_CHECKING:
    from ...program.building.library_forward import OpSpec
    from ...program.calls import Program
    from ...program.library import LibraryProgram
    from .replays import Own, Replays

_safe = 0  # the process in which torch was loaded
_BEHIND_FORWARD = BACKWARD_PHASES | {"loss", "lossgrad", "optim", "weight_after"}


def is_torch_here() -> bool:
    """Whether programs can be run at all."""
    return find_spec("torch") is not None and not is_forked_from_torch()


def is_forked_from_torch() -> bool:
    """Whether this is a worker that was forked from a process that had loaded torch, whose locks and threads do not
    survive it."""
    global _safe
    forked = parent_process() is not None and get_start_method() == "fork"
    if not forked or "torch" not in sys.modules:
        _safe = os.getpid()
    return _safe != os.getpid()


def replays_for(
    reference: Trace, candidate: Trace, pairs: Sequence[Pair], asked: Sequence[Site],
    starts: Callable[[Site], bool] = lambda site: True, finest: float = 0.0, own: Own | None = None,
) -> Replays | None:  # fmt: skip
    """The reference's program, to be run on the candidate's tensors; None where nothing says how they were made, or
    where torch is not installed, which runs it."""
    if not asked or not is_torch_here():
        return None
    from ...program.process_settings import as_recorded
    from .replays import Replays, own_of

    with as_recorded({}):
        program = program_for(reference, asked)
    if program is None:
        return None
    return Replays(reference, candidate, pairs, program, own or own_of(candidate), starts, finest)


def program_for(trace: Trace, asked: Sequence[Site]) -> Program | None:
    """The program of a trace as far as some of its sites need it; None where nothing says how they were made."""
    from ...program.library import library_program
    from ...program.written.read_program import read_program

    recorded = read_program(trace)
    if recorded is not None:
        return recorded
    named = library_program(trace)
    inferred = _inferred(trace, asked, named)
    return library_program(trace, inferred) if inferred else named


def _inferred(trace: Trace, asked: Sequence[Site], named: LibraryProgram | None) -> Mapping[Site, OpSpec]:
    """The operations that made some sites, where they can be told from the numbers and the names that the trace gives
    them do not say it: a product with a weight in another layout has the same name. One try for each module."""
    from ...program.building.op_fit import fit

    found: dict[Site, OpSpec] = {}
    known: dict[tuple[str, str, int], OpSpec | None] = {}
    for record in _needed(trace, asked):
        site = record.site
        key = (site.name, site.port, site.call)
        if named is not None and named.why_not(site) is None:
            continue
        if key not in known:
            known[key] = fit(trace, site)
        if (spec := known[key]) is not None:
            reads = tuple(one._replace(step=site.step, sample=site.sample) for one in spec.reads or ())
            found[site] = spec._replace(reads=tuple(read for read in reads if read in trace) or spec.reads)
    return found


def _needed(trace: Trace, asked: Sequence[Site]) -> Iterable[Record]:
    """Outputs whose operations are needed: those asked for, and all of a step of which a gradient is in doubt."""
    steps = {site.step for site in asked if site.phase in _BEHIND_FORWARD}
    wanted = set(asked)
    for record in trace:
        site = record.site
        is_output = site.phase == "fwd" and not site.port.startswith("in.") and record.at is not None
        if is_output and (site in wanted or site.step in steps):
            yield record
