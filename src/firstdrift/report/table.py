"""The table of pairs: one line a pair, in causal order or ranked, with what matters little folded away.

Plain strings, because a trace has thousands of pairs and a line must cost microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from ..core.sites import Site
from ..judge.measure.result import PairResult, Result, Verdict
from .words import columns, concentration, exact, finiteness, measured_shape, number, pad, place, position, wrap

FOLD_FROM = 3  # `same` pairs in a row from which on they become one line
LEAST_SITE = 6  # columns that a site's name always has
LONG_INDEX = 14  # columns of an index from which on it may go to a line of its own
DETAIL = " " * 6

Paint = Callable[[str, Verdict], str]

# What a limited table keeps first.
_IMPORTANCE = {
    Verdict.DRIFT: 1, Verdict.PRECISION: 1, Verdict.NOT_COMPARABLE: 2, Verdict.MISSING: 2, Verdict.INCONCLUSIVE: 2,
    Verdict.FLIP: 3, Verdict.INHERITED: 4, Verdict.NOISE: 5, Verdict.SAME: 6,
}  # fmt: skip
_EXPLAINED = frozenset(_IMPORTANCE) - {Verdict.INHERITED, Verdict.NOISE, Verdict.SAME}


class Row(NamedTuple):
    """The cells of a pair."""

    mark: str
    step: str
    phase: str
    place: str
    verdict: str
    error: str
    made: str
    limit: str
    max_abs: str
    max_rel: str
    at: str


class Widths(NamedTuple):
    """Columns of each cell; 0 where the table has no such column."""

    step: int
    phase: int
    place: int
    verdict: int
    error: int
    made: int
    limit: int
    max_abs: int
    max_rel: int
    total: int


HEADER = Row(" ", "step", "phase", "site", "verdict", "rel.err", "made here", "limit", "max abs", "max rel", "at")


def table(result: Result, *, ranked: bool, limit: int, width: int, paint: Paint) -> list[str]:
    """The lines of the table, the header first."""
    first = None if result.first_drift is None else result.first_drift.site
    pairs = sorted(result.pairs, key=introduced, reverse=True) if ranked else result.pairs
    shown = _shown(pairs, limit, first, ranked)
    rows = {i: _row(pairs[i], first) for i in shown}
    several_steps = len({pair.site.step for pair in pairs}) > 1
    widths = _widths(list(rows.values()), width, several_steps, ranked)
    lines = _lines(HEADER, widths, lambda text: text) if rows else []
    hidden: list[PairResult] = []
    for i, pair in enumerate(pairs):
        if i not in rows:
            hidden.append(pair)
            continue
        lines += _fold(hidden, ranked=ranked)
        hidden = []
        verdict = pair.verdict
        lines += _lines(rows[i], widths, lambda text, verdict=verdict: paint(text, verdict))  # type: ignore[misc]
        lines += _details(pair, width, is_first=pair.site == first)
    return lines + _fold(hidden, ranked=ranked) + _cut(pairs, shown)


def introduced(pair: PairResult) -> float:
    """The error made at a site, for ranking: what it has beyond what was carried in."""
    if pair.verdict is Verdict.SAME:
        return -1.0
    if pair.verdict is Verdict.DRIFT and (pair.error is None or _one_sided(pair)):
        return inf
    return max(0.0, (pair.error or 0.0) - (pair.inherited or 0.0))


def _one_sided(pair: PairResult) -> bool:
    return pair.measurement is not None and not pair.measurement.nonfinite_agree


def _shown(pairs: Sequence[PairResult], limit: int, first: Site | None, ranked: bool) -> set[int]:
    """Which pairs get a line: not the long runs of `same`, and no more than `limit`."""
    shown: list[int] = []
    run: list[int] = []
    for i, pair in enumerate(pairs):
        if pair.verdict is Verdict.SAME:
            run.append(i)
            continue
        shown += run if len(run) < FOLD_FROM else []
        shown.append(i)
        run = []
    shown += run if len(run) < FOLD_FROM else []
    if len(shown) > limit and not ranked:
        shown.sort(key=lambda i: (pairs[i].site != first, _IMPORTANCE[pairs[i].verdict], i))
    return set(shown[: max(limit, 1)])


def _cut(pairs: Sequence[PairResult], shown: set[int]) -> list[str]:
    hidden = sum(pair.verdict is not Verdict.SAME for at, pair in enumerate(pairs) if at not in shown)
    return [f"  {hidden:,} pairs that differ are not shown; --limit {len(pairs)} shows all"] if hidden else []


def _fold(hidden: Sequence[PairResult], *, ranked: bool) -> list[str]:
    """One line for the pairs left out here: how many of each verdict, and in causal order where they are."""
    if not hidden:
        return []
    counted = Counter(str(pair.verdict) for pair in hidden)
    said = ", ".join(f"{counted[verdict]:,} {verdict}" for verdict in Verdict if counted[verdict])
    if ranked:
        return [f"  ... {said}"]
    phases, steps = (list(dict.fromkeys(some)) for some in zip(*(p.site[1::-1] for p in hidden), strict=True))
    where = phases[0] if len(phases) == 1 else f"{phases[0]} to {phases[-1]}" if len(steps) == 1 else ""
    if len(steps) > 1:
        where = f"{where}{' of ' if where else ''}steps {min(steps)} to {max(steps)}"
    return [f"  ... {said} in {where}"]


def _row(pair: PairResult, first: Site | None) -> Row:
    site, m = pair.site, pair.measurement
    at = "" if m is None or not m.max_abs else position(m.max_abs_index, measured_shape(pair.pair, m))
    return Row(
        ">" if site == first else " ", str(site.step), site.phase, place(site), pair.verdict.value, _error(pair),
        made=number(introduced(pair)) if pair.error is not None and pair.verdict is not Verdict.SAME else "",
        limit="" if pair.limit is None else number(pair.limit),
        max_abs="" if m is None or not m.compared else number(m.max_abs),
        max_rel="" if m is None or m.max_rel is None else number(m.max_rel),
        at=at[1:-1].replace(" ", ""),
    )  # fmt: skip


def _error(pair: PairResult) -> str:
    if _one_sided(pair):
        return "nan/inf"  # the error of the elements that are left would read as if all were well
    return "" if pair.measurement is None and pair.error is None else number(pair.error)


def _widths(rows: Sequence[Row], width: int, several_steps: bool, ranked: bool) -> Widths:
    rows = [HEADER, *rows]

    def widest(cells: Sequence[str]) -> int:
        return max(map(len, cells)) + 1

    # A verdict without numbers may reach into their columns.
    verdict = widest([row.verdict for row in rows if row.error or row.limit])
    cells = (
        widest([row.error for row in rows]),
        widest([row.made for row in rows]) if ranked else 0,
        widest([row.limit for row in rows]),
        widest([row.max_abs for row in rows]),
        widest([row.max_rel for row in rows]),
    )
    step = widest([row.step for row in rows]) if several_steps else 0
    phase = widest([row.phase for row in rows])
    taken = 2 + step + phase + verdict + 1 + sum(cells)
    # An index too long for the line goes to a line of its own, rather than take the name's room.
    index = max((len(row.at) for row in rows if len(row.at) <= LONG_INDEX), default=0) + 1
    places = min(max(LEAST_SITE, width - taken - index), max(columns(row.place) for row in rows))
    return Widths(step, phase, places, verdict, *cells, width)


def _lines(row: Row, widths: Widths, paint: Callable[[str], str]) -> list[str]:
    """A row as one line, or two where the index does not fit beside it."""
    where = f"{row.mark} "
    if widths.step:
        where += f"{row.step:>{widths.step - 1}} "
    where += f"{row.phase:<{widths.phase}}{pad(row.place, widths.place)} "
    if not (row.error or row.limit or row.max_abs):
        return [where + paint(row.verdict)]
    made = f"{row.made:>{widths.made}}" if widths.made else ""
    largest = f"{row.max_abs:>{widths.max_abs}}{row.max_rel:>{widths.max_rel}}"
    numbers = f"{row.error:>{widths.error}}{made}{row.limit:>{widths.limit}}{largest}"
    line = f"{where}{paint(f'{row.verdict:<{widths.verdict}}')}{numbers}"
    length = 3 + widths.step + widths.phase + widths.place + widths.verdict + len(numbers)
    if length + 1 + len(row.at) <= widths.total:
        return [f"{line} {row.at}".rstrip()]
    return [line.rstrip(), f"{DETAIL}largest difference at [{row.at}]"]


def _details(pair: PairResult, width: int, *, is_first: bool) -> list[str]:
    """Under a pair that needs explaining: why, the values where it is worst, and where the error sits."""
    if pair.verdict not in _EXPLAINED:
        return []
    lines = wrap(pair.reason, width, DETAIL, DETAIL) if pair.reason else []
    if pair.introduced_by and not is_first and pair.introduced_by not in (pair.site.name, pair.reason):
        lines += wrap(f"introduced by {pair.introduced_by}", width, DETAIL, DETAIL)
    for said in (_values(pair), _matched(pair)):
        lines += wrap(said, width, DETAIL, DETAIL + "  ") if said else []
    return lines


def _values(pair: PairResult) -> str:
    m = pair.measurement
    if m is None:
        return ""
    shape = measured_shape(pair.pair, m)
    said = ["" if "NaN" in pair.reason else finiteness(m)]
    if not m.nonfinite_agree:
        said.append(f"not finite on one side first at {position(m.nonfinite_mismatch_index, shape)}")
    if m.max_abs_index is not None and m.max_abs:
        dtypes = [pair.pair.reference.dtype, *(record.dtype for record in pair.pair.candidate)]
        left, right = exact(m.reference_at_max, dtypes), exact(m.candidate_at_max, dtypes)
        said.append(f"at {position(m.max_abs_index, shape)} reference {left}, candidate {right}")
    said.append(concentration(pair.pair, m))
    return "; ".join(filter(None, said))


def _matched(pair: PairResult) -> str:
    """How the two sides were brought together, where it was not simply by name."""
    made = pair.pair
    others = [record.site for record in made.candidate if record.site != made.site]
    said = [f"candidate's {', '.join(map(place, others))}"] if others else []
    said += [f"reference {step}" for step in made.reference_steps]
    said += [f"candidate {step}" for step in made.candidate_steps]
    return f"matched by {made.matched}: {'; '.join([*said, *made.notes])}" if said or made.notes else ""
