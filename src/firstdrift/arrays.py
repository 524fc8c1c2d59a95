"""Anything that holds numbers as a numpy array of its own dtype: lists, scalars, torch tensors by their bits."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import ML_NAMES, numpy_dtype
from .errors import SiteError

_TORCH_NAMES = {name: short for short, name in ML_NAMES.items()}


def as_array(value: Any, place: str) -> NDArray[np.generic]:
    """The array of a value; what cannot be one is refused by a sentence that names the place."""
    try:
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            value = _from_torch(value)
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        why = str(error).split("\n")[0]
        raise SiteError(f"{place}: a {type(value).__name__} that is no array ({why}); give a numpy array") from None


def _from_torch(tensor: Any) -> Any:
    """A torch tensor's numbers; numpy has no bfloat16 and float8 of its own, so those go by their bits."""
    torch = sys.modules["torch"]
    tensor = tensor.detach().cpu()
    short = _TORCH_NAMES.get(str(tensor.dtype).removeprefix("torch."))
    if short is None:
        return tensor.resolve_conj().resolve_neg().numpy()
    bits = torch.int16 if short == "bf16" else torch.uint8
    return tensor.contiguous().view(bits).numpy().view(numpy_dtype(short))
