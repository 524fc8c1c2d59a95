"""Two stage files as text: aprender's numbers with `%.6e` (cosine with 10 decimals), and the verdict on top."""

from __future__ import annotations

from ..judge.stage_values import StageDiff
from .text import WIDTH
from .words import finiteness, printable, wrap


def render_values(diff: StageDiff, *, quiet: bool = False, width: int = WIDTH) -> str:
    """The report on two stage files; `quiet` is its first sentence alone."""
    sentence = f"{diff.verdict.value}: {diff.reason}"
    if quiet:
        return sentence
    lines = wrap(sentence, width, "", "  ")
    lines += [f"a: {printable(diff.path_a)}", f"b: {printable(diff.path_b)}"]  # a path is never cut
    lines.append(f"layer:        {'whole-model' if diff.layer is None else diff.layer}")
    lines.append(f"dim_product:  {diff.dim_product}")
    lines.append(f"max_abs_diff: {_number(diff, diff.max_abs_diff)} at {diff.max_abs_diff_index}")
    if not diff.integers:
        lines += [f"rms_diff:     {diff.rms_diff:.6e}", f"cosine_sim:   {diff.cosine_sim:.10f}"]
        relative = (("max_rel", diff.measurement.max_rel), ("max_over_std", diff.measurement.max_over_std))
        lines += [f"{key + ':':<14}{value:.6e}" for key, value in relative if value is not None]
    lines.append(f"finite:       {finiteness(diff.measurement) or 'every value on both sides'}")
    lines.append(f"top {len(diff.top_diffs)}:")
    lines.append(f"  {'index':>10} {'a':>14} {'b':>14} {'abs_diff':>14}")
    for top in diff.top_diffs:
        numbers = (_number(diff, value) for value in (top.a, top.b, top.abs_diff))
        lines.append(f"  {top.index:>10}" + "".join(f" {text:>14}" for text in numbers))
    return "\n".join(lines)


def _number(diff: StageDiff, value: float) -> str:
    return f"{value:.0f}" if diff.integers and value == value // 1 else f"{value:.6e}"
