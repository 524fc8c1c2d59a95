"""Whether calls make a recorded tensor: the reference's own numbers, from the reference's own inputs, to noise."""

from __future__ import annotations

from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import real_parts, wide
from ...core.dtypes import UNIT_ROUNDOFF
from ...core.sites import Site
from ...core.traces import Array, Trace
from ...errors import FirstdriftError
from ..calls import Call, Step
from ..cuts import Cut, Cuts
from ..interpreter import Interpreter, NotReplayableError
from ..running.read_numbers import SEEDS
from ..running.shaking import Shake

Floats = NDArray[np.float64]
MOST_ELEMENTS = 1 << 28  # of all tensors between what is read and what is made
APART = 0.05  # of its norm: no rounding of a forward tensor explains that much
MANY_ROUNDINGS = 64.0  # that sums of any order may leave, in units of one
FEW_ROUNDINGS = 4.0  # of short formats, which are summed up in longer ones, and of a stored update
SPREADS = 8.0  # times as far as randomly rounded runs spread, correct code may be off
_SHORT = 2.0**-11  # the roundoff of float16: formats from there on are short


def cuts_of(trace: Trace, step: Step) -> Cuts:
    """The parts of a step, each from what was recorded before it."""
    return Cuts(step, lambda other: other in trace and trace[other].at is not None)


def why_not(trace: Trace, step: Step, site: Site, cuts: Cuts | None = None) -> str | None:
    """Why a site's calls are not what made it; None where they give what was recorded. `cuts` are those of the step."""
    cut = (cuts or cuts_of(trace, step)).at(site)
    if cut is None or cut.is_empty:
        return "no call makes it"
    return cut_why_not(trace, step, site, cut)


def left_of(trace: Trace, step: Step, site: Site) -> float:
    """How far a site's calls, which give what was recorded, are from it, on all its finite numbers."""
    cut = cuts_of(trace, step).at(site)
    if cut is None:
        return inf
    error = wide(Interpreter(step, trace, exact=True).array_of(cut)) - wide(trace.array(site))
    return float(np.linalg.norm(error[np.isfinite(error)]))


def cut_why_not(trace: Trace, step: Step, site: Site, cut: Cut) -> str | None:
    """The same for one way of making it."""
    elements = sum(prod(result.shape) for number in cut.nodes if isinstance(node := step.nodes[number], Call)
                   for result in node.results if result is not None)  # fmt: skip
    if elements > MOST_ELEMENTS:
        return f"its calls make {elements} numbers, more than {MOST_ELEMENTS}"
    try:
        recorded = trace.array(site)
        made = Interpreter(step, trace, exact=True).array_of(cut)
        if made.shape != recorded.shape:
            return f"its calls give {list(made.shape)}, and {list(recorded.shape)} was recorded"
        return _compared(trace, step, site, cut, recorded, made)
    except (NotReplayableError, FirstdriftError) as error:
        return str(error)


def _compared(trace: Trace, step: Step, site: Site, cut: Cut, recorded: Array, made: Array) -> str | None:
    if recorded.dtype.kind not in "fVc" and recorded.dtype.name not in ("bfloat16",):
        same = np.array_equal(recorded, made)
        return None if same else "its calls give other whole numbers than were recorded"
    unit = UNIT_ROUNDOFF.get(trace[site].dtype or "", 0.0)
    reference, candidate = real_parts(made), real_parts(recorded)
    finite = np.isfinite(candidate)
    with np.errstate(all="ignore"):
        if (
            not np.array_equal(reference[~finite], candidate[~finite], equal_nan=True)
            or not np.isfinite(reference[finite]).all()
        ):
            return "its calls give other numbers than were recorded where those are not finite"
        error = np.where(finite, np.abs(reference - candidate), 0.0)
        if site.phase == "fwd" and np.linalg.norm(error) > APART * np.linalg.norm(candidate[finite]):
            return "its calls give other numbers than were recorded"
        update = site.phase == "weight_after"
        roundings = FEW_ROUNDINGS if update or unit >= _SHORT else MANY_ROUNDINGS
        sizes = np.where(finite, np.abs(reference), 0.0)
        limit = roundings * unit * sizes
        if not update:  # what cancels to nothing leaves roundings of what it was made of
            limit = limit + unit * np.sqrt(np.mean(np.square(sizes)))
        if (error <= limit).all():
            return None
        limit = limit + SPREADS * _along_rows(_spread(trace, step, cut, reference, update))
        if (error <= limit).all():
            return None
        worst = int(np.argmax(error - limit))
    return (
        f"its calls give other numbers than were recorded: an error of {error.flat[worst]:.1e}, where noise explains "
        f"{limit.flat[worst]:.1e}"
    )


def _spread(trace: Trace, step: Step, cut: Cut, exact: Floats, update: bool) -> Floats:
    """How far each element moves in runs that round at random; a weight that is only moved is known exactly."""
    steady = frozenset(ref for ref, site in cut.given.items() if update and site.phase == "weight")
    spread = np.zeros(exact.shape)
    for seed in SEEDS:
        made = Interpreter(step, trace, exact=True, shaken=Shake(seed, steady)).array_of(cut)
        spread = np.maximum(spread, np.abs(real_parts(made) - exact))
    return spread


def _along_rows(spread: Floats) -> Floats:
    """Each element's own, or what is usual in its row: a single draw may leave one where it was."""
    spread = np.where(np.isfinite(spread), spread, 0.0)
    if not spread.ndim:
        return spread
    return np.maximum(spread, np.sqrt(np.mean(np.square(spread), -1, keepdims=True)))
