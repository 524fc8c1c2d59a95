"""Sums of experts as a router weighs them: how logits become weights, and what each expert returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST_BESIDE = 3  # tensors that may be added to the experts'


@dataclass(frozen=True, slots=True)
class Norm:
    """What weights are divided by: the size of those of a token, or of a slot, an expert or all over many tokens.

    The size is the sum, or the root of the sum of squares; the tokens are those of a sequence of so many, or all.
    """

    over: str = "token"
    power: int = 1
    length: int = 0

    def sizes(self, values: Floats, order: NDArray[np.intp]) -> Floats:
        """The divisors of all weights, shaped to broadcast to (tokens, experts)."""
        chosen = np.take_along_axis(values, order, axis=-1)
        if self.over == "token":
            return self._size(chosen, (1,))
        sequences = (-1, self.length or len(values))
        by_slot = chosen.reshape(*sequences, chosen.shape[1])
        by_expert = values.reshape(*sequences, values.shape[1])
        if self.over == "slot":
            return self._by_slot(self._size(by_slot, (1,)), by_slot.shape, values, order)
        if self.over == "expert":
            return np.broadcast_to(self._size(by_expert, (1,)), by_expert.shape).reshape(values.shape)
        return np.broadcast_to(self._size(by_slot, (1, 2)), (*by_slot.shape[:2], 1)).reshape(-1, 1)

    def _size(self, values: Floats, axes: tuple[int, ...]) -> Floats:
        total = (np.abs(values) ** 2 if self.power == 2 else values).sum(axis=axes, keepdims=True)
        return np.sqrt(total) if self.power == 2 else np.asarray(total)

    @staticmethod
    def _by_slot(sizes: Floats, shape: tuple[int, ...], values: Floats, order: NDArray[np.intp]) -> Floats:
        spread = np.ones_like(values)
        np.put_along_axis(spread, order, np.broadcast_to(sizes, shape).reshape(order.shape), axis=-1)
        return spread

    @property
    def words(self) -> str:
        """What the weights are divided by, in words."""
        size = "the root of the sum of squares" if self.power == 2 else "the sum"
        whose = {"token": "of a token's", "slot": "of each slot's", "expert": "of each expert's", "all": "of all"}
        where = "" if self.over == "token" else " of a sequence" if self.length else " of all tokens"
        return f"{size} {whose[self.over]} weights{where}"


def other_norms(tokens: int, length: int) -> list[Norm]:
    """Every norm but the usual one; `length` is that of a sequence, or zero where that is not known."""
    lengths = dict.fromkeys([0, length if 0 < length < tokens and tokens % length == 0 else 0])
    wide = [Norm(over, power, n) for over, power, n in product(("all", "slot", "expert"), (1, 2), lengths)]
    return [Norm("token", 2), *wide]


@dataclass(frozen=True, slots=True)
class Router:
    """How logits become weights: scores, the best `chosen` of them, renormalised or not, times a factor."""

    scores: str
    chosen: int
    renormalised: bool = False
    factor: float = 1.0
    norm: Norm = Norm()  # by which they are renormalised


def weights(logits: Floats, router: Router) -> Floats:
    """The weights of all experts, zero for those that are not chosen: (tokens, experts)."""
    values = _scores(logits, router.scores)
    best = np.argsort(-logits, axis=-1, kind="stable")[:, : router.chosen]
    if router.chosen < logits.shape[-1]:
        kept = np.zeros(logits.shape, bool)
        np.put_along_axis(kept, best, True, axis=-1)
        values = np.where(kept, values, 0.0)
    if router.renormalised:
        sizes = router.norm.sizes(values, best)
        values = values / np.where(sizes == 0, 1.0, sizes)
    return np.asarray(router.factor * values)


def best_first(logits: Floats, router: Router) -> Floats:
    """The weights of the chosen experts, the best first: (tokens, chosen)."""
    order = np.argsort(-logits, axis=-1, kind="stable")[:, : router.chosen]
    return np.take_along_axis(weights(logits, router), order, axis=-1)


@dataclass(frozen=True, eq=False, slots=True)
class Experts:
    """Recorded logits (tokens, experts), what each expert returned for all tokens or for its own, and a shared one."""

    logits: Floats
    outputs: tuple[Floats, ...]
    tokens: int
    shared: Floats | None = None
    beside: Mapping[str, Floats] = field(default_factory=dict)  # what may be added to them
    base: Floats | None = None  # what is

    @classmethod
    def of(cls, inputs: Mapping[str, NDArray[np.generic]], like: NDArray[np.generic]) -> Experts | None:
        """The logits and outputs among what a mixture was computed from."""
        width, tokens = like.shape[-1], int(np.prod(like.shape[:-1]))
        given = {name: made for name, value in inputs.items() if (made := rows(value)) is not None}
        wide = _outermost({name: value for name, value in given.items() if value.shape[1] == width})
        shared = [n for n in wide if "shared" in n.lower()]
        if len(wide) < 2 or len(shared) > 1:
            return None
        gates = [v for n, v in given.items() if v.shape[1] != width and len(v) == tokens and v.shape[1] > 1]
        rest = {n: v for n, v in wide.items() if n not in shared}
        numbered = [(gate, own) for gate in gates if (own := _numbered(rest, gate.shape[1])) is not None]
        if len(numbered) == 1:
            gate, own = numbered[0]
        elif len(gates) == 1 and len(rest) == gates[0].shape[1]:
            gate, own = gates[0], list(rest)
        else:
            return None
        beside = {n: v for n, v in rest.items() if n not in own and len(v) == tokens}
        extra = wide[shared[0]] if shared else None
        return cls(gate, tuple(rest[n] for n in own), tokens, extra, beside if len(beside) <= MOST_BESIDE else {})

    def upon(self, names: Iterable[str]) -> Experts:
        """The same with some of what is beside them added."""
        return replace(self, base=sum((self.beside[name] for name in names), start=np.zeros(1)))

    def at(self, tokens: NDArray[np.intp]) -> Experts | None:
        """The same for some tokens, where every expert returned something for all of them."""
        every = (*self.outputs, *(() if self.shared is None else (self.shared,)))
        if any(len(one) != self.tokens for one in every):
            return None
        base = self.base if self.base is None or self.base.ndim < 2 else self.base[tokens]
        return replace(
            self, logits=self.logits[tokens], outputs=tuple(one[tokens] for one in self.outputs), tokens=len(tokens),
            shared=None if self.shared is None else self.shared[tokens], base=base,
        )  # fmt: skip

    def mixed(self, router: Router, by_slot: bool, extra: bool, routed: Router | None = None) -> Floats | None:
        """The weighted sum of the experts; `routed` says who got which tokens, if that is another router."""
        return self.weighed(weights(self.logits, router), routed or router, by_slot, extra)

    def exchanged(self, router: Router, by_slot: bool, extra: bool) -> Floats | None:
        """The sum with the weights of the chosen experts in the reverse order."""
        order = np.argsort(-self.logits, axis=-1, kind="stable")[:, : router.chosen]
        given = weights(self.logits, router)
        changed = np.zeros_like(given)
        np.put_along_axis(changed, order, np.take_along_axis(given, order[:, ::-1], axis=-1), axis=-1)
        return self.weighed(changed, router, by_slot, extra)

    def without(self, router: Router, by_slot: bool, extra: bool, slot: int) -> Floats | None:
        """The sum without the expert that was chosen as a certain one."""
        order = np.argsort(-self.logits, axis=-1, kind="stable")[:, slot : slot + 1]
        given = weights(self.logits, router).copy()
        np.put_along_axis(given, order, 0.0, axis=-1)
        return self.weighed(given, router, by_slot, extra)

    def weighed(self, given: Floats, router: Router, by_slot: bool, extra: bool) -> Floats | None:
        """The sum of the experts by given weights (tokens, experts); a router says who got which tokens."""
        if extra and (self.shared is None or len(self.shared) != self.tokens):
            return None
        total = (
            self.shared.copy()
            if extra and self.shared is not None
            else np.zeros((self.tokens, self.outputs[0].shape[1]))
        )
        total = total if self.base is None else total + self.base
        order = np.argsort(-self.logits, axis=-1, kind="stable")[:, : router.chosen]
        for expert, output in enumerate(self.outputs):
            if len(output) == self.tokens:
                total += given[:, expert, None] * output
                continue
            token = np.nonzero((order == expert).T)[1]
            at = token if by_slot else np.sort(token)
            if len(at) != len(output):
                return None
            total[at] += given[at, expert, None] * output
        return total


def _outermost(given: Mapping[str, Floats]) -> dict[str, Floats]:
    """Tensors without those of the parts of another one of them: an expert's last layer is the expert."""
    return {name: value for name, value in given.items() if not any(name.startswith(f"{other}.") for other in given)}


def _numbered(given: Mapping[str, Floats], count: int) -> list[str] | None:
    """So many names that differ in one number, which counts them from zero, in its order."""
    series: dict[tuple[str, str], dict[int, str]] = {}
    for name in given:
        parts = name.split(".")
        for place, part in enumerate(parts):
            if part.isdecimal():
                key = ".".join(parts[:place]), ".".join(parts[place + 1 :])
                series.setdefault(key, {})[int(part)] = name
    found = [one for one in series.values() if sorted(one) == list(range(count))]
    return [found[0][number] for number in range(count)] if len(found) == 1 else None


def _scores(logits: Floats, kind: str) -> Floats:
    if kind == "logits":
        return logits
    if kind == "sigmoid":
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def rows(value: NDArray[np.generic]) -> Floats | None:
    """A tensor as (tokens, width), or None where it holds no finite numbers."""
    if value.ndim < 2 or not np.issubdtype(value.dtype, np.floating) or not value.size:
        return None
    made = np.asarray(value, np.float64).reshape(-1, value.shape[-1])
    return made if np.isfinite(made).all() else None
