"""A map that may be meant, by names, shapes and the values a model already holds: printed when a load fails, never
used by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...core.arrays import as_array
from ...core.dtypes import dtype_name
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
    find_whole,
    joining,
    map_line,
    map_text,
    one_number,
    same_bits,
    splitting,
)
from .plan import Assignment, Plan


class ModelValues:
    """The numbers of a model beside those of a checkpoint. Only what lies plain in the file is read."""

    def __init__(self, places: Sequence[Destination], checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._held = {place.name: array for place in places if (array := _held(place)) is not None}
        self._read: dict[tuple[str, str | None], Array | None] = {}

    def turned(self, name: str, source: str) -> bool | None:
        """Whether the model holds a square matrix of the file transposed; None where it holds neither."""
        reference = self._held.get(name)
        candidate = None if reference is None else self._array(source, dtype_name(reference.dtype))
        if reference is None or candidate is None:
            return None
        if same_bits(reference, candidate):
            return False
        return True if same_bits(reference, candidate.T) else None

    def lines(self, names: Sequence[str], sources: Sequence[str]) -> list[MapLine]:
        """Lines for tensors of the model that are the file's: whole, joined of several, or parts of one."""
        found: list[MapLine] = []
        for dtype in dict.fromkeys(dtype_name(self._held[name].dtype) for name in names if name in self._held):
            reference = {
                n: self._held[n] for n in names if n in self._held and dtype_name(self._held[n].dtype) == dtype
            }
            read = {source: array for source in sources if (array := self._array(source, dtype)) is not None}
            found += _lines(reference, read)
        return found

    def _array(self, source: str, dtype: str | None) -> Array | None:
        """A tensor of the file as the model would hold it; None for what is quantized or does not fit the dtype."""
        key = source, dtype
        if key not in self._read:
            entry = self._checkpoint.entry(source)
            self._read[key] = None
            if not entry.quantized and (entry.dtype == dtype or {entry.dtype, dtype} <= set(FLOATS)):
                try:
                    array = self._checkpoint.array(source)
                    self._read[key] = array if dtype is None else as_dtype(array, dtype, source)[0]
                except FirstdriftError:
                    pass  # a tensor that cannot be read is reported by the load itself
        return self._read[key]


def _held(destination: Destination) -> Array | None:
    """What a tensor holds; None without memory, and for one number alone, which says nothing."""
    if destination.tensor.device.type == "meta" or destination.dtype.startswith("torch.") or not destination.size:
        return None
    array = as_array(destination.tensor.detach().cpu(), destination.name)
    return None if one_number(array) else array


def _lines(reference: dict[str, Array], candidate: dict[str, Array]) -> list[MapLine]:
    found: list[MapLine] = []
    pairs = [
        (name, source, turned)
        for name, array in reference.items()
        for source, other in candidate.items()
        if (turned := _equal(array, other)) is not None
    ]
    for name, source, turned in pairs:
        once = sum(name == one for one, *_ in pairs) == 1 == sum(source == one for _, one, _ in pairs)
        if once:  # numbers that two tensors have tell neither
            found.append(map_line(source, (name,), (("transpose", True),) if turned else ()))
    paired = {name for name, *_ in pairs} | {source for _, source, _ in pairs}
    reference = {name: array for name, array in reference.items() if name not in paired}
    candidate = {name: array for name, array in candidate.items() if name not in paired}
    for name, array in reference.items():
        whole = find_whole(name, array, list(candidate), candidate.__getitem__)
        found += joining(whole) if whole is not None else []
    for source, array in candidate.items():
        whole = find_whole(source, array, list(reference), reference.__getitem__)
        found += [splitting(whole)] if whole is not None else []
    return found


def _equal(reference: Array, candidate: Array) -> bool | None:
    """False when two arrays are equal, True when they are once one is transposed, None when they differ."""
    if same_bits(reference, candidate):
        return False
    return True if reference.ndim == 2 and same_bits(reference, candidate.T) else None


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
    values = ModelValues([*plan.missing, *(assignment.destination for assignment in _simple(plan))], checkpoint)
    _by_value(draft, plan, values)
    _misshapen(draft, plan, checkpoint)
    _renamed(draft, plan)
    for in_file in (True, False):
        _fused(draft, in_file)
    _tied(draft, checkpoint)
    draft.lines += [map_line(b.name, (a.name,), _square(draft, b.name)) for a, b in draft.squares]
    _named_squares(draft, plan, values)
    if not draft.lines and not draft.doubts:
        return None
    return map_text([*draft.lines, *_dropped(draft)], list(checkpoint.entries), [*draft.doubts, *_left(draft)])


def _simple(plan: Plan) -> Iterator[Assignment]:
    """Tensors that were found by their names."""
    for assignment in (*plan.misshapen, *plan.assignments):
        if len(assignment.pieces) == 1 and assignment.pieces[0].is_plain:
            yield assignment


def _by_value(draft: _Draft, plan: Plan, values: ModelValues) -> None:
    lines = values.lines([destination.name for destination in plan.missing], plan.extra)
    speaking = {name for line in lines for name in (line.source, *line.targets)}
    known = {map_line(tensor.name).source: tensor for tensor in (*draft.missing, *draft.unused)}
    spoken_of = [known[name] for name in speaking if name in known]
    draft.settle(spoken_of, spoken_of, lines)


def _misshapen(draft: _Draft, plan: Plan, checkpoint: Checkpoint) -> None:
    """Matrices that bear the right name and are as large as wanted the other way round."""
    for assignment in plan.misshapen:
        source = assignment.pieces[0].source
        reference, candidate = _tensor(assignment.destination), Tensor(source, checkpoint.entry(source).shape)
        if len(assignment.pieces) == 1 and assignment.pieces[0].is_plain and is_turned(reference, candidate):
            draft.lines.append(map_line(source, (reference.name,), TURNED))
            draft.turned.append((source, True))


def _tensor(destination: Destination) -> Tensor:
    return Tensor(destination.name, destination.shape)


def _renamed(draft: _Draft, plan: Plan) -> None:
    """Layers under other names, each with all it has."""
    same = {
        parted(assignment.destination.name)[0]: parted(assignment.pieces[0].source)[0] for assignment in _simple(plan)
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
    sides = [layers_of(one for one in side if one.name not in draft.open) for side in (draft.unused, draft.missing)]
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
                draft.settle(fused.tensors, fused.tensors, list(fused.lines()))


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


def _named_squares(draft: _Draft, plan: Plan, values: ModelValues) -> None:
    """Square matrices that bear the right name would load as they lie, beside others that do not lie so."""
    spoken_of = {line.source for line in draft.lines}
    for assignment in plan.assignments if draft.any_turned else ():
        name, source = assignment.destination.name, assignment.pieces[0].source
        plain = (
            len(assignment.pieces) == 1 and assignment.pieces[0].is_plain and map_line(source).source not in spoken_of
        )
        if plain and _is_square(assignment.destination.shape):
            known = values.turned(name, source)
            options = _square(draft, source) if known is None else TURNED if known else ()
            draft.lines += [map_line(source, (name,), options)] if options else []


def _dropped(draft: _Draft) -> list[MapLine]:
    """Tensors of layers that have no place in the model at all."""
    left = [
        tensor for tensor in draft.unused if tensor.name not in draft.open and parted(tensor.name)[0] not in draft.used
    ]
    return [map_line(tensor.name) for tensor in left if draft.lines]


def _left(draft: _Draft) -> list[str]:
    kept = [tensor for tensor in draft.unused if tensor.name not in draft.open and parted(tensor.name)[0] in draft.used]
    return [
        *(f"nothing likely for the model's {tensor}" for tensor in draft.missing if tensor.name not in draft.open),
        *(f"the model has no place for the file's {tensor}; give it one, or null to drop it" for tensor in kept),
    ]
