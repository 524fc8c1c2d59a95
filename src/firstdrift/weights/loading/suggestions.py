"""A map that may be meant, by names, shapes and the values a model already holds: printed when a load fails, never
used by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.arrays import as_array
from ...errors import FirstdriftError
from ..checkpoint import Array, Checkpoint
from ..dtype_rounding import FLOATS, as_dtype
from .destinations import Destination
from .layers import Layer, Shape, Tensor, find_fused, is_turned, layers_of, pair_layers, parted
from .map_lines import (
    AMBIGUOUS,
    PERHAPS_TURNED,
    TURNED,
    MapLine,
    Options,
    find_moved,
    lines_of,
    map_line,
    map_text,
    one_number,
    same_bits,
)
from .plan import Assignment, Plan


def _held(destination: Destination) -> Array | None:
    """What a tensor holds; None without memory, and for one number alone, which says nothing."""
    if destination.tensor.device.type == "meta" or destination.dtype.startswith("torch.") or not destination.size:
        return None
    array = as_array(destination.tensor.detach().cpu(), destination.name)
    return None if one_number(array) else array


def _stored(checkpoint: Checkpoint, source: str, dtype: str) -> Array | None:
    """A tensor of the file as the model would hold it; None for what is quantized or does not fit the dtype."""
    entry = checkpoint.entry(source)
    if entry.quantized or not (entry.dtype == dtype or {entry.dtype, dtype} <= set(FLOATS)):
        return None
    try:
        return as_dtype(checkpoint.array(source), dtype, source)[0]
    except FirstdriftError:  # a tensor that cannot be read is reported by the load itself
        return None


KERNEL = "kernel"  # matrices of this name are [in, out] in every library that has them
NAMED = 4  # possibilities; what is more is counted


@dataclass(slots=True)
class _Draft:
    """What is left to be told apart, and what was found."""

    missing: list[Tensor]
    unused: list[Tensor]
    lines: list[MapLine] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)  # tensors of either side that a doubt speaks of
    turned: list[tuple[str, bool]] = field(default_factory=list)  # of matrices that fit one way round only, by name
    squares: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # pairs that fit both ways round
    used: set[str] = field(default_factory=set)  # layers of the file

    @property
    def any_turned(self) -> bool:
        """Whether some matrix of the file is known to lie the other way round."""
        return any(turned for _, turned in self.turned)

    def settle(self, reference: Sequence[Tensor], candidate: Sequence[Tensor], lines: Sequence[MapLine] = ()) -> None:
        """Take tensors out that are told apart."""
        self.lines += lines
        self.used |= {parted(tensor.name)[0] for tensor in self.unused if tensor in candidate}
        self.missing = [tensor for tensor in self.missing if tensor not in reference]
        self.unused = [tensor for tensor in self.unused if tensor not in candidate]


def suggested_map(plan: Plan, checkpoint: Checkpoint) -> str | None:
    """The text of a map that would mend what numbers, names and shapes can mend; None when there is nothing to say."""
    draft = _Draft(
        [Tensor(destination.name, destination.shape) for destination in plan.missing],
        [Tensor(name, checkpoint.entry(name).shape) for name in plan.extra],
    )
    _by_value(draft, plan, checkpoint)
    _misshapen(draft, plan, checkpoint)
    _renamed(draft, plan)
    for in_file in (True, False):
        _fused(draft, in_file)
    _tied(draft, checkpoint)
    draft.lines += [map_line(b.name, (a.name,), _square(draft, b.name)) for a, b in draft.squares]
    _named_squares(draft, plan, checkpoint)
    if not draft.lines and not draft.doubts:
        return None
    return map_text([*draft.lines, *_dropped(draft)], list(checkpoint.entries), [*draft.doubts, *_left(draft)])


def _is_simple(assignment: Assignment) -> bool:
    """Whether a tensor was found by its name, and lies in the file as it is."""
    return len(assignment.pieces) == 1 and assignment.pieces[0].is_plain


def _by_value(draft: _Draft, plan: Plan, checkpoint: Checkpoint) -> None:
    """Tensors whose numbers the model holds already: whole, joined of several, or parts of one."""
    known = {tensor.name: tensor for tensor in (*draft.missing, *draft.unused)}
    held = [(destination, array) for destination in plan.missing if (array := _held(destination)) is not None]
    for dtype in dict.fromkeys(destination.dtype for destination, _ in held):
        model = {destination.name: array for destination, array in held if destination.dtype == dtype}
        file = {name: array for name in plan.extra if (array := _stored(checkpoint, name, dtype)) is not None}
        for whole in find_moved(list(file), list(model), file.__getitem__, model.__getitem__):
            spoken_of = [known[name] for name in (whole.name, *whole.parts)]
            draft.settle(spoken_of, spoken_of, lines_of(whole))


def _misshapen(draft: _Draft, plan: Plan, checkpoint: Checkpoint) -> None:
    """Matrices that bear the right name and are as large as wanted the other way round."""
    for assignment in plan.misshapen:
        place, source = assignment.destination, assignment.pieces[0].source
        reference, candidate = Tensor(place.name, place.shape), Tensor(source, checkpoint.entry(source).shape)
        if _is_simple(assignment) and is_turned(reference, candidate):
            draft.lines.append(map_line(source, (reference.name,), TURNED))
            draft.turned.append((source, True))


def _renamed(draft: _Draft, plan: Plan) -> None:
    """Layers under other names, each with all it has."""
    same = {
        parted(assignment.destination.name)[0]: parted(assignment.pieces[0].source)[0]
        for assignment in (*plan.misshapen, *plan.assignments)
        if _is_simple(assignment)
    }
    reference, candidate = layers_of(draft.missing), layers_of(draft.unused)
    pairs, options = pair_layers(reference, candidate, same=same)
    for a, b in [pair for one, other in pairs for pair in one.shared(other)]:
        if _is_square(a.shape):
            draft.settle([a], [b])
            draft.squares.append((a, b))
            continue
        turned = is_turned(a, b)
        draft.turned += [(b.name, turned)] if len(a.shape) == 2 else []
        draft.settle([a], [b], [map_line(b.name, (a.name,), TURNED if turned else ())])
    for one, found in options.items():
        _doubt(draft, one, found)


def _doubt(draft: _Draft, layer: Layer, options: Sequence[Layer]) -> None:
    for role, tensor in layer.tensors.items():
        names = [other.tensors[role].name for other in options if role in other.tensors]
        more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
        if names:
            said = " or ".join([*names[:NAMED], *more])
            draft.doubts.append(f"{AMBIGUOUS}: the model's {tensor} may be the file's {said}; write a line for it")
            draft.open |= {tensor.name, *names}


def _is_square(shape: Shape) -> bool:
    return len(shape) == 2 and shape[0] == shape[1] > 1


def _square(draft: _Draft, name: str) -> Options:
    """A square matrix does not tell how it lies: other matrices of the file do, or nothing does."""
    if name.endswith(KERNEL):
        kernels = {turned for other, turned in draft.turned if other.endswith(KERNEL)}
        return PERHAPS_TURNED if len(kernels) != 1 else TURNED if kernels == {True} else ()
    return PERHAPS_TURNED if draft.any_turned else ()


def _fused(draft: _Draft, in_file: bool) -> None:
    """Layers of the file that are several in the model, or the other way round."""
    sides = [
        layers_of(tensor for tensor in side if tensor.name not in draft.open) for side in (draft.unused, draft.missing)
    ]
    wholes, parts = sides if in_file else sides[::-1]
    sure = [fused for fused in find_fused(wholes, parts, in_file, turned=True) if fused.turned]
    draft.turned += [(fused.whole.stem, True) for fused in sure]
    taken: set[Tensor] = set()
    for fused in find_fused(wholes, parts, in_file, draft.any_turned):
        if taken.isdisjoint(fused.tensors):
            taken |= set(fused.tensors)
            draft.doubts += fused.doubts()
            draft.open |= {tensor.name for tensor in fused.tensors if not fused.cuts}
            if fused.cuts:
                draft.settle(fused.tensors, fused.tensors, [line for cut in fused.cuts for line in lines_of(cut)])


def _tied(draft: _Draft, checkpoint: Checkpoint) -> None:
    """An output layer that the file does not have because it is the embedding, where the metadata says so."""
    if checkpoint.metadata.get("tie_word_embeddings") is not True:
        return
    for tensor in [tensor for tensor in draft.missing if tensor.name not in draft.open]:
        same = [
            entry.name for entry in checkpoint.entries.values() if entry.shape == tensor.shape and "emb" in entry.name
        ]
        if len(same) == 1:
            draft.settle([tensor], [], [map_line(same[0], (same[0], tensor.name), (("tie", True),))])


def _named_squares(draft: _Draft, plan: Plan, checkpoint: Checkpoint) -> None:
    """Square matrices that bear the right name would load as they lie, beside others that do not lie so."""
    spoken_of = {line.source for line in draft.lines}
    for assignment in plan.assignments if draft.any_turned else ():
        place, source = assignment.destination, assignment.pieces[0].source
        if _is_simple(assignment) and map_line(source).source not in spoken_of and _is_square(place.shape):
            held, stored = _held(place), _stored(checkpoint, source, place.dtype)
            options = _square(draft, source)
            if held is not None and stored is not None and (same_bits(held, stored) or same_bits(held, stored.T)):
                options = () if same_bits(held, stored) else TURNED
            draft.lines += [map_line(source, (place.name,), options)] if options else []


def _dropped(draft: _Draft) -> list[MapLine]:
    """Tensors of layers that have no place in the model at all."""
    return [map_line(tensor.name) for tensor in _unplaced(draft, of_used=False)] if draft.lines else []


def _left(draft: _Draft) -> list[str]:
    kept = _unplaced(draft, of_used=True)
    return [
        *(f"nothing likely for the model's {tensor}" for tensor in draft.missing if tensor.name not in draft.open),
        *(f"the model has no place for the file's {tensor}; give it one, or null to drop it" for tensor in kept),
    ]


def _unplaced(draft: _Draft, of_used: bool) -> list[Tensor]:
    """Tensors of the file that nothing speaks of, of layers that are in use or of the others."""
    left = [tensor for tensor in draft.unused if tensor.name not in draft.open]
    return [tensor for tensor in left if (parted(tensor.name)[0] in draft.used) is of_used]
