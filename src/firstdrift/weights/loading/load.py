"""Load weights: everything is planned and checked before the first number is written, and proven after the last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ...core.arrays import as_array
from ...errors import FirstdriftError, FormatError, WeightsError
from ...kernels.threads import share
from ..checkpoint import Array, Checkpoint, entry_of, leased, undisturbed
from ..open_checkpoint import open_checkpoint
from . import arriving
from .arriving import Expected, Hand
from .destinations import destinations, shapeless, unwritable
from .failures import LOAD, POPULATE, failure, opening
from .maps import Map, read_map
from .plan import Assignment, Plan, make_plan
from .proof import Arrival, Loaded, wrong_values
from .suggestions import suggested_map

Source = Checkpoint | Mapping[str, Any] | str | PathLike[str]
T = TypeVar("T")
CHANGED = "the model does not hold what was checked: somebody wrote to it, or to the file, meanwhile; load it again"


def load_weights(model: nn.Module, source: Source, map: Map | None = None, *, cast: bool = False) -> Loaded:
    """Load a checkpoint into a model, or leave the model unchanged and raise `WeightsError` with every reason.

    - `source`: a checkpoint path, an open checkpoint, or a dict of arrays.
    - `map`: names and layouts of the file in the model's terms; a dict or a YAML file.
    - `cast`: round to the model's dtypes.

    Every parameter and persistent buffer must be there with its shape and dtype, without NaN, infinity or a mean beyond
    ±100. After writing, each tensor is read back and its checksum compared. Returns the proof.
    """
    checkpoint = opened(source)
    try:
        return populate(model, checkpoint, map, cast=cast)
    finally:
        if checkpoint is not source:
            checkpoint.close()


def populate_from_init(model: nn.Module, tensors: Mapping[str, Any]) -> int:
    """Put tensors into a model by name, with the checks and proof of `load_weights`. Returns the number written."""
    return populate(model, opened(tensors), None, cast=False).count


def opened(source: Source) -> Checkpoint:
    """An open checkpoint; what cannot be opened is a failure to load."""
    if isinstance(source, Checkpoint):
        return source
    with opening():
        return in_memory(source) if isinstance(source, Mapping) else open_checkpoint(source)


def populate(
    model: nn.Module, checkpoint: Checkpoint, map: Map | None, *, cast: bool, dry: bool = False,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> Loaded:  # fmt: skip
    """Plan, check, write, prove. A `dry` run tries each tensor in memory of its own, and frees that again.

    `advance` is called with the size of every tensor of the model that was read and checked.
    """
    if not isinstance(model, nn.Module):
        raise WeightsError(f"the model is a {type(model).__qualname__}; give a torch.nn.Module")
    mapping = read_map(map)
    places = destinations(model)
    lazy = shapeless(places)
    if lazy:
        raise failure(POPULATE, "the model is not made yet", lazy)
    plan = make_plan(checkpoint, places, mapping)
    plan.problems += unwritable(places, meta=dry)
    if not places:
        plan.problems.append("the model has no parameter and no persistent buffer, so that nothing would be loaded")
    refusals = {id(assignment): arriving.refused_dtype(assignment, checkpoint, cast) for assignment in plan.assignments}
    ready = [assignment for assignment in plan.assignments if refusals[id(assignment)] is None]
    plan.problems += [why for why in refusals.values() if why is not None]
    with leased(checkpoint.files) as leases:
        with opening():
            checkpoint.verify()
        given = checkpoint.format == IN_MEMORY
        hand = None if dry else Hand(stable=leases is not None and not given, given=given)

        def check(assignment: Assignment) -> Expected:
            found = arriving.expect(assignment, checkpoint, hand)
            advance(assignment.destination.tensor.nbytes)
            return found

        expected = _all(check, ready)
        broken = [one.problem for one in expected if one.problem is not None]
        if plan.problems or broken:
            raise _refusal(plan, broken, checkpoint, mapping is not None)
        _refuse_change(checkpoint, leases)
        if not dry:
            _write_all(expected)
    held = [one.tried for one in expected] if dry else _read_back(model, expected)
    _compare(expected, held)
    arrivals = tuple(_arrival(one) for one in expected)
    notes = (*checkpoint.notes, *(note for one in expected for note in one.notes))
    return Loaded(str(checkpoint.path), checkpoint.format, arrivals, tuple(plan.extra), tuple(plan.dropped), notes)


def _refusal(plan: Plan, broken: list[str], checkpoint: Checkpoint, mapped: bool) -> WeightsError:
    """Values that cannot be weights are a failure to load; names, shapes and dtypes one to populate."""
    suggestion = None if mapped else suggested_map(plan, checkpoint)
    what = f"{checkpoint.path}: the model is left as it was"
    ids = [POPULATE] * bool(plan.problems) + [LOAD] * bool(broken)
    return failure(" and ".join(ids), what, [*plan.problems, *broken], suggestion)


def _refuse_change(checkpoint: Checkpoint, leases: Sequence[int] | None) -> None:
    """Nothing may have been written to the file while it was read, and nobody may be about to."""
    problem = None
    try:
        checkpoint.check_unchanged()
    except FormatError as error:
        problem = str(error)
    if problem is None and leases is not None and not undisturbed(leases):
        problem = f"{checkpoint.path}: another process waits to write to it; load it when that is done"
    if problem is not None:
        raise failure(LOAD, f"{checkpoint.path}: the model is left as it was", [problem])


def _write_all(expected: list[Expected]) -> None:
    try:
        _all(_write, expected)
    except BaseException:  # Ctrl-C: a model that is half this and half that would be worse than either
        for one in expected:
            _write(one)
        raise


def _write(expected: Expected) -> None:
    assert expected.array is not None  # of all that is written
    arriving.write(expected.assignment.destination.tensor, expected.array)


def _read_back(model: nn.Module, expected: list[Expected]) -> list[int]:
    """The checksums of what the model holds now, found by its names again and not by what was written to."""
    now = {destination.name: destination.tensor for destination in destinations(model)}
    wanted = [one.assignment.destination.name for one in expected]
    if set(now) != set(wanted):
        changed = ", ".join(sorted(set(now) ^ set(wanted))[:4])
        raise failure(POPULATE, CHANGED, [f"{changed}: never written, or gone"])
    return _all(lambda name: arriving.held_crc32(now[name]), wanted)


def _compare(expected: list[Expected], held: Sequence[int | None]) -> None:
    problems = [
        f"{one.assignment.destination.name}: holds bytes of checksum {crc or 0:08x}, where {one.crc32:08x} was written"
        for one, crc in zip(expected, held, strict=True)
        if crc != one.crc32
    ]
    if problems:
        raise failure(POPULATE, CHANGED, problems)


def _arrival(expected: Expected) -> Arrival:
    destination = expected.assignment.destination
    sources = tuple(str(piece) for piece in expected.assignment.pieces)
    return Arrival(
        destination.name, destination.kind, destination.shape, destination.dtype, sources, expected.crc32,
        expected.rounded, destination.names[1:],
    )  # fmt: skip


def _all(work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    """The results of work on every item, in as many threads as torch may use."""
    results: dict[int, T] = {}

    def do(number: int) -> None:
        results[number] = work(items[number])

    share(do, len(items), torch.get_num_threads())
    return [results[number] for number in range(len(items))]


IN_MEMORY = "memory"


def in_memory(tensors: Mapping[str, Any]) -> Checkpoint:
    """A table of arrays or torch tensors as a checkpoint."""
    arrays: dict[str, Array] = {}
    entries = {}
    for name, value in tensors.items():
        array = as_array(value, f"tensor {name!r}")
        entries[name] = entry_of(name, array)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        arrays[name] = array
    return Checkpoint(Path("the given tensors"), IN_MEMORY, entries, lambda entry: arrays[entry.name].view())


def load_init_tensors(path: str | PathLike[str]) -> dict[str, Array]:
    """Read every tensor of a checkpoint by name, quantized ones as float32.

    Raises, with all reasons, if a tensor has NaN, infinity or a mean beyond ±100. Plain tensors are memory-mapped.
    """
    with opening():
        checkpoint = open_checkpoint(path)
        checkpoint.verify()
    tensors: dict[str, Array] = {}
    problems = []
    with checkpoint:
        for name in [*checkpoint.entries, *checkpoint.aliases]:
            try:
                tensors[name] = checkpoint.array(name)
                wrong = wrong_values(tensors[name])
            except FirstdriftError as error:
                wrong = str(error)
            if wrong is not None:
                problems.append(f"{name}: {wrong}")
    if problems:
        raise failure(LOAD, f"{checkpoint.path}: its tensors cannot be loaded", problems)
    return tensors
