"""In which other layout a tensor is the same numbers, as the steps of a map that make one of the other."""

from __future__ import annotations

from ..checkpoints.checkpoint import Array
from .elsewhere import same_bits
from .map_lines import TURNED, Options


def other_layout(a: Array, b: Array) -> Options | None:
    """The steps from one array to another of the same shape: a transpose, or rows interleaved by heads, either way."""
    if a.ndim == 2 and same_bits(a.T, b):
        return TURNED
    rows = a.shape[0] if a.ndim in (1, 2) else 0
    for heads in (count for count in range(1, rows // 2 + 1) if rows % (2 * count) == 0):
        half = rows // (2 * heads)
        for cut in ([heads, 2, half], [heads, half, 2]):
            rest = list(a.shape[1:])
            order = [0, 2, 1, 3][: 3 + len(rest)]
            if same_bits(a.reshape(cut + rest).transpose(order).reshape(a.shape), b):
                back = [-1, *rest]
                return (("steps", [{"reshape": cut + rest}, {"permute": order}, {"reshape": back}]),)
    return None
