"""Leaves and sites of a trace as tensors, lying in memory as they did."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...core.dtypes import NUMPY_NAMES
from ...core.sites import Site
from ...core.strict_json import NON_FINITE
from ...core.traces import Array, Trace
from ...errors import FirstdriftError
from ..calls import Bytes, Earlier, Inline, Leaf, Missing, NotReplayableError, Type

MOST_GAPS = 64 << 20  # bytes that a leaf may span beyond its own: a lie about strides gets no more


def array_of_leaf(leaf: Leaf, trace: Trace) -> Array:
    """The numbers of a leaf."""
    source, type_ = leaf.source, leaf.type
    if isinstance(source, Missing):
        raise NotReplayableError(f"{leaf.name or 'a tensor'} is not in the trace ({source.why})")
    if isinstance(source, Inline):
        elements = [
            NON_FINITE.get(element, element) if isinstance(element, str) else element for element in source.elements
        ]
        return np.array(elements, dtype=_numpy_of(type_.dtype)).reshape(type_.shape)
    if isinstance(source, Bytes):
        if source.bits:
            packed = trace.stored(source.at, "u8", (source.at[2],), "random numbers")
            count = int(np.prod(type_.shape, dtype=np.int64))
            return np.unpackbits(packed.view(np.uint8), count=count).reshape(type_.shape)
        return trace.stored(source.at, type_.dtype, type_.shape, "a leaf of the program")
    return array_of_site(trace, source.site if isinstance(source, Earlier) else source)


def array_of_site(trace: Trace, site: Site) -> Array:
    try:
        return trace.array(site)
    except FirstdriftError as error:
        raise NotReplayableError(str(error)) from None


def _numpy_of(dtype: str) -> Any:
    return np.dtype(NUMPY_NAMES[dtype]) if dtype in NUMPY_NAMES else np.float64


def lies_so(tensor: torch.Tensor, type_: Type) -> bool:
    """Whether a tensor has the strides of a type; dimensions of one element have any."""
    if type_.strides is None:
        return tensor.is_contiguous()
    pairs = zip(tensor.shape, tensor.stride(), type_.strides, strict=True)
    return tensor.numel() == 0 or all(size == 1 or reference == candidate for size, reference, candidate in pairs)


def laid_out(tensor: torch.Tensor, type_: Type) -> torch.Tensor:
    """A tensor with the strides that it had: how it lies in memory decides how some operations round."""
    if type_.strides is None:
        return tensor.contiguous()
    narrow, strides = tensor, list(type_.strides)
    for dim, (size, stride) in enumerate(zip(type_.shape, type_.strides, strict=True)):
        if stride == 0 and size > 1:
            narrow = narrow.narrow(dim, 0, 1)
    reach = sum((size - 1) * stride for size, stride in zip(narrow.shape, strides, strict=True))
    if (reach + 1 - narrow.numel()) * tensor.element_size() > MOST_GAPS:
        return tensor
    laid = torch.empty_strided(narrow.shape, strides, dtype=tensor.dtype).copy_(narrow)
    return laid.as_strided(type_.shape, strides)
