"""The result of a comparison, as data. Reports and JSON are functions of it; nothing here measures or judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

from ...core.sites import PARAMETER_PHASES, Site
from ...core.strict_json import plain
from ...kernels import Measurement
from ...pair.pairs import Pair, Unmatched

SCHEMA = "firstdrift-diff-v1"


class Verdict(StrEnum):
    """The judgement of a pair or a run; `bool(verdict)` raises."""

    SAME = "same"
    NOISE = "noise"
    FLIP = "flip"
    PRECISION = "precision"
    INHERITED = "inherited"
    DRIFT = "drift"
    MISSING = "missing"
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the verdict {self.value!r} is not a truth value; compare it, or use result.exit_code")


CLEAN = frozenset({Verdict.SAME, Verdict.NOISE, Verdict.FLIP})
DRIFTS = frozenset({Verdict.DRIFT, Verdict.PRECISION})
DIRTY = DRIFTS | {Verdict.INHERITED}


class Why(StrEnum):
    """What decided a verdict. `report/reasons.py` says each in English, with the facts that come with it."""

    # same
    BIT_EQUAL = "bit-equal"
    EMPTY = "empty"
    ABSENT_ON_BOTH = "absent-on-both"
    # noise
    ROUNDED_EQUAL = "rounded-equal"
    ONE_ROUNDING = "one-rounding"
    LEFT_BY_STEP = "left-by-step"
    CLEAR = "clear"
    WITHIN_DRAWS = "within-draws"
    WITHIN_LIMIT = "within-limit"
    WITHIN_TOLERANCE = "within-tolerance"
    NEAR_TRUTH = "near-truth"
    NO_JUMP = "no-jump"
    AMPLIFIED = "amplified"
    SAME_IN_FLOAT64 = "same-in-float64"
    # exceptions, each with its proof
    GAUGE = "gauge"
    SAME_FUNCTION = "same-function"
    FILL = "fill"
    DECLARED_PRECISION = "declared-precision"
    NEAR_TIE = "near-tie"
    DECIDED_BEFORE = "decided-before"
    # drift
    OTHER_INPUT = "other-input"
    OTHER_WEIGHT = "other-weight"
    UPDATES_BETWEEN = "updates-between"
    NON_FINITE = "non-finite"
    OTHER_INTEGERS = "other-integers"
    INTRODUCED = "introduced"
    BEYOND_LIMIT = "beyond-limit"
    BEYOND_TOLERANCE = "beyond-tolerance"
    FAR_FROM_TRUTH = "far-from-truth"
    JUMP = "jump"
    NO_GRADIENT = "no-gradient"
    EXTRA_GRADIENT = "extra-gradient"
    SETTING = "setting"
    UNSTABLE = "unstable"
    SHORTER_GRID = "shorter-grid"
    SHORTER_CALLS = "shorter-calls"
    # inherited
    FOLLOWS_INPUTS = "follows-inputs"
    FOLLOWS_FORWARD = "follows-forward"
    READ_INSIDE = "read-inside"
    # inconclusive
    DOUBT = "doubt"
    NEXT_TO_NOISE = "next-to-noise"
    MORE_DIGITS = "more-digits"
    CONTROL_DIFFERS = "control-differs"
    OTHER_DRAWS = "other-draws"
    HIDDEN_UPDATE = "hidden-update"
    INVISIBLE = "invisible"
    PART_ALONE = "part-alone"
    UNTOLD = "untold"
    UNTESTED = "untested"
    MAYBE_FLIPPED = "maybe-flipped"
    SOURCELESS = "sourceless"
    UNKNOWN_SETTING = "unknown-setting"
    UNEXERCISED = "unexercised"
    # not comparable
    PROBLEM = "problem"
    NAN_ON_BOTH = "nan-on-both"


class Effect(StrEnum):
    """What comes of a setting that the two sides state differently."""

    CHANGES = "changes"  # what is computed
    CONTRADICTED = "contradicted"  # by the candidate's own numbers, which follow the reference's value
    UNREAD = "unread"
    MEANT = "meant"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SettingResult:
    """A setting that the two sides state differently, where, and what comes of it at which sites."""

    where: str  # a module, the optimizer, or the header
    key: str
    reference: Any
    candidate: Any
    op: str | None
    effect: Effect
    sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one pass of the judge decided of a pair, by which facts; an exception has its `proof` among them: what was
    replayed or transformed, what was left, on how many elements."""

    by: str
    verdict: Verdict
    why: Why
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cause:
    """The named transformation that turns the reference's tensor into the candidate's."""

    label: str
    sentence: str
    confidence: float = 0.0
    confirm: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    runner_up: str | None = None  # the label of the next best explanation
    margin: float | None = None  # how many times as much the runner-up leaves unexplained, noise included


@dataclass(frozen=True, slots=True)
class PairResult:
    """One pair, measured and judged.

    `error` is the relative L2 error and `limit` how large it could be by noise alone. Where the reference could be
    replayed on the candidate's own inputs, `introduced` is the error against what it makes of them, and `inherited`
    how far that is from the reference's tensor; elsewhere `inherited` is the largest error among what the site was
    computed from. `chain` is what every pass decided, the last word last; `reason` says that in words.
    """

    pair: Pair
    verdict: Verdict
    reason: str = ""
    measurement: Measurement | None = None
    error: float | None = None
    inherited: float | None = None
    limit: float | None = None
    introduced_by: str | None = None
    introduced: float | None = None
    chain: tuple[Finding, ...] = ()

    @property
    def why(self) -> Why | None:
        """What decided."""
        return self.chain[-1].why if self.chain else None

    @property
    def facts(self) -> Mapping[str, Any]:
        """By which numbers and names."""
        return self.chain[-1].facts if self.chain else {}

    @property
    def site(self) -> Site:
        return self.pair.site


@dataclass(frozen=True, slots=True)
class FirstDrift:
    """The earliest site that noise does not explain and whose own inputs were clean."""

    step: int
    phase: str
    name: str
    port: str
    call: int
    sample: int | None
    introduced_by: str
    cause: Cause | None
    sentence: str
    repeats: tuple[str, ...] = ()  # modules of other layers that drift at the same place

    @property
    def site(self) -> Site:
        return Site(self.step, self.phase, self.name, self.port, self.call, self.sample)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was compared, on both sides."""

    reference_sites: int
    candidate_sites: int
    pairs: int
    compared: int  # pairs with at least one element measured
    elements: int
    phases: dict[str, int]  # compared pairs by phase


@dataclass(frozen=True, slots=True)
class Proves:
    """What a green verdict proves: the weakest site, and the smallest error of all of it, relative to its size, that
    would have been found there; without a site, that every bit is equal."""

    site: Site | None
    error: float


@dataclass(frozen=True, slots=True)
class Match:
    """A name of the reference and what of the candidate stands for it: how that was told, and how sure it is, as a
    probability; None where names or a map say it."""

    name: str
    candidate: tuple[str, ...]
    how: str
    sure: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """What a comparison found; docs/json.md explains the fields. `exit_code` is for CI; `bool(result)` raises."""

    verdict: Verdict
    sentence: str
    pairs: tuple[PairResult, ...]
    first_drift: FirstDrift | None
    cause: Cause | None
    flips: tuple[PairResult, ...]
    reference_only: tuple[Unmatched, ...]
    candidate_only: tuple[Unmatched, ...]
    ignored: tuple[Unmatched, ...]
    graph: str
    coverage: Coverage
    notes: tuple[str, ...]
    problems: tuple[str, ...]  # whatever keeps a clean verdict from being green
    exit_code: int
    settings: tuple[SettingResult, ...] = ()  # that the two sides state differently
    proves: Proves | None = None  # of a green verdict
    claim: str = ""  # the sentence without what it rests on, for a line of a table
    absorbed: tuple[Unmatched, ...] = ()  # computed inside something else; explained, and never counted as covered

    def __bool__(self) -> NoReturn:
        raise TypeError("a result is not a truth value; look at result.verdict or result.exit_code")

    @property
    def counts(self) -> dict[str, int]:
        """Pairs by verdict; unmatched reference sites count as missing."""
        counted = Counter(str(pair.verdict) for pair in self.pairs)
        counted.update({str(Verdict.MISSING): len(self.reference_only)} if self.reference_only else {})
        return {str(verdict): counted[str(verdict)] for verdict in Verdict if counted[str(verdict)]}

    @property
    def matches(self) -> tuple[Match, ...]:
        """Names of the reference with their counterparts, in causal order."""
        found: dict[tuple[str, tuple[str, ...]], Match] = {}
        for result in self.pairs:
            pair = result.pair
            if pair.candidate and pair.site.phase not in ("input", "loss", "lossgrad"):
                names = tuple(dict.fromkeys(_owner(record.site) for record in pair.candidate))
                one = Match(_owner(pair.site), names, pair.matched, _sureness(pair))
                other = found.setdefault((one.name, names), one)
                if (one.sure or 1.0) < (other.sure or 1.0):
                    found[one.name, names] = one
        return tuple(found.values())

    def to_json(self) -> dict[str, Any]:
        """JSON of schema `firstdrift-diff-v1`."""
        drift, coverage = self.first_drift, asdict(self.coverage)
        first = drift and {
            **drift.site._asdict(), "introduced_by": drift.introduced_by, "cause": _said(drift.cause),
            "sentence": drift.sentence, "repeats": list(drift.repeats),
        }  # fmt: skip
        left = {
            "reference": self.reference_only, "candidate": self.candidate_only, "ignored": self.ignored,
            "absorbed": self.absorbed,
        }  # fmt: skip
        said = {
            "schema": SCHEMA, "verdict": str(self.verdict), "sentence": self.sentence, "exit_code": self.exit_code,
            "cause": _said(self.cause), "first_drift": first,
            "proves": self.proves and {"site": _place(self.proves.site), "error": self.proves.error},
            "settings": [_setting(setting) for setting in self.settings],
            "flips": [_place(pair.site) for pair in self.flips], "counts": self.counts, "coverage": coverage,
            "unmatched": {
                side: [{**item.site._asdict(), "reason": item.reason} for item in items] for side, items in left.items()
            },
            "matches": [{**asdict(match), "candidate": list(match.candidate)} for match in self.matches],
            "graph": self.graph, "notes": list(self.notes), "problems": list(self.problems),
            "pairs": [_pair(pair) for pair in self.pairs],
        }  # fmt: skip
        return plain(said)  # type: ignore[no-any-return]


def _said(item: Cause | Measurement | None) -> dict[str, Any] | None:
    return None if item is None else asdict(item)


def _place(site: Site | None) -> dict[str, Any] | None:
    return None if site is None else site._asdict()


def _owner(site: Site) -> str:
    """The module; of a parameter that none has, as those of a graph, its own name."""
    return site.name or (site.port if site.phase in PARAMETER_PHASES else "")


def _sureness(pair: Pair) -> float | None:
    """The bits by which other counterparts are worse, as a probability."""
    return None if pair.sure is None else round(1.0 - 2.0 ** -min(pair.sure, 50.0), 6)


def _setting(result: SettingResult) -> dict[str, Any]:
    return {**asdict(result), "effect": str(result.effect), "sites": [site._asdict() for site in result.sites]}


def _pair(result: PairResult) -> dict[str, Any]:
    pair = result.pair
    steps = [f"reference {step}" for step in pair.reference_steps]
    steps += [f"candidate {step}" for step in pair.candidate_steps]
    return {
        **pair.site._asdict(), "candidate": [record.site._asdict() for record in pair.candidate],
        "matched": pair.matched, "sure": _sureness(pair), "reconciled": [*steps, *pair.notes],
        "verdict": str(result.verdict), "reason": result.reason,
        "decided": [
            {"by": finding.by, "verdict": str(finding.verdict), "why": str(finding.why), "facts": dict(finding.facts)}
            for finding in result.chain
        ],
        "error": result.error, "inherited": result.inherited, "limit": result.limit, "introduced": result.introduced,
        "introduced_by": result.introduced_by, "measurement": _said(result.measurement),
    }  # fmt: skip
