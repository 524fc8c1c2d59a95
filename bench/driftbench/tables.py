"""Scores as text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from .baselines import NAMES
from .case import Case
from .scoring import Score, count

OURS = ("check", "traces")


def render(scores: Sequence[Score]) -> str:
    """Everything: by family, by precision, by scope, benign cases, and misses."""
    askers = [by for by in (*OURS, *NAMES) if any(one.by == by for one in scores)]
    bugs = [one for one in scores if not one.benign]
    benign = [one for one in scores if one.benign]
    parts = [
        _grid("exact first site, by family", bugs, lambda one: one.family, askers, "site"),
        _grid("exact first site, by precision", bugs, lambda one: one.precision, askers, "site"),
        _grid("exact first site, by reach", bugs, lambda one: one.scope, askers, "site"),
        _grid("right label, by family", bugs, lambda one: one.family, [by for by in askers if by in OURS], "label"),
        _grid(
            "right label, by precision", bugs, lambda one: one.precision, [by for by in askers if by in OURS], "label"
        ),
        _outcomes("bugs", bugs, askers),
        _outcomes("benign", benign, askers),
        _parameters(bugs, [by for by in askers if by in OURS]),
        _misses(scores),
    ]
    return "\n\n".join(part for part in parts if part)


def _grid(
    title: str, scores: Sequence[Score], key: Callable[[Score], str], askers: Sequence[str], what: str
) -> str:  # fmt: skip
    if not scores or not askers:
        return ""
    groups: dict[str, dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
    for one in scores:
        groups[key(one)][one.by].append(one)
        groups["all"][one.by].append(one)
    lines = [f"{title:<34}" + "".join(f"{by:>16}" for by in askers)]
    for name in [*sorted(group for group in groups if group != "all"), "all"]:
        cells = [_share(groups[name][by], what) for by in askers]
        lines.append(f"  {name:<32}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def _share(scores: Sequence[Score], what: str) -> str:
    if not scores:
        return "-"
    row = count(scores)
    hits = row.sites if what == "site" else row.labels
    return f"{hits}/{row.cases} {100 * hits / row.cases:3.0f} %"


def _outcomes(title: str, scores: Sequence[Score], askers: Sequence[str]) -> str:
    if not scores:
        return ""
    kinds = ("right", "wrong site", "missed", "clean", "false alarm", "undecided", "failed")
    counted = {by: Counter(one.outcome for one in scores if one.by == by) for by in askers}
    shown = [kind for kind in kinds if any(counted[by][kind] for by in askers)]
    lines = [f"{title:<34}" + "".join(f"{by:>16}" for by in askers)]
    lines += [f"  {kind:<32}" + "".join(f"{counted[by][kind]:>16}" for by in askers) for kind in shown]
    return "\n".join(lines)


def _parameters(scores: Sequence[Score], askers: Sequence[str]) -> str:
    rows = {by: count(one for one in scores if one.by == by) for by in askers}
    found = [f"{by} {row.parameters}/{row.asked_parameters}" for by, row in rows.items() if row.asked_parameters]
    return f"exact parameters: {', '.join(found)}" if found else ""


def _misses(scores: Iterable[Score]) -> str:
    lines = []
    for one in scores:
        if one.by not in OURS:
            continue
        if one.outcome not in ("right", "clean"):
            lines.append(f"  {one.by:<7}{one.case:<44} {one.outcome}: said {one.said}; expected {one.expected}")
        elif one.label is False and one.said_label:
            lines.append(f"  {one.by:<7}{one.case:<44} label: said {one.said_label}; expected {one.expected_labels}")
    return "\n".join(["misses", *lines]) if lines else "no misses"


def list_cases(cases: Sequence[Case]) -> str:
    """One line a case."""
    lines = []
    for case in cases:
        if case.truth is None:
            said = f"benign{': ' + case.what if case.what else ''}"
        else:
            said = f"{' or '.join(map(str, case.truth.places))} -> {'/'.join(case.truth.labels)}"
        ids = f" [{' '.join(case.catalogue)}]" if case.catalogue else ""
        lines.append(f"{case.name:<46} {case.family:<14} {case.precision:<6} {said}{ids}")
    bugs = sum(not case.benign for case in cases)
    return "\n".join([*lines, f"{bugs} bugs, {len(cases) - bugs} benign"])
