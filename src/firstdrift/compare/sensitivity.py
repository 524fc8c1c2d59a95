"""`fd.power`: how small an error would have been found, so that a green verdict means something.

Every tensor of a clean pair is made worse, by a factor on all of it and by an error in one row or column, until it is
no longer within noise. Where a program says how it was made, that is asked of the same draws that judge it; elsewhere
the limits answer, by which it was judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import wide
from ..core.sites import Site
from ..core.traces import Array, unchanged
from ..errors import SelectionError
from ..judge.apriori.calibrated import figure
from ..judge.case import Case, Chain
from ..judge.graph import Graph
from ..judge.judging import case_of, judge, results_of
from ..judge.measure.measuring import Measured, measure_pairs
from ..judge.measure.result import Verdict
from ..judge.measure.scales import matrix_of, scattered
from ..judge.noise import draws_of, from_matrix, is_beyond, matrix
from ..judge.passes.weakest import counts, seen_by_limits
from ..judge.replay.programs import replays_for
from .comparison import Opened, Source, align_traces
from .outcome import Compared, compose

if TYPE_CHECKING:
    from ..judge.replay.replays import Replays

SCHEMA = "firstdrift-power-v1"
CLOSE = 1.05  # the size that is found and the one that is not are no further apart
SMALLEST = 2.0**-60


@dataclass(frozen=True, slots=True)
class Visible:
    """The smallest relative errors of one tensor that would be found; None where none is, however large.

    `everywhere` is a factor on all elements, `in_part` an error of one row or one column, relative to its own size.
    """

    site: Site
    everywhere: float | None
    in_part: float | None


@dataclass(frozen=True, slots=True)
class Power:
    """The smallest error that would be found, by site in causal order."""

    sites: tuple[Visible, ...]
    calibrated: bool
    pair: bool  # whether two traces were given, or one against itself
    open: tuple[Site, ...] = ()  # what was asked for and could not be compared, or has no counterpart

    @property
    def blind(self) -> tuple[Site, ...]:
        """Sites at which no error would be found."""
        return tuple(site.site for site in self.sites if site.everywhere is None)

    @property
    def exit_code(self) -> int:
        """0 where errors would be found; 2 where none would be, or nobody can tell of something that was asked for."""
        return 0 if len(self.blind) < len(self.sites) and not self.open else 2

    def to_json(self) -> dict[str, Any]:
        """JSON of schema `firstdrift-power-v1`."""
        rows = [{**site.site._asdict(), "everywhere": site.everywhere, "in_part": site.in_part} for site in self.sites]
        return {
            "schema": SCHEMA,
            "calibrated": self.calibrated,
            "pair": self.pair,
            "sites": rows,
            "open": [site._asdict() for site in self.open],
        }


@np.errstate(all="ignore")  # any bits may be on record: what is not finite is counted
def power(
    reference: Source, candidate: Source | None = None, *, only: Sequence[str] = (), phases: Sequence[str] = (),
    advance: Callable[[int], None] | None = None,
) -> Power:  # fmt: skip
    """Measure the smallest error of every tensor that a comparison would find.

    Each tensor of two agreeing traces (or of one trace) is perturbed until it is beyond noise. `only` and `phases` are
    globs on what is reported.
    """
    opened = align_traces(reference, reference if candidate is None else candidate)
    opened.reference.matching(only, phases)  # a pattern that matches nothing is an error
    with unchanged(opened.reference, opened.candidate), np.errstate(all="ignore"):
        return _power(opened, candidate is not None, only, phases, advance or (lambda count: None))


def _power(
    opened: Opened, pair: bool, only: Sequence[str], phases: Sequence[str], tell: Callable[[int], None]
) -> Power:
    reference, candidate = opened.reference, opened.candidate
    measured = list(measure_pairs(opened.alignment.pairs, reference, candidate))
    case = case_of(reference, candidate, opened.alignment, measured, Graph(reference, opened.alignment.pairs))
    case, chains = judge(case)
    found_so = compose(results_of(case, chains), measured, Compared(reference, candidate, case.alignment, case.graph))
    if found_so.first_drift is not None:
        both, site = f"{reference.path} and {candidate.path}", found_so.first_drift.site
        raise SelectionError(f"{both} differ beyond noise at {site}; give two traces that agree")
    asked = {record.site for record in reference.matching(only, phases)}
    items = [item for item in case.items.values() if item.pair.reference.site in asked and counts(item)]
    replays = replays_for(reference, candidate, case.alignment.pairs, [item.pair.site for item in items])
    found = []
    with nullcontext() if replays is None else replays.running():
        for item in items:
            found.append(_visible(item, case, replays, chains[item.pair.site]))
            tell(1)
    left = tuple(site for site in _open(case, chains) if site in asked)
    return Power(tuple(found), any(figure(item.pair.reference) is not None for item in measured), pair, left)


def _open(case: Case, chains: Mapping[Site, Chain]) -> Iterator[Site]:
    """The reference's sites that nothing is said of."""
    yield from (item.site for item in case.alignment.reference_only)
    yield from (case.items[site].pair.reference.site for site, chain in chains.items()
                if chain[-1].verdict is Verdict.NOT_COMPARABLE)  # fmt: skip


def _visible(item: Measured, case: Case, replays: Replays | None, chain: Chain) -> Visible:
    if chain[-1].verdict is Verdict.INCONCLUSIVE:  # what is left open now promises nothing of what is worse
        return Visible(item.pair.site, None, None)
    drawn = None if replays is None else _by_draws(item, case, replays)
    return drawn or _by_limits(item, case, chain)


def _by_draws(item: Measured, case: Case, replays: Replays) -> Visible | None:
    """By the noise of the calls that make a tensor."""
    from ..judge.replay.introducing import DRIFT, before, draw_of, expected_at, found_at
    from ..program.interpreter import NotReplayableError

    pair = item.pair
    try:
        expected, found = expected_at(pair, replays), found_at(pair, replays)
        if expected is None or found is None or expected.shape != found.shape:
            return None
        if replays.first(pair.reference.site) != pair.reference.site:
            return None
        draws = draws_of(expected, draw_of(pair, replays))
    except NotReplayableError:
        return None
    if draws is None:
        return None
    unit, start = case.unit(pair), before(pair, replays)
    base = wide(found) if start is None else wide(found) - wide(start)

    def is_found(change: Array) -> bool:
        return is_beyond(expected, (wide(found) + change).astype(found.dtype), unit, draws, start, DRIFT)

    rows = matrix(base)
    parts = [from_matrix(_in_part(rows, axis), expected) for axis in (0, 1) if rows.shape[1 - axis] > 1]
    whole = _smallest(partial(_is_found_scaled, is_found, base))
    known = [_smallest(partial(_is_found_scaled, is_found, part)) for part in parts]
    seen = [value for value in known if value is not None]
    return Visible(pair.site, whole, max(seen, default=whole) if len(seen) == len(known) else None)


def _is_found_scaled(is_found: Callable[[Array], bool], change: Array, size: float) -> bool:
    return is_found(np.asarray(size * wide(change)))


def _in_part(rows: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """The row or column of middle size, and nothing else."""
    sizes = np.linalg.norm(rows, axis=1 - axis)
    at = int(np.argsort(sizes)[len(sizes) // 2])
    part = np.zeros_like(rows)
    index = (at, slice(None)) if axis == 0 else (slice(None), at)
    part[index] = rows[index]
    return part


def _by_limits(item: Measured, case: Case, chain: Chain) -> Visible:
    """By the limits of a site of which nothing says how it was made."""
    site, whole = item.pair.site, seen_by_limits(item, case, chain)
    if item.pair.tolerance is not None:
        return Visible(site, whole, whole * math.sqrt(item.count or 1))
    if site.phase in ("input", "weight"):
        return Visible(site, whole, whole)
    if whole >= 1:
        return Visible(site, None, None)
    if item.update is not None:
        return Visible(site, whole, None)
    shortest = max(1, min(matrix_of(item.pair.reference.shape or ())))
    return Visible(site, whole, min(1.0, scattered(whole, shortest)))


def _smallest(is_found: Callable[[float], bool]) -> float | None:
    """The smallest size up to 1 that is found, by halving the interval of its logarithm."""
    if not is_found(1.0):
        return None
    low, high = SMALLEST, 1.0
    while high > CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
