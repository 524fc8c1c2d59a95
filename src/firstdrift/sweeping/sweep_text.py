"""The report of a sweep: the sentence, the cases with their losses, the sites, the gradients, the growth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite

from ..report.words import columns, fit, number, number_of, pad, printable, wrap
from .answer import SweepResult, shown
from .case_rows import COULD_NOT_TELL, Growth, Row
from .cases import name_of
from .summaries import ParameterSummary, SiteSummary

WIDTH = 126
ROWS = 100
LABEL = 15
SHOWN_STEPS = 10
LEAST = 8  # columns that a name always has

Line = tuple[str, ...]


def render(
    result: SweepResult, *, limit: int | None = None, quiet: bool = False, width: int = WIDTH, sort: str = "error",
    unfold: bool = False,
) -> str:  # fmt: skip
    """The whole report; `quiet` is its first sentence alone, `limit` the lines of each table, `sort` the order of the
    gradients, and `unfold` shows sites that are equal to the bit, too."""
    if quiet:
        return printable(" ".join(result.sentence.split()))
    rows = ROWS if limit is None else limit
    blocks = [
        _head(result, width),
        _cases(result.rows, rows, width),
        _sites(result.sites, rows, width, unfold),
        _parameters(result.parameters_by(sort), rows, width),
        _growth(result, width),
        _kept(result),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(result: SweepResult, width: int) -> list[str]:
    lines = wrap(result.sentence, width, "", "  ")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(row.verdict for row in result.rows).items())
    reused = f"; {result.reused} were done before" if result.reused else ""
    facts = [("cases", f"{len(result.rows)} of {len(result.cases)}" + (f": {counts}{reused}" if counts else ""))]
    for one in result.findings if len(result.findings) > 1 else ():
        said = f"{shown(one.place)}, by {one.introduced_by}, in {one.share}: {one.share.pattern}"
        facts.append(("first drift", said))
    facts += [("note", note) for note in (*result.notes, result.overlap) if note]
    for label, said in facts:
        lines += wrap(said, width, f"{label:<{LABEL}}", " " * LABEL)
    return lines


def _cases(rows: Sequence[Row], limit: int, width: int) -> list[str]:
    """A line a case; of too many, those that matter."""
    if not rows:
        return []
    kept = sorted(range(len(rows)), key=lambda i: (_dull(rows[i]), i))[: max(limit, 1)]
    losses = any(row.losses for row in rows)
    head = ("case", *(("ref. loss", "cand. loss", "difference") if losses else ()), "flips", "verdict")
    lines = [head]
    for i in sorted(kept):
        row = rows[i]
        flips = str(row.counts.get("flip", 0)) if not row.failed else ""
        lines.append((name_of(row.case), *(_loss(row) if losses else ()), flips, _found(row)))
    left = [f"... {len(rows) - len(kept):,} more; --limit {len(rows)} shows all"] if len(kept) < len(rows) else []
    why = [line for i in sorted(kept) for line in _doubt(rows[i], width)]
    return [*_table(lines, width, numbers=range(1, len(head) - 1)), *left, *why]


def _doubt(row: Row, width: int) -> list[str]:
    """Why a case could not be told, in full."""
    if row.exit_code < COULD_NOT_TELL:
        return []
    said = "; ".join(dict.fromkeys((row.sentence, *row.problems)))
    return wrap(f"{name_of(row.case)}: {said}", width, "  ", "      ")


def _dull(row: Row) -> bool:
    return row.exit_code == 0 and not row.counts.get("flip")


def _loss(row: Row) -> Line:
    """The loss of the first step; further ones are what growth is about."""
    if not row.losses:
        return "", "", ""
    one = row.losses[0]
    apart = one.candidate - one.reference
    return f"{one.reference:.6f}", f"{one.candidate:.6f}", f"{apart:.1e}" if isfinite(apart) else "nan"


def _found(row: Row) -> str:
    first = row.first_drift
    if first is not None:
        where = f"{row.verdict}: {shown(first.place)}, by {first.introduced_by}"
        return f"{where}: {first.label}" if first.label else where
    if row.exit_code == 0:
        return f"{row.verdict}, {sum(row.counts.values())} pairs"
    return f"{row.verdict}, see below"


def _sites(sites: Sequence[SiteSummary], limit: int, width: int, unfold: bool) -> list[str]:
    """All sites by phase and in causal order; those that are equal to the bit everywhere are counted, or unfolded."""
    if not sites:
        return []
    differing = [site for site in sites if unfold or set(site.counts) != {"same"} or site.missing or site.extra]
    ranked = sorted(range(len(differing)), key=lambda i: (not _matters(differing[i]), i))[: max(limit, 1)]
    kept = [differing[i] for i in sorted(ranked)]
    optional = (("missing", "missing"), ("only cand", "extra"), ("NaN", "nonfinite"))
    more = [(title, key) for title, key in optional if any(getattr(site, key) for site in sites)]
    titles = ("phase", "site", "n", "mean err", "max err", "mean abs", "max abs", "mean rel")
    lines: list[Line] = [(*titles, *(title for title, _ in more), "verdicts", "how often")]
    for summary in kept:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in summary.counts.items()) or "missing"
        lines.append((
            summary.phase, _name(summary.name, summary.port), str(summary.cases),
            *(_number(summary, key) for key in ("error_mean", "error_max", "abs_mean", "abs_max", "rel_mean")),
            *(str(getattr(summary, key) or "") for _, key in more), counts, _often(summary),
        ))  # fmt: skip
    same, hidden = len(sites) - len(differing), len(differing) - len(kept)
    said = [f"... {number_of(same, 'more site')} the same to the bit in every case; --unfold shows them"] * (same > 0)
    said += [f"... {number_of(hidden, 'more site')} not shown; --limit {len(sites)} shows all"] * (hidden > 0)
    return [*(_table(lines, width, numbers=range(2, 8 + len(more))) if kept else []), *said]


def _matters(summary: SiteSummary) -> bool:
    return bool(summary.missing) or any(verdict not in ("same", "noise") for verdict in summary.counts)


def _often(summary: SiteSummary) -> str:
    share = summary.drifts if summary.drifts.count else summary.flips
    return f"{share.percent} {share.pattern}" if share.count else ""


def _parameters(found: Sequence[ParameterSummary], limit: int, width: int) -> list[str]:
    """The gradients of parameters, the worst first: which layer differs in every batch, and which by chance."""
    if not found:
        return []
    titles = (
        "gradient of|mean err|max err|max/usual|mean abs|max abs|mean rel|scaled err|scaled abs|n|worst in|how often"
    )
    lines: list[Line] = [tuple(titles.split("|"))]
    for summary in found[: max(limit, 1)]:
        raw, scaled = summary.raw, summary.scaled
        main = raw or scaled
        assert main is not None
        often = next((said for side in (raw, scaled) if side is not None and (said := _often(side))), "")
        lines.append((
            _name(summary.name, summary.port), _number(raw, "error_mean"), _number(raw, "error_max"), _spread(main),
            _number(raw, "abs_mean"), _number(raw, "abs_max"), _number(raw, "rel_mean"), _number(scaled, "error_mean"),
            _number(scaled, "abs_max"), str(main.cases), main.worst or "", often,
        ))  # fmt: skip
    left = len(found) - len(lines) + 1
    more = [f"... {left} more; --limit {len(found)} shows all"] if left else []
    return [*_table(lines, width, numbers=range(1, 10)), *more]


def _number(summary: SiteSummary | None, key: str) -> str:
    return "" if summary is None else number(getattr(summary, key))


def _spread(summary: SiteSummary) -> str:
    """How far the worst case is from the usual one: a formula error is in every batch."""
    if not summary.error_usual or summary.error_max is None:
        return ""
    ratio = summary.error_max / summary.error_usual
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def _growth(result: SweepResult, width: int) -> list[str]:
    if result.growth is None:
        return []
    row = next(row for row in result.compared if row.growth is not None)
    curve = row.growth
    assert curve is not None
    what = "the weights" if curve.of == "weights" else f"{curve.of}, relative"
    said = f"over steps, {what} of {name_of(row.case)}: how far the sides are apart, and from float64"
    moved, exact = (
        ("of the way",) if curve.moved else (),
        ("reference", "candidate", "ratio") if curve.reference else (),
    )
    head = ("step", "apart", *moved, *exact)
    table = _table([head, *_steps(curve)], width, numbers=range(len(head)), names=())
    return [*wrap(said, width, "", "  "), *table, *wrap(str(result.growth["sentence"]), width, "", "  ")]


def _steps(curve: Growth) -> list[Line]:
    """About ten of the steps, in equal ratios."""
    count = len(curve.steps)
    chosen = sorted({round(count ** (i / (SHOWN_STEPS - 1))) - 1 for i in range(SHOWN_STEPS)})
    lines: list[Line] = []
    for i in chosen:
        moved = () if not curve.moved else (number(curve.apart[i] / curve.moved[i]) if curve.moved[i] else "",)
        exact: Line = ()
        if curve.reference is not None and curve.candidate is not None:
            reference, candidate = curve.reference[i], curve.candidate[i]
            exact = (number(reference), number(candidate), f"{candidate / reference:.2f}" if reference else "")
        lines.append((str(curve.steps[i]), number(curve.apart[i]), *moved, *exact))
    return lines


def _kept(result: SweepResult) -> list[str]:
    """Where to look closer."""
    kept = [row for row in result.rows if row.traces is not None]
    if not kept or result.directory is None:
        return []
    lines = ["traces of one case of each kind are kept:"]
    for row in kept[:SHOWN_STEPS]:
        found = f"firstdrift diff {row.traces}/reference {row.traces}/candidate"
        lines.append(f"  {row.traces} (failed)" if row.failed else f"  {found}")
    return lines + ([f"  ... and {len(kept) - SHOWN_STEPS} more"] if len(kept) > SHOWN_STEPS else [])


def _name(name: str, port: str) -> str:
    text = printable(name or "(root)")
    return text if port in ("out", "weight") else f"{text}:{printable(port)}"


def _table(lines: Sequence[Line], width: int, *, numbers: Sequence[int], names: Sequence[int] = (0, 1)) -> list[str]:
    """Columns as wide as their longest cell; names are shortened where a line would be too long."""
    widths = [max(columns(printable(cell)) for cell in column) for column in zip(*lines, strict=True)]
    last = len(widths) - 1
    shrinking = [i for i in names if i not in numbers and i != last]
    room = width - sum(widths[:last]) - 2 * last - min(widths[last], 20)
    for i in shrinking:
        if room < 0:
            widths[i], room = max(LEAST, widths[i] + room), room + widths[i] - max(LEAST, widths[i] + room)
    out = []
    for line in lines:
        cells = [printable(cell) for cell in line]
        shaped = [
            fit(c, widths[i]).rjust(widths[i]) if i in numbers else pad(c, widths[i])
            for i, c in enumerate(cells[:last])
        ]
        final = fit(cells[last], max(20, width - sum(widths[:last]) - 2 * last))
        final = final.rjust(widths[last]) if last in numbers else final
        out.append("  ".join([*shaped, final]).rstrip())
    return out
