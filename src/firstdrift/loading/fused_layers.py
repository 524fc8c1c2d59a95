"""Layers that are several on the other side, such as q, k and v in one, from names and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .layers import Layer, Shape, Tensor
from .map_lines import AMBIGUOUS, TURNED, MapLine, Options, map_line

QKV = "qkv"
ATTENTION = ("c_attn", "in_proj")  # which hold q, k and v in this order, and do not say so


@dataclass(frozen=True, slots=True)
class Fused:
    """A layer and the parts it is made of. `cuts` say how its tensors lie, by what they are in the layer.

    `in_file` is whether the whole is the file's, which is then split; else the file's parts are joined. Without cuts,
    order or layout could be this or that.
    """

    whole: Layer
    parts: tuple[Layer, ...]
    in_file: bool
    cuts: dict[str, tuple[bool, int]]

    @property
    def turned(self) -> bool:
        """Whether a matrix has to be transposed."""
        return any(turned for turned, _ in self.cuts.values())

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor of the whole and its parts."""
        return [one for layer in (self.whole, *self.parts) for one in layer.tensors.values()]

    def lines(self) -> Iterator[MapLine]:
        """As a map says it."""
        for role, (turned, axis) in self.cuts.items():
            steps: Options = TURNED if turned else ()
            whole, parts = self.whole.tensors[role].name, [one.tensors[role].name for one in self.parts]
            if self.in_file:
                yield map_line(whole, parts, (*steps, ("split", axis)))
            else:
                for place, part in enumerate(parts):
                    yield map_line(part, (whole,), (*steps, ("join", axis), ("place", place)))

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
    for one in parts:
        groups.setdefault((one.parent, one.numbers), []).append(one)
    for whole in wholes:
        runs = [
            (run, cuts)
            for (_, numbers), members in groups.items()
            if numbers == whole.numbers
            for run in _runs(members)
            if (cuts := _all_cuts(whole, run, in_file)) is not None
        ]
        if len(runs) == 1:
            yield _decided(whole, *runs[0], in_file, turned)


def _runs(members: list[Layer]) -> Iterator[list[Layer]]:
    for count in (3, 2):
        for start in range(len(members) - count + 1):
            yield members[start : start + count]


def _all_cuts(whole: Layer, run: list[Layer], in_file: bool) -> dict[str, list[tuple[bool, int]]] | None:
    """By tensor, the ways in which shapes add up; None where one cannot be made up of the parts."""
    if any(part.tensors.keys() != whole.tensors.keys() for part in run):
        return None
    cuts = {
        role: _cuts(one.shape, [part.tensors[role].shape for part in run], in_file)
        for role, one in whole.tensors.items()
    }
    return cuts if all(cuts.values()) else None


def _cuts(whole: Shape, parts: list[Shape], in_file: bool) -> list[tuple[bool, int]]:
    """Whether the file's side is transposed, and the axis along which shapes add up then."""
    if any(len(one) != len(whole) for one in parts):
        return []
    found = []
    for turned in (False, True) if len(whole) == 2 else (False,):
        all_of_it = whole[::-1] if turned and in_file else whole
        each = [one[::-1] for one in parts] if turned and not in_file else parts
        found += [(turned, axis) for axis in range(len(whole)) if _adds_up(all_of_it, each, axis)]
    return found


def _adds_up(whole: Shape, parts: list[Shape], axis: int) -> bool:
    return sum(one[axis] for one in parts) == whole[axis] and all(
        one[:axis] + one[axis + 1 :] == whole[:axis] + whole[axis + 1 :] for one in parts
    )


def _decided(
    whole: Layer, run: list[Layer], cuts: dict[str, list[tuple[bool, int]]], in_file: bool, turned: bool
) -> Fused:
    """Square parts fit both ways round: they are taken as they lie where rows follow rows and nothing is transposed."""
    order = _spelled(whole, run)
    chosen = {}
    for role, ways in cuts.items():
        if len(ways) > 1 and not turned and (False, 0) in ways:
            ways = [(False, 0)]
        if len(ways) == 1:
            chosen[role] = ways[0]
    sure = order is not None and len(chosen) == len(cuts)
    return Fused(whole, tuple(order or run), in_file, chosen if sure else {})


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
    words = [set(_own_words(one)) for one in run]
    common = set.intersection(*words)
    return ["_".join(word for word in _own_words(one) if word not in common) or one.stem for one in run]


def _own_words(one: Layer) -> list[str]:
    """The words of a layer's own name."""
    return one.stem.rpartition(".")[2].lower().split("_")
