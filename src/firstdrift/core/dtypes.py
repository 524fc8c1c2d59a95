"""The nineteen dtypes a trace may hold: names on disk, numpy types in memory.

ml_dtypes is imported only when a bfloat16 or float8 tensor is met, so that `import firstdrift` stays cheap.
"""

from __future__ import annotations

import sys
from functools import cache

import numpy as np

from ..errors import FormatError

NUMPY_NAMES = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "c64": "<c8", "c128": "<c16",
    "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "|i1",
    "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "|u1", "bool": "|b1",
}  # fmt: skip
ML_NAMES = {
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
}
LONG_NAMES = {np.dtype(code).name: name for name, code in NUMPY_NAMES.items()}  # as numpy and torch call them
LONG_NAMES |= {long: name for name, long in ML_NAMES.items()}
ITEMSIZE = {
    **{name: int(code[2:]) for name, code in NUMPY_NAMES.items()},
    **{name: 2 if name == "bf16" else 1 for name in ML_NAMES},
}

# Half the distance from 1 to the next number: the relative error of one rounding.
UNIT_ROUNDOFF = {
    "f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "c128": 2.0**-53, "c64": 2.0**-24,
    "f8e4m3fn": 2.0**-4, "f8e4m3fnuz": 2.0**-4, "f8e5m2": 2.0**-3, "f8e5m2fnuz": 2.0**-3,
}  # fmt: skip

_NAME_OF = {np.dtype(code): name for name, code in NUMPY_NAMES.items()}


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype of a dtype name; the bytes on disk are little-endian and are viewed as such."""
    if name in NUMPY_NAMES:
        return np.dtype(NUMPY_NAMES[name])
    if name not in ML_NAMES:
        raise FormatError(f"dtype {name!r} is not one of {', '.join(ITEMSIZE)}; write one of these")
    import ml_dtypes

    found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, ML_NAMES[name]))
    return found


def dtype_name(dtype: np.dtype[np.generic]) -> str | None:
    """The name on disk of a numpy dtype in any byte order, or None when a trace cannot hold it."""
    name = _NAME_OF.get(dtype)
    if name is None and "ml_dtypes" in sys.modules:  # only then can an array of such a type exist
        name = next((short for short in ML_NAMES if numpy_dtype(short) == dtype), None)
    if name is None and dtype.byteorder == ">":
        name = _NAME_OF.get(dtype.newbyteorder("<"))
    return name


def roundoff(*dtypes: str | None) -> float:
    """The unit roundoff of the coarsest float among these dtypes; 0 when all are integers."""
    return max((UNIT_ROUNDOFF[dtype] for dtype in dtypes if dtype in UNIT_ROUNDOFF), default=0.0)
