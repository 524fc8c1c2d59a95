"""npy headers: what an array file claims, checked against what is there before anything is mapped."""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as numpy_format

from ...core.dtypes import dtype_name
from ...core.records import tensor_bytes
from ...errors import FirstdriftError, FormatError

MAX_HEADER = 64 << 10
READERS = {(1, 0): numpy_format.read_array_header_1_0, (2, 0): numpy_format.read_array_header_2_0}


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
    try:
        text = _header_bytes(file)
        offset = len(text.getvalue())
        read = READERS[numpy_format.read_magic(text)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files from Python 2, and of odd escapes in hostile ones
            shape, fortran, stored = read(text, max_header_size=MAX_HEADER)
    except FirstdriftError as error:
        raise FormatError(f"{place}: {error}; save it again with numpy") from None
    except Exception as error:  # whatever numpy's parser makes of hostile text, it is one thing to us
        why = str(error).split("\n")[0]
        raise FormatError(f"{place}: not a readable npy header ({why}); save it again with numpy") from None
    if stored.hasobject:
        raise FormatError(f"{place}: holds pickled Python objects, which are never loaded; save plain numbers")
    dtype = dtype_name(stored)
    if dtype is None:
        hint = " (numpy cannot name bfloat16 or float8; save float32, or use fd.Writer)" if stored.kind == "V" else ""
        raise FormatError(f"{place}: dtype {stored} is not one that a trace can hold{hint}; convert it")
    nbytes = tensor_bytes(place, dtype, shape)
    if offset + nbytes != size:
        raise FormatError(
            f"{place}: {dtype}{list(shape)} takes {offset + nbytes} bytes but {size} are there; save it again"
        )
    return NpyHeader(dtype, tuple(shape), offset, nbytes, stored, fortran)


def _header_bytes(file: BinaryIO) -> BytesIO:
    """The header alone, its length judged first: numpy would allocate whatever it claims, up to 4 GiB."""
    magic = file.read(8)
    version = magic[6], magic[7]
    if version not in READERS:
        raise FormatError(f"npy version {version[0]}.{version[1]} is not 1.0 or 2.0")
    length = file.read(2 if version == (1, 0) else 4)
    claimed = int.from_bytes(length, "little")
    if claimed > MAX_HEADER:
        raise FormatError(f"its header claims {claimed} bytes, more than {MAX_HEADER}")
    return BytesIO(magic + length + file.read(claimed))
