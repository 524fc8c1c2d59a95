"""What one case came to, as data that goes through JSON and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from ..core.strict_json import Json, plain
from ..core.traces import Array, Trace
from ..judge.measure.result import FirstDrift, PairResult, Result
from ..pair.pairs import Pair
from .cases import Case

FAILED = "failed"  # beside the verdicts: a side or the comparison did not come to an end
INTERNAL_ERROR = 3
COULD_NOT_TELL = 2
DRIFTS = frozenset({"drift", "precision"})
# Of the samples and calls that become one line, the gravest verdict counts.
GRAVITY = [
    "drift", "precision", "not comparable", "missing", "inconclusive", "inherited", "flip", "noise", "same",
]  # fmt: skip
MOST_SAMPLES, MOST_VALUES = 4096, 1 << 16  # that are looked at to tell inputs apart
MOST_STEPS, LONGEST_LINE = 100_000, 1 << 16  # of a log whose losses are looked for
_LOSS = re.compile(rb"\bmean_loss=(\S+)")

Place = tuple[str, str, str]  # phase, name, port
Load = Callable[[Pair], tuple[Array, Array]]


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A site of one case at one step. Its samples and calls are one line, in which the worst of them counts.

    `error` is the relative L2 error, `max_abs` the largest difference and `max_rel` the largest one relative to the
    reference's element, over what is finite on both sides; `nonfinite` counts NaN and Inf by side, `mismatched` the
    elements where one side alone has them.
    """

    step: int
    phase: str
    name: str
    port: str
    verdict: str
    pairs: int
    error: float | None
    max_abs: float | None
    nonfinite: tuple[int, int] = (0, 0)
    mismatched: int = 0
    max_rel: float | None = None

    @property
    def place(self) -> Place:
        """The site without its step."""
        return self.phase, self.name, self.port


@dataclass(frozen=True, slots=True)
class Finding:
    """The first drift of a case."""

    step: int
    phase: str
    name: str
    port: str
    call: int
    sample: int | None
    introduced_by: str
    label: str | None  # of its cause
    why: str
    parameters: dict[str, Json] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """The site without step, call and sample, which differ from case to case."""
        return self.phase, self.name, self.port


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one step on both sides."""

    step: int
    reference: float
    candidate: float


@dataclass(frozen=True, slots=True)
class Growth:
    """How far the sides are apart after each step, and from a float64 run where there is one.

    `of` says what was measured: `weights` as one vector, in their own unit, or a phase, relative to the reference.
    """

    of: str
    steps: tuple[int, ...]
    apart: tuple[float, ...]
    moved: tuple[float, ...] | None = None  # how far the reference has come
    reference: tuple[float, ...] | None = None  # its distance from float64
    candidate: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One case: what was found, or why nothing was."""

    case: Case
    verdict: str
    exit_code: int
    sentence: str
    first_drift: Finding | None = None
    counts: dict[str, int] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    sites: tuple[SiteRow, ...] = ()
    missing: tuple[Place, ...] = ()  # in the reference alone
    extra: tuple[Place, ...] = ()  # in the candidate alone
    problems: tuple[str, ...] = ()
    fed: tuple[str, ...] = ()  # what the reference was fed, a digest a sample
    growth: Growth | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    stamp: Json = None  # of finished traces: when they were written
    traces: str | None = None  # where they are, while they are kept

    @property
    def failed(self) -> bool:
        """Whether there was nothing to compare."""
        return self.verdict == FAILED

    def to_json(self) -> dict[str, Any]:
        """A line of the results file."""
        return plain(asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Row:
        """The inverse of `to_json`; whatever is no such line is a KeyError, TypeError or ValueError."""
        first, growth = line["first_drift"], line["growth"]
        parts: dict[str, Any] = {
            "first_drift": None if first is None else Finding(**first),
            "losses": [Loss(one["step"], _float(one["reference"]), _float(one["candidate"])) for one in line["losses"]],
            "sites": [_site(one) for one in line["sites"]],
            "growth": None if growth is None else _growth(growth),
            "missing": [(phase, name, port) for phase, name, port in line["missing"]],
            "extra": [(phase, name, port) for phase, name, port in line["extra"]],
        }
        read: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in {**line, **parts}.items()
        }
        kept = cls(**read | {"stamp": line.get("stamp")})
        if not isinstance(kept.case, dict) or type(kept.exit_code) is not int or not isinstance(kept.verdict, str):
            raise TypeError("case, exit_code or verdict")
        return kept


def failed_row(case: Case, sentence: str, exit_code: int = COULD_NOT_TELL, **more: Any) -> Row:
    """A case that did not come to an end."""
    return Row(case, FAILED, exit_code, sentence, **more)


def row_of(case: Case, result: Result, load: Load) -> Row:
    """A case from what `diff` found in it; `load` gives the tensors of a pair."""
    return Row(
        case, str(result.verdict), result.exit_code, result.sentence, _finding(result.first_drift), result.counts,
        tuple(_losses(result.pairs, load)), tuple(_sites(result.pairs)), _places(result.reference_only),
        _places(result.candidate_only), result.problems,
    )  # fmt: skip


def fed_to(trace: Trace) -> tuple[str, ...]:
    """A digest of every sample among the inputs; samples that are one value throughout look alike by chance."""
    found: dict[int, list[bytes]] = {}
    for record in trace:
        if record.site.phase == "input" and record.site.step == 0 and record.at is not None and record.shape:
            values = trace.array(record)
            of_one = record.site.sample is not None
            for number, sample in enumerate([values] if of_one else values[:MOST_SAMPLES], record.site.sample or 0):
                some = np.ascontiguousarray(sample.reshape(-1)[:MOST_VALUES])
                if some.size > 1 and (some != some[0]).any():
                    found.setdefault(number, []).append(some.tobytes())
    return tuple(blake2b(b"".join(parts), digest_size=8).hexdigest() for parts in found.values())


def printed_losses(reference: Path, candidate: Path) -> tuple[Loss, ...]:
    """The losses that both sides printed as `mean_loss=VALUE`, step after step."""
    both = zip(range(MOST_STEPS), _printed(reference), _printed(candidate), strict=False)
    return tuple(Loss(*step) for step in both)


def _printed(log: Path) -> Iterator[float]:
    """The losses of one log, of which no more than a line is held: a run may have flooded it."""
    if log.is_file():
        with log.open("rb") as file:
            for line in iter(partial(file.readline, LONGEST_LINE), b""):
                yield from (_float(text.decode("ascii", "replace")) for text in _LOSS.findall(line))


def _finding(first: FirstDrift | None) -> Finding | None:
    if first is None:
        return None
    cause = first.cause
    if cause is None or cause.label in ("", "unknown"):
        return Finding(*first.site, first.introduced_by, None, "")
    return Finding(*first.site, first.introduced_by, cause.label, cause.sentence, plain(cause.parameters))


def _losses(pairs: Iterable[PairResult], load: Load) -> Iterable[Loss]:
    """The losses that were recorded; only whole ones, for those of samples are sites like others."""
    for pair in pairs:
        if pair.site.phase == "loss" and pair.site.sample is None and pair.measurement and pair.measurement.count == 1:
            reference, candidate = load(pair.pair)
            yield Loss(
                pair.site.step, float(reference.reshape(()).astype(float)), float(candidate.reshape(()).astype(float))
            )


def _sites(pairs: Sequence[PairResult]) -> Iterable[SiteRow]:
    grouped: dict[tuple[int, str, str, str], list[PairResult]] = {}
    for pair in pairs:
        grouped.setdefault((pair.site.step, *pair.site[1:4]), []).append(pair)
    for place, group in grouped.items():
        measured = [pair.measurement for pair in group if pair.measurement is not None]
        yield SiteRow(
            *place, min((str(pair.verdict) for pair in group), key=GRAVITY.index), len(group),
            max((m.rel_l2 for m in measured if m.rel_l2 is not None), default=None),
            max((float(m.max_abs) for m in measured if m.compared), default=None),
            (sum(m.nan_reference + m.inf_reference for m in measured),
             sum(m.nan_candidate + m.inf_candidate for m in measured)),
            sum(m.nonfinite_mismatches for m in measured),
            max((m.max_rel for m in measured if m.max_rel is not None), default=None),
        )  # fmt: skip


def _places(items: Iterable[Any]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys((item.site.phase, item.site.name, item.site.port) for item in items))


def _site(line: dict[str, Any]) -> SiteRow:
    line = {"max_rel": None, **line}  # which earlier results lack
    numbers = {key: None if line[key] is None else _float(line[key]) for key in ("error", "max_abs", "max_rel")}
    reference, candidate = line["nonfinite"]
    if line["verdict"] not in GRAVITY:
        raise ValueError(line["verdict"])
    return SiteRow(**(line | numbers | {"nonfinite": (reference, candidate)}))


def _growth(line: dict[str, Any]) -> Growth:
    curves = {
        key: None if line[key] is None else tuple(map(_float, line[key]))
        for key in ("apart", "moved", "reference", "candidate")
    }
    return Growth(**(line | curves | {"steps": tuple(line["steps"])}))


def _float(value: Json) -> float:
    """A number, or one that is not finite as strict JSON or a log has it; NaN where it is none."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return nan
    return float(value)
