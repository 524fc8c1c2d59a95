"""`verify=True`: the first forward pass once more, unobserved, and a look for outputs that repeat each other."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.jit._fuser import optimized_execution
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map

from ...errors import CaptureError
from ...store.formats.native_format import read
from ..stale import repeated_outputs
from . import hooks
from .names import is_scripted
from .tensor_values import NotComparableError, array_of, outputs

Content = tuple[str, str, tuple[int, ...] | None, bytes | None]  # port, type, shape, bytes


class Verification:
    """Runs the model before it is observed, compares what it returns with what is then recorded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._expected: list[Content] | None = None
        self._differing: list[str] | None = None

    def rehearse(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Run the first forward pass unobserved, and leave no trace of it: random numbers and buffers are put back."""
        if self._expected is not None:
            return
        if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
            return  # this pass will make them; the next one can be rehearsed
        if any(is_scripted(module) for module in model.modules()):
            return  # TorchScript computes otherwise once it has run a few times, and must not be run more often
        args, kwargs = _copied((args, dict(kwargs)))
        uncounted = optimized_execution(False)  # for functions of TorchScript
        with _same_randomness(), _same_buffers(model), uncounted, hooks.unobserved():
            self._expected = _bytes(outputs(model(*args, **kwargs)))

    def compare(self, found: list[tuple[str, torch.Tensor]]) -> None:
        """Compare the outputs of the first observed forward pass."""
        if self._differing is None and self._expected is not None:
            now = _bytes(found)
            ports = [port for port, *_ in now] or ["out"]
            self._differing = [
                port
                for port, reference, candidate in zip(ports, now, self._expected, strict=False)
                if reference != candidate
            ]
            if len(now) != len(self._expected):
                self._differing = ports

    def judge(self) -> None:
        """Raise what was found, now that the trace is closed."""
        if self._differing:
            raise CaptureError(
                f"{self._path}: the traced and the untraced forward pass differ at {', '.join(self._differing)}; the "
                "model keeps state outside its buffers or is not deterministic (see torch.use_deterministic_algorithms)"
            )
        repeated = repeated_outputs(read(self._path))
        if repeated:
            first, second = repeated[0]
            raise CaptureError(
                f"{self._path}: {second} repeats {first} bit for bit, and {len(repeated) - 1} more such pairs; "
                "a module returns a stale or shared buffer instead of what it computed"
            )


@contextmanager
def _same_randomness() -> Iterator[None]:
    """Put the random numbers of Python, numpy and torch back."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Put buffers back, those that were written to and those that were replaced."""
    owners = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffers, before in owners:
            buffers.clear()
            buffers.update(before)
        for buffer, value in values:  # all: batch norm writes without counting; as data, so that we do not count either
            buffer.data.copy_(value)


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except RuntimeError:  # tensors inside a graph cannot be copied deeply
        return tree_map(lambda item: item.clone() if isinstance(item, torch.Tensor) else item, value)


def _bytes(found: list[tuple[str, torch.Tensor]]) -> list[Content]:
    def content(tensor: torch.Tensor) -> tuple[tuple[int, ...] | None, bytes | None]:
        try:
            array = array_of(tensor)
        except NotComparableError:
            return None, None
        return array.shape, array.tobytes()

    return [(port, str(tensor.dtype), *content(tensor)) for port, tensor in found]
