"""How large a trace will be: the same step, traced the same way, over tensors that have shapes and no memory."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from ...core.dtypes import dtype_name
from ...core.strict_json import Json
from ...core.traces import Array
from ...errors import FirstdriftError
from ...store.writer import Stored
from ..answers import Estimate
from ..recorder import Recorder, Summary
from ..scope import Scope
from .entering import as_optimizers
from .session import Tracing
from .step_updates import Optimizer
from .tensor_values import counting, outputs, takes_gradient


class Tally:
    """A sink that writes nothing and counts what it would have written."""

    def __init__(self) -> None:
        self.sites: dict[str, int] = {}  # by phase
        self.nbytes: dict[str, int] = {}
        self.largest = 0
        self._unnamed: dict[Stored, int] = {}

    def put(self, name: str, phase: str, array: Array, /, **where: Any) -> Stored:
        """Count a tensor."""
        stored = self.store(array, name)
        self.put_again(name, phase, stored)
        return stored

    def put_again(self, name: str, phase: str, stored: Stored, /, **where: Any) -> None:
        """Count a line, and the bytes behind it the first time."""
        self.put_stats(name, phase, {})
        self.nbytes[phase] = self.nbytes.get(phase, 0) + self._unnamed.pop(stored, 0)

    def put_stats(self, name: str, phase: str, stats: Mapping[str, Json], /, **where: Any) -> None:
        """Count a line."""
        self.sites[phase] = self.sites.get(phase, 0) + 1

    def put_absent(self, name: str, phase: str, reason: str, /, **where: Any) -> None:
        """No tensor, nothing to count."""

    def store(self, array: Array, place: str, over: Stored | None = None) -> Stored:
        """Remember how large a tensor is until a line names it."""
        stored = Stored(dtype_name(array.dtype) or "", array.shape)
        self._unnamed[stored] = array.nbytes
        self.largest = max(self.largest, array.nbytes)
        return stored

    def append_program(self, text: str) -> None:
        """A program takes no room to speak of."""

    def describe(self, **header: Json) -> None:
        """A header takes no room to speak of."""

    def close(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """Nothing is open."""


def estimate(
    model: nn.Module,
    inputs: Any,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None,
    train: bool,
    granularity: str,
    scope: Mapping[str, Any],
) -> Estimate:
    """Count one step over fake tensors; where values decide shapes, over a real copy of the model."""
    given = (model, as_optimizers(optimizer) if train else (), inputs)  # those of a forward pass have nothing to do
    count = partial(_count, train=train, granularity=granularity, scope=scope)
    try:
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with FakeCopyMode(fake):
            copied = copy.deepcopy(given)
        with fake, counting(), _quiet():
            return count(*copied)
    except FirstdriftError:
        raise
    except Exception:  # whatever a model does that has no fake counterpart
        with torch.random.fork_rng():
            return count(*copy.deepcopy(given))


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs what fake tensors cannot do as an error, though the real copy may do it, or say it better."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _count(
    model: nn.Module, optimizers: tuple[Optimizer, ...], inputs: Any, *, train: bool, granularity: str,
    scope: Mapping[str, Any],
) -> Estimate:  # fmt: skip
    tally, chosen = Tally(), Scope.of(**scope)
    recorder = Recorder(tally, chosen, summarise=lambda array: Summary("", array.shape, {}))
    tracing = Tracing(
        model, chosen, lambda: recorder, optimizers=optimizers, every_operation=granularity == "op", program=False
    )
    with torch.set_grad_enabled(train), tracing:
        output = model(**inputs) if isinstance(inputs, Mapping) else model(*_as_arguments(inputs))
        found = [tensor for _, tensor in outputs(output) if takes_gradient(tensor) and tensor.requires_grad]
        if train and found:
            loss = found[0].abs().sum()  # of the type that a loss of these outputs has
            for tensor in found[1:]:
                loss = loss + tensor.abs().sum()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return Estimate(dict(tally.sites), dict(tally.nbytes), tally.largest)


def _as_arguments(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
