"""Attention in plain float64: what is attended, how, and what of it is read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .norming import Norms, normed
from .rotary import Floats, Rotary, turned

Indices = NDArray[np.intp]
HIDDEN = -1e4  # an additive mask at or below this hides a key
REMEMBERED = 2  # products of one problem
FILLS = ("zero", "uniform", "open", "nan")  # what a query that may see nothing returns, by implementation


@dataclass(frozen=True, eq=False, slots=True)
class Prefix:
    """Keys and values (slots, width) that every query of every sample sees besides those of the tokens, as they are:
    not rotated here. The queries begin `offset` positions behind where their keys do."""

    k: Floats
    v: Floats
    offset: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Operands:
    """What attention is computed from: projections (batch, tokens, width), and what else was at hand.

    `mask` is given as it was recorded, broadcastable to (batch, heads, queries, keys); `bias` is added to the scores;
    `projection` is the weight (out, in) and bias of the output projection where the output was read behind it;
    `rotated` is how many channels of a head are rotated, where the structure tells; `sinks` are learned scores of the
    heads, of a key that has no value; `prefix` is what a cache or a prompt puts before the tokens.
    """

    q: Floats
    k: Floats
    v: Floats
    mask: Floats | None = None
    bias: Floats | None = None
    projection: tuple[Floats, Floats] | None = None
    rotated: int | None = None
    sinks: Floats | None = None
    prefix: Prefix | None = None
    memory: dict[Hashable, tuple[object, Floats]] = field(default_factory=dict)  # products that are needed again

    def samples(self, batch: Indices) -> Operands:
        """The same for some samples only."""
        if np.array_equal(batch, np.arange(len(self.q))):
            return replace(self, memory={})
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[batch]
        bias = self.bias if self.bias is None or len(self.bias) == 1 else self.bias[batch]
        return replace(self, q=self.q[batch], k=self.k[batch], v=self.v[batch], mask=mask, bias=bias, memory={})

    def first(self, n: int) -> Operands:
        """The same for the first tokens only, which is exact where no query looks ahead."""
        mask = None if self.mask is None else self.mask[:, :, :n, :n]
        bias = None if self.bias is None else self.bias[:, :, :n, :n]
        return replace(self, q=self.q[:, :n], k=self.k[:, :n], v=self.v[:, :n], mask=mask, bias=bias, memory={})


@dataclass(frozen=True, eq=False, slots=True)
class Settings:
    """One way to attend.

    `axes` and `merge` say how the width of the projections and of the output is divided (`thd`: tokens, heads,
    channels, as it should be). Query i sees keys i - window < j <= i + diagonal. `reach` is the
    window of a network that looks both ways. `mask` says how a recorded mask is read: keep, drop, add, or hide where it
    would also add. `groups` is
    the key head of each query head where it is neither repeated nor tiled, `order` that of the heads of the output,
    `hidden` the score of a hidden key; `late` hides keys only after the softmax, which goes over `over`. With `itself`
    every query sees its own key, whatever the masks say: padding then has something to see. A `sink` counts more keys
    of score zero and value zero; with `sunk` there is one whose scores are the learned ones. With `across` a mask of
    the keys is laid over the queries. `slopes` are of biases that fall with the distance to earlier keys, and with
    `both` to later ones
    too, as where all keys are seen.
    """

    heads: int
    kv_heads: int
    scale: float
    axes: str = "thd"
    merge: str = "thd"
    tiled: bool = False
    diagonal: int | None = None
    window: int | None = None
    reach: int | None = None
    softcap: float | None = None
    rotary: Rotary | None = None
    slopes: Floats | None = None
    biased: bool = False
    mask: str = ""
    norm: Norms | None = None
    groups: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    hidden: float = -np.inf
    late: bool = False
    over: str = "keys"
    fill: str = "zero"
    itself: bool = False
    sink: float = 0.0
    across: bool = False
    both: bool = False
    sunk: bool = False

    @property
    def even(self) -> bool:
        """Whether biases by distance fall to both sides."""
        return self.both or self.diagonal is None


def divide(x: Floats, heads: int, axes: str) -> Floats:
    """A width as heads: (batch, tokens, heads, channels)."""
    batch, tokens, width = x.shape
    channels = width // heads
    if axes == "htd":  # the order of the memory read as if heads came first
        return x.reshape(batch, heads, tokens, channels).transpose(0, 2, 1, 3)
    if axes == "tdh":
        return x.reshape(batch, tokens, channels, heads).transpose(0, 1, 3, 2)
    return x.reshape(batch, tokens, heads, channels)


def merge(x: Floats, axes: str) -> Floats:
    """Heads as one width again; the inverse of `divide`."""
    batch, tokens, heads, channels = x.shape
    if axes == "htd":
        x = x.transpose(0, 2, 1, 3)
    elif axes == "tdh":
        x = x.transpose(0, 1, 3, 2)
    return x.reshape(batch, tokens, heads * channels)


def seen(settings: Settings, operands: Operands, rows: Indices) -> NDArray[np.bool_] | None:
    """Which keys each query may see, broadcastable to (batch, heads, rows, keys); None for all."""
    keys = np.arange(operands.k.shape[1])
    distance = (rows[:, None] - keys)[None, None]
    allowed: NDArray[np.bool_] | None = None

    def require(condition: NDArray[np.bool_]) -> None:
        nonlocal allowed
        allowed = condition if allowed is None else allowed & condition

    if settings.diagonal is not None:
        require(distance >= -settings.diagonal)
        if settings.window is not None:
            require(distance < settings.window)
    if settings.reach is not None:
        require(np.abs(distance) <= settings.reach)
    if settings.mask and operands.mask is not None:
        given = _rows_of(operands.mask.swapaxes(2, 3) if settings.across else operands.mask, rows)
        if settings.mask in ("add", "hide"):
            require(given > HIDDEN)
        else:
            require((given != 0) == (settings.mask == "keep"))
    return allowed | (distance == 0) if settings.itself and allowed is not None else allowed


def products(operands: Operands, settings: Settings, rows: Indices) -> Floats:
    """Queries times keys, as they are turned and shared: (batch, heads, rows, keys)."""
    turn, norms = settings.rotary, settings.norm
    shared = (settings.heads, settings.kv_heads, settings.tiled, settings.groups)
    key = (*shared, settings.axes, id(norms), id(turn), rows.tobytes())
    if key in operands.memory:
        return operands.memory[key][1]
    q = divide(operands.q, settings.heads, settings.axes)[:, rows]
    k = divide(operands.k, settings.kv_heads, settings.axes)
    if norms is not None and not norms.late:
        q, k = normed(q, norms.q), normed(k, norms.k)
    if turn is not None:
        if "q" in turn.sides:
            q = turned(q, turn, np.asarray(rows + turn.shift, np.float64))
        if "k" in turn.sides:
            k = turned(k, turn, np.arange(k.shape[1], dtype=np.float64), "k")
    if norms is not None and norms.late:
        q, k = normed(q, norms.q), normed(k, norms.k)
    out = _shared(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), settings)
    if len(operands.memory) >= REMEMBERED:
        operands.memory.pop(next(iter(operands.memory)))
    operands.memory[key] = (turn, norms), out  # which are kept, so that no others get their ids
    return out


def before(operands: Operands, settings: Settings, rows: Indices) -> Floats:
    """The scores of the keys of a prefix: (batch, heads, rows, slots)."""
    assert operands.prefix is not None
    q = divide(operands.q, settings.heads, settings.axes)[:, rows]
    k = divide(operands.prefix.k[None], settings.kv_heads, "thd")
    if settings.rotary is not None and "q" in settings.rotary.sides:
        q = turned(q, settings.rotary, np.asarray(rows + operands.prefix.offset, np.float64))
    keys = np.broadcast_to(k.transpose(0, 2, 3, 1), (len(q), k.shape[2], k.shape[3], k.shape[1]))
    out = settings.scale * _shared(q.transpose(0, 2, 1, 3), keys, settings)
    return out if settings.softcap is None else settings.softcap * np.tanh(out / settings.softcap)


def scores(operands: Operands, settings: Settings, rows: Indices) -> Floats:
    """The scores of some queries before masking: (batch, heads, rows, keys)."""
    out = settings.scale * products(operands, settings, rows)
    if settings.softcap is not None:
        out = settings.softcap * np.tanh(out / settings.softcap)
    if settings.slopes is not None:
        distance = rows[:, None] - np.arange(operands.k.shape[1])
        out = out - settings.slopes[:, None, None] * (np.abs(distance) if settings.even else distance)
    if settings.biased and operands.bias is not None:
        out = out + _rows_of(operands.bias, rows)
    if settings.mask == "add" and operands.mask is not None:
        out = out + np.where(_rows_of(operands.mask, rows) > HIDDEN, _rows_of(operands.mask, rows), 0.0)
    return np.asarray(out)


def masked(operands: Operands, settings: Settings, rows: Indices) -> Floats:
    """The scores with what may not be seen hidden."""
    allowed = seen(settings, operands, rows)
    raw = scores(operands, settings, rows)
    return raw if allowed is None or settings.late else np.where(allowed, raw, settings.hidden)


def probabilities(operands: Operands, settings: Settings, rows: Indices) -> Floats:
    """The softmax of the scores over the keys that may be seen."""
    values = masked(operands, settings, rows)
    if operands.prefix is not None:
        values = np.concatenate([before(operands, settings, rows), values], axis=-1)
    if settings.over == "nothing":
        return np.where(np.isneginf(values), 0.0, values)
    axis = {"keys": 3, "queries": 2, "heads": 1}[settings.over]
    top = values.max(axis=axis, keepdims=True)
    empty = np.isneginf(top)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        out = np.exp(values - np.where(empty, 0.0, top))
        total = out.sum(axis=axis, keepdims=True) + (settings.sink * np.exp(-top) if settings.sink else 0.0)
        if settings.sunk and operands.sinks is not None:
            total = total + np.exp(operands.sinks[:, None, None] - top)
        out = out / np.where(empty, 1.0, total)
    if settings.late:
        allowed = seen(settings, operands, rows)
        if allowed is not None and operands.prefix is not None:
            always = np.ones((*allowed.shape[:-1], len(operands.prefix.k)), np.bool_)
            allowed = np.concatenate([always, allowed], axis=-1)
        out = out if allowed is None else np.where(allowed, out, 0.0)
    if empty.any() and settings.over == "keys":
        return _filled(out, lambda: scores(operands, settings, rows), empty, settings.fill)
    return out


def attended(operands: Operands, settings: Settings, rows: Indices) -> Floats:
    """What attention returns for some queries: (batch, rows, heads, channels)."""
    v = divide(operands.v, settings.kv_heads, settings.axes)
    if operands.prefix is not None:
        kept = divide(operands.prefix.v[None], settings.kv_heads, "thd")
        v = np.concatenate([np.broadcast_to(kept, (len(v), *kept.shape[1:])), v], axis=1)
    out = _shared(probabilities(operands, settings, rows), v.transpose(0, 2, 1, 3), settings)
    out = out if settings.order is None else out[:, list(settings.order)]
    return np.asarray(out.transpose(0, 2, 1, 3))


def blind(operands: Operands, settings: Settings, rows: Indices) -> bool:
    """Whether some query sees no key at all, so that implementations differ in what they return."""
    allowed = seen(settings, operands, rows)
    return allowed is not None and not bool(np.broadcast_to(allowed.any(axis=-1), allowed.shape[:-1]).all())


def _filled(out: Floats, raw: Callable[[], Floats], empty: NDArray[np.bool_], fill: str) -> Floats:
    if fill == "zero":
        return out
    if fill == "uniform":
        return np.where(empty, 1.0 / out.shape[-1], out)
    if fill == "nan":
        return np.where(empty, np.nan, out)
    values = raw()
    weights = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.where(empty, weights / weights.sum(axis=-1, keepdims=True), out)


def _shared(x: Floats, y: Floats, settings: Settings) -> Floats:
    """x of every head (batch, heads, rows, n) times y of the key head that it uses (batch, key heads, n, m)."""
    if settings.groups is not None:
        return np.asarray(x @ y[:, np.asarray(settings.groups, np.intp)])
    batch, heads, rows, _ = x.shape
    shares = heads // settings.kv_heads
    if shares == 1:
        return np.asarray(x @ y)
    if settings.tiled:
        x = x.reshape(batch, shares, settings.kv_heads, rows, -1).swapaxes(1, 2).reshape(x.shape)
    out = x.reshape(batch, settings.kv_heads, shares * rows, -1) @ y
    out = out.reshape(batch, settings.kv_heads, shares, rows, -1)
    return np.asarray((out.swapaxes(1, 2) if settings.tiled else out).reshape(batch, heads, rows, -1))


def _rows_of(array: Floats, rows: Indices) -> Floats:
    return array if array.shape[2] == 1 else array[:, :, rows]
