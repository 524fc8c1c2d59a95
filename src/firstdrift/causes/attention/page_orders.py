"""Blocks of keys and values that an attention reads in another order, while the positions of what is read stay.

Which block is read where is found without trying orders: what comes out of a softmax, times the sum of its weights, is
linear in a matrix that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .claims import Case, Claim
from .formula import Indices, Operands, Settings, divide, masked
from .problem import Problem, sampled
from .rotary import Floats, turned

MOST_BLOCKS = 12
MOST_TOKENS = 1024
BUDGET = 1 << 16  # scores by which an order is found
EQUATIONS = 1 << 13
CLEAR = 0.05  # how near to nothing or one it must be whether a block is read somewhere


def reordered(case: Case) -> Iterator[Claim]:
    """Blocks of keys and values in another order, which masks and positions show."""
    given, base = case.problem, case.settings
    if not _usual(given, base):
        return
    few = sampled(given, base.heads, BUDGET)
    turning = base.rotary is not None and "k" in base.rotary.sides
    for size in _sizes(given.keys):
        for by_key in (False, True) if turning else (False,):
            order = _order(few, base, size, by_key)
            if order is None or (order == np.arange(len(order))).all():
                continue
            slots = _slots(order, size, given.keys)
            if replace(few, operands=_moved(few.operands, base, slots, by_key)).error(base) > case.limit:
                continue  # which noise alone would not leave: blocks of another size are near it
            kept = ", which keep their rotation" if by_key else ""
            said = f"blocks of {size} keys and values{kept} are read in the order {_shown(order)}"
            moved = _moved(given.operands, base, slots, by_key)
            facts = {"order": order.tolist(), "block": size}
            yield Claim("permutation", said, base, facts, 1, replace(given, operands=moved))
            return


def _usual(given: Problem, base: Settings) -> bool:
    """Whether an order would show, and the formula is one that tells it."""
    plain = base.groups is None and base.order is None and (base.axes, base.merge) == ("thd", "thd")
    one = base.over == "keys" and not (base.late or base.sink or base.sunk)
    shows = base.diagonal is not None or bool(base.mask) or base.rotary is not None or base.slopes is not None
    whole = given.reads == "out" and given.operands.projection is None and given.operands.prefix is None
    return plain and one and shows and whole and 4 <= given.keys <= MOST_TOKENS


def _sizes(keys: int) -> list[int]:
    """Sizes of blocks, the largest first."""
    even = {keys // blocks for blocks in range(2, MOST_BLOCKS + 1)}
    powers = {1 << power for power in range(10)}
    return sorted((one for one in even | powers if one and 2 <= keys // one <= MOST_BLOCKS), reverse=True)


def _slots(order: Indices, size: int, keys: int) -> Indices:
    """The key that is read in each slot; what fills no block stays."""
    blocks = (order[:, None] * size + np.arange(size)).ravel()
    return np.concatenate([blocks, np.arange(len(blocks), keys)])


def _moved(given: Operands, settings: Settings, slots: Indices, by_key: bool) -> Operands:
    """The operands with other keys and values in the slots; by key, each is rotated as it was in its own place."""
    k = given.k[:, slots]
    if by_key and settings.rotary is not None:
        divided = divide(k, settings.kv_heads, "thd")
        back = np.asarray(slots - np.arange(len(slots)), np.float64)
        k = turned(divided, settings.rotary, back, "k").reshape(k.shape)
    return replace(given, k=k, v=given.v[:, slots], memory={})


def _order(few: Problem, settings: Settings, size: int, by_key: bool) -> Indices | None:
    """The block that is read in each place; None where no order explains what came out."""
    blocks = few.keys // size
    raws, values = [], []
    for step in range(blocks):  # in which the block of each place is that so many before it
        moved = _moved(few.operands, settings, _slots(np.roll(np.arange(blocks), step), size, few.keys), by_key)
        raws.append(masked(moved, settings, few.rows))
        values.append(_of_heads(moved.v, settings))
    top = np.max([raw.max(-1, keepdims=True) for raw in raws], axis=0)
    made = divide(few.observed, settings.heads, settings.merge)[:, few.rows].transpose(0, 2, 1, 3)
    if not (np.isfinite(top).all() and np.isfinite(made).all()):
        return None
    columns, rest = [], np.zeros(made.shape)
    for step, (raw, v) in enumerate(zip(raws, values, strict=True)):
        shares = np.exp(raw - top)
        for place in range(blocks):
            columns.append(_left(shares, v, made, slice(place * size, (place + 1) * size)))
        rest = -_left(shares, v, made, slice(blocks * size, None)) if step == 0 else rest
    return _solved(np.stack([one.ravel() for one in columns], axis=1), rest.ravel(), blocks)


def _left(shares: Floats, v: Floats, made: Floats, keys: slice) -> Floats:
    """What some keys add to the sum of values, less what they would if it were all of what was made."""
    part = shares[..., keys]
    return np.asarray(part @ v[:, :, keys] - made * part.sum(-1, keepdims=True))


def _of_heads(v: Floats, settings: Settings) -> Floats:
    heads = np.arange(settings.heads)
    groups = heads % settings.kv_heads if settings.tiled else heads // (settings.heads // settings.kv_heads)
    return divide(v, settings.kv_heads, "thd")[:, :, groups].transpose(0, 2, 1, 3)


def _solved(left: Floats, right: Floats, blocks: int) -> Indices | None:
    """The order by least squares, where every place has one block and every block one place."""
    at = np.unique(np.linspace(0, len(left) - 1, EQUATIONS).astype(np.intp))
    step, place = np.divmod(np.arange(blocks * blocks), blocks)
    block = (place - step) % blocks
    once = np.concatenate([np.arange(blocks)[:, None] == place, np.arange(blocks)[:, None] == block]) * 1.0
    weight = float(np.abs(left).max()) or 1.0
    whole = np.concatenate([left[at], weight * once])
    wanted = np.concatenate([right[at], np.full(2 * blocks, weight)])
    found, _, rank, _ = np.linalg.lstsq(whole, wanted, rcond=1e-9)
    read = np.round(found)
    if rank < len(found) or np.abs(found - read).max() > CLEAR or not np.isin(read, (0, 1)).all():
        return None
    order = np.zeros(blocks, np.intp)
    order[place[read == 1]] = block[read == 1]
    return order


def _shown(order: Indices) -> str:
    return ", ".join(map(str, order[:MOST_BLOCKS]))


VARIANTS = (reordered,)
