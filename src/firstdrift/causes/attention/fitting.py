"""The settings under which the formula reproduces what the reference computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from time import thread_time

import numpy as np

from ...strict_json import Json
from .biases import TOKENS as TOKENS_WITH_BIAS
from .biases import bias_of, small
from .formula import Settings
from .inverting import window_seen
from .norming import Norms
from .problem import SCREEN, Problem, at_rows, beginning, first_head, sampled
from .proposals import STATED, channels_of, kinds, local, plain, scales, turned
from .searching import measured, searched
from .sources import Sources
from .structure import Structure, likely, number

PATIENCE = 1.0  # seconds of work for fits, and for searches
SELDOM = 6  # questions without a look at the clock, where those before took no more than QUICK seconds
QUICK = 2e-3
FEW_TRIALS = 8  # of structures and masks, for which numbers are searched
FEWEST_ROWS = 6  # by which numbers are fitted
TOKENS = 12  # enough to tell the scores apart, few enough to try much


@dataclass(frozen=True, eq=False, slots=True)
class Reference:
    """What the reference's attention is: its structure, its settings, and the problem they solve."""

    structure: Structure
    settings: Settings
    problem: Problem


Over = Callable[[], bool]
Stage = Callable[[Settings, Problem, Sources, Mapping[str, Json]], Iterable[Settings]]


def patience() -> Over:
    """What says, from now on, when to give up."""
    start = last = thread_time()
    spared = 0

    def over() -> bool:
        nonlocal last, spared
        if spared > 0:  # the clock takes as long as a small trial
            spared -= 1
        else:
            now = thread_time()
            spared, last = SELDOM if now - last < QUICK else 0, now
        return last - start > PATIENCE

    return over


def fit_soon(given: Sources, other: Sources, attrs: Mapping[str, Json], limit: float, over: Over) -> Reference | None:
    """The same without a rotation and without numbers to fit, which does not take long."""
    return fit(given, other, attrs, limit, over, (plain, local))


def fit(
    given: Sources, other: Sources, attrs: Mapping[str, Json], limit: float, over: Over,
    stages: Sequence[Stage] = (plain, local, turned, kinds),
) -> Reference | None:  # fmt: skip
    """The stated or usual settings that reproduce the reference within a limit, or None."""
    trials = _trials(given, other, attrs, limit)
    for stage in stages:
        for trial in trials:
            proposals = stage(trial.base, trial.whole, given, attrs)
            for proposal in measured(proposals, trial.first, limit, over) if stage is kinds else proposals:
                if over():
                    return None
                held = _held(proposal, trial.few, limit)
                proven = None if held is None else _proven(held, trial.wide, trial.whole, limit)
                if proven is not None:
                    return Reference(trial.structure, _sharpened(proven, trial.wide), trial.whole)
    return None


def search(given: Sources, other: Sources, attrs: Mapping[str, Json], limit: float, over: Over) -> Reference | None:
    """Settings of other numbers that reproduce the reference within a limit, or None."""
    for trial in _trials(given, other, attrs, limit)[:FEW_TRIALS]:
        if over():
            return None
        for found in searched(trial.base, trial.few, limit, over):
            proven = _proven(found, trial.wide, trial.whole, limit)
            if proven is not None:
                return Reference(trial.structure, proven, trial.whole)
    return None


def search_biased(
    given: Sources, other: Sources, attrs: Mapping[str, Json], limit: float, over: Over
) -> Reference | None:
    """Usual settings that reproduce the reference with a bias of which there is no record, or None."""
    if max(part.shape[1] for part in given.parts.values()) > TOKENS_WITH_BIAS:
        return None
    for trial in _trials(given, other, attrs, limit)[:FEW_TRIALS]:
        part = small(trial.whole, trial.base)
        if part is None or part.queries < trial.whole.queries or part.keys < trial.whole.keys:
            continue
        for by_distance, scale in product((True, False), (channels_of(trial.base, trial.whole) ** -0.5, 1.0)):
            base = replace(trial.base, scale=scale)
            bias = None if over() else bias_of(base, part, limit, by_distance)
            if bias is None:
                continue
            whole = replace(trial.whole, operands=replace(trial.whole.operands, bias=bias, memory={}))
            biased = replace(base, biased=True)
            if sampled(whole, base.heads, SCREEN).error(biased) <= limit:
                return Reference(trial.structure, biased, whole)
    return None


def _trials(given: Sources, other: Sources, attrs: Mapping[str, Json], limit: float) -> list[_Trial]:
    shapes, causal = likely(given, other, attrs, limit)
    return [
        _Trial.of(base, structure, whole)
        for structure, whole in shapes
        for base in _bases(structure, whole, causal, attrs, limit, given.norm)
    ]


@dataclass(frozen=True, eq=False, slots=True)
class _Trial:
    """A structure with a mask, and the parts of the problem on which scores are tried."""

    base: Settings
    structure: Structure
    whole: Problem
    few: Problem
    wide: Problem

    @classmethod
    def of(cls, base: Settings, structure: Structure, whole: Problem) -> _Trial:
        few = first_head(_few(base, whole), structure.heads, structure.kv_heads)
        return cls(base, structure, whole, few, sampled(whole, structure.heads, SCREEN))

    @property
    def first(self) -> Problem:
        """The first queries, of which no window that was not seen hides a key: as many as values can be told apart."""
        open_to_all = self.base.diagonal == 0 and self.base.window is None and self.whole.keys == self.whole.queries
        known = max(channels_of(self.base, self.whole), FEWEST_ROWS)
        return at_rows(self.few, self.few.rows[:known]) if open_to_all else self.few


def _bases(
    structure: Structure, whole: Problem, causal: bool, attrs: Mapping[str, Json], limit: float, norm: Norms | None
) -> Iterator[Settings]:
    """What may be seen: as the masks say, and only what came before where that is so or cannot be told."""
    last = whole.keys - whole.queries
    sunk = whole.operands.sinks is not None and whole.reads != "scores"
    told = whole.reads == "out" and whole.operands.mask is None and last == 0 and not sunk
    seen = dict.fromkeys([*_windows(structure, whole, attrs, limit), None]) if causal or sunk else [None]
    for mask in _masks(whole):
        for diagonal in [0] if causal else [None] if told else [max(last, 0), None] if sunk else [None, max(last, 0)]:
            widths = seen if diagonal is not None else [None]
            for itself in (False, True) if mask in ("keep", "drop") and last == 0 else (False,):
                base = replace(structure.settings(), diagonal=diagonal, mask=mask, itself=itself, norm=norm, sunk=sunk)
                yield from (replace(base, window=width) for width in widths)


def _windows(structure: Structure, whole: Problem, attrs: Mapping[str, Json], limit: float) -> Iterator[int]:
    """The widths of a sliding window that are seen or stated."""
    stated, width = number(attrs, STATED["window"]), window_seen(structure, whole, limit)
    if width is not None:
        yield width
    if stated is not None and 0 < stated < whole.keys:
        yield int(stated)


def _masks(whole: Problem) -> Iterable[str]:
    mask = whole.operands.mask
    if mask is None or mask.size == 0 or np.ptp(mask) == 0:  # which hides nothing, or everything
        return ("",)
    return ("keep", "drop", "") if np.isin(mask, (0, 1)).all() else ("add", "")


def _held(proposal: Settings, few: Problem, limit: float) -> Settings | None:
    """A proposal that explains the first tokens, with a window if one is so narrow that it shows there."""
    rows = few.per_row(proposal)
    if float(np.sqrt((rows**2).sum())) <= limit:
        return proposal
    first = int(np.argmax(rows > limit))
    if proposal.diagonal != 0 or proposal.window is not None or first < (2 if few.reads == "out" else 1):
        return None
    windowed = replace(proposal, window=first)
    return windowed if few.error(windowed) <= limit else None


def _few(base: Settings, whole: Problem) -> Problem:
    if base.diagonal is None or whole.keys != whole.queries:
        return sampled(whole, base.heads, SCREEN // 8)
    skip, chosen = 0, np.arange(min(2, len(whole.operands.q)))
    mask = whole.operands.mask
    if base.mask in ("keep", "drop") and mask is not None and mask.shape[2] == 1 and len(mask) == len(whole.operands.q):
        hidden = (mask[:, 0, 0] != 0) != (base.mask == "keep")
        starts = np.argmin(hidden, axis=-1)  # where padding on the left ends
        chosen = np.argsort(starts, kind="stable")[:2]
        skip = int(starts[chosen].max())
    few = beginning(whole, min(whole.keys, skip + TOKENS), chosen)
    return at_rows(few, few.rows[skip:])  # what a query that sees nothing returns may depend on all keys


def _proven(found: Settings, wide: Problem, whole: Problem, limit: float) -> Settings | None:
    """Settings that hold on tokens far apart too, with the window that this may take."""
    if wide.error(found) <= limit:
        return found
    if found.diagonal is None or found.window is not None:
        return None
    good, bad = TOKENS - 1, whole.queries - 1
    if whole.queries <= TOKENS or at_rows(wide, np.array([bad])).error(found) <= limit:
        return None
    while bad - good > 1:  # rows fail from the first one on for which a window hides a key
        middle = (good + bad) // 2
        if at_rows(wide, np.array([middle])).error(found) <= limit:
            good = middle
        else:
            bad = middle
    windowed = replace(found, window=bad)
    return windowed if wide.error(windowed) <= limit else None


def _sharpened(found: Settings, wide: Problem) -> Settings:
    """Of settings that explain the reference, those of another usual scale if they do much better."""
    channels = int(wide.operands.q.shape[-1]) // found.heads
    tried = [found] + [replace(found, scale=scale) for scale in scales(found.heads, channels).values()]
    best = min(tried, key=wide.error)
    return best if wide.error(best) < 0.5 * wide.error(found) else found
