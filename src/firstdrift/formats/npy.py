"""npy headers: what an array file claims, checked against what is there before anything is mapped."""

from __future__ import annotations

from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as numpy_format

from ..dtypes import dtype_name
from ..errors import FirstdriftError, FormatError
from ..records import tensor_bytes
from ..sites import Site

MAX_HEADER = 64 << 10
_ANYWHERE = Site(0, "fwd", "", "out")


class NpyHeader(NamedTuple):
    """An npy header: the array's type, shape and layout, and where its bytes begin."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    stored: np.dtype[np.generic]  # as the file has it, in its own byte order
    fortran: bool

    @property
    def is_plain(self) -> bool:
        """Whether the bytes are as a trace has them: C order, little-endian."""
        return self.stored.byteorder != ">" and not (self.fortran and len(self.shape) > 1)


def read_npy_header(file: BinaryIO, size: int, place: str) -> NpyHeader:
    """Parse the header at the file's position; `size` is what the whole npy is known to have."""
    start = file.tell()
    try:
        version = numpy_format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise FormatError(f"npy version {version[0]}.{version[1]} is not 1.0 or 2.0")
        read = numpy_format.read_array_header_1_0 if version == (1, 0) else numpy_format.read_array_header_2_0
        shape, fortran, stored = read(file, max_header_size=MAX_HEADER)
    except FirstdriftError as error:
        raise FormatError(f"{place}: {error}; save it again with numpy") from None
    except Exception as error:  # whatever numpy's parser makes of hostile text, it is one thing to us
        text = str(error).split("\n")[0]
        raise FormatError(f"{place}: not a readable npy header ({text}); save it again with numpy") from None
    if stored.hasobject:
        raise FormatError(f"{place}: holds pickled Python objects, which are never loaded; save plain numbers")
    dtype = dtype_name(stored)
    if dtype is None:
        hint = " (numpy cannot name bfloat16 or float8; save float32, or use fd.Writer)" if stored.kind == "V" else ""
        raise FormatError(f"{place}: dtype {stored} is not one that a trace can hold{hint}; convert it")
    try:
        nbytes = tensor_bytes(_ANYWHERE, dtype, list(shape))
    except FormatError:
        raise FormatError(f"{place}: shape {shape} is impossible; save it again") from None
    offset = file.tell() - start
    if offset + nbytes != size:
        raise FormatError(
            f"{place}: {dtype}{list(shape)} takes {offset + nbytes} bytes but {size} are there; save it again"
        )
    return NpyHeader(dtype, tuple(shape), offset, nbytes, stored, fortran)
