"""Variants of what may be seen: the diagonal, the window, the padding, and how a key is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .claims import Case, Claim
from .formula import HIDDEN, Settings
from .mask_edges import moved_edges


def diagonal(case: Case) -> Iterator[Claim]:
    """The causal mask moved by one, left out, added, or aligned at the other corner."""
    base, ahead = case.settings, case.problem.keys - case.problem.queries
    if base.diagonal is None:
        yield Claim(
            "mask-missing", "a causal mask is applied that the reference has not", replace(base, diagonal=ahead)
        )
        return
    for step, what in ((1, "sees one key too many, of the future"), (-1, "does not see its own key")):
        for both in _sides(base):
            claim = replace(base, diagonal=base.diagonal + step, both=both)
            yield Claim("mask-off-by-one", f"each query {what}", claim, {"diagonal": step})
    everything = replace(base, diagonal=case.problem.keys, window=None)
    for both in _sides(base):
        yield Claim("mask-missing", "the causal mask is ignored", replace(everything, both=both))
    if ahead and base.diagonal in (0, ahead):
        corner = ahead - base.diagonal
        where = "first" if corner == 0 else "last"
        yield Claim(
            "mask-off-by-one", f"the causal mask is aligned at the {where} key instead of the other end",
            replace(base, diagonal=corner), {"diagonal": corner, "reference_diagonal": base.diagonal},
        )  # fmt: skip


def _sides(base: Settings) -> tuple[bool, ...]:
    """How biases by distance may go on to later keys, which the reference does not tell: it shows none."""
    return (False,) if base.slopes is None else (True, False)


def window(case: Case) -> Iterator[Claim]:
    """A sliding window of another width, or none."""
    base = case.settings
    if base.reach is not None:
        for reach in (base.reach + 1, base.reach - 1):
            yield Claim(
                "window-off-by-one", f"the window reaches {reach} keys to each side instead of {base.reach}",
                replace(base, reach=reach), {"window": reach, "reference_window": base.reach},
            )  # fmt: skip
        yield from _one_sided(base, base.reach)
        yield Claim("mask-missing", "the sliding window is ignored", replace(base, reach=None))
    if base.diagonal is None:
        return
    first = _first_different(case)
    if base.window is not None:
        yield Claim("mask-missing", "the sliding window is ignored", replace(base, window=None))
        near = {base.window + 1, base.window - 1}
        for width in sorted(near | ({first} if first else set()) | {base.window * 2, base.window // 2}):
            if 0 < width != base.window:
                yield Claim(
                    "window-off-by-one", f"the sliding window holds {width} keys instead of {base.window}",
                    replace(base, window=width), {"window": width, "reference_window": base.window},
                    free=0 if width in near else 1,
                )  # fmt: skip
    elif first:
        yield Claim(
            "window-off-by-one", f"a sliding window of {first} keys is applied that the reference has not",
            replace(base, window=first), {"window": first, "reference_window": None}, free=1,
        )  # fmt: skip


def _one_sided(base: Settings, reach: int) -> Iterator[Claim]:
    """A window to both sides that is one key wider or narrower on one of them."""
    for step in (1, -1):
        after = replace(base, reach=None, diagonal=reach + step, window=reach + 1, both=True)
        before = replace(base, reach=None, diagonal=reach, window=reach + step + 1, both=True)
        for side, claim in (("after", after), ("before", before)):
            yield Claim(
                "window-off-by-one", f"the window reaches {reach + step} keys {side} a query instead of {reach}",
                claim, {"window": reach + step, "reference_window": reach, "side": side},
            )  # fmt: skip


def padding(case: Case) -> Iterator[Claim]:
    """A mask that was given and is not applied, or read the wrong way round."""
    base = case.settings
    if case.problem.operands.mask is None:
        return
    if base.mask:
        yield Claim("mask-missing", "the mask that was given is ignored", replace(base, mask=""))
        if base.diagonal is None and case.problem.keys == case.problem.queries:
            only = replace(base, mask="", diagonal=0)
            yield Claim("mask-missing", "of the mask that was given only the causal part is applied", only)
        if case.problem.operands.mask.shape[2] == 1 and case.problem.keys == case.problem.queries:
            across = replace(base, across=True)
            yield Claim("mask-missing", "the mask of the keys is laid over the queries, and hides no key", across)
    other = {"keep": "drop", "drop": "keep"}.get(base.mask)
    if other:
        yield Claim("mask-missing", "the mask is read the wrong way round", replace(base, mask=other))
    if not base.mask:
        for reading in ("keep", "drop", "add"):
            claim = replace(base, mask=reading)
            yield Claim("mask-missing", "a mask is applied that the reference ignores", claim)


def edges(case: Case) -> Iterator[Claim]:
    """A mask of keys that begins or ends one key sooner or later."""
    base, given = case.settings, case.problem.operands.mask
    if given is None or not base.mask or given.shape[2] != 1:
        return
    shown = given > HIDDEN if base.mask in ("add", "hide") else (given != 0) == (base.mask == "keep")
    for said, moved in moved_edges(shown):
        if not np.array_equal(moved, shown) and moved.any(axis=-1).all():
            operands = replace(case.problem.operands, mask=np.asarray(moved, np.float64), memory={})
            other = replace(case.problem, operands=operands)
            yield Claim("mask-off-by-one", said, replace(base, mask="keep"), problem=other)


def hiding(case: Case) -> Iterator[Claim]:
    """Keys that are hidden in a way that does not hide them."""
    base = case.settings
    if base.diagonal is None and not base.mask and base.reach is None:
        return
    zero = replace(base, hidden=0.0)
    yield Claim("mask-missing", "the scores of hidden keys are set to zero, which hides nothing", zero, {"hidden": 0.0})
    late = replace(base, late=True)
    yield Claim("op-order", "keys are hidden after the softmax, so that the rest does not sum to one", late)


def _first_different(case: Case) -> int | None:
    """The first query whose outcome differs, looking at all of them in the sample that differs most."""
    off, size = (square.sum(axis=0) for square in case.problem.profile)
    bad = off > case.limit**2 * np.maximum(size, 1e-300)
    return int(np.argmax(bad)) if bad.any() and not bad[0] else None


VARIANTS = (diagonal, window, padding, edges, hiding)
