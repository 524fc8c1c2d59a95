"""Causes in tables of cosines and sines, and in frequencies, as buffers or modules hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ..attention.formula import Indices
from ..attention.positions import BASES
from ..attention.rotary import LOW, Floats, Rotary, base_of, geometric, rounded, tables
from ..evidence import Evidence
from ..hypotheses import DOMINANT, EXACT, LEAST_NOISE, Finding, Hypothesis
from ..variants import floats, reproduces
from .rope_changes import changes, retuned

ROWS = 128  # of a table, to try changes on
LEAST_ROWS = 4  # fewer are waves whatever they hold
LEAST_SPACED = 4  # numbers that are evenly spaced
GRID = 1 << 14  # frequencies that are tried
KEPT = 48  # of them, which are refined
LEAST_SURE = 0.1  # how far a frequency may be off at most that is read from neighbouring rows


def table(evidence: Evidence) -> Iterator[Finding]:
    """A table of cosines or sines, or of frequencies: the same table of other frequencies, positions or precision."""
    expected, found = evidence.expected, evidence.found
    if evidence.site.phase not in ("fwd", "weight") or expected.shape != found.shape or not expected.size:
        return
    if not np.issubdtype(expected.dtype, np.floating) or not np.isfinite(found).all():
        return
    if expected.ndim == 1:
        yield from _frequencies(evidence)
    elif expected.ndim > 1 and expected.shape[-1] >= 2 and expected.shape[-2] >= LEAST_ROWS:
        rows, own = (np.asarray(x, np.float64).reshape(-1, *x.shape[-2:]) for x in (expected, found))
        if (rows == rows[:1]).all():
            counted = _positions(evidence, rows.shape[1])
            for told in _columns(rows[0], own[0], counted, EXACT * max(evidence.noise, LEAST_NOISE)):
                assert told.predicted is not None
                predicted = np.broadcast_to(told.predicted, rows.shape).reshape(expected.shape)
                yield replace(told, predicted=predicted)


def _positions(evidence: Evidence, rows: int) -> list[Floats]:
    """The positions of a table's rows: those that were handed to it, else counted from zero or one."""
    for given in evidence.candidate_inputs.values():
        flat = given.reshape(-1, rows) if given.size and given.size % rows == 0 and given.ndim < 3 else None
        if flat is not None and flat.shape[1] == rows and (flat == flat[:1]).all() and (np.diff(flat[0]) == 1).all():
            return [np.asarray(flat[0], np.float64)]
    return [np.arange(rows, dtype=np.float64) + first for first in (0.0, 1.0)]


def _columns(expected: Floats, found: Floats, counted: list[Floats], limit: float) -> Iterator[Finding]:
    """The changes of one table that explain another, as seen on some rows."""
    layout = _Table.of(expected, counted, limit)
    if layout is None:
        return
    few = np.unique(np.linspace(0, len(found) - 1, ROWS).astype(np.intp))
    most = max(limit, DOMINANT) * float(np.linalg.norm(found[few]))
    for change in changes(layout.rotary, layout.rotary.channels, layout.measured(found, limit)):
        turn = change.rotary
        if turn is None or turn.pairing != layout.rotary.pairing or turn.channels != layout.rotary.channels:
            continue
        if float(np.linalg.norm(layout.made(turn, few) - found[few])) <= most:
            label, made = layout.label(change.label), layout.made(turn)
            yield Finding(label, change.sentence, made, change.free, change.parameters)


@dataclass(frozen=True, eq=False, slots=True)
class _Table:
    """How a table is laid out: which function each column holds, and of which frequency."""

    rotary: Rotary
    columns: Indices  # the number of the frequency of each column
    sines: NDArray[np.bool_]  # whether a column holds sines
    positions: Floats

    @classmethod
    def of(cls, given: Floats, counted: list[Floats], limit: float) -> _Table | None:
        """The layout of a table, or None where it is none."""
        if not _swings(given, limit):
            return None
        width = given.shape[1]
        half, number = width // 2, np.arange(width)
        layouts = []
        for sine in (False, True):
            whole = np.full(width, sine)
            layouts += [(number % half, whole), (number // 2, whole), (number, whole)]
        layouts += [(number // 2, number % 2 == 0), (number // 2, number % 2 == 1)]
        layouts += [(number % half, number < half), (number % half, number >= half)]
        most = float(np.abs(given).max())
        for (columns, sines), places, factor in product(layouts, counted, dict.fromkeys((1.0, most or 1.0))):
            for frequencies in _candidates(given / factor, columns, sines, places, limit):
                made = cls(Rotary(frequencies, factor=factor), columns, sines, places)
                if made._error(given[:ROWS], np.arange(min(ROWS, len(given)))) > limit:
                    continue
                if made._error(given, np.arange(len(given))) <= limit:
                    return made
        return None

    def made(self, rotary: Rotary, rows: Indices | None = None) -> Floats:
        """The table for a rotation, or some rows of it."""
        chosen = self.positions if rows is None else self.positions[rows]
        cos, sin = tables(rotary, chosen + rotary.shift)
        return np.where(self.sines, sin[:, self.columns], cos[:, self.columns])

    def _error(self, given: Floats, rows: Indices) -> float:
        off = float(np.linalg.norm(self.made(self.rotary, rows) - given))
        return off / max(float(np.linalg.norm(given)), 1e-300)

    def measured(self, found: Floats, limit: float) -> Floats | None:
        """The frequencies that a table with this layout has."""
        given = found / self.rotary.factor
        read = list(_candidates(given, self.columns, self.sines, self.positions, limit))
        return min(read, key=lambda one: self._off(one, given)) if read else None

    def _off(self, frequencies: Floats, given: Floats) -> float:
        return float(np.linalg.norm(self.made(Rotary(frequencies)) - given))

    def label(self, label: str) -> str:
        """Sinusoids that hold both functions are added to embeddings; their frequencies have a cause of their own."""
        both = bool(self.sines.any()) and not bool(self.sines.all())
        return "frequency-table" if both and label.startswith("rope-") and label != "rope-precision" else label


def _swings(given: Floats, limit: float) -> bool:
    """Whether every column may be a wave: the sum of a row's neighbours is one multiple of the row, all the way."""
    middle, ends = given[1:-1], given[2:] + given[:-2]
    multiple = (middle * ends).sum(axis=0) / np.maximum((middle * middle).sum(axis=0), 1e-300)
    return float(np.linalg.norm(ends - multiple * middle)) <= 4 * limit * float(np.linalg.norm(given))


def _candidates(
    given: Floats, columns: Indices, sines: NDArray[np.bool_], places: Floats, limit: float
) -> Iterator[Floats]:
    """Frequencies that a table may have, read from its columns."""
    pairs = int(columns.max()) + 1
    yield from (geometric(base, 2 * pairs) for base in BASES)
    rate = np.full(pairs, np.nan)
    for pair in range(pairs):
        mine = np.flatnonzero(columns == pair)
        if len(mine):
            read = _rate if places[0] <= 1 else _late_rate
            rate[pair] = read(given[:, mine[0]], bool(sines[mine[0]]), places, limit)
    known = np.isfinite(rate) & (rate > 0)
    if not known[:2].all() or known.sum() < 2:
        return
    sure = known & (rate * len(given) > 0.5)  # a cosine that hardly moves says little
    last = int(np.argmin(sure)) - 1 if not sure.all() else pairs - 1
    theta = base_of(rate[: last + 1], 1e-2) if last > 0 else None
    if theta is not None:  # of the columns that move
        theta = theta ** (pairs / (last + 1))
        yield geometric(float(f"{theta:.4g}"), 2 * pairs)
        yield geometric(theta, 2 * pairs)
    still = 1e-4 / (places[-1] + 1)  # slower than any column that is seen to move
    yield np.where(known, rate, still)


def _rate(values: Floats, is_sine: bool, positions: Floats, limit: float) -> float:
    """The frequency of a column of cosines or sines of growing angles: coarse from an early row, finer from later."""
    angles = np.arcsin(np.clip(values, -1, 1)) if is_sine else np.arccos(np.clip(values, -1, 1))
    moved = np.flatnonzero((angles > 0.05) & (positions > 0))
    row = int(moved[0]) if len(moved) else len(values) - 1
    rate = float(angles[row] / positions[row])
    if not rate > 0:
        return float("nan")
    while row < len(values) - 1:
        row = min(max(row + 1, row * 9 // 8), len(values) - 1)
        rate = _corrected(rate, values[row], float(positions[row]), is_sine)
    return rate


def _late_rate(values: Floats, is_sine: bool, positions: Floats, limit: float) -> float:
    """The frequency of a column that begins far from zero: coarse from one row to the next, finer from the phase."""
    middle, ends = values[1:-1], values[2:] + values[:-2]  # 2 cos(rate) times the middle
    if len(values) < 4 or not float(middle @ middle) > 0:
        return float("nan")
    step = np.clip(float(middle @ ends) / (2 * float(middle @ middle)), -1.0, 1.0)
    off = min(np.sqrt(2 * max(limit, 2.0**-23)), LEAST_SURE)
    low, high = (float(np.arccos(np.clip(step + sign * off**2, -1, 1))) for sign in (1, -1))
    count = int(np.clip((high - low + 2 * off) * positions[-1] * 16, 16, GRID))
    rates = np.linspace(max(low - off, 0.0), high + off, count)
    few = np.unique(np.linspace(0, len(values) - 1, 32).astype(np.intp))
    rates = _nearer(rates, values[few], positions[few], is_sine, 0)
    return float(_nearer(rates, values, positions, is_sine, 6)[0])


def _nearer(rates: Floats, values: Floats, positions: Floats, is_sine: bool, rounds: int) -> Floats:
    """The best frequencies of some, best first, after some steps to what gives the values.

    One turn more or less up to the first row is another frequency that comes near, so that several are kept.
    """
    for step in range(rounds + 1):
        angles = rates[:, None] * positions
        wave, slope = (np.sin(angles), np.cos(angles)) if is_sine else (np.cos(angles), -np.sin(angles))
        off = values - wave
        if step < rounds:
            slopes = slope * positions
            rates = rates + (slopes * off).sum(axis=1) / np.maximum((slopes**2).sum(axis=1), 1e-300)
    return rates[np.argsort((off**2).sum(axis=1), kind="stable")[:KEPT]]


def _corrected(rate: float, value: float, position: float, is_sine: bool) -> float:
    """A frequency that gives the value at a position, where the wave is steep enough to tell."""
    angle = rate * position
    wave, slope = (np.sin(angle), np.cos(angle)) if is_sine else (np.cos(angle), -np.sin(angle))
    return rate + float((value - wave) / slope) / position if abs(slope) > 0.3 else rate


def spacing(evidence: Evidence) -> Iterator[Finding]:
    """A row of numbers from one to another in even steps on one side, and in even ratios on the other."""
    if evidence.site.phase not in ("fwd", "weight") or evidence.expected.ndim != 1 or not floats(evidence):
        return
    given = np.asarray(evidence.expected, np.float64)
    if len(given) < LEAST_SPACED or not (given > 0).all() or given[0] == given[-1]:
        return
    ways: dict[str, Callable[[float, float, int], Floats]] = {"even steps": np.linspace, "even ratios": np.geomspace}
    limit = EXACT * max(evidence.noise, 2.0**-23)
    for own, way in ways.items():
        if reproduces(way(given[0], given[-1], len(given)), given, limit):
            other = next(one for one in ways if one != own)
            made = np.asarray(ways[other](given[0], given[-1], len(given)), np.float64)
            ends = f"from {given[0]:g} to {given[-1]:g}"
            yield Finding("frequency-table", f"{len(given)} numbers {ends} are in {other} instead of {own}", made, 0)


def _frequencies(evidence: Evidence) -> Iterator[Finding]:
    """Frequencies themselves, as a buffer holds them."""
    given, found = (np.asarray(x, np.float64) for x in (evidence.expected, evidence.found))
    if (
        len(given) < 3
        or not (given > 0).all()
        or not (found > 0).all()
        or given[0] > 1 + 1e-6
        or not (np.diff(given) < 0).all()
    ):
        return
    if base_of(given, 1e-4) is None and "freq" not in evidence.site.port:
        return
    within = EXACT * max(evidence.noise, 2.0**-23)  # of each one: the slow ones are small beside the first

    def explains(made: Floats) -> bool:
        return made.shape == found.shape and bool((np.abs(made / found - 1) <= within).all())

    for one in retuned(given, 2 * len(given), found):
        if explains(one.frequencies):
            yield Finding(one.label, one.sentence, one.frequencies, one.free, one.parameters)
    for dtype in LOW:
        made = rounded(given, dtype)
        if explains(made):
            yield Finding("rope-precision", f"the frequencies are held in {dtype}", made, 0, {"dtype": dtype})


HYPOTHESES: tuple[Hypothesis, ...] = (table, spacing)
