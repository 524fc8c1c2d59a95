"""Tensors by the layer they are of, which layer of one side is likely which of the other, and layers that are
several on the other side, such as q, k and v in one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from .map_lines import AMBIGUOUS, NUMBER, Whole

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
    for tensor in tensors:
        stem, role = parted(tensor.name)
        if role in found.setdefault(stem, Layer(stem)).tensors:
            stem, role = tensor.name, ""  # a second weight of one layer is for itself
        found.setdefault(stem, Layer(stem)).tensors[role] = tensor
    return list(found.values())


def shapes_fit(reference: Layer, candidate: Layer) -> bool:
    """Whether every tensor that both have is as large, as it lies or transposed."""
    pairs = reference.shared(candidate)
    return bool(pairs) and all(one.shape == other.shape or is_turned(one, other) for one, other in pairs)


def is_turned(reference: Tensor, candidate: Tensor) -> bool:
    """Whether a matrix is as large as another when it is transposed, and only then."""
    return len(reference.shape) == 2 and reference.shape == candidate.shape[::-1] != candidate.shape


def pair_layers(
    reference: Sequence[Layer],
    candidate: Sequence[Layer],
    fits: Fits = shapes_fit,
    same: Mapping[str, str] | None = None,
) -> tuple[list[tuple[Layer, Layer]], dict[Layer, list[Layer]]]:
    """Layers that are each other's likest by a whole word, or the only ones that fit; and of all others of ours, which
    they may be. `same` are layers that are known to be each other already, by name: ours and theirs.
    """
    known = dict(same or {})
    back = {other: one for one, other in known.items()}
    left, right = list(reference), list(candidate)
    pairs: list[tuple[Layer, Layer]] = []
    while True:
        options = {layer: _options(layer, right, fits, known, back) for layer in left}
        chosen = _mutual(options)
        if not chosen:
            return pairs, {one: found for one, found in options.items() if found}
        pairs += chosen
        left = [layer for layer in left if layer not in {a for a, _ in chosen}]
        right = [layer for layer in right if layer not in {b for _, b in chosen}]


def _options(
    layer: Layer, among: Sequence[Layer], fits: Fits, known: dict[str, str], back: dict[str, str]
) -> list[Layer]:
    """What a layer may be: those that have all of its tensors and no others, if there are such."""
    found = [
        other
        for other in among
        if layer.numbers == other.numbers
        and known.get(layer.stem, other.stem) == other.stem
        and back.get(other.stem, layer.stem) == layer.stem
        and fits(layer, other)
    ]
    whole = [other for other in found if other.tensors.keys() == layer.tensors.keys()]
    return whole or found


def _mutual(options: dict[Layer, list[Layer]]) -> list[tuple[Layer, Layer]]:
    turned: dict[Layer, list[Layer]] = {}
    for one, found in options.items():
        for other in found:
            turned.setdefault(other, []).append(one)
    best = {one: _likest(one, found) for one, found in options.items()}
    chosen = {other: _likest(other, found) for other, found in turned.items()}
    return [(one, other) for one, other in best.items() if other is not None and chosen[other] is one]


def _likest(layer: Layer, among: list[Layer]) -> Layer | None:
    """The only one, or the one with more words in common than any other."""
    if len(among) < 2:
        return among[0] if among else None
    ranked = sorted(((_likeness(layer, other), number) for number, other in enumerate(among)), reverse=True)
    return among[ranked[0][1]] if ranked[0][0] > max(ranked[1][0], 0) else None


def _likeness(one: Layer, other: Layer) -> int:
    """How many words two names share, those at their ends twice. Their lengths say nothing, so none are divided by."""
    a, b = one.words, other.words
    shared = sum(block.size for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    end = next((n for n, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), min(len(a), len(b)))
    return shared + end + (a == b)


QKV = "qkv"
ATTENTION = ("c_attn", "in_proj")  # which hold q, k and v in this order, and do not say so


@dataclass(frozen=True, slots=True)
class Fused:
    """A layer of one side, the parts that it is made of, and how its tensors lie; nothing of that where order or
    layout could be this or that."""

    whole: Layer
    parts: tuple[Layer, ...]
    in_file: bool
    cuts: list[Whole]

    @property
    def turned(self) -> bool:
        """Whether a matrix has to be transposed."""
        return any(cut.turned for cut in self.cuts)

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor of the whole and its parts."""
        return [tensor for layer in (self.whole, *self.parts) for tensor in layer.tensors.values()]

    def doubts(self) -> list[str]:
        """What is left to decide, a sentence for each tensor of the whole."""
        if self.cuts:
            return []
        side = "file" if self.in_file else "model"
        why = "names and shapes do not say in which order or layout"
        parts = {role: ", ".join(part.tensors[role].name for part in self.parts) for role in self.whole.tensors}
        return [
            f"{AMBIGUOUS}: the {side}'s {one} may be {parts[role]} together; {why}"
            for role, one in self.whole.tensors.items()
        ]


def find_fused(wholes: Sequence[Layer], parts: Sequence[Layer], in_file: bool, turned: bool) -> Iterator[Fused]:
    """Layers with the one run of two or three siblings that could make them up. `turned` is whether any matrix of the
    file is known to lie the other way round."""
    groups: dict[tuple[str, tuple[str, ...]], list[Layer]] = {}
    for part in parts:
        groups.setdefault((part.parent, part.numbers), []).append(part)
    for whole in wholes:
        runs = [
            run
            for (_, numbers), members in groups.items()
            if numbers == whole.numbers
            for run in _runs(members)
            if _ways(whole, run, in_file)
        ]
        if len(runs) == 1:
            yield _decided(whole, runs[0], in_file, turned)


def _runs(members: list[Layer]) -> Iterator[list[Layer]]:
    for count in (3, 2):
        for start in range(len(members) - count + 1):
            yield members[start : start + count]


def _ways(whole: Layer, run: Sequence[Layer], in_file: bool) -> list[list[Whole]]:
    """Of every tensor of a layer the ways in which those of the parts add up to it; none where one does not."""
    if any(part.tensors.keys() != whole.tensors.keys() for part in run):
        return []
    found = [_joins(one, [part.tensors[role] for part in run], in_file) for role, one in whole.tensors.items()]
    return found if all(found) else []


def _joins(whole: Tensor, parts: list[Tensor], in_file: bool) -> list[Whole]:
    names, shapes = tuple(part.name for part in parts), [part.shape for part in parts]
    return [
        Whole(whole.name, names, axis, turned, in_file)
        for turned in ((False, True) if len(whole.shape) == 2 else (False,))
        for axis in range(len(whole.shape))
        if _adds_up(whole.shape[::-1] if turned else whole.shape, shapes, axis)
    ]


def _adds_up(whole: Shape, parts: list[Shape], axis: int) -> bool:
    rest = {part[:axis] + part[axis + 1 :] for part in parts}
    return rest == {whole[:axis] + whole[axis + 1 :]} and sum(part[axis] for part in parts) == whole[axis]


def _decided(whole: Layer, run: list[Layer], in_file: bool, turned: bool) -> Fused:
    """Square parts fit both ways round: they are taken as they lie where rows follow rows and nothing is transposed."""
    order = _spelled(whole, run)
    chosen = []
    for ways in _ways(whole, order or run, in_file):
        plain = [way for way in ways if not (way.turned or way.axis or turned)]
        chosen += plain if len(ways) > 1 and plain else ways if len(ways) == 1 else []
    sure = order is not None and len(chosen) == len(whole.tensors)
    return Fused(whole, tuple(order or run), in_file, chosen if sure else [])


def _spelled(whole: Layer, run: list[Layer]) -> list[Layer] | None:
    """The parts in the order in which the whole's name has their names, or the letters q, k and v."""
    name = whole.stem.rpartition(".")[2].lower()
    keys = _keys(run)
    for said in (keys, [key[:1] for key in keys] if sorted(key[:1] for key in keys) == sorted(QKV) else []):
        spelled = QKV if said and name in ATTENTION and len(said[0]) == 1 else name
        places = [spelled.find(key) for key in said]
        if said and min(places) >= 0 and len(set(places)) == len(places):
            return [one for _, one in sorted(zip(places, run, strict=True), key=lambda pair: pair[0])]
    return None


def _keys(run: list[Layer]) -> list[str]:
    """The words that tell the parts apart: q, k, v of q_proj, k_proj, v_proj."""
    words = [set(_own_words(layer)) for layer in run]
    common = set.intersection(*words)
    return ["_".join(word for word in _own_words(layer) if word not in common) or layer.stem for layer in run]


def _own_words(layer: Layer) -> list[str]:
    """The words of a layer's own name."""
    return layer.stem.rpartition(".")[2].lower().split("_")
