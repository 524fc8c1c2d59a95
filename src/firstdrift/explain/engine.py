"""Why a value drifts: the smallest change of the program that gives what the candidate has; numbers out of range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from ..core.sites import Site
from ..judge.replay.replays import Replays
from ..program.calls import NotReplayableError
from ..program.reruns import Piece, Rerun
from .changes.states import computed_tables, exchanged_tables
from .naming import CHANGED, more_label
from .one_program.agreement import size_of
from .one_program.around import MOVES, Around, Change
from .one_program.trying import Answer, Asked, Trial, Tried, apart
from .one_program.values import call_told, line_of, telling_call
from .telling import length, told_of
from .two_programs.aligned import Aligned, Graft, aligned, edit_of
from .two_programs.chains import by_path, ends_earlier, goes_on
from .two_programs.from_below import Level, Sides, as_recorded, of_candidate, of_reference
from .two_programs.grafted import described, has_other_sizes

LEVEL_WORK = 12_000.0  # calls that are made again, to find what the candidate calls otherwise
SHORT = 2.0  # bits: a change that both programs show and that takes no more needs no search for a smaller one
FEW = 6.0  # bits: nor does a change of the reference's program for one of the candidate's
LARGE = 1 << 20  # elements: of larger tensors some samples are looked into
MOST_CALLS = 600  # a program of more calls is no one operation
WIDER = 1e-5  # relative: what numbers that are kept in float32 do to a run in float64
ROUNDED = 1e-3  # relative: what float64 may be apart from what ran in a shorter format
MOST_NAN = 0.5  # of what was found: any change that spoils everything would do


def answer(asked: Asked) -> Answer | None:
    """The cause of a drift; None where no change of the program gives it, and of complex numbers, which it does not
    compare."""
    if np.iscomplexobj(asked.found):
        return None
    if np.mean(np.isnan(np.asarray(asked.found, np.float64))) > MOST_NAN or _stays(asked):
        return None
    with suppress(NotReplayableError), asked.replays.running():
        off, piece = _off(asked), _piece(asked)
        asked = replace(asked, piece=piece, noise=max(asked.noise, min(off, WIDER)))
        rerun = asked.replays.rerun(asked.site, exact=off <= ROUNDED, piece=piece)
        path = by_path(asked, rerun) if asked.site.phase in ("agrad", "grad") and piece is None else None
        if path is not None:
            return path
        if rerun is None:
            return _read_elsewhere(asked)
        if len(rerun.calls) > MOST_CALLS:
            return None
        if piece is not None:
            if asked.brought(rerun.array(rerun.target)).shape != piece.taken(asked.found, rerun.axis).shape:
                return None
            asked = replace(asked, found=piece.taken(asked.found, rerun.axis))
        return _smallest(asked, _sides(asked, rerun))
    return None


def _stays(asked: Asked) -> bool:
    """Whether a step left a tensor as it was: any change that spoils an update gives that."""
    site = asked.site
    if site.phase == "weight_after":
        return not np.any(asked.found)
    if site.phase != "optim":
        return False
    before = asked.replays.counterparts.array(site._replace(step=site.step - 1)) if site.step else np.zeros(1)
    return before is not None and np.array_equal(np.broadcast_to(before, asked.found.shape), asked.found)


def _smallest(asked: Asked, sides: Sides) -> Answer | None:
    """The answer that takes least to say; nothing more is looked for where that is little."""
    found: list[Answer] = []
    for way, enough in ((partial(_by_both, asked), SHORT), (of_reference, FEW), (of_candidate, 0.0)):
        one = way(sides)
        found += [] if one is None else [one]
        if found and min(map(length, found)) <= enough:
            break
    return min(found, key=length) if found else _by_tables(asked, sides)


def _by_tables(asked: Asked, sides: Sides) -> Answer | None:
    """A table that one side at least computes, in the place of the other side's."""
    for level in sides.levels if sides.whole.candidate is not None else ():
        trial = Trial(level.reference, level.question, LEVEL_WORK, guesses=False)
        tables = (trial.tried(change) for change in computed_tables(level.lined))
        first = next((tried for tried in tables if tried is not None), None)
        if first is not None:
            return replace(told_of([first], level.lined), predicted=asked.found, both=True)
    return None


def _read_elsewhere(asked: Asked) -> Answer | None:
    """What the candidate hands on to a site to which the reference hands a recorded tensor on."""
    first = asked.replays.first(asked.site)
    if first == asked.site:
        return None
    read = asked.replays.own_first(asked.site)
    if read is not None and read != first:
        now, before = (".".join(part for part in (site.name, site.port) if part) for site in (read, first))
        said = f"{asked.site.name} reads another tensor, {now}, instead of {before}"
        return Answer(CHANGED, said, {"reads": now, "reference_reads": before}, asked.found, 0.0, 6.0, 0, both=True)
    candidate = asked.replays.own_rerun(asked.site)
    if candidate is None or candidate.target.node not in candidate.calls:
        return None
    number = telling_call(candidate, candidate.target)
    name = ".".join(part for part in (first.name, first.port) if part)
    said = f"{asked.site.name} reads {call_told(candidate, number)} ({line_of(candidate, number)}) instead of {name}"
    label = more_label(Around(candidate, number))
    return Answer(label, said, {"reference_reads": name}, asked.found, 0.0, 12.0, 0, both=True)


def _piece(asked: Asked) -> Piece | None:
    """Of a large tensor, as many samples as are looked into at once."""
    if asked.found.size <= LARGE:
        return None
    samples = asked.replays.samples(asked.site)
    wanted = -(-asked.found.size // LARGE)
    counts = [count for count in range(1, samples + 1) if samples % count == 0 and count >= min(wanted, samples)]
    if samples == 1 or not counts:
        return None
    return Piece(counts[0] // 2, counts[0])


def _off(asked: Asked) -> float:
    """How far float64 is from what was recorded, relative to it. Where rounding decides (scores beside a fill that
    swallows them), that is far, and the run is looked into in the precision that it had; else it is noise."""
    replays, site = asked.replays, asked.site
    own = replays.own_site(site)
    if own is not None and replays.own is not None:
        made, recorded = replays.run_own(site), replays.own.trace.array(own)
    else:
        made, recorded = replays.run(site, lambda _: None), replays.reference.array(site)
    if made is None or made.shape != recorded.shape:
        return 0.0
    wide = np.asarray(recorded, np.float64)
    whole = size_of(wide)
    return apart(np.asarray(made, np.float64), wide) / whole if whole else 0.0


def _sides(asked: Asked, rerun: Rerun) -> Sides:
    """Both sides' programs; the reference's alone where the candidate's own calls do not give what it recorded."""
    alone = Sides(Level(asked, rerun, None, None))
    try:
        candidate = asked.replays.own_rerun(asked.site, exact=rerun.exact)
    except NotReplayableError:
        return alone
    if candidate is None or len(candidate.calls) > MOST_CALLS:
        return alone
    brought = as_recorded(asked, candidate, Trial(rerun, asked.question(rerun), LEVEL_WORK))
    return alone if brought is None else Sides(Level(asked, rerun, candidate, brought))


def _by_both(asked: Asked, sides: Sides) -> Answer | None:
    """From both programs, as they are and opened: the first difference with a name, else the first."""
    vague: Answer | None = None
    for level in sides.levels if sides.whole.candidate is not None else ():
        found = _at_level(asked, level)
        if found is not None and found.label != CHANGED:
            return found
        vague = vague or found
    return vague


def _at_level(asked: Asked, level: Level) -> Answer | None:
    """Another table, calls in a row that one side alone makes, or the fewest calls made as the candidate makes them."""
    lined, trial = level.lined, Trial(level.reference, level.question, LEVEL_WORK, guesses=False)
    for changes in (exchanged_tables(lined), ends_earlier(lined)):
        found = [tried for change in changes if (tried := trial.tried(change)) is not None]
        if found:
            return replace(told_of(found, lined), predicted=asked.found, both=True)
    further = goes_on(asked, lined)
    if further is not None:
        return further
    for by_ends in (False, True):
        trial = Trial(level.reference, level.question, LEVEL_WORK, guesses=False)
        grafted = smallest_graft(aligned(lined, by_ends=by_ends), trial)
        if grafted is not None:
            return replace(told_of([grafted], lined), predicted=asked.found, both=True)
    return None


def beyond_range(replays: Replays, site: Site) -> str | None:
    """What of the candidate's calls gives infinity or zero where float64, on the same numbers, does not."""
    with suppress(NotReplayableError), replays.running():
        candidate, reference = replays.own_rerun(site, exact=False), replays.rerun(site, exact=False)
        if candidate is None or reference is None:
            return None
        if next(_lost(reference), None) is not None:
            return None  # so does the reference
        return next((_told(around, said) for around, said in _lost(candidate)), None)
    return None


def _lost(rerun: Rerun) -> Iterator[tuple[Around, str]]:
    """The calls that leave the range, with what they give."""
    for number in rerun.calls:
        around = Around(rerun, number)
        if around.kind != "f" or around.op in MOVES:
            continue
        found, wide = np.asarray(rerun.array(around.result), np.float64), rerun.alone(number)
        if wide is None or wide.shape != found.shape:
            continue
        infinite = int(np.count_nonzero(np.isinf(found) & np.isfinite(wide)))
        zero = int(np.count_nonzero((found == 0) & (wide != 0)))
        if infinite or zero:
            yield around, f"{infinite} infinities" if infinite else f"{zero} zeros"


def _told(around: Around, said: str) -> str:
    line = line_of(around.rerun, around.number)
    where = f" ({line})" if line else ""
    return f"{around.written}{where} leaves the range of its dtype: it gives {said} where float64 gives other numbers"


MOST_GRAFTS = 160  # calls made otherwise, beyond which two programs have too little in common


def smallest_graft(aligned: Aligned, trial: Trial) -> Tried | None:
    """The fewest calls made as the candidate makes them that give what was found, told as a change."""
    grafts = aligned.grafts
    if not grafts or len(grafts) > MOST_GRAFTS or not _fits(trial, grafts):
        return None
    needed = _needed_of(aligned, trial, grafts)
    change = described(aligned, needed)
    return None if change is None else trial.tried(change)


def _fits(trial: Trial, grafts: Sequence[Graft]) -> bool:
    return trial.tried(Change("graft", "", "", edit_of(grafts))) is not None


def _needed_of(aligned: Aligned, trial: Trial, grafts: list[Graft]) -> list[Graft]:
    """The grafts that are needed. Calls that have other sizes follow from what they read, and are kept or left out
    together; where all are such, those are left out that come before the first that is needed."""
    sized = [graft for graft in grafts if has_other_sizes(aligned, graft)]
    others = [graft for graft in grafts if graft not in sized]
    if others and _fits(trial, others):
        return _fewest(trial, others, [])
    if others:
        others = _fewest(trial, others, sized)
    while not others and len(sized) > 1 and _fits(trial, sized[1:]):
        sized = sized[1:]
    return sorted([*others, *sized], key=lambda one: aligned.place[one.reference])


def _fewest(trial: Trial, grafts: list[Graft], kept: list[Graft]) -> list[Graft]:
    """Those of which none can be left out; halves are left out before single ones, what comes last first."""
    size = max(len(grafts) // 2, 1)
    while len(grafts) > 1 - bool(kept):
        rest = _without(trial, grafts, size, kept)
        if size == 1 and len(rest) == len(grafts):
            break
        size, grafts = max(min(size, len(rest)) // 2, 1), rest
    return grafts


def _without(trial: Trial, grafts: list[Graft], size: int, kept: list[Graft]) -> list[Graft]:
    for end in range(len(grafts), 0, -size):
        rest = [*grafts[: max(end - size, 0)], *grafts[end:]]
        if (rest or kept) and _fits(trial, [*rest, *kept]):
            grafts = rest
    return grafts
