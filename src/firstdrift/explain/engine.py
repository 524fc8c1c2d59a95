"""Why a value drifts: asks the reference's program which smallest change of it gives what the candidate has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..program.reruns import Piece, Rerun
from ..program.running.not_replayable import NotReplayableError
from .asked import Answer, Asked
from .changes.tables import exchanged_tables
from .naming import CHANGED, additional_label, more_label
from .one_program import narrowing
from .one_program.around import Around, Change, base
from .one_program.search import changes_that_fit
from .one_program.trying import Question, Trial, Tried, apart, size
from .one_program.values import call_told, line_of
from .telling import length, told_of
from .two_programs.aligned import Aligned, aligned
from .two_programs.by_structure import by_path, goes_on, stays
from .two_programs.chains import ends_earlier
from .two_programs.differing import differences
from .two_programs.from_below import WORK, Level, Sides, as_recorded, of_candidate, of_reference
from .two_programs.grafted import CALLS
from .two_programs.grafting import smallest_graft

NARROW_WORK = 12_000.0  # calls that are made again, to find the value that differs
SHORT = 2.0  # bits: a change that both programs show and that takes no more needs no search for a smaller one
FEW = 6.0  # bits: nor does a change of the reference's program for one of the candidate's
LARGE = 1 << 20  # elements: of larger tensors some samples are looked into
MOST_OTHER = 3  # calls on either side that have no like on the other, and still are one change
MOST_CALLS = 600  # a program of more calls is no one operation
WIDER = 1e-5  # relative: what numbers that are kept in float32 do to a run in float64
ROUNDED = 1e-3  # relative: what float64 may be apart from what ran in a shorter format
MOST_NAN = 0.5  # of what was found: any change that spoils everything would do


def answer(asked: Asked) -> Answer | None:
    """The cause of a drift; None where no change of the program gives it, and of complex numbers, which it does not
    compare."""
    if np.iscomplexobj(asked.found):
        return None
    if np.mean(np.isnan(np.asarray(asked.found, np.float64))) > MOST_NAN or stays(asked):
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


def _smallest(asked: Asked, sides: Sides) -> Answer | None:
    """The answer that takes least to say; nothing more is looked for where that is little."""
    found: list[Answer] = []
    for way, enough in ((partial(_by_both, asked), SHORT), (of_reference, FEW), (of_candidate, 0.0)):
        one = way(sides)
        found += [] if one is None else [one]
        if found and min(map(length, found)) <= enough:
            break
    return min(found, key=length, default=None)


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
    number = narrowing.telling_call(candidate, candidate.target)
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
    whole = size(wide)
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
    brought = as_recorded(asked, candidate, Trial(rerun, asked.question(rerun), NARROW_WORK))
    return alone if brought is None else Sides(Level(asked, rerun, candidate, brought))


def _by_both(asked: Asked, sides: Sides) -> Answer | None:
    """From both programs: what makes the first value that differs, and what the candidate calls in its place."""
    vague: Answer | None = None
    for level in sides.levels if sides.whole.candidate is not None else ():
        found = _at_level(asked, level)
        if found is not None and found.label != CHANGED:
            return found
        vague = vague or found
    return vague


def _at_level(asked: Asked, level: Level) -> Answer | None:
    """The fewest calls made as the candidate makes them; else, or where these have no name, a change of what makes the
    first value that differs."""
    reference, question, lined = level.reference, level.question, level.lined
    trial = Trial(reference, question, NARROW_WORK)
    tables = [one for change in exchanged_tables(lined) if (one := trial.tried(change)) is not None]
    if tables:
        return replace(told_of(tables, lined), predicted=asked.found, both=True)
    chained = _chained(asked, lined, trial)
    if chained is not None:
        return chained
    both = aligned(lined)
    grafted = smallest_graft(both, Trial(reference, question, NARROW_WORK))
    if grafted is not None and grafted.change.label != CHANGED:
        return replace(told_of([grafted], lined), predicted=asked.found, both=True)
    short = grafted is not None and not grafted.change.kind.startswith(CALLS)
    found, narrows = _narrowly(lined, question, trial, searched=short)
    if not found and not short:
        found = changes_that_fit(Trial(reference, question, NARROW_WORK), narrowing.changed_calls(lined))
    if grafted is not None:
        found = [grafted, *(tried for tried in found if _says_more(tried.change, both))]
    return _said(asked, lined, found, narrows)


def _chained(asked: Asked, lined: narrowing.Lined, trial: Trial) -> Answer | None:
    """Several calls in a row that one side makes behind what both have."""
    ended = [one for change in ends_earlier(lined) if (one := trial.tried(change)) is not None]
    return replace(told_of(ended), predicted=asked.found, both=True) if ended else goes_on(asked, lined)


def _said(
    asked: Asked, lined: narrowing.Lined, found: Sequence[Tried], narrows: Sequence[narrowing.Narrow]
) -> Answer | None:
    """The change that was found; where none was, what the candidate calls in the place of what the reference calls."""
    if found:
        return replace(told_of(found, lined, narrows), predicted=asked.found, both=True)
    return _called_instead(asked, lined, narrows[0]) if narrows else None


def _narrowly(
    lined: narrowing.Lined, question: Question, trial: Trial, *, searched: bool
) -> tuple[list[Tried], list[narrowing.Narrow]]:
    """Changes of the first calls, then of those that make the first values that differ and hold the difference."""
    found = changes_that_fit(trial, narrowing.frontier(lined), thorough=False)
    narrows = narrowing.first_to_differ(lined, trial)
    found += _of_narrows(lined, narrows)
    if not found and not searched:
        again = Trial(lined.reference, question, NARROW_WORK)
        earliest = narrowing.narrowed(lined, again)
        if not earliest and not narrows:
            earliest = narrowing.at_the_end(lined, again)
        found = _of_narrows(lined, earliest)
        narrows = earliest if found or not narrows else narrows
    return found, narrows


def _says_more(change: Change, both: Aligned) -> bool:
    """Whether a change has a name and is one of calls that the candidate does not make alike."""
    return change.label != CHANGED and all(number in both.apart for number in change.edit)


def _of_narrows(lined: narrowing.Lined, narrows: Sequence[narrowing.Narrow]) -> list[Tried]:
    """The changes that make each of some values, of one kind for all."""
    kinds: dict[str, list[Tried]] | None = None
    for narrow in narrows:
        own = {tried.change.kind + tried.change.said: [tried] for tried in _alone(lined, narrow, WORK / len(narrows))}
        kinds = own if kinds is None else {kind: [*kinds[kind], *own[kind]] for kind in kinds if kind in own}
    return [replace(some[0], change=_joined([one.change for one in some])) for some in (kinds or {}).values()]


def _alone(lined: narrowing.Lined, narrow: narrowing.Narrow, work: float) -> list[Tried]:
    """The changes that make one value; first the differences of the two calls that make it."""
    reference = lined.reference.toward(narrow.ref)
    question = narrowing.questions(lined, narrow)
    trial = Trial(reference, question, work)
    around = narrowing.region(lined, reference, narrow.ref)
    found = [one for change in differences(lined, reference, narrow) if (one := trial.tried(change)) is not None]
    found += changes_that_fit(trial, around)
    opened = None if found else reference.opened()
    if opened is not None:
        found = changes_that_fit(Trial(opened, question, work), narrowing.region(lined, opened, opened.target))
    return found


def _joined(changes: Sequence[Change]) -> Change:
    edit: dict[int, Any] = {}
    for change in changes:
        edit |= change.edit
    return replace(changes[0], edit=edit)


def _called_instead(asked: Asked, lined: narrowing.Lined, narrow: narrowing.Narrow) -> Answer | None:
    """What the candidate calls in the place of what the reference calls, where no change of one call says it."""
    reference, candidate = (
        narrowing.telling_call(lined.reference, narrow.ref),
        narrowing.telling_call(lined.candidate, narrow.candidate),
    )
    mine, other = line_of(lined.reference, reference), line_of(lined.candidate, candidate)
    if mine is None or other is None:
        return None
    more, less = narrowing.more_and_less(lined, narrow)
    if len(more) > MOST_OTHER or len(less) > MOST_OTHER:
        return None  # that is where, and not yet why
    label = CHANGED
    if len(more) == 1 and not less:
        one = more[0]
        label = (
            "double-bias" if _adds_again(lined, one) else additional_label(one.op, Around(lined.reference, reference))
        )
        where = line_of(lined.candidate, one.number)
        said = f"{mine}: the candidate has one call more, {call_told(lined.candidate, one.number)} ({where})"
    else:
        now, before = call_told(lined.candidate, candidate), call_told(lined.reference, reference)
        if now == before:
            return None  # what they read differs in a way that nobody could tell
        said = f"{mine}: the candidate computes {now} ({other}) instead of {before}"
    calls = {"reference_call": base(lined.reference.calls[reference]), "call": base(lined.candidate.calls[candidate])}
    return Answer(label, said, calls, asked.found, 0.0, 24.0, 0, both=True)


def _adds_again(lined: narrowing.Lined, around: Around) -> bool:
    """Whether a call of the candidate adds what the reference adds once."""
    known = [lined.same[ref] for ref in around.tensors if ref in lined.same] if around.op == "add" else []
    return any(Around(lined.reference, number).op == "add" for ref in known for number in lined.reference.readers[ref])
