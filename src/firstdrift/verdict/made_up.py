"""How large a difference inside a part must be against what is left of it outside: something made up for it."""

from __future__ import annotations

from ..compare.result import PairResult
from ..dtypes import roundoff

MADE_UP_FOR = 1000.0  # how many times larger a difference inside must be than what is left of it outside
IN_SIGHT = 0.125  # of a tensor: a difference that large shows in every format, however few steps that has


def outweighs(drift: PairResult, output: PairResult, left: float) -> bool:
    """Whether a difference is so much larger than what is left of it in an output that something made up for it.

    A short format has too few steps to show that a difference is a thousand times smaller: what is left is its own
    rounding, against which a difference must still be plain to see.
    """
    unit = roundoff(output.pair.reference.dtype, output.pair.candidate[0].dtype)
    times = min(MADE_UP_FOR, IN_SIGHT / unit) if unit else MADE_UP_FOR
    return (drift.error or 0.0) >= times * max(left, unit)
