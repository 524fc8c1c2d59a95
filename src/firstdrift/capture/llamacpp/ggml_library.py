"""llama.cpp's C API, out of the shared library that the xllamacpp wheel is.

Structs grow from release to release. The few fields that are needed are found by what the library itself says of
them, and a library that says something else is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import CaptureError

POINTER, INT = ctypes.c_void_p, ctypes.c_int32
OnTensor = ctypes.CFUNCTYPE(ctypes.c_bool, POINTER, ctypes.c_bool, POINTER)
DIMENSIONS, SOURCES, NAME_BYTES, PARAMETERS = 4, 10, 64, 16  # of a ggml tensor, for years


class Settings(ctypes.Structure):
    """Room for any struct of settings that is passed by value."""

    _fields_ = (("room", ctypes.c_uint64 * 64),)


class Batch(ctypes.Structure):
    """The tokens of one decoding."""

    _fields_ = (
        ("count", INT), ("token", ctypes.POINTER(INT)), ("embedding", POINTER), ("position", ctypes.POINTER(INT)),
        ("sequences", ctypes.POINTER(INT)), ("sequence", ctypes.POINTER(ctypes.POINTER(INT))),
        ("is_output", ctypes.POINTER(ctypes.c_int8)),
    )  # fmt: skip


class Tensor(ctypes.Structure):
    """The beginning of a ggml tensor."""

    _fields_ = (
        ("type", INT), ("buffer", POINTER), ("sizes", ctypes.c_int64 * DIMENSIONS),
        ("strides", ctypes.c_size_t * DIMENSIONS), ("op", INT), ("parameters", INT * PARAMETERS), ("flags", INT),
        ("sources", POINTER * SOURCES),
        ("view_of", POINTER), ("view_offset", ctypes.c_size_t), ("data", POINTER), ("name", ctypes.c_char * NAME_BYTES),
    )  # fmt: skip


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_model_default_params": (Settings,),
    "llama_context_default_params": (Settings,),
    "llama_model_load_from_file": (POINTER, ctypes.c_char_p, Settings),
    "llama_init_from_model": (POINTER, POINTER, Settings),
    "llama_model_get_vocab": (POINTER, POINTER),
    "llama_vocab_n_tokens": (INT, POINTER),
    "llama_tokenize": (INT, POINTER, ctypes.c_char_p, INT, ctypes.POINTER(INT), INT, ctypes.c_bool, ctypes.c_bool),
    "llama_batch_init": (Batch, INT, INT, INT),
    "llama_batch_free": (None, Batch),
    "llama_decode": (INT, POINTER, Batch),
    "llama_n_threads": (INT, POINTER),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), POINTER),
    "llama_free": (None, POINTER),
    "llama_model_free": (None, POINTER),
    "llama_log_set": (None, POINTER, POINTER),
    "ggml_get_name": (POINTER, POINTER),
    "ggml_op_desc": (ctypes.c_char_p, POINTER),
    "ggml_type_name": (ctypes.c_char_p, INT),
    "ggml_nbytes": (ctypes.c_size_t, POINTER),
    "ggml_nelements": (ctypes.c_int64, POINTER),
    "ggml_backend_tensor_get": (None, POINTER, POINTER, ctypes.c_size_t, ctypes.c_size_t),
}

Quiet = ctypes.CFUNCTYPE(None, INT, ctypes.c_char_p, POINTER)
_QUIET = Quiet(lambda level, text, data: None)


def load() -> Any:
    """The library, ready for use."""
    spec = find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise CaptureError("xllamacpp is not installed; run: pip install 'firstdrift[llamacpp]'")
    found = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("*.so"))))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(found, name, None)
        if function is None:
            raise CaptureError(f"this xllamacpp has no {name}; install one of 2026.10 or later")
        function.restype, function.argtypes = result, arguments
    found.llama_log_set(ctypes.cast(_QUIET, POINTER), None)
    found.llama_backend_init()
    return found


def context_settings(library: Any, on_tensor: Any, *, kv_type: int, flash_attention: bool, tokens: int) -> Settings:
    """Settings of a context that shows every tensor, or none, and has room for some tokens."""
    settings: Settings = library.llama_context_default_params()
    words = ctypes.cast(ctypes.pointer(settings), ctypes.POINTER(INT))
    cells = list(words[:64])
    kinds = _only(cells, lambda at: at >= 4 and at % 2 == 0 and cells[at - 4 : at + 2] == [0, 0, 0, 0, 1, 1], "cb_eval")
    attention = _only(cells, lambda at: cells[at : at + 4] == [-1] * 4 and cells[at - 1] != -1, "flash_attn_type")
    words[attention + 3] = int(flash_attention)
    words[kinds] = words[kinds + 1] = kv_type
    for at in range(3):  # n_ctx, n_batch, n_ubatch
        words[at] = max(words[at], tokens)
    if on_tensor is not None:
        pointers = ctypes.cast(ctypes.pointer(settings), ctypes.POINTER(POINTER))
        pointers[(kinds - 4) // 2] = ctypes.cast(on_tensor, POINTER).value
    return settings


def checked(library: Any, address: int) -> Tensor:
    """A tensor's struct, after its fields have been held against what the library says of them."""
    tensor = Tensor.from_address(address)
    elements = 1
    for size in tensor.sizes:
        elements *= size
    if library.ggml_get_name(address) != address + Tensor.name.offset or library.ggml_nelements(address) != elements:
        raise CaptureError("this xllamacpp lays tensors out in another way; install one of 2026.10")
    return tensor


def _only(cells: list[int], fits: Callable[[int], bool], name: str) -> int:
    found = [at for at in range(1, 40) if fits(at)]
    if len(found) != 1:
        raise CaptureError(f"this xllamacpp keeps {name} in another place; install one of 2026.10")
    return found[0]
