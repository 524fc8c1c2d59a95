"""A result as text of at most 80 columns: the verdict first, then what it rests on, then the pairs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ..core.sites import Site, shown
from ..judge.measure.result import Cause, Effect, Result, SettingResult, Verdict
from ..pair.pairs import Unmatched
from .reasons import proof_of, setting_in_words
from .table import Paint, table
from .words import confidence, fit, number_of, place, printable, wrap

WIDTH = 80
LABEL = 15  # columns of "introduced by" and two spaces
ROWS = 100  # lines of the table, unless asked otherwise
SITES = 5  # sites listed under one reason, unless asked otherwise
BLOCK = 10  # lines of one list of sites
NUMBER = re.compile(r"(?<![A-Za-z0-9_])[0-9]+(?=[.:])|(?<=-)[0-9]+")
NEXT = "next: firstdrift diff REF CAND --write-map map.yml, edit it and give it by --map; or --allow-missing GLOB"
COULD_NOT_TELL = 2  # the exit code
RENAMED = 3  # names shown that differ
RECONCILED = 3  # kinds of reconciliation named in the head

_COLOURS = {
    Verdict.SAME: "green",
    Verdict.NOISE: "green",
    Verdict.FLIP: "cyan",
    Verdict.INHERITED: "yellow",
    Verdict.DRIFT: "red",
    Verdict.PRECISION: "red",
    Verdict.MISSING: "magenta",
    Verdict.NOT_COMPARABLE: "magenta",
    Verdict.INCONCLUSIVE: "magenta",
}


def render(
    result: Result, *, ranked: bool = False, quiet: bool = False, limit: int | None = None, width: int = WIDTH,
    colour: bool = False,
) -> str:  # fmt: skip
    """The report. `quiet` is its first sentence alone, on one line; `ranked` orders by the error made at each site.

    `limit` bounds the lines of the table and the sites listed under a reason; what is left out is counted.
    """
    paint = _painter(colour)
    if quiet:
        return paint(printable(_sentence(result)), _mood(result))
    rows = table(result, ranked=ranked, limit=ROWS if limit is None else limit, width=width, paint=paint)
    most = None if limit is None else max(limit, 1)
    sites = SITES if limit is None else max(limit, 1)
    blocks = [
        _head(result, width, paint),
        rows,
        _sites("only in the reference", result.reference_only, most, width, NEXT),
        _sites("only in the candidate (does not change the verdict)", result.candidate_only, most, width),
        _sites("computed inside something else (explained, not covered)", result.absorbed, most, width),
        _sites("ignored", result.ignored, most, width),
        _flips(result, sites, width),
        _exceptions(result, sites, width),
        _counts(result, width),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def head(result: Result, *, width: int = WIDTH) -> str:
    """The report without its table: the verdict, the first drift, the coverage, problems and notes."""
    return "\n".join(_head(result, width, _painter(False)))


def _painter(colour: bool) -> Paint:
    if not colour:
        return lambda text, verdict: text
    import click

    def paint(text: str, verdict: Verdict) -> str:
        return click.style(text, fg=_COLOURS[verdict], bold=verdict is Verdict.DRIFT)

    return paint


def _sentence(result: Result) -> str:
    sentence = " ".join(result.sentence.split())
    return sentence if sentence.startswith(result.verdict.value) else f"{result.verdict.value}: {sentence}"


def _mood(result: Result) -> Verdict:
    """The verdict whose colour the sentence has: nothing that could not be told is green."""
    return Verdict.INCONCLUSIVE if result.exit_code == COULD_NOT_TELL else result.verdict


def _head(result: Result, width: int, paint: Paint) -> list[str]:
    lines = [paint(line, _mood(result)) for line in wrap(_sentence(result), width, "", "  ")]
    facts = [*_settings(result), *_first_drift(result), *_cause(result.cause), *_coverage(result)]
    facts += [("problem", problem) for problem in result.problems]
    facts += [("note", note) for note in result.notes]
    for label, said in facts:
        lines += wrap(said, width, f"{label:<{LABEL}}", " " * LABEL)
    return lines


def _settings(result: Result) -> list[tuple[str, str]]:
    """What the two sides state differently, one line for each setting and what comes of it."""
    alike: dict[tuple[str, str, str, Effect], list[SettingResult]] = {}
    for setting in result.settings:
        key = setting.key, repr(setting.reference), repr(setting.candidate), setting.effect
        alike.setdefault(key, []).append(setting)
    return [("setting" if not number else "", setting_in_words(same)) for number, same in enumerate(alike.values())]


def _first_drift(result: Result) -> list[tuple[str, str]]:
    first = result.first_drift
    if first is None:
        return []
    said = [("first drift", _where(first.site, _several_steps(result)) + _called(result, first.site))]
    if first.introduced_by:
        said.append(("introduced by", first.introduced_by))
    if first.sentence and first.sentence not in result.sentence:
        said.append(("", first.sentence))
    return said + _cause(first.cause)


def _called(result: Result, site: Site) -> str:
    """What the candidate calls a site, where that is something else."""
    pair = next((one.pair for one in result.pairs if one.site == site), None)
    names = () if pair is None else tuple(dict.fromkeys(record.site.name for record in pair.candidate))
    return f", the candidate's {' + '.join(map(_module, names))}" if names and names != (site.name,) else ""


def _module(name: str) -> str:
    return shown(name) or "(root)"


def _cause(cause: Cause | None) -> list[tuple[str, str]]:
    if cause is None or cause.label == "none":
        return []
    said = [("cause", f"{cause.label}: {cause.sentence}{confidence(cause.confidence)}")]
    return [*said, ("to confirm", cause.confirm)] if cause.confirm else said


def _coverage(result: Result) -> list[tuple[str, str]]:
    coverage = result.coverage
    phases = ", ".join(f"{phase} {count:,}" for phase, count in coverage.phases.items() if count)
    said = (
        f"{coverage.compared:,} of {number_of(coverage.pairs, 'pair')}, from {coverage.reference_sites:,} reference "
        f"and {coverage.candidate_sites:,} candidate sites; {number_of(coverage.elements, 'element')}"
    )
    facts = [("compared", f"{said}; {phases}" if phases else said)]
    matched = Counter(pair.pair.matched for pair in result.pairs if pair.pair.candidate)
    if matched.keys() - {"name"}:
        facts.append(("matched", ", ".join(f"{count:,} by {how}" for how, count in matched.most_common())))
    renamed = [match for match in result.matches if match.candidate != (match.name,)]
    if renamed:
        some = [f"{_module(m.name)} = {' + '.join(map(_module, m.candidate))}" for m in renamed[:RENAMED]]
        more = f"; {len(renamed) - RENAMED:,} more in result.matches and --json" if renamed[RENAMED:] else ""
        facts.append(("names", f"reference = candidate: {', '.join(some)}{more}"))
    return [*facts, *_reconciled(result), ("graph", result.graph)]


def _reconciled(result: Result) -> list[tuple[str, str]]:
    """What was done to the tensors before comparing them."""
    done = Counter(
        f"{side} {step}"
        for pair in result.pairs
        for side, steps in (("reference", pair.pair.reference_steps), ("candidate", pair.pair.candidate_steps))
        for step in steps
    )
    if not done:
        return []
    said = [f"{what} in {number_of(count, 'pair')}" for what, count in done.most_common(RECONCILED)]
    more = len(done) - len(said)
    return [("reconciled", "; ".join([*said, *([f"{number_of(more, 'more kind')}"] if more else [])]))]


def _sites(title: str, items: Sequence[Unmatched], limit: int | None, width: int, command: str = "") -> list[str]:
    """Sites without a pair, by reason; unless a limit is asked for, no more than ten lines, each for all
    sites that differ in numbers alone."""
    if not items:
        return []
    by_reason: dict[str, list[Site]] = {}
    for item in items:
        by_reason.setdefault(_without_own_name(item), []).append(item.site)
    several = len({item.site.step for item in items}) > 1
    lines: list[str] = []
    for reason, sites in by_reason.items():
        count = f" ({len(sites):,})" if len(by_reason) > 1 else ""
        lines += wrap(f"{reason or 'no reason was given'}{count}", width, "  ", "  ")
        places = [_where(site, several) for site in sites]
        alike = _families(places) if limit is None else [(place, 1) for place in places]
        listed = alike[: SITES if limit is None else limit]
        said = [f"{one} ({number:,} sites)" if number > 1 else one for one, number in listed]
        lines += _listed(said, len(places) - sum(number for _, number in listed), width)
    heading = f"{title}: {number_of(len(items), 'site')}"
    room = BLOCK - 1 - bool(command)
    if limit is None and len(lines) > room:
        lines = [*lines[: room - 1], f"    ... --limit {len(items)} or --json lists all"]
    return [heading, *lines, *(wrap(command, width, "  ", "  ") if command else [])]


def _without_own_name(item: Unmatched) -> str:
    """The reason, the same for all names where it only repeats the site's own."""
    return item.reason.replace(f"nothing named {item.site.name!r}", "nothing of this name")


def _families(places: Sequence[str]) -> list[tuple[str, int]]:
    """Places that differ in numbers alone as one pattern, with how many there are; a place that is alone keeps its
    numbers."""
    patterns = [NUMBER.sub("{}", place) for place in places]
    counted = Counter(patterns)
    named = (one if counted[pattern] == 1 else pattern for one, pattern in zip(places, patterns, strict=True))
    return list(Counter(named).items())


def _listed(places: Iterable[str], more: int, width: int) -> list[str]:
    lines = [f"    {fit(where, width - 4)}" for where in places]
    return [*lines, f"    ... {more:,} more; --limit {more + len(lines)} or --json lists them"] if more > 0 else lines


def _flips(result: Result, limit: int, width: int) -> list[str]:
    if not result.flips:
        return []
    several = _several_steps(result)
    sites = [pair.site for pair in result.flips]
    lines = [f"flips, decisions at a near-tie that noise turned: {number_of(len(sites), 'site')}"]
    return lines + _listed((_where(site, several) for site in sites[:limit]), len(sites) - limit, width)


def _exceptions(result: Result, limit: int, width: int) -> list[str]:
    """What is green by an exception, with its proof."""
    proven = [(pair, said) for pair in result.pairs if (said := proof_of(pair)) is not None]
    if not proven:
        return []
    several = _several_steps(result)
    lines = [f"green by an exception that was proven here: {number_of(len(proven), 'pair')}"]
    for pair, said in proven[:limit]:
        lines += wrap(f"{_where(pair.site, several)}: {pair.why}; {said}", width, "    ", "      ")
    more = len(proven) - limit
    return [*lines, f"    ... {more:,} more; --limit {len(proven)} or --json has them"] if more > 0 else lines


def _counts(result: Result, width: int) -> list[str]:
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in result.counts.items())
    return wrap(f"verdicts: {said}" if said else "nothing was compared", width, "", "  ")


def _where(site: Site, several_steps: bool) -> str:
    return f"{site.phase} {place(site)}" + (f" step {site.step}" if several_steps else "")


def _several_steps(result: Result) -> bool:
    return len({pair.site.step for pair in result.pairs}) > 1
