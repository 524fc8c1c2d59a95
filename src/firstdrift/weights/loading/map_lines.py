"""Lines of a map that somebody may want: what they say, how they stand in the file, and the tensors that one
side has under another name, whole or in parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...core.strict_json import Json
from ...pair.mapping.patterns import MAX_PLACEHOLDERS, RUN, escape, parse_pattern
from ...pair.mapping.quoting import comment, table_line
from ..checkpoint import Array

NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")
AMBIGUOUS = "ambiguous"  # stands for true or false; a map is not read before somebody has decided

Options = tuple[tuple[str, Any], ...]
TURNED: Options = (("transpose", True),)
PERHAPS_TURNED: Options = (("transpose", AMBIGUOUS),)


@dataclass(frozen=True, slots=True)
class MapLine:
    """One line of a map: a name of the file, the names of the model, and the options beside them.

    Without targets the tensor is dropped. The names are patterns.
    """

    source: str
    targets: tuple[str, ...] = ()
    options: Options = ()

    def value(self) -> Any:
        """As it stands in the map."""
        if not self.targets:
            return None
        names: Any = self.targets[0] if len(self.targets) == 1 else list(self.targets)
        return {"to": names, **dict(self.options)} if self.options else names


def map_line(source: str, targets: Sequence[str] = (), options: Options = ()) -> MapLine:
    """A line about tensors of these very names."""
    return MapLine(escape(source), tuple(escape(name) for name in targets), options)


def lines_of(whole: Whole) -> list[MapLine]:
    """How a tensor of the file is cut into the model's, or how the file's parts make up one of the model's."""
    turned = TURNED if whole.turned else ()
    if len(whole.parts) == 1:
        names = (whole.name, whole.parts[0]) if whole.in_file else (whole.parts[0], whole.name)
        return [map_line(names[0], names[1:], turned)]
    if whole.in_file:
        return [map_line(whole.name, whole.parts, (*turned, ("split", whole.axis)))]
    axis = 1 - whole.axis if whole.turned else whole.axis  # parts are turned before they are joined, not after
    return [
        map_line(part, (whole.name,), (*turned, ("join", axis), ("place", place)))
        for place, part in enumerate(whole.parts)
    ]


def map_text(lines: Sequence[MapLine], names: Sequence[str], comments: Sequence[str] = ()) -> str:
    """The lines as a map for a file of these names, with what it does not say as comments at its end."""
    table = [text for family in _families(lines, names) for text in table_line(family.source, family.value(), "")]
    return "\n".join([*table, *(f"# {comment(said)}" for said in comments)]) + "\n"


def _families(found: Sequence[MapLine], names: Sequence[str]) -> Iterator[MapLine]:
    """Lines that differ in numbers alone, as one line, where that speaks of no other tensor of the file."""
    groups: dict[str, list[MapLine]] = {}
    for line in found:
        groups.setdefault(repr(_general(line)), []).append(line)
    for members in groups.values():
        family = _general(members[0])
        if len(members) < 2 or not family.targets or family.source.count(RUN) > MAX_PLACEHOLDERS:
            yield from members
            continue
        pattern = parse_pattern(family.source, "map")
        spoken_of = {escape(name) for name in names if pattern.match(name) is not None}
        yield from [family] if spoken_of == {member.source for member in members} else members


def _general(line: MapLine) -> MapLine:
    """The line with a placeholder for every number, where all its names have the same ones."""
    numbers = {tuple(NUMBER.findall(name)) for name in (line.source, *line.targets)}
    if len(numbers) > 1 or numbers == {()}:
        return line
    return MapLine(NUMBER.sub(RUN, line.source), tuple(NUMBER.sub(RUN, name) for name in line.targets), line.options)


SCHEMA = "firstdrift-weights-diff-v1"
CODES = {"drift": 1, "not comparable": 2, "missing": 2, "nothing compared": 2}
ORDER = ("drift", "not comparable", "missing", "moved", "rounded", "same")


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """One tensor of the reference: `same`, `rounded` to the candidate's dtype, `moved`, `drift`, `missing`, or
    `not comparable` where both sides have no numbers in it."""

    name: str
    verdict: str
    sentence: str = ""
    label: str | None = None
    error: float | None = None
    others: tuple[str, ...] = ()
    line: MapLine | None = None  # how a map says where its numbers are; none where names and layouts are the same
    is_empty: bool = False  # it covers nothing

    def to_json(self) -> dict[str, Json]:
        """As it stands in the result."""
        return {
            "name": self.name, "verdict": self.verdict, "label": self.label, "sentence": self.sentence,
            "error": self.error, "others": list(self.others),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckpointDifference:
    """The result of a comparison: a line for every tensor of the reference, and what only the candidate has."""

    reference: str
    candidate: str
    tensors: tuple[TensorDifference, ...]
    candidate_only: tuple[str, ...] = field(default=())
    candidate_tied: Mapping[str, str] = field(default_factory=dict)  # further names of tensors that both have

    @property
    def counts(self) -> dict[str, int]:
        """How many tensors there are of each verdict."""
        found = Counter(tensor.verdict for tensor in self.tensors)
        return {verdict: found[verdict] for verdict in ORDER if found[verdict]}

    @property
    def verdict(self) -> str:
        """The worst verdict of all."""
        compared = any(tensor.verdict != "missing" and not tensor.is_empty for tensor in self.tensors)
        if not compared:
            return "nothing compared"
        return next(verdict for verdict in ORDER if verdict in self.counts)

    @property
    def exit_code(self) -> int:
        """0 when every number is there, 1 when some differ, 2 when tensors are missing or nothing was compared."""
        return CODES.get(self.verdict, 0)

    def to_json(self) -> dict[str, Json]:
        """The result as JSON's own types."""
        return {
            "schema": SCHEMA, "verdict": self.verdict, "reference": self.reference, "candidate": self.candidate,
            "counts": self.counts, "tensors": [tensor.to_json() for tensor in self.tensors],
            "candidate_only": list(self.candidate_only),
        }  # fmt: skip


MOST_PARTS = 8  # of one tensor
AXES = 2  # along which tensors are joined in practice: rows and columns

Read = Callable[[str], Array]


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor that is others joined along an axis, in this order; `turned` when it is transposed before that.

    It is the file's, and the parts are the model's, or the other way round.
    """

    name: str
    parts: tuple[str, ...]
    axis: int
    turned: bool = False
    in_file: bool = False

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return f"is {self.parts[0]}, transposed" if self.turned else f"is {self.parts[0]}"
        how = ", transposed" if self.turned else ""
        return f"is {', '.join(self.parts)} joined along axis {self.axis}{how}"


def find_moved(file: Sequence[str], model: Sequence[str], read_file: Read, read_model: Read) -> Iterator[Whole]:
    """Tensors that both sides have bit for bit, under another name, joined or cut; each is used once."""
    parts, left = list(file), list(model)
    for name in model:
        whole = find_whole(name, read_model(name), parts, read_file)
        if whole is not None:
            parts = [part for part in parts if part not in whole.parts]
            left.remove(name)
            yield whole
    for name in parts:
        whole = find_whole(name, read_file(name), left, read_model)
        if whole is not None:
            left = [part for part in left if part not in whole.parts]
            yield replace(whole, in_file=True)


def find_whole(name: str, array: Array, parts: Sequence[str], read: Read) -> Whole | None:
    """The parts, each used once, that make up a tensor bit for bit; a single one is the same under another name."""
    if not array.size or one_number(array):  # zeros and ones are everywhere, and say nothing
        return None
    for turned in (False, True) if array.ndim == 2 else (False,):
        view = array.T if turned else array
        for axis in range(min(view.ndim, AXES)):
            found = _cover(view, axis, parts, read)
            if found is not None:
                return Whole(name, tuple(found), axis, turned)
    return None


def _cover(view: Array, axis: int, parts: Sequence[str], read: Read) -> list[str] | None:
    found: list[str] = []
    position = 0
    while position < view.shape[axis]:
        if len(found) == MOST_PARTS:
            return None
        rest = view[(slice(None),) * axis + (slice(position, None),)]
        name = next((part for part in _fitting(rest, axis, parts, read) if part not in found), None)
        if name is None:
            return None
        found.append(name)
        position += read(name).shape[axis]
    return found


def _fitting(rest: Array, axis: int, parts: Sequence[str], read: Read) -> Iterator[str]:
    """The tensors that the rest begins with."""
    for name in parts:
        part = read(name)
        if part.dtype != rest.dtype or part.ndim != rest.ndim or part.shape[axis] > rest.shape[axis] or not part.size:
            continue
        if part.shape[:axis] + part.shape[axis + 1 :] == rest.shape[:axis] + rest.shape[axis + 1 :]:
            start = rest[(slice(None),) * axis + (slice(0, part.shape[axis]),)]
            if same_bits(start, part):
                yield name


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays of one dtype and shape are equal, bit for bit; a first look is at one slice alone."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.ndim and len(a) > 1 and not np.array_equal(_bits(a[:1]), _bits(b[:1])):
        return False
    return bool(np.array_equal(_bits(a), _bits(b)))


def _bits(array: Array) -> Array:
    """Numbers as what they are stored as, so that NaN is equal to itself and 0 not to -0."""
    if array.dtype.kind in "iub":
        return array
    kind = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(array.dtype.itemsize)
    return np.ascontiguousarray(array).view(kind if kind is not None else "u8")


def one_number(array: Array) -> bool:
    """Whether all elements are the same number."""
    return bool((array == array.reshape(-1)[0]).all())
