"""Counts per bar, and the ids of what fails."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from .cases import Outcome
from .truth import FOUND_FROM

SHOWN = 6  # ids of each class of failure


def _bits(outcome: Outcome) -> str:
    return "f32" if outcome.dtype == "f32" else "short"


def _share(cases: Sequence[Outcome], failures: tuple[str, ...]) -> str:
    bad = sum(one.failure in failures for one in cases)
    return f"{bad} of {len(cases)}" + (f" ({bad / len(cases):.1%})" if cases else "")


def summary(cases: Sequence[Outcome], seconds: float) -> str:
    """The bars, then every class of failure with some of its ids."""
    clean = [one for one in cases if one.kind == "clean"]
    wrong = [one for one in cases if one.kind != "clean"]
    large = [one for one in wrong if one.size >= FOUND_FROM]
    lines = [
        f"{len(cases)} cases, {len(wrong)} wrong, {len(clean)} clean; {seconds / max(1, len(cases)):.3f} s each",
        f"wrong and green: {_share(wrong, ('false green',))}",
        f"clean and exit 1: {_share(clean, ('false alarm',))}",
    ]
    for bits in ("f32", "short"):
        for program in (True, False):
            form = "with program" if program else "without program"

            def picked(one: Outcome, bits=bits, program=program) -> bool:
                return _bits(one) == bits and (one.form == "program") is program

            lines.append(
                f"{bits}, {form}: large and not at the right site "
                f"{_share(list(filter(picked, large)), ('false green', 'wrong site', 'not found'))}; clean and exit 2 "
                f"{_share(list(filter(picked, clean)), ('inconclusive',))}"
            )
    return "\n".join([*lines, *_failures(cases)])


def _failures(cases: Sequence[Outcome]) -> list[str]:
    lines = []
    for title, key in (
        ("by form", lambda o: o.form),
        ("by kind of change", lambda o: o.kind),
        ("by dtype", lambda o: o.dtype),
    ):
        lines += _table(cases, title, key)
    groups = defaultdict(list)
    for one in cases:
        if one.failure:
            groups[one.failure, one.form, one.dtype].append(one)
    for (failure, form, dtype), found in sorted(groups.items()):
        lines.append(f"{failure}, {form}, {dtype}: {len(found)}")
        lines += [
            f"  --case {o.id}  {o.kind}: {o.change} (size {o.size:.3g}) -> {o.found or o.verdict}"
            for o in found[:SHOWN]
        ]
    return lines


def _table(cases: Sequence[Outcome], title: str, key: Callable[[Outcome], str]) -> list[str]:
    counts = Counter((key(one), one.failure or "ok") for one in cases)
    rows = sorted({row for row, _ in counts})
    kinds = ["ok", "false green", "wrong site", "not found", "false alarm", "inconclusive"]
    head = f"{title:<18}" + "".join(f"{kind:>14}" for kind in kinds)
    return [head, *(f"{row:<18}" + "".join(f"{counts[row, kind]:>14}" for kind in kinds) for row in rows)]
