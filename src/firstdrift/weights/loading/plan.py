"""Which numbers of a checkpoint go where: decided from names and shapes alone, before any number is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ...pair.mapping.patterns import parse_pattern
from ...pair.pairs import ReconcileError, Transform, apply_all
from ..checkpoint import Array, Checkpoint
from .destinations import Destination
from .failures import not_present
from .maps import Line, LoadMap

PLAIN = Line("no map", parse_pattern("*", "no map"))  # of tensors that bear the model's own names


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the file after some steps, or the part from `start` to `stop` of it along an axis."""

    source: str
    steps: tuple[Transform, ...] = ()
    cut: Transform | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is the file's tensor as it lies there."""
        return not self.steps and self.cut is None

    def of(self, array: Array) -> Array:
        """The piece, from the file's tensor."""
        return apply_all(array, self.steps if self.cut is None else (*self.steps, self.cut))

    def shape(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Its shape; raises ReconcileError where a step does not fit the tensor."""
        nothing = np.broadcast_to(np.int8(0), checkpoint.entry(self.source).shape)  # a shape without memory
        return self.of(nothing).shape

    def __str__(self) -> str:
        steps = [*self.steps, *([self.cut] if self.cut else [])]
        return ", ".join([self.source, *map(str, steps)])


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one destination is made of: its pieces, joined along an axis where there are several.

    `twins` are tensors that the file has under the destination's other names: they have to be equal to it.
    """

    destination: Destination
    pieces: tuple[Piece, ...]
    axis: int | None = None
    twins: tuple[Piece, ...] = ()


@dataclass(slots=True)
class Plan:
    """Everything that will be done, and every reason not to."""

    assignments: list[Assignment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    missing: list[Destination] = field(default_factory=list)
    misshapen: list[Assignment] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Claim:
    """One tensor of the file that says it belongs to a name of the model."""

    piece: Piece
    target: str
    line: Line


def make_plan(checkpoint: Checkpoint, model: Sequence[Destination], mapping: LoadMap | None) -> Plan:
    """Match the names of a checkpoint with those of a model."""
    plan = Plan()
    owner = {name: destination for destination in model for name in destination.names}
    claims: dict[str, list[_Claim]] = {destination.name: [] for destination in model}
    for claim in _claims(checkpoint, owner, mapping, plan):
        claims[owner[claim.target].name].append(claim)
    for destination in model:
        if claims[destination.name]:
            _assign(destination, claims[destination.name], checkpoint, plan)
        else:
            plan.missing.append(destination)
            plan.problems.append(
                f"{not_present(destination.name, checkpoint)}; the model's {destination.kind} has shape "
                f"{list(destination.shape)}"
            )
    return plan


def _claims(checkpoint: Checkpoint, owner: dict[str, Destination], mapping: LoadMap | None, plan: Plan) -> list[_Claim]:
    claims: list[_Claim] = []
    used: set[int] = set()
    for name in [*checkpoint.entries, *checkpoint.aliases]:
        found = mapping.find(name) if mapping is not None else None
        stored = checkpoint.aliases.get(name, name)
        if found is not None:
            line, captures = found
            used.add(id(line))
            if line.targets:
                claims += _mapped(stored, line, line.names(captures), owner, checkpoint, plan)
            else:
                plan.dropped.append(name)
        elif name in owner:
            claims.append(_Claim(Piece(stored), name, PLAIN))
        elif name in checkpoint.entries:
            plan.extra.append(name)
            if mapping is not None:
                plan.problems.append(
                    f"{name}: neither the map nor the model knows this tensor of the file; add a line for it, or null "
                    "to drop it"
                )
    for line in mapping.lines if mapping is not None else ():
        if id(line) not in used:
            plan.problems.append(f"{line.where}: fits no tensor of {checkpoint.path}; correct it, or remove it")
    return claims


def _mapped(
    stored: str, line: Line, targets: tuple[str, ...], owner: dict[str, Destination], checkpoint: Checkpoint, plan: Plan
) -> list[_Claim]:
    unknown = [name for name in targets if name not in owner]
    if unknown:
        plan.problems += [f"{line.where}: the model has no {name!r}; correct the name" for name in unknown]
        return []
    if line.split is None:
        return [_Claim(Piece(stored, line.steps), target, line) for target in targets]
    try:
        cuts = _cuts(Piece(stored, line.steps).shape(checkpoint), line.split, [owner[name].shape for name in targets])
    except ReconcileError as error:
        plan.problems.append(f"{line.where}: {stored}: {error}")
        return []
    return [_Claim(Piece(stored, line.steps, cut), target, line) for cut, target in zip(cuts, targets, strict=True)]


def _cuts(whole: tuple[int, ...], axis: int, parts: list[tuple[int, ...]]) -> list[Transform]:
    """Where to cut a tensor so that the parts are as large as the tensors of the model."""
    if any(not -len(shape) <= axis < len(shape) for shape in [whole, *parts]):
        raise ReconcileError(f"shape {list(whole)} cannot be split along axis {axis} into {[list(s) for s in parts]}")
    sizes = [shape[axis] for shape in parts]
    if sum(sizes) != whole[axis]:
        raise ReconcileError(
            f"shape {list(whole)} has {whole[axis]} along axis {axis}, but the model's tensors have "
            f"{' + '.join(map(str, sizes))} = {sum(sizes)} there"
        )
    ends = np.cumsum([0, *sizes]).tolist()
    return [Transform("slice", axes=(axis,), start=a, stop=b) for a, b in pairwise(ends)]


def _assign(destination: Destination, claims: list[_Claim], checkpoint: Checkpoint, plan: Plan) -> None:
    joined = [claim for claim in claims if claim.line.join is not None]
    if joined:
        _join(destination, claims, joined, checkpoint, plan)
        return
    by_target: dict[str, list[_Claim]] = {}
    for claim in claims:
        by_target.setdefault(claim.target, []).append(claim)
    for target, same in by_target.items():
        if len(same) > 1:
            names = ", ".join(claim.piece.source for claim in same)
            plan.problems.append(f"{target}: {len(same)} tensors of the file would fill it ({names}); keep one")
            return
    first, *others = dict.fromkeys(by_target[name][0].piece for name in destination.names if name in by_target)
    _fit(Assignment(destination, (first,), twins=tuple(others)), checkpoint, plan)


def _join(
    destination: Destination, claims: list[_Claim], joined: list[_Claim], checkpoint: Checkpoint, plan: Plan
) -> None:
    places = sorted(claim.line.place for claim in joined)
    axes = {claim.line.join for claim in joined}
    if len(joined) < len(claims) or places != list(range(len(joined))) or len(axes) > 1:
        said = ", ".join(f"{claim.piece.source} at {claim.line.place}" for claim in joined)
        plan.problems.append(
            f"{destination.name}: is joined from {said}; give every piece the same axis, and the places 0 to "
            f"{len(claims) - 1} once each"
        )
        return
    pieces = tuple(claim.piece for claim in sorted(joined, key=lambda claim: claim.line.place))
    _fit(Assignment(destination, pieces, axes.pop()), checkpoint, plan)


def _fit(assignment: Assignment, checkpoint: Checkpoint, plan: Plan) -> None:
    """Keep an assignment whose shape is the destination's."""
    place = assignment.destination
    made = ", ".join(str(piece) for piece in assignment.pieces)
    shown = "" if made in place.names else f" (from {made})"
    try:
        shape = _shape(assignment, checkpoint)
        twins = [twin.shape(checkpoint) for twin in assignment.twins]
    except ReconcileError as error:
        plan.problems.append(f"{place.name}{shown}: {error}")
        return
    size = int(np.prod(shape, dtype=object))
    if shape == place.shape:
        plan.assignments.append(assignment)
    else:
        plan.misshapen.append(assignment)
        how = f"{size} values in another shape"
        if size != place.size:
            how = f"init length {size}, the model has {place.size}"
        plan.problems.append(
            f"{place.name}{shown}: {how}; shape {list(shape)} in the file, {list(place.shape)} in the model"
        )
    for twin, other in zip(assignment.twins, twins, strict=True):
        if other != place.shape:
            plan.problems.append(
                f"{place.name}: is tied to {twin.source} in the model; shape {list(other)} in the file, "
                f"{list(place.shape)} in the model"
            )


def _shape(assignment: Assignment, checkpoint: Checkpoint) -> tuple[int, ...]:
    shapes = [piece.shape(checkpoint) for piece in assignment.pieces]
    if assignment.axis is None:
        return shapes[0]
    try:
        nothing = [np.broadcast_to(np.int8(0), (*shape, 0)) for shape in shapes]  # the axis is of what comes before
        axis = assignment.axis if assignment.axis >= 0 else assignment.axis - 1
        return np.concatenate(nothing, axis).shape[:-1]
    except (ValueError, np.exceptions.AxisError) as error:
        raise ReconcileError(
            f"pieces of shapes {[list(shape) for shape in shapes]} cannot be joined ({error})"
        ) from None
