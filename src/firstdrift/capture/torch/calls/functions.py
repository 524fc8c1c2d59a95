"""The names of functions as users call them, and which of them take numbers out of torch's sight."""

from __future__ import annotations

from typing import Any

from torch.overrides import resolve_name

# Numbers leave a tensor, and no operation says so.
READS = frozenset({"torch.Tensor.tolist", "torch.Tensor.numpy", "torch.Tensor.__array__", "torch.Tensor.__dlpack__"})
SHARES = READS - {"torch.Tensor.tolist"}
# Python writes to a tensor element by element, and no operation says so.
WRITES = frozenset({"torch.Tensor.apply_", "torch.Tensor.map_", "torch.Tensor.map2_"})
# Looking at a tensor, not at its numbers; and what takes whole lists, which the operation inside holds as a tensor.
_SILENT = frozenset({
    "__len__", "__hash__", "__repr__", "__format__", "__deepcopy__", "__reduce_ex__", "__setstate__", "__dir__", "dim",
    "size", "stride", "numel", "nelement", "ndimension", "is_floating_point", "is_complex", "is_contiguous",
    "is_signed", "element_size", "storage_offset", "storage", "untyped_storage", "data_ptr", "register_hook",
    "requires_grad_", "backward", "grad", "retain_grad", "is_tensor", "is_storage", "get_device", "type",
    "is_inference", "has_names", "tensor", "as_tensor", "set_default_dtype", "_set_grad_enabled", "broadcast_shapes",
    "result_type", "can_cast", "is_same_size",
})  # fmt: skip
_VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})  # attributes that are operations


class Functions:
    """Names, each looked up once."""

    def __init__(self) -> None:
        self._names: dict[Any, str | None] = {}

    def name(self, func: Any) -> str | None:
        """The name of a function; None for one that is not written down."""
        try:
            return self._names[func]
        except KeyError:
            found = self._names[func] = _name(func)
            return found
        except TypeError:  # cannot be hashed
            return None


def _name(func: Any) -> str | None:
    plain = getattr(func, "__name__", "")
    if plain == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return f"torch.Tensor.{attribute}" if attribute in _VIEWS else None
    if plain in _SILENT or plain == "__set__":
        return None
    name = resolve_name(func)
    if name is None and str(getattr(func, "__module__", "") or "").split(".")[0] == "torch":
        name = f"{func.__module__}.{plain}"
    return name if name is not None and name.isascii() and name.replace(".", "").replace("_", "").isalnum() else None
