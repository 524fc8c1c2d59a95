"""Causes inside an attention: the reference's settings are fitted, then varied one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from ...traces import Array
from ..evidence import Evidence
from ..hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis, residual
from . import heads, masks, positions, scoring
from .claims import Case, Variant, finding
from .fitting import Reference, fit, patience, search
from .operands import LAYOUTS, operands, sources
from .problem import SCREEN, WHOLE, first_head, problem, sampled
from .rotary import Floats

# In the order in which they are tried: first those without a number to fit. Where one of these leaves no more than the
# noise, the others have nothing to add.
STAGES: tuple[tuple[Variant, ...], ...] = (
    (*masks.VARIANTS, *heads.VARIANTS, *scoring.VARIANTS, *positions.VARIANTS),
    (*scoring.FITTED, *positions.FITTED),
    positions.LAST,
)


def attention(evidence: Evidence) -> Iterator[Finding]:
    """Every single change to the reference's attention that gives the candidate's numbers."""
    case = _case(evidence)
    if case is None:
        return
    for stage in STAGES:
        settled = False
        for claim in chain.from_iterable(variant(case) for variant in stage):
            told = finding(case, claim)
            if told is not None:
                settled = settled or residual(evidence, told) <= case.noise
                yield told
        if settled:
            return


def _case(evidence: Evidence) -> Case | None:
    """The reference's attention and the candidate's problem; None where no formula reproduces the reference."""
    if evidence.expected.shape != evidence.found.shape:
        return None
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    for find in (fit, search):  # a search takes long
        over = patience()
        for layout in LAYOUTS:
            case = _read(evidence, layout, partial(find, attrs=evidence.attrs, limit=limit, over=over), limit)
            if case is not None:
                return case if case.whole > limit else None
    return None


def _read(evidence: Evidence, layout: str, find: Callable[..., Reference | None], limit: float) -> Case | None:
    """The case as it is when the axes are those of a layout."""
    mine, other = (sources(evidence, candidate, layout) for candidate in (False, True))
    reference = None if mine is None or other is None else find(mine, other)
    if mine is None or other is None or reference is None:
        return None
    structure = reference.structure
    found = operands(other, structure.shape, structure.heads, structure.kv_heads)
    if found is None:
        return None
    whole = problem(found, other.observed, mine.observed, reference.problem.profile)
    screen, final = (sampled(whole, structure.heads, budget) for budget in (SCREEN, WHOLE))
    narrow = first_head(sampled(whole, 1, SCREEN >> 2), structure.heads, structure.kv_heads)
    noise = max(evidence.noise, LEAST_NOISE)
    restored = partial(_restored, like=evidence.found, layout=layout)
    error = screen.error(reference.settings)
    return Case(reference, other, whole, screen, narrow, final, limit, noise, error, restored)


def _restored(predicted: Floats, like: Array, layout: str) -> Floats:
    """A prediction with the axes of what was recorded."""
    if layout == "tokens first":
        return predicted.swapaxes(0, 1)
    if layout == "heads inside":
        return predicted.reshape(like.shape)
    if like.ndim == 4 and predicted.ndim == 3 and like.shape[1] != predicted.shape[1]:
        batch, tokens, _ = predicted.shape
        return predicted.reshape(batch, tokens, like.shape[1], like.shape[3]).transpose(0, 2, 1, 3)
    return predicted.reshape(like.shape)


HYPOTHESES: tuple[Hypothesis, ...] = (attention,)
