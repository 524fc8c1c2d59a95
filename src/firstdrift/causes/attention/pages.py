"""An attention that also sees keys and values that its module keeps: pages of a cache, of which others may be read.

How often each page is seen is read off what came out: the sums of a softmax are linear in it, so that no choice of
pages needs to be tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ...strict_json import Json
from ...traces import Array
from .claims import Case, Claim
from .fitting import Over, Reference
from .formula import Prefix, Settings, before, divide, masked
from .operands import operands
from .problem import SCREEN, Problem, at_rows, of_samples, problem, profile, sampled
from .proposals import plain, turned
from .roles import role
from .rotary import Floats
from .sources import Sources
from .structure import Structure, structures

MOST_PAGES = 64
MOST_SLOTS = 4096
MOST_OFFSETS = 16  # lengths of a prefix that are tried where queries are rotated
ROWS = 24  # queries, and
SAMPLES = 2  # samples by which settings are tried
WHOLE = 0.02  # how near to a whole number it must be how often a page is seen

Counts = NDArray[np.intp]


@dataclass(frozen=True, eq=False, slots=True)
class Pool:
    """Pages of keys and values (pages, slots, width), no two the same."""

    k: Floats
    v: Floats

    def prefix(self, counts: Counts, offset: int) -> Prefix:
        """The keys and values of pages that are seen so often."""
        pages = np.repeat(np.arange(len(self.k)), counts)
        k, v = (x[pages].reshape(-1, x.shape[-1]) for x in (self.k, self.v))
        return Prefix(k, v, offset)

    def with_zeros(self) -> Pool:
        """The same and one page that nobody wrote."""
        return Pool(*(np.concatenate([x, np.zeros_like(x[:1])]) for x in (self.k, self.v)))


def pools(parameters: Mapping[str, Array], widths: tuple[int, int], kv_heads: int) -> Iterator[Pool]:
    """What a module keeps that may be keys and values of these widths."""
    kept = {name: value for name, value in parameters.items() if value.dtype.kind == "f" and value.ndim >= 2}
    for name, one in kept.items():
        for other, two in kept.items():
            if role(name) != "k" or role(other) != "v" or one.shape[:-1] != two.shape[:-1]:
                continue
            for k, v in zip(_pages(one, widths[0], kv_heads), _pages(two, widths[1], kv_heads), strict=False):
                rows = np.concatenate([k.reshape(len(k), -1), v.reshape(len(v), -1)], axis=1)
                distinct = len(np.unique(rows, axis=0)) == len(rows)
                if distinct and len(k) <= MOST_PAGES and k.shape[0] * k.shape[1] <= MOST_SLOTS:
                    yield Pool(k, v)


def _pages(value: Array, width: int, kv_heads: int) -> Iterator[Floats]:
    """A tensor as (pages, slots, width): tokens before heads, or heads before tokens."""
    x = np.asarray(value, np.float64)
    x = x[0] if x.ndim > 2 and len(x) == 1 else x
    if x.shape[-1] == width and x.ndim in (2, 3):
        yield x[None] if x.ndim == 2 else x
    channels = width // kv_heads
    if x.ndim not in (3, 4) or x.shape[-1] != channels:
        return
    x = x[None] if x.ndim == 3 else x
    if x.shape[2] == kv_heads:
        yield x.reshape(*x.shape[:2], width)
    if x.shape[1] == kv_heads:
        yield x.transpose(0, 2, 1, 3).reshape(len(x), x.shape[2], width)


def counted(given: Problem, settings: Settings, pool: Pool, offset: int) -> Counts | None:
    """How often each page of a pool is seen, if that is a whole number of times; None where it is not.

    Where out = (n + sum of c n_page) / (z + sum of c z_page), then sum of c (n_page - out z_page) = out z - n.
    """
    every = Prefix(pool.k.reshape(-1, pool.k.shape[-1]), pool.v.reshape(-1, pool.v.shape[-1]), offset)
    o = given.operands
    own = masked(o, settings, given.rows)
    kept = before(replace(o, prefix=every, memory={}), settings, given.rows)
    top = np.maximum(own.max(-1), kept.max(-1))[..., None]
    own, kept = np.exp(own - top), np.exp(kept - top)
    heads = np.arange(settings.heads)
    shares = settings.heads // settings.kv_heads
    groups = heads % settings.kv_heads if settings.tiled else heads // shares
    v = divide(o.v, settings.kv_heads, settings.axes)[:, :, groups].transpose(0, 2, 1, 3)
    values = divide(pool.v, settings.kv_heads, "thd")[:, :, groups].transpose(2, 0, 1, 3)  # heads, pages, slots
    kept = kept.reshape(*kept.shape[:3], *pool.k.shape[:2])
    made = divide(given.observed, settings.heads, settings.merge)[:, given.rows].transpose(0, 2, 1, 3)
    sums = np.einsum("bhrps,hpsd->bhrdp", kept, values)
    left = sums - made[..., None] * kept.sum(-1)[..., None, :]
    right = made * own.sum(-1)[..., None] - own @ v
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return None
    found, _, rank, _ = np.linalg.lstsq(left.reshape(-1, len(pool.k)), right.ravel(), rcond=None)
    whole = np.round(found)
    if rank < len(pool.k) or np.abs(found - whole).max() > WHOLE or whole.min() < 0 or not whole.any():
        return None
    return np.asarray(whole, np.intp)


def prefixed(
    mine: Sources, other: Sources, attrs: Mapping[str, Json], parameters: Mapping[str, Array], limit: float, over: Over
) -> tuple[Reference, Pool, Counts] | None:
    """The reference's attention with the pages that it sees, or None where no usual settings and pages reproduce it."""
    if mine.observed.ndim != 3 or mine.projection is not None or not {"k", "v"} <= {role(name) for name in parameters}:
        return None
    told = profile(mine.observed, other.observed)
    for structure in structures(mine, attrs):
        given = operands(mine, structure.shape, structure.heads, structure.kv_heads)
        if given is None:
            continue
        whole = problem(given, mine.observed, other.observed, told)
        for pool in pools(parameters, (given.k.shape[-1], given.v.shape[-1]), structure.kv_heads):
            found = _seen(whole, structure, mine, attrs, pool, limit, over)
            if found is not None:
                return found
    return None


def _seen(
    whole: Problem,
    structure: Structure,
    given: Sources,
    attrs: Mapping[str, Json],
    pool: Pool,
    limit: float,
    over: Over,
) -> tuple[Reference, Pool, Counts] | None:
    few = of_samples(whole, np.arange(min(SAMPLES, len(whole.operands.q))))
    few = at_rows(few, np.unique(np.linspace(0, whole.queries - 1, ROWS).astype(np.intp)))
    wide = sampled(whole, structure.heads, SCREEN)
    for diagonal in (whole.keys - whole.queries, None):
        base = replace(structure.settings(), diagonal=diagonal, norm=given.norm)
        for settings in chain(*(stage(base, whole, given, attrs) for stage in (plain, turned))):
            for offset in _offsets(settings, pool):
                if over():
                    return None
                counts = counted(few, settings, pool, offset)
                if counts is None:
                    continue
                prefix = pool.prefix(counts, offset)
                if _with(wide, prefix).error(settings) <= limit:
                    return Reference(structure, settings, _with(whole, prefix)), pool, counts
    return None


def _offsets(settings: Settings, pool: Pool) -> list[int]:
    """By how much rotated queries may be behind: nothing, or as many slots as some pages have."""
    if settings.rotary is None:
        return [0]
    return [pages * pool.k.shape[1] for pages in range(min(len(pool.k), MOST_OFFSETS) + 1)]


def _with(given: Problem, prefix: Prefix) -> Problem:
    return replace(given, operands=replace(given.operands, prefix=prefix, memory={}))


def other_pages(case: Case, pool: Pool, counts: Counts) -> Iterator[Claim]:
    """Other pages than the reference's, or more of them."""
    assert case.problem.operands.prefix is not None
    offset = case.problem.operands.prefix.offset
    all_pages = pool.with_zeros()
    for one in dict.fromkeys((offset, *_offsets(case.settings, pool))):
        for kept in (pool, all_pages):
            seen = counted(case.screen, case.settings, kept, one)
            if seen is None:
                continue
            ours = np.concatenate([counts, np.zeros(len(kept.k) - len(pool.k), np.intp)])
            told = _told(ours, seen, len(pool.k))
            if told is not None:
                label, said = told
                facts = {"pages": _listed(seen), "reference_pages": _listed(ours), "slots": int(pool.k.shape[1])}
                yield Claim(label, said, case.settings, facts, 1, _with(case.problem, kept.prefix(seen, one)))
            return


def _told(ours: Counts, seen: Counts, pages: int) -> tuple[str, str] | None:
    """What the pages that are seen say; None where they are the same, or only fewer."""
    more = seen - ours
    if (more <= 0).all():
        return None
    if (more >= 0).all():
        surplus = ", ".join("one of zeros" if page >= pages else str(page) for page in np.flatnonzero(more))
        return "mask-missing", f"keys behind the end of the cache are seen: besides the right pages also {surplus}"
    read, right = (", ".join(map(str, _listed(one))) for one in (seen, ours))
    return "permutation", f"the pages {read} of the cache are read where the reference reads {right}, in some order"


def _listed(counts: Counts) -> list[int]:
    return [int(page) for page in np.repeat(np.arange(len(counts)), counts)]
