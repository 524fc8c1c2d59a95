"""Single ATen operations, observed from below: each one's outputs as sites, or only what they were computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from ....core.sites import Site
from ....core.strict_json import Json
from ..names import layer_of, plain_value
from ..run import Run
from ..tensor_values import leaves, outputs
from .composites import call
from .modes import step_aside


class Operations(TorchDispatchMode):
    """Sees every operation. `path` gives the module whose operations are recorded at that moment, or None."""

    supports_higher_order_operators = True  # torch.cond, flex_attention and their like pass as single operations

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code stay compiled, which torch would otherwise run eagerly for being watched."""
        return True

    def __init__(self, run: Run, path: Callable[[], str | None] | None) -> None:
        super().__init__()
        self._run = run
        self._path = path

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = call(func, types, args, kwargs or {})
        with self._run.lock:
            if self._run.recording and not self._run.busy:
                self._look(func, args, kwargs or {}, output)
        return output

    def _look(self, func: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        path = self._path() if self._path is not None else None
        if path is None or func is torch.ops.aten.detach.default:  # which autograd calls to keep what it needs
            self.derive(args, kwargs, output)
        else:
            self._record(path, func, args, kwargs, output, self._sources(args, kwargs))

    def derive(self, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        """Remember what an operation, or many that were not seen, computed its outputs from."""
        sites = self._sources(args, kwargs)
        for _, tensor in outputs(output):
            self._run.known.derive(tensor, sites)

    def _sources(self, args: Any, kwargs: Mapping[str, Any]) -> list[Site]:
        known, given = self._run.known, leaves((args, kwargs), "")
        return list(dict.fromkeys(site for _, source in given for site in known.producers(source) or ()))

    def _record(
        self, path: str, func: Any, args: Any, kwargs: Mapping[str, Any], output: Any, sites: list[Site]
    ) -> None:
        operation = str(func).removesuffix(".default")
        name = f"{path}/{operation}"
        call, order = self._run.next_call(name), self._run.next_position()
        details: dict[str, Json] = {"op": operation, "attrs": _attrs(func, args, kwargs), "layer": layer_of(path)}
        for port, tensor in outputs(output):
            site = self._run.site("fwd", name, port, call)
            kept = self._run.put_value(site, tensor, order=order, producers=sites, **details)
            self._run.known.derive(tensor, [site])
            if not _may_write(func):  # what is written in place is counted only after we return
                self._run.known.keep(tensor, kept)


def unseen(work: Callable[..., Any]) -> Callable[..., Any]:
    """A way into TorchScript that is taken without us, whose numbers a mode of Python turns into what it refuses."""

    @wraps(work)
    def calling(*args: Any, **kwargs: Any) -> Any:
        mode, back = _get_current_dispatch_mode(), step_aside(args)
        if not isinstance(mode, Operations):
            try:
                return work(*args, **kwargs)
            finally:
                back()
        mode.__exit__(None, None, None)
        try:
            output = work(*args, **kwargs)
        finally:
            mode.__enter__()
            back()
        mode.derive(args, kwargs, output)
        return output

    return calling


def _may_write(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is None or schema.is_mutable


def _attrs(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Json]:
    """The arguments of an operation that are no tensors, by their names."""
    schema = getattr(func, "_schema", None)  # which operators of higher order have not
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: said for name, item in given.items() if (said := plain_value(item)) is not None}
