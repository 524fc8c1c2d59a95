"""Causes inside an attention: the reference's settings are fitted, then varied one at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product

from ...traces import Array
from ..evidence import Evidence
from ..hypotheses import EXACT, LEAST_NOISE, Finding, Hypothesis, residual
from . import bias_claims, cached, expansions, heads, masks, page_orders, pages, positions, scoring
from .between import WAYS, Way, made_between
from .claims import Case, Claim, Variant, finding, narrowed
from .fitting import Over, Reference, fit, fit_soon, patience, search, search_biased
from .nearby import Nearby, nearby, tables_of
from .operands import operands
from .padding import masks_around
from .problem import problem
from .rotary import Floats
from .score_biases import other_bias
from .score_masks import other_mask
from .some_heads import of_some_heads
from .sources import LAYOUTS, sources, with_norms

# In the order in which they are tried: first those without a number to fit. Where one of these leaves no more than the
# noise, the others have nothing to add.
Stages = tuple[tuple[Variant, ...], ...]
STAGES: Stages = (
    (*masks.VARIANTS, *heads.VARIANTS, *expansions.VARIANTS, *scoring.VARIANTS, *positions.VARIANTS),
    (*scoring.FITTED, *positions.FITTED),
    (*positions.LAST, *page_orders.VARIANTS, *bias_claims.VARIANTS),
)
CACHED: Stages = ((*STAGES[0], *cached.VARIANTS), *STAGES[1:])
MASKED: Stages = ((masks.padding,),)  # of an attention that is explained without a mask
OF_SOME_HEADS: Stages = (  # or with pages, which are divided into heads as they are
    (*masks.VARIANTS, *scoring.VARIANTS, *positions.VARIANTS),
    (*scoring.FITTED, *positions.FITTED),
)


def attention(evidence: Evidence) -> Iterator[Finding]:
    """Every single change to the reference's attention that gives the candidate's numbers."""
    limit = EXACT * max(evidence.noise, LEAST_NOISE)
    made = made_between(evidence) if evidence.expected.shape == evidence.found.shape else None
    if evidence.expected.shape != evidence.found.shape or (made is None and not _attends(evidence)):
        return
    near = nearby(evidence, limit, made)
    around = masks_around(evidence)
    if (yield from _soon(evidence, near, limit, around)):
        return
    case = _case(evidence, near, fit, limit, patience())
    stages = STAGES if case is None else MASKED
    if case is not None and (yield from _told(evidence, case, STAGES)):
        return
    if case is None and (more := _with_more(evidence, near, limit)) is not None:
        yield from _told(evidence, *more)
        return
    over = patience()
    for mask in around:
        masked = _case(evidence, near, fit, limit, over, mask)
        if masked is not None and (masked.settings.mask or case is not None):
            case = masked
            if (yield from _told(evidence, masked, stages)):
                return
    for find in (search, search_biased) if case is None else ():  # which take long
        if (case := _case(evidence, near, find, limit, patience())) is not None:
            yield from _told(evidence, case, STAGES)
            return


def _soon(evidence: Evidence, near: Nearby, limit: float, around: list[Floats]) -> Generator[Finding, None, bool]:
    """What is found where the reference obeys a mask that was recorded around it, which is soon tried; whether it
    does, and so is nothing that can do without."""
    obeyed, over = False, patience()
    for mask in around:
        case = _case(evidence, near, fit_soon, limit, over, mask)
        if case is not None and case.settings.mask:
            obeyed = True
            if (yield from _told(evidence, case, STAGES)):
                break
    return obeyed


def _with_more(evidence: Evidence, near: Nearby, limit: float) -> tuple[Case, Stages] | None:
    """The case with keys and values that were no input: those of calls before, or pages that the module keeps."""
    whole = cached.with_past(evidence)
    case = None if whole is None else _case(whole, near, fit, limit, patience())
    if case is not None:
        return case, CACHED
    paged = _paged(evidence, near, limit)
    return None if paged is None else (paged[0], ((paged[1], *OF_SOME_HEADS[0]), *OF_SOME_HEADS[1:]))


def _told(evidence: Evidence, case: Case, stages: Stages) -> Generator[Finding, None, bool]:
    """What is found of a case, of all heads or of some; whether something leaves no more than the noise."""
    if (yield from _staged(evidence, case, stages)):
        return True
    return stages is not MASKED and (yield from _told_of_some(evidence, case))


def _staged(
    evidence: Evidence, case: Case, stages: Stages, said: Callable[[Claim], Claim] = lambda claim: claim
) -> Generator[Finding, None, bool]:
    """What is found of a case, stage by stage; whether something leaves no more than the noise."""
    settled = False
    for stage in stages:
        for claim in chain.from_iterable(variant(case) for variant in stage):
            told = finding(case, said(claim))
            if told is not None:
                settled = settled or residual(evidence, told) <= case.noise
                yield told
        if settled:
            return True
    return False


def _told_of_some(evidence: Evidence, case: Case) -> Generator[Finding, None, bool]:
    """What is found where only some of the heads differ; which these are counts as one number that was fitted."""
    some = of_some_heads(case)
    if some is None:
        return False
    part, chosen = some
    shown = ", ".join(map(str, chosen[:8])) + (", ..." if len(chosen) > 8 else "")
    where = f"in head {shown} only" if len(chosen) == 1 else f"in heads {shown} only"

    def of_these(claim: Claim) -> Claim:
        facts = {**claim.parameters, "heads": [int(head) for head in chosen]}
        return replace(claim, sentence=f"{claim.sentence}, {where}", parameters=facts, free=claim.free + 1)

    return (yield from _staged(evidence, part, OF_SOME_HEADS, of_these))


def _attends(evidence: Evidence) -> bool:
    """Whether this may be an attention at all."""
    return any(sources(evidence, False, layout) is not None for layout in LAYOUTS)


def _case(
    evidence: Evidence, near: Nearby, find: Callable[..., Reference | None], limit: float, over: Over,
    mask: Floats | None = None,
) -> Case | None:  # fmt: skip
    """The reference's attention and the candidate's problem; None where no formula reproduces the reference, or the
    candidate too. With a mask, as the attention is where it was given that."""
    for way, layout in product((*WAYS, None) if near.made is not None else (None,), LAYOUTS):
        tried = partial(find, attrs=evidence.attrs, limit=limit, over=over if way is None else patience())
        case = _read(evidence, near, layout, way, tried, limit, mask)
        if case is not None:
            return case if case.whole > limit else None
    return None


def _read(
    evidence: Evidence, near: Nearby, layout: str, way: Way | None, find: Callable[..., Reference | None],
    limit: float, mask: Floats | None,
) -> Case | None:  # fmt: skip
    """The case as it is when the axes are those of a layout, and the operands were made in some way."""
    mine, other = (sources(evidence, candidate, layout, mask, near, way) for candidate in (False, True))
    if mine is None or other is None:
        return None
    if other.bias is None:  # of one that only the reference was given, the candidate may still show the lack
        other = replace(other, bias=mine.bias)
    if other.mask is None:
        other = replace(other, mask=mine.mask)
    reference = None
    if norms := near.norms:
        plain = mine, other
        mine, other = (with_norms(one, norms, plain[0], limit) for one in plain)
        reference = find(mine, other)
        mine, other = plain if reference is None else (mine, other)
    reference = reference or find(mine, other)
    if reference is None:
        return None
    if other.bias is None:
        other = replace(other, bias=reference.problem.operands.bias)
    structure = reference.structure
    found = operands(other, structure.shape, structure.heads, structure.kv_heads)
    if found is None:
        return None
    whole = problem(found, other.observed, mine.observed, reference.problem.profile)
    restored = partial(_restored, like=evidence.found, layout=layout)
    return narrowed(
        reference, other, whole, limit, max(evidence.noise, LEAST_NOISE), restored, partial(tables_of, evidence)
    )


def _paged(evidence: Evidence, near: Nearby, limit: float) -> tuple[Case, Variant] | None:
    """The case of an attention that also sees pages that the module keeps, and the variant that it sees others."""
    mine, other = (sources(evidence, candidate, near=near) for candidate in (False, True))
    if mine is None or other is None:
        return None
    told = pages.prefixed(mine, other, evidence.attrs, evidence.parameters, limit, patience())
    if told is None:
        return None
    reference, pool, counts = told
    structure, prefix = reference.structure, reference.problem.operands.prefix
    found = operands(other, structure.shape, structure.heads, structure.kv_heads)
    if found is None:
        return None
    whole = problem(replace(found, prefix=prefix), other.observed, mine.observed, reference.problem.profile)
    restored = partial(_restored, like=evidence.found, layout=LAYOUTS[0])
    case = narrowed(reference, other, whole, limit, max(evidence.noise, LEAST_NOISE), restored)
    return (case, partial(pages.other_pages, pool=pool, counts=counts)) if case.whole > limit else None


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


HYPOTHESES: tuple[Hypothesis, ...] = (other_mask, other_bias, attention)
