"""Lookups in a table: other rows, other positions, other factors, other sinusoids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..evidence import Evidence
from ..hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis
from ..image import patch_positions
from ..variants import floats, misfit, telling
from .sinusoids import sinusoids

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Predict = Callable[[Indices, float], Floats]  # the candidate's tensor, from rows and a factor

ROWS = 256  # rows of the output that are looked up
DIRECTIONS = 8  # in which rows are compared before they are compared in full
LARGEST_SHIFT = 8
LARGE = 2**28  # comparisons of rows


def lookup(evidence: Evidence) -> Iterable[Finding]:
    """Rows of a weight, alone or added to what came before, of which found has others."""
    if evidence.site.phase != "fwd" or not floats(evidence) or evidence.expected.ndim < 2:
        return
    if not np.isfinite(evidence.found).all():
        return
    for table in _tables(evidence):
        for expected, found, added in _lookups(evidence, table):
            yield from _shifted(evidence, table, expected, found, added)


def multiplied(evidence: Evidence) -> Iterator[Finding]:
    """expected is a factor times what came before, as of scaled embeddings, and found is that without the factor."""
    if evidence.site.phase != "fwd" or not floats(evidence):
        return
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    expected = np.asarray(evidence.expected, np.float64)
    for key, value in evidence.inputs.items():
        own = evidence.candidate_inputs.get(key, value)
        if (
            key.startswith("in.")
            or value.shape != expected.shape
            or own.shape != value.shape
            or value.dtype.kind != "f"
        ):
            continue
        given = np.asarray(value, np.float64)
        factor = float(np.vdot(given, expected)) / max(float(np.vdot(given, given)), 1e-300)
        if factor and abs(factor - 1) > limit and misfit(factor * given, expected) <= limit:
            said = f"the factor {factor:.6g} on {key} is missing"
            yield Finding("scale", said, own, 0, {"factor": 1 / factor, "missing": factor})


def _tables(evidence: Evidence) -> Iterator[Floats]:
    """The module's tables, or for a tensor made between modules the tables called positions that fit."""
    width = evidence.expected.shape[-1]
    own = [one for one in evidence.parameters.values() if one.ndim == 2]
    around = evidence.around
    if not own and evidence.site.port.startswith("in."):
        sites = (site for site in around.sites("weight") if "pos" in f"{site.name}.{site.port}".lower())
        own = [one for site in sites if (one := around.reference(site)) is not None and one.ndim >= 2]
    for one in own:
        if one.shape[-1] == width and one.size:
            yield np.asarray(one, np.float64).reshape(-1, width)


def _lookups(evidence: Evidence, table: Floats) -> Iterator[tuple[Floats, Floats, Floats | None]]:
    """What should be rows of the table on both sides, and what was added to the candidate's."""
    expected, found = (np.asarray(one, np.float64) for one in (evidence.expected, evidence.found))
    yield expected, found, None
    shape = expected.shape
    terms = [one for one in evidence.inputs.values() if one.shape == shape and one.dtype.kind == "f"]
    seen = [one for one in evidence.candidate_inputs.values() if one.shape == shape and one.dtype.kind == "f"]
    if terms and len(terms) == len(seen) == len(evidence.inputs):
        added = np.asarray(np.sum(seen, 0), np.float64)
        yield expected - np.sum(terms, 0), found - added, added


def _shifted(
    evidence: Evidence, table: Floats, expected: Floats, found: Floats, added: Floats | None
) -> Iterator[Finding]:
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    factor = _factor(table, expected, limit)
    rows = None if factor is None else _rows(evidence, table * factor, expected, limit)
    if factor is None or rows is None:
        return
    width = table.shape[1]

    def predict(lines: Indices, scale: float) -> Floats:
        y = scale * table[lines].reshape(expected.shape)
        return y if added is None else y + added

    ordered = _ordered(rows.reshape(expected.shape[:-1]))
    seen = telling(expected.reshape(-1, width), found.reshape(-1, width), ROWS)
    others = nearest(table * factor, found.reshape(-1, width)[seen])
    shifts = np.unique(others - rows[seen])
    for shift in shifts[np.abs(shifts) <= LARGEST_SHIFT]:
        if shift:
            yield from _moved(predict, rows, factor, int(shift), len(table), ordered)
    if ordered and len(shifts) > 1 and rows.size * len(table) <= LARGE:
        found_rows = nearest(table * factor, found.reshape(-1, width)).reshape(expected.shape[:-1])
        if _ordered(found_rows) and (np.diff(found_rows.reshape(-1, expected.shape[-2]), axis=0) == 0).all():
            sentence = "the positions count from the first element of every row, whatever its padding"
            yield Finding("position-shift", sentence, predict(found_rows.ravel(), factor))
    yield from _scaled(predict, rows, factor, width)


def _rows(evidence: Evidence, table: Floats, expected: Floats, limit: float) -> Indices | None:
    """Which rows were expected: those that the input names, or those that are nearest."""
    flat = expected.reshape(-1, table.shape[1])
    for one in evidence.inputs.values():
        if one.size == len(flat) and one.dtype.kind in "iu" and one.min() >= 0 and one.max() < len(table):
            rows = np.asarray(one, np.intp).ravel()
            if misfit(table[rows], flat) <= limit:
                return rows
    if len(flat) * len(table) > LARGE:
        return None
    rows = nearest(table, flat)
    return rows if misfit(table[rows], flat) <= limit else None


def _moved(predict: Predict, rows: Indices, factor: float, shift: int, count: int, ordered: bool) -> Iterator[Finding]:
    label, what = ("position-shift", "positions") if ordered else ("index-shift", "rows looked up")
    sentence = f"the {what} are {abs(shift)} too {'high' if shift > 0 else 'low'}"
    for lines in (np.clip(rows + shift, 0, count - 1), np.mod(rows + shift, count)):
        yield Finding(label, sentence, predict(lines, factor), 0, {"shift": shift})


def _scaled(predict: Predict, rows: Indices, factor: float, width: int) -> Iterator[Finding]:
    """The root of the width, which some models multiply embeddings by."""
    root = float(np.sqrt(width))
    for other, said in ((root, f"multiplied by {root:.6g}"), (1.0, f"not multiplied by {factor:.6g}")):
        if abs(other - factor) > 1e-3 * factor:
            yield Finding(
                "scale",
                f"the embeddings are {said}, the root of their width",
                predict(rows, other),
                0,
                {"factor": other / factor},
            )


def _factor(table: Floats, expected: Floats, limit: float) -> float | None:
    """What the rows are multiplied by: 1, the root of the width, or what the size of the first rows says."""
    rows = expected.reshape(-1, table.shape[1])[:8]
    for factor in (1.0, float(np.sqrt(table.shape[1]))):
        if misfit(factor * table[nearest(table * factor, rows)], rows) <= limit:
            return factor
    return None


def nearest(table: Floats, rows: Floats) -> Indices:
    """For each row the row of a table that is nearest, judged in a few directions."""
    directions = np.random.default_rng(0).standard_normal((table.shape[1], min(DIRECTIONS, table.shape[1])))
    near, wanted = table @ directions, np.nan_to_num(rows @ directions)
    found = np.empty(len(rows), np.intp)
    size = (near**2).sum(1)
    for start in range(0, len(rows), ROWS):
        at = slice(start, start + ROWS)
        found[at] = np.argmin(size[None] - 2 * wanted[at] @ near.T, 1)
    return found


def _ordered(rows: Indices) -> bool:
    """Whether the rows count upwards along the last axis, as positions do; padding may repeat one."""
    steps = np.diff(rows, axis=-1)
    return bool(steps.size > 1 and np.isin(steps, (0, 1)).all() and (steps == 1).any(-1).all())


HYPOTHESES: tuple[Hypothesis, ...] = (lookup, multiplied, sinusoids, *patch_positions.HYPOTHESES)
