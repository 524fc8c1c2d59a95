"""APRT stage files: a 12-byte header and float32 values, one file a stage.

    offset 0  "APRT"   4  u32 layer (0xFFFFFFFF = whole model)   8  u32 number of values   12  f32 values

The stage is known only from the file name. Bits are kept: NaN payloads, infinities and signs.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .core.arrays import as_array
from .core.atomic import replacing
from .core.dtypes import ML_NAMES, dtype_name
from .core.regular import open_regular, read_regular
from .core.sites import check_name, whole
from .core.stages import MAX_LAYER, WHOLE_MODEL, SavePlan, parse_stage
from .errors import FormatError, SiteError, storage

MAGIC = b"APRT"
WHOLE_MODEL_LAYER = 0xFFFFFFFF
HEADER_BYTES = 12
MAX_VALUES = 0xFFFFFFFF

_LAYOUT = struct.Struct("<4sII")
_WRITABLE = "choose a directory that you may write, with room for it"


class StageHeader(NamedTuple):
    """The header of a stage file."""

    layer: int
    dim_product: int

    @property
    def is_whole_model(self) -> bool:
        """Whether it belongs to no layer."""
        return self.layer == WHOLE_MODEL_LAYER

    @property
    def total_size(self) -> int:
        """Bytes of the whole file."""
        return HEADER_BYTES + 4 * self.dim_product

    def to_bytes(self) -> bytes:
        """The 12 bytes of the header."""
        return _LAYOUT.pack(MAGIC, self.layer, self.dim_product)

    @classmethod
    def parse(cls, data: bytes, place: str = "APRT header") -> StageHeader:
        """Read a header from the first 12 bytes of `data`."""
        if len(data) < HEADER_BYTES:
            raise FormatError(f"{place}: truncated, {len(data)} bytes of a {HEADER_BYTES}-byte header; write it again")
        magic, layer, dim_product = _LAYOUT.unpack_from(data)
        if magic != MAGIC:
            raise FormatError(f"{place}: bad magic {magic!r}, expected {MAGIC!r}; this is not an APRT stage file")
        return cls(layer, dim_product)


def output_path(directory: str | os.PathLike[str], layer: int, stage: str) -> Path:
    """Return the path of a stage: `layer-N/<stage>.bin`, or `<stage>.bin` for the whole model."""
    check_name(stage, "stage")
    if not stage or stage != Path(stage).name or "\\" in stage or "\0" in stage:
        raise SiteError(f"stage {stage!r} is not a plain file name; give one without slashes")
    layer = whole(layer)
    if type(layer) is not int or not (0 <= layer <= MAX_LAYER or layer == WHOLE_MODEL_LAYER):
        raise SiteError(f"layer {layer!r} is not a whole number from 0 to {MAX_LAYER}; give one")
    root = Path(directory)
    return root / f"{stage}.bin" if layer == WHOLE_MODEL_LAYER else root / f"layer-{layer}" / f"{stage}.bin"


def write_stage_file(directory: str | os.PathLike[str], layer: int, stage: str, values: Any) -> Path:
    """Write one stage under the given name and return its path. Replaces an existing file."""
    path = output_path(directory, layer, stage)
    flat = np.ascontiguousarray(_as_float32(values, path), "<f4").reshape(-1)
    if flat.size > MAX_VALUES:
        raise SiteError(f"{path}: {flat.size} values are more than the header can count ({MAX_VALUES}); split them")
    with storage(path, "write the stage file", _WRITABLE):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(StageHeader(layer, flat.size).to_bytes())
            file.write(flat.data)
    return path


def _as_float32(values: Any, path: Path) -> NDArray[np.float32]:
    """Plain lists are rounded, as a literal would be; arrays of another type only where nothing is lost."""
    with np.errstate(all="ignore"):
        array: NDArray[Any] = as_array(values, str(path))
        if not hasattr(values, "dtype") and array.dtype.kind in "fiu":
            rounded = array.astype(np.float32)
            if np.any(np.isinf(rounded) & np.isfinite(array)):
                raise SiteError(f"{path}: a value is beyond float32, which APRT holds; scale or convert it first")
            return rounded
        if array.dtype == np.float32 or array.dtype.newbyteorder("=") == np.float32:
            return array
        narrowed = (
            array.astype(np.float32) if array.dtype.kind in "fiu" or dtype_name(array.dtype) in ML_NAMES else None
        )
        # Compared after the way back: promoting int64 against float32 would round both sides alike.
        back = None if narrowed is None else narrowed.astype(array.dtype)
        if narrowed is None or not np.all((back == array) | ((back != back) & (array != array))):
            raise SiteError(
                f"{path}: APRT holds float32, and these {array.dtype} values do not fit; convert them first"
            )
    return narrowed


def save_stage(directory: str | os.PathLike[str], stage: str, layer: int, values: Any) -> None:
    """Write one known stage; stages of the whole model go to the root."""
    stage = parse_stage(stage)
    write_stage_file(directory, WHOLE_MODEL_LAYER if stage in WHOLE_MODEL else layer, stage, values)


def maybe_save(plan: SavePlan | None, stage: str, layer: int, values: Any) -> None:
    """Write the stage if the plan selects it. None selects nothing."""
    if plan is not None and plan.should_save(stage, layer):
        save_stage(plan.directory, stage, layer, values)


def stage_path(plan: SavePlan, stage: str, layer: int) -> Path:
    """Path of a stage in a plan."""
    stage = parse_stage(stage)
    return output_path(plan.directory, WHOLE_MODEL_LAYER if stage in WHOLE_MODEL else layer, stage)


def read_header(path: str | os.PathLike[str]) -> StageHeader:
    """Read the header of a stage file and check it against the file's size."""
    with storage(path, "read the stage file", "check the path"), open_regular(path) as file:
        header = StageHeader.parse(file.read(HEADER_BYTES), os.fspath(path))
        size = os.fstat(file.fileno()).st_size
    if size != header.total_size:
        raise FormatError(
            f"{path}: the header counts {header.dim_product} values, which takes {header.total_size} bytes, "
            f"but the file has {size}; write it again"
        )
    return header


def read_stage_file(path: str | os.PathLike[str]) -> tuple[StageHeader, NDArray[np.float32]]:
    """Read the header and the values of a stage file."""
    header = read_header(path)
    with storage(path, "read the stage file", "check the path"), open_regular(path) as file:
        values = np.fromfile(file, "<f4", count=header.dim_product, offset=HEADER_BYTES)
    if values.size != header.dim_product:
        raise FormatError(f"{path}: {header.dim_product} values expected, {values.size} read; it changed while reading")
    return header, values


def is_stage_file(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins with the magic bytes."""
    try:
        return read_regular(path, 4) == MAGIC
    except (OSError, ValueError):
        return False
