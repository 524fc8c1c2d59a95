"""Variants of the scores: their scale, their cap, what is added to them, and the softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .claims import Case, Claim, factor, snapped
from .formula import HIDDEN, Settings
from .norming import SIDES, Norm, Norms, over_other_axes, without
from .operands import operands
from .problem import SCREEN, problem
from .proposals import even_slopes, slopes
from .searching import CAPS

FIRST_COUNTS = (2.0, 8.0, 32.0, 128.0)  # of keys, to begin a fit with
WORDS = {"q": "queries", "k": "keys"}


def temperature(case: Case) -> Iterator[Claim]:
    """Scores multiplied by another factor."""
    base, channels, heads = case.settings, case.channels, case.settings.heads

    def settings(ratio: float) -> Settings:
        return replace(base, scale=base.scale * ratio)

    menu = {
        "sqrt(head_dim)": channels**0.5, "1/sqrt(head_dim)": channels**-0.5, "head_dim": float(channels),
        "1/head_dim": 1.0 / channels, "sqrt(heads)": heads**0.5, "1/sqrt(heads)": heads**-0.5,
        "no scale at all": 1.0 / base.scale, "the square of the scale": base.scale, "2": 2.0, "1/2": 0.5,
    }  # fmt: skip
    menu = {name: value for name, value in menu.items() if abs(value - 1) > 1e-9}
    found = factor(case, settings, [*menu.values(), *(2.0 ** (power / 2) for power in range(-14, 15))])
    if found is None:
        return
    ratio, error = found
    near = snapped(case, settings, ratio, error, menu.values())
    name = next((name for name, value in menu.items() if value == near), "")
    ratio = near or ratio
    known = f" ({name})" if name else ""
    yield Claim(
        "attention-scale", f"the attention scores are multiplied by {base.scale * ratio:.6g} instead of "
        f"{base.scale:.6g}, a factor of {ratio:.6g}{known}",
        settings(ratio),
        {"factor": ratio, "scale": base.scale * ratio, "reference_scale": base.scale, "name": name or None},
        free=0 if name else 1,
    )  # fmt: skip


def cap(case: Case) -> Iterator[Claim]:
    """A softcap that is missing, extra or other."""
    base = case.settings
    if base.softcap is not None:
        facts = {"softcap": None, "reference_softcap": base.softcap}
        yield Claim("softcap", f"the softcap of {base.softcap:g} is missing", replace(base, softcap=None), facts)

    def settings(value: float) -> Settings:
        return replace(base, softcap=value)

    found = factor(case, settings, (5.0, 10.0, 15.0, *CAPS, 100.0))
    if found is None:
        return
    value, error = found
    near = snapped(case, settings, value, error, (5.0, 10.0, 15.0, *CAPS, 100.0))
    value = near or value
    was = "there is none in the reference" if base.softcap is None else f"it is {base.softcap:g} in the reference"
    yield Claim(
        "softcap", f"the scores are capped at {value:.6g}; {was}", settings(value),
        {"softcap": value, "reference_softcap": base.softcap}, free=0 if near else 1,
    )  # fmt: skip


def alibi(case: Case) -> Iterator[Claim]:
    """Linear biases with other slopes, missing or extra."""
    base = case.settings
    usual = slopes(base.heads)
    if base.slopes is None:
        extra = replace(base, slopes=usual)
        yield Claim("missing-term", "linear position biases are added that the reference has not", extra)
        return
    yield Claim("missing-term", "the linear position biases are missing", replace(base, slopes=None))
    even = replace(base, slopes=even_slopes(base.heads))
    yield Claim("alibi-slope", "the slopes fall geometrically over all heads", even)
    yield Claim(
        "alibi-slope", "the slopes are those of the nearest power of two, and more", replace(base, slopes=usual)
    )
    yield Claim("alibi-slope", "the slopes have the other sign", replace(base, slopes=-base.slopes), {"factor": -1.0})
    reverse = replace(base, slopes=base.slopes[::-1].copy())
    yield Claim("alibi-slope", "the slopes are in the reverse order of the heads", reverse)
    given = base.slopes

    def settings(ratio: float) -> Settings:
        return replace(base, slopes=given * ratio)

    step = 2.0 ** (8.0 / base.heads)
    menu = [step, 1 / step, 2.0, 0.5, step**0.5, step**-0.5]
    found = factor(case, settings, [*menu, 4.0, 0.25])
    if found is not None:
        ratio, error = found
        near = snapped(case, settings, ratio, error, menu)
        ratio = near or ratio
        yield Claim(
            "alibi-slope", f"all slopes are {ratio:.6g} times those of the reference", settings(ratio),
            {"factor": ratio}, free=0 if near else 1,
        )  # fmt: skip


def added(case: Case) -> Iterator[Claim]:
    """A recorded bias of the scores that is missing or extra."""
    base, mask = case.settings, case.problem.operands.mask
    if base.mask == "add" and mask is not None and (mask[mask > HIDDEN] != 0).any():
        hiding = replace(base, mask="hide")
        yield Claim("missing-term", "the bias of the scores is missing; keys are hidden as they should be", hiding)
    if case.problem.operands.bias is None:
        return
    what = "is missing" if base.biased else "is added, which the reference does not do"
    yield Claim("missing-term", f"the bias of the scores {what}", replace(base, biased=not base.biased))


def normalisation(case: Case) -> Iterator[Claim]:
    """Queries and keys that are not normalised, or behind the rotation instead of before it, or over other axes."""
    base, early, late = case.settings, case.candidate.norms, case.settings.norm
    if late is not None:
        yield Claim("norm-missing", "queries and keys are not normalised", replace(base, norm=None))
        for side in SIDES:
            one = replace(base, norm=replace(late, q=None) if side == "q" else replace(late, k=None))
            yield Claim("norm-missing", f"the {WORDS[side]} are not normalised", one, {"side": side})
    if late is not None and late.late and base.rotary is not None:
        before = replace(base, norm=replace(late, late=False))
        yield Claim("op-order", "queries and keys are normalised before the rotation instead of behind it", before)
    if not early:
        return
    for sides in ("qk", *SIDES) if len(early) > 1 else early:
        words, facts = " and ".join(WORDS[side] for side in sides), {"side": sides}
        yield from _otherwise(case, without(early, sides), "norm-missing", f"the {words} are not normalised", facts)
        if base.heads > 1:
            how = "each head on its own" if early[sides[0]].wide else "all heads at once"
            changed = {side: over_other_axes(norm) if side in sides else norm for side, norm in early.items()}
            yield from _otherwise(case, changed, "norm-axis", f"the {words} are normalised over {how}", facts)
    if base.rotary is not None and not any(norm.wide for norm in early.values()):
        behind = replace(base, norm=Norms(**early, late=True))
        sentence = "queries and keys are normalised behind the rotation instead of before it"
        yield from _otherwise(case, {}, "op-order", sentence, {}, behind)


def _otherwise(
    case: Case, norms: Mapping[str, Norm], label: str, sentence: str, facts: dict[str, Any],
    settings: Settings | None = None,
) -> Iterator[Claim]:  # fmt: skip
    """A claim about operands that are normalised in another way."""
    structure = case.reference.structure
    given = replace(case.candidate, norms=norms)
    found = operands(given, structure.shape, structure.heads, structure.kv_heads)
    if found is not None:
        other = problem(found, case.problem.observed, case.problem.other, case.problem.profile)
        yield Claim(label, sentence, settings or case.settings, facts, problem=other)


def softmax(case: Case) -> Iterator[Claim]:
    """A softmax over another axis, or none."""
    base = case.settings
    if case.problem.reads == "scores":
        return
    yield Claim("skipped-op", "the softmax is not applied to the scores", replace(base, over="nothing"))
    yield Claim("norm-axis", "the softmax goes over the heads", replace(base, over="heads"), {"axis": "heads"})
    if case.problem.complete(base.heads, SCREEN):
        over = replace(base, over="queries")
        facts = {"axis": "queries"}
        yield Claim("norm-axis", "the softmax goes over the queries", over, facts, problem=case.problem)


def sink(case: Case) -> Iterator[Claim]:
    """One more key of score zero, which takes its share of every query."""
    base = case.settings
    if case.problem.reads != "scores":
        what = "is missing" if base.sink else "takes part, which the reference has not"
        other = replace(base, sink=0.0 if base.sink else 1.0)
        yield Claim("missing-term", f"a key of score and value zero {what}", other)
    if base.sunk:
        yield Claim("missing-term", "the learned sinks of the scores are missing", replace(base, sunk=False))


def surplus(case: Case) -> Iterator[Claim]:
    """Keys and values of zeros, as of memory that nobody wrote, which every query sees."""
    base = case.settings
    if case.problem.reads == "scores":
        return

    def settings(count: float) -> Settings:
        return replace(base, sink=base.sink + count)

    found = factor(case, settings, FIRST_COUNTS)
    count = 0 if found is None else round(found[0])
    if count > 1 and case.screen.error(settings(float(count))) <= case.limit:  # many make anything small
        sentence = f"{count} keys of zeros, with values of zeros, are seen by every query besides those of the tokens"
        yield Claim("mask-missing", sentence, settings(float(count)), {"keys": count}, free=1)


VARIANTS = (added, normalisation, softmax, sink)
FITTED = (temperature, cap, alibi, surplus)
