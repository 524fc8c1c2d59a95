"""Causes inside an attention: the reference's settings are fitted, then varied one at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import chain

from ...traces import Array
from ..evidence import Evidence
from ..hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis, residual
from . import heads, masks, positions, scoring
from .claims import Case, Variant, finding
from .fitting import Over, Reference, fit, patience, search
from .operands import LAYOUTS, operands, sources
from .padding import masks_around
from .problem import SCREEN, WHOLE, first_head, problem, sampled
from .rotary import Floats

# In the order in which they are tried: first those without a number to fit. Where one of these leaves no more than the
# noise, the others have nothing to add.
STAGES: tuple[tuple[Variant, ...], ...] = (
    (*masks.VARIANTS, *heads.VARIANTS, *scoring.VARIANTS, *positions.VARIANTS),
    (*scoring.FITTED, *positions.FITTED),
    positions.LAST,
)
MASKED: tuple[tuple[Variant, ...], ...] = ((masks.padding,),)  # of an attention that is explained without a mask


def attention(evidence: Evidence) -> Iterator[Finding]:
    """Every single change to the reference's attention that gives the candidate's numbers."""
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    if evidence.expected.shape != evidence.found.shape:
        return
    case = _case(evidence, fit, limit, patience())
    stages = STAGES if case is None else MASKED
    if case is not None and (yield from _told(evidence, case, STAGES)):
        return
    over = patience()
    for mask in masks_around(evidence) if _attends(evidence) else ():
        masked = _case(evidence, fit, limit, over, mask)
        if masked is not None and (masked.settings.mask or case is not None):
            case = masked
            if (yield from _told(evidence, masked, stages)):
                return
    if case is None and (case := _case(evidence, search, limit, patience())) is not None:  # which takes long
        yield from _told(evidence, case, STAGES)


def _told(evidence: Evidence, case: Case, stages: tuple[tuple[Variant, ...], ...]) -> Generator[Finding, None, bool]:
    """What is found of a case, stage by stage; whether something leaves no more than the noise."""
    settled = False
    for stage in stages:
        for claim in chain.from_iterable(variant(case) for variant in stage):
            told = finding(case, claim)
            if told is not None:
                settled = settled or residual(evidence, told) <= case.noise
                yield told
        if settled:
            return True
    return False


def _attends(evidence: Evidence) -> bool:
    """Whether this may be an attention at all."""
    return any(sources(evidence, False, layout) is not None for layout in LAYOUTS)


def _case(
    evidence: Evidence, find: Callable[..., Reference | None], limit: float, over: Over, mask: Floats | None = None
) -> Case | None:
    """The reference's attention and the candidate's problem; None where no formula reproduces the reference, or the
    candidate too. With a mask, as the attention is where it was given that."""
    for layout in LAYOUTS:
        ways = partial(find, attrs=evidence.attrs, limit=limit, over=over)
        case = _read(evidence, layout, ways, limit, mask)
        if case is not None:
            return case if case.whole > limit else None
    return None


def _read(
    evidence: Evidence, layout: str, find: Callable[..., Reference | None], limit: float, mask: Floats | None
) -> Case | None:
    """The case as it is when the axes are those of a layout."""
    mine, other = (sources(evidence, candidate, layout, mask) for candidate in (False, True))
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
