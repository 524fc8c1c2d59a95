"""The state in which an operation runs that a mode has seen: the one it would run in if nobody watched.

Below a mode torch has left autocast and its record of views behind. An operation that consists of others, and calls
them from there, would compute other numbers. Most such ones are taken apart above modes, by autograd; where that is
away, as in inference mode, they arrive whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import local
from typing import Any, NamedTuple

import torch
from torch._C import DispatchKey

_WHOLE = DispatchKey.CompositeImplicitAutograd
_AUTOCAST = {
    "cpu": DispatchKey.AutocastCPU,
    "cuda": DispatchKey.AutocastCUDA,
    "mps": DispatchKey.AutocastMPS,  # type: ignore[attr-defined]
    "xpu": DispatchKey.AutocastXPU,
}
# These call others for which autocast holds, and are seen whole wherever they are called.
_CASTING_INSIDE = frozenset({
    "aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd", "aten::_trilinear",
})  # fmt: skip
_restored: Any = torch._C._RestorePythonTLSSnapshot  # type: ignore[attr-defined]  # the state in which the mode was called
_excluded = torch._C._SetExcludeDispatchKeyGuard


class _Kind(NamedTuple):
    is_composite: bool
    returns_views: bool
    is_casting: bool  # calls others for which autocast holds
    casts: frozenset[DispatchKey]  # where its arguments arrive as autocast wants them, and inside it autocast is off
    func: Any  # kept, so that no other gets its address


_kinds: dict[int, _Kind] = {}  # by address, because an operation's own hash is slow


def is_plain(func: Any) -> bool:
    """Whether an operation computes the same in whatever state it is called."""
    return not (_kinds.get(id(func)) or _learnt(func)).is_casting


def call(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation from inside a mode; `types` are those of tensors that have a way of their own to run it."""
    kind = _kinds.get(id(func)) or _learnt(func)
    if types or not kind.is_casting or not (torch.is_inference_mode_enabled() or _casting()):
        return func(*args, **kwargs)
    with _state(kind):
        return func(*args, **kwargs)


def opens(func: Any, types: Any) -> bool:
    """Whether an operation that has arrived consists of others, which are to be seen instead."""
    kind = _kinds.get(id(func)) or _learnt(func)
    return torch.is_inference_mode_enabled() and kind.is_composite and not kind.returns_views and not types


def open_up(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the operations that this one consists of; modes see each."""
    with _state(_kinds[id(func)]):
        return func._op_dk(_WHOLE, *args, **kwargs)


@contextmanager
def _state(kind: _Kind) -> Iterator[None]:
    casting = _casting()
    with ExitStack() as state:
        for key in casting - kind.casts:
            state.enter_context(_excluded(key, False))
        if kind.is_composite and not kind.returns_views:  # whose own record is kept further up
            state.enter_context(_excluded(DispatchKey.ADInplaceOrView, False))
        before, _off.keys = _off.keys, _off.keys | (casting & kind.casts)
        try:
            yield
        finally:
            _off.keys = before


def _casting() -> frozenset[DispatchKey]:
    """Where autocast is on; below a mode it looks as if it were off."""
    with _restored():
        found = [key for device, key in _AUTOCAST.items() if torch.is_autocast_enabled(device)]
    return frozenset(found) - _off.keys


class _Off(local):
    """Where autocast was on when the user called, and is off inside an operation that casts its arguments."""

    keys: frozenset[DispatchKey] = frozenset()


_off = _Off()


def _learnt(func: Any) -> _Kind:
    schema = getattr(func, "_schema", None)  # which operators of higher order have not
    if schema is None or not torch._C._dispatch_has_kernel(func.name()):  # as those of TorchScript alone
        kind = _Kind(False, False, False, frozenset(), func)
    else:
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        views = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        casts = frozenset(key for key in _AUTOCAST.values() if has_kernel(func.name(), key.name))
        is_composite = has_kernel(func.name(), _WHOLE.name)
        kind = _Kind(is_composite, views, is_composite or func.name() in _CASTING_INSIDE, casts, func)
    _kinds[id(func)] = kind
    return kind
