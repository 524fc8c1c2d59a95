"""`fd.power`: how small an error would have been found, so that a green verdict means something."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ._kernels import Measurement
from ._kernels.layout import matrix_shape
from ._kernels.results import Detail, Region
from .compare.measuring import Measured, load_pair, measure_pairs
from .compare.result import Verdict
from .compare.scales import Parts, matrix_of
from .comparison import Opened, Source, align_traces
from .dtypes import roundoff
from .errors import SelectionError
from .sites import Site
from .traces import unchanged
from .verdict.calibrated import figure
from .verdict.graph import Graph
from .verdict.judge import judge, watch
from .verdict.ladder import floor
from .verdict.noise import kind_of

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
    """How small an error would have been found, site by site in causal order."""

    sites: tuple[Visible, ...]
    calibrated: bool
    pair: bool  # whether two traces were given, or one and the ladder's own noise

    @property
    def blind(self) -> tuple[Site, ...]:
        """Sites at which nothing would be found."""
        return tuple(one.site for one in self.sites if one.everywhere is None)

    def to_json(self) -> dict[str, Any]:
        """The same in the schema `firstdrift-power-v1`."""
        rows = [{**one.site._asdict(), "everywhere": one.everywhere, "in_part": one.in_part} for one in self.sites]
        return {"schema": SCHEMA, "calibrated": self.calibrated, "pair": self.pair, "sites": rows}


def power(
    reference: Source, candidate: Source | None = None, *, only: Sequence[str] = (), phases: Sequence[str] = (),
    advance: Callable[[int], None] | None = None,
) -> Power:  # fmt: skip
    """The smallest error of every tensor that a comparison would find.

    Of two traces that agree, every tensor is made worse in turn, by a factor on all of it and by an error in one row
    or column, until the verdict changes. With one trace alone, the other side is the same with the noise that a clean
    implementation has. `only` and `phases` are globs on what is reported. Nothing is read more than once.
    """
    opened = align_traces(reference, reference if candidate is None else candidate)
    opened.reference.matching(only, phases)  # a pattern that matches nothing is an error
    with unchanged(opened.reference, opened.candidate):
        return _power(opened, candidate is not None, only, phases, advance or (lambda count: None))


def _power(
    opened: Opened, pair: bool, only: Sequence[str], phases: Sequence[str], tell: Callable[[int], None]
) -> Power:
    ours, theirs = opened.reference, opened.candidate
    graph = Graph(ours, opened.alignment.pairs)
    measured = []
    for item in measure_pairs(opened.alignment.pairs, ours, theirs):
        measured.append(item)
        tell(1)
    if not pair:
        measured = _with_usual_noise(measured, graph)
    judged = judge(measured, graph, lambda pair: load_pair(pair, ours, theirs))
    wrong = next((result for result in judged if result.verdict in (Verdict.DRIFT, Verdict.PRECISION)), None)
    if wrong is not None:
        raise SelectionError(
            f"{ours.path} and {theirs.path} differ beyond noise at {wrong.site}; give two traces that agree"
        )
    asked = {record.site for record in ours.matching(only, phases)}
    sees = watch(measured, graph, judged)
    found = [_visible(item, sees) for item in measured if item.pair.reference.site in asked and _counts(item)]
    calibrated = any(figure(item.pair.reference) is not None for item in measured)
    return Power(tuple(found), calibrated, pair)


def _counts(item: Measured) -> bool:
    """Whether a pair holds floats of its own: what goes into a module came out of another."""
    own = item.pair.site.phase != "fwd" or not item.pair.site.port.startswith("in.")
    measurement = item.measurement
    return own and measurement is not None and not item.is_integer and measurement.norm_reference > 0


def _visible(item: Measured, sees: Callable[[Measured], bool]) -> Visible:
    whole = _smallest(partial(_is_seen, sees, item, 1))
    rows, columns = matrix_of(item.pair.reference.shape or ())
    parts = [_smallest(partial(_is_seen, sees, item, n)) for n in {rows, columns}]
    known = [part for part in parts if part is not None]
    return Visible(item.pair.site, whole, max(known) if len(known) == len(parts) else None)


def _is_seen(sees: Callable[[Measured], bool], item: Measured, parts: int, size: float) -> bool:
    return sees(_worse(item, size, parts))


def _smallest(is_found: Callable[[float], bool]) -> float | None:
    """The smallest size up to 1 that is found, by halving the interval of its logarithm."""
    if not is_found(1.0):
        return None
    low, high = SMALLEST, 1.0
    while high > CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def _worse(item: Measured, size: float, parts: int) -> Measured:
    """The pair with an error more: of a relative `size`, in one of so many equal parts of the tensor."""
    measurement = item.measurement
    assert measurement is not None
    error = math.hypot(measurement.rel_l2 or 0.0, size / math.sqrt(parts))
    shape = item.pair.reference.shape or ()
    worse = _with_error(measurement, error, size if parts == 1 else 0.0, shape)
    return replace(item, measurement=worse, parts=_part_worse(item.parts, size, parts, shape), rounded_equal=False)


def _part_worse(before: Parts | None, size: float, parts: int, shape: tuple[int, ...]) -> Parts:
    """The same of the errors of parts: an error of one part is no error of the usual one."""
    known = before or Parts(0.0, 0.0, 0.0, 0.0, (0, 0, 0, 0), matrix_of(shape))
    usual = math.hypot(known.usual, size if parts == 1 else 0.0)
    return replace(known, usual=usual, row=math.hypot(known.row, size), column=math.hypot(known.column, size))


def _with_error(measurement: Measurement, error: float, worst: float, shape: tuple[int, ...]) -> Measurement:
    detail = measurement.detail or Detail(None, None, None, 0, matrix_shape(shape), None, None, None)
    before = 0.0 if detail.worst_row is None else detail.worst_row.error
    row = Region(math.hypot(before, worst), 0, (1, detail.matrix[1]))
    return replace(
        measurement, differing=max(1, measurement.differing), rel_l2=error,
        rms=error * measurement.norm_reference / math.sqrt(max(1, measurement.compared)),
        detail=replace(detail, worst_row=row),
    )  # fmt: skip


def _with_usual_noise(measured: Sequence[Measured], graph: Graph) -> list[Measured]:
    """Equal pairs as a clean implementation would have them: with the ladder's noise, carried through the graph, or
    with that of the reference's own runs where it is calibrated."""
    noisy: dict[Site, Measured] = {}
    for item in measured:
        site, measurement = item.pair.site, item.measurement
        noisy[site] = item
        if measurement is None or item.is_integer or site.phase in ("input", "weight"):
            continue
        error = _usual(item, [noisy[other] for other in graph.producers(site) if other in noisy])
        if error:
            shape = item.pair.reference.shape or ()
            worse = _with_error(measurement, error, error, shape)
            noisy[site] = replace(item, measurement=worse, parts=_part_worse(item.parts, error, 1, shape))
    return list(noisy.values())


def _usual(item: Measured, inputs: Sequence[Measured]) -> float:
    noise = figure(item.pair.reference)
    if noise is not None:
        return noise
    kind = kind_of(item.pair.reference.op) if item.pair.site.phase == "fwd" else "unknown"
    passed = max((one.measurement.rel_l2 or 0.0 for one in inputs if one.measurement is not None), default=0.0)
    own = 0.0 if item.pair.site.port.startswith("in.") else floor(kind, roundoff(item.pair.reference.dtype))
    return math.hypot(passed, own)  # residual streams dilute as much as single operations amplify
