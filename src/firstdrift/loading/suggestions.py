"""A map that may be meant, from names and shapes: printed when a load fails, never used by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any

from ..checkpoints.checkpoint import Checkpoint
from ..compare.mapping.patterns import MAX_PLACEHOLDERS, RUN, escape, parse_pattern
from ..compare.mapping.quoting import table_line
from .plan import Plan

LIKE = 0.5  # of two names' parts: below this they have little in common, and only the shape speaks for them
_NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A name and a shape, on either side."""

    name: str
    shape: Shape

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers in its name, such as of a layer."""
        return tuple(_NUMBER.findall(self.name))

    @property
    def words(self) -> list[str]:
        """The parts of its name that are no numbers."""
        return [word for word in re.split(r"[._/]", self.name) if word and not word.isdigit()]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One line of a map: a name of the file, the names of the model, and the options beside them."""

    source: str
    targets: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def value(self) -> Any:
        """As it stands in the map; the names have to be patterns."""
        names: Any = self.targets[0] if len(self.targets) == 1 else list(self.targets)
        return {"to": names, **dict(self.options)} if self.options else names


def suggested_map(plan: Plan, checkpoint: Checkpoint) -> str | None:
    """The text of a map that would mend what names and shapes can mend; None when there is nothing to suggest."""
    missing = [Tensor(one.name, one.shape) for one in plan.missing]
    unused = [Tensor(name, checkpoint.entry(name).shape) for name in plan.extra]
    found = list(_turned(plan, checkpoint))
    for propose in (_renamed, _split, _joined, partial(_tied, checkpoint)):
        some = list(propose(missing, unused))
        found += some
        taken = {target for one in some for target in one.targets}
        used = {one.source for one in some}
        missing = [one for one in missing if one.name not in taken]
        unused = [one for one in unused if one.name not in used]
    if not found:
        return None
    lines = [line for one in _families(found, checkpoint) for line in table_line(one.source, one.value(), "")]
    lines += [line for one in unused for line in table_line(escape(one.name), None, "")]
    lines += [f"# nothing likely for the model's {one.name} {list(one.shape)}" for one in missing]
    return "\n".join(lines) + "\n"


def _turned(plan: Plan, checkpoint: Checkpoint) -> Iterator[Suggestion]:
    """Matrices that bear the right name and are as large as wanted the other way round."""
    for one in plan.misshapen:
        shape = checkpoint.entry(one.pieces[0].source).shape
        if len(one.pieces) == 1 and one.pieces[0].is_plain and shape == one.destination.shape[::-1] and len(shape) == 2:
            yield Suggestion(escape(one.pieces[0].source), (escape(one.destination.name),), (("transpose", True),))


def _renamed(missing: Sequence[Tensor], unused: Sequence[Tensor]) -> Iterator[Suggestion]:
    """Tensors of one shape that are each other's likest, and likest by a clear margin."""
    for turned in (False, True):
        pairs = [
            (ours, theirs, _likeness(ours, theirs))
            for ours in missing
            for theirs in unused
            if _fits(ours, theirs, turned)
        ]
        best_ours, best_theirs = _best(pairs, 0), _best(pairs, 1)
        chosen = [(a, b) for a, b, _ in pairs if best_ours.get(a) == b and best_theirs.get(b) == a]
        options = (("transpose", True),) if turned else ()
        yield from (Suggestion(escape(b.name), (escape(a.name),), options) for a, b in chosen)
        missing = [one for one in missing if one not in {a for a, _ in chosen}]
        unused = [one for one in unused if one not in {b for _, b in chosen}]


def _fits(ours: Tensor, theirs: Tensor, turned: bool) -> bool:
    shape = theirs.shape[::-1] if turned else theirs.shape
    return ours.shape == shape and (not turned or len(shape) == 2) and ours.numbers == theirs.numbers


def _likeness(ours: Tensor, theirs: Tensor) -> float:
    """How much two names have in common; the ends of names say more than their beginnings."""
    a, b = ours.words, theirs.words
    end = next((n for n, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), min(len(a), len(b)))
    return SequenceMatcher(None, a, b, autojunk=False).ratio() + end / max(len(a), len(b), 1)


def _best(pairs: list[tuple[Tensor, Tensor, float]], side: int) -> dict[Tensor, Tensor]:
    """For each tensor of a side its counterpart: the likest, or the only one that fits; none where two are alike."""
    options: dict[Tensor, list[tuple[float, Tensor]]] = {}
    for ours, theirs, likeness in pairs:
        one, other = (ours, theirs) if side == 0 else (theirs, ours)
        options.setdefault(one, []).append((likeness, other))
    best = {}
    for one, found in options.items():
        found.sort(key=lambda item: -item[0])
        alone = len(found) == 1 or found[0][0] > found[1][0]
        if alone and found[0][0] >= (LIKE if len(found) > 1 else 0):
            best[one] = found[0][1]
    return best


def _split(missing: Sequence[Tensor], unused: Sequence[Tensor]) -> Iterator[Suggestion]:
    """Tensors of the file that are as large as some neighbours of the model together."""
    for whole, parts, axis in _compounds(unused, missing):
        yield Suggestion(escape(whole.name), tuple(escape(one.name) for one in parts), (("split", axis),))


def _joined(missing: Sequence[Tensor], unused: Sequence[Tensor]) -> Iterator[Suggestion]:
    """Tensors of the model that are as large as some neighbours of the file together."""
    for whole, parts, axis in _compounds(missing, unused):
        for place, one in enumerate(parts):
            yield Suggestion(escape(one.name), (escape(whole.name),), (("join", axis), ("place", place)))


def _compounds(wholes: Sequence[Tensor], parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, list[Tensor], int]]:
    """Wholes with the one group of two or three siblings that could make them up."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[Tensor]] = {}
    for one in parts:
        *parent, _, kind = one.name.split(".") if one.name.count(".") > 1 else ("", "", one.name)
        groups.setdefault((".".join(parent), kind, one.numbers), []).append(one)
    for whole in wholes:
        fitting = []
        for (_, kind, numbers), members in groups.items():
            if kind != whole.name.rpartition(".")[2] or numbers != whole.numbers:
                continue
            for count in (3, 2):
                runs = [members[i : i + count] for i in range(len(members) - count + 1)]
                fitting += [(run, axis) for run in runs if (axis := _axis(whole.shape, run)) is not None]
        if len(fitting) == 1:
            yield whole, *fitting[0]


def _axis(whole: Shape, parts: list[Tensor]) -> int | None:
    """The one axis along which shapes add up to another."""
    if any(len(one.shape) != len(whole) for one in parts):
        return None
    axes = [
        axis
        for axis, count in enumerate(whole)
        if sum(one.shape[axis] for one in parts) == count
        and all(one.shape[:axis] + one.shape[axis + 1 :] == whole[:axis] + whole[axis + 1 :] for one in parts)
    ]
    return axes[0] if len(axes) == 1 else None


def _tied(checkpoint: Checkpoint, missing: Sequence[Tensor], unused: Sequence[Tensor]) -> Iterator[Suggestion]:
    """An output layer that the file does not have because it is the embedding, where the metadata says so."""
    if checkpoint.metadata.get("tie_word_embeddings") is not True:
        return
    for one in missing:
        same = [entry.name for entry in checkpoint.entries.values() if entry.shape == one.shape and "emb" in entry.name]
        if len(same) == 1:
            yield Suggestion(escape(same[0]), (escape(same[0]), escape(one.name)), (("tie", True),))


def _families(found: list[Suggestion], checkpoint: Checkpoint) -> Iterator[Suggestion]:
    """Lines that differ in numbers alone, as one line, where that speaks of no other tensor of the file."""
    groups: dict[Suggestion, list[Suggestion]] = {}
    for one in found:
        groups.setdefault(_general(one), []).append(one)
    for family, members in groups.items():
        if len(members) < 2 or family.source.count(RUN) > MAX_PLACEHOLDERS:
            yield from members
            continue
        pattern = parse_pattern(family.source, "map")
        spoken_of = {escape(name) for name in checkpoint.entries if pattern.match(name) is not None}
        yield from [family] if spoken_of == {one.source for one in members} else members


def _general(one: Suggestion) -> Suggestion:
    """The line with a placeholder for every number, where all its names have the same ones."""
    numbers = {tuple(_NUMBER.findall(name)) for name in (one.source, *one.targets)}
    if len(numbers) > 1 or numbers == {()}:
        return one
    return Suggestion(_NUMBER.sub(RUN, one.source), tuple(_NUMBER.sub(RUN, name) for name in one.targets), one.options)
