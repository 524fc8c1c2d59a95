"""Tensors by the layer they are of, and which layer of one side is likely which of the other.

A weight goes nowhere without its bias: what belongs together in a file belongs together in the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from .map_lines import NUMBER

# What other libraries call a layer's weight and bias.
ROLES = {
    "weight": "weight", "kernel": "weight", "w": "weight", "gamma": "weight", "scale": "weight",
    "embedding": "weight", "bias": "bias", "b": "bias", "beta": "bias",
}  # fmt: skip
_PARTED = re.compile(r"(?:(.*)[._/])?([^._/]+)", re.DOTALL)

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A name and a shape, on either side."""

    name: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)}"


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The tensors of one layer by what they are in it."""

    stem: str
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers in its name, such as of a block."""
        return tuple(NUMBER.findall(self.stem))

    @property
    def words(self) -> list[str]:
        """The parts of its name that are no numbers."""
        return [word for word in re.split(r"[._/]", self.stem) if word and not word.isdigit()]

    @property
    def parent(self) -> str:
        """The name of what it is a part of."""
        return self.stem.rpartition(".")[0]

    def shared(self, other: Layer) -> list[tuple[Tensor, Tensor]]:
        """Tensors that both have, by what they are."""
        return [(one, other.tensors[role]) for role, one in self.tensors.items() if role in other.tensors]


Fits = Callable[[Layer, Layer], bool]


def parted(name: str) -> tuple[str, str]:
    """The layer in a tensor's name, and what the tensor is in that layer."""
    found = _PARTED.fullmatch(name)
    if found is not None and found[2] in ROLES:
        return found[1] or "", ROLES[found[2]]
    stem, _, role = name.rpartition(".")
    return stem, role


def layers_of(tensors: Iterable[Tensor]) -> list[Layer]:
    """The layers that tensors are of, in their order."""
    found: dict[str, Layer] = {}
    for one in tensors:
        stem, role = parted(one.name)
        if role in found.setdefault(stem, Layer(stem)).tensors:
            stem, role = one.name, ""  # a second weight of one layer is for itself
        found.setdefault(stem, Layer(stem)).tensors[role] = one
    return list(found.values())


def shapes_fit(ours: Layer, theirs: Layer) -> bool:
    """Whether every tensor that both have is as large, as it lies or transposed."""
    pairs = ours.shared(theirs)
    return bool(pairs) and all(one.shape == other.shape or is_turned(one, other) for one, other in pairs)


def is_turned(ours: Tensor, theirs: Tensor) -> bool:
    """Whether a matrix is as large as another when it is transposed, and only then."""
    return len(ours.shape) == 2 and ours.shape == theirs.shape[::-1] != theirs.shape


def pair_layers(
    ours: Sequence[Layer], theirs: Sequence[Layer], fits: Fits = shapes_fit, same: Mapping[str, str] | None = None
) -> tuple[list[tuple[Layer, Layer]], dict[Layer, list[Layer]]]:
    """Layers that are each other's likest by a whole word, or the only ones that fit; and of all others of ours, which
    they may be. `same` are layers that are known to be each other already, by name: ours and theirs.
    """
    known = dict(same or {})
    back = {other: one for one, other in known.items()}
    left, right = list(ours), list(theirs)
    pairs: list[tuple[Layer, Layer]] = []
    while True:
        options = {one: _options(one, right, fits, known, back) for one in left}
        chosen = _mutual(options)
        if not chosen:
            return pairs, {one: found for one, found in options.items() if found}
        pairs += chosen
        left = [one for one in left if one not in {a for a, _ in chosen}]
        right = [one for one in right if one not in {b for _, b in chosen}]


def _options(
    one: Layer, among: Sequence[Layer], fits: Fits, known: dict[str, str], back: dict[str, str]
) -> list[Layer]:
    """What a layer may be: those that have all of its tensors and no others, if there are such."""
    found = [
        other
        for other in among
        if one.numbers == other.numbers
        and known.get(one.stem, other.stem) == other.stem
        and back.get(other.stem, one.stem) == one.stem
        and fits(one, other)
    ]
    whole = [other for other in found if other.tensors.keys() == one.tensors.keys()]
    return whole or found


def _mutual(options: dict[Layer, list[Layer]]) -> list[tuple[Layer, Layer]]:
    turned: dict[Layer, list[Layer]] = {}
    for one, found in options.items():
        for other in found:
            turned.setdefault(other, []).append(one)
    best = {one: _likest(one, found) for one, found in options.items()}
    chosen = {other: _likest(other, found) for other, found in turned.items()}
    return [(one, other) for one, other in best.items() if other is not None and chosen[other] is one]


def _likest(one: Layer, among: list[Layer]) -> Layer | None:
    """The only one, or the one with more words in common than any other."""
    if len(among) < 2:
        return among[0] if among else None
    ranked = sorted(((_likeness(one, other), number) for number, other in enumerate(among)), reverse=True)
    return among[ranked[0][1]] if ranked[0][0] > max(ranked[1][0], 0) else None


def _likeness(one: Layer, other: Layer) -> int:
    """How many words two names share, those at their ends twice. Their lengths say nothing, so none are divided by."""
    a, b = one.words, other.words
    shared = sum(block.size for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    end = next((n for n, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), min(len(a), len(b)))
    return shared + end + (a == b)
