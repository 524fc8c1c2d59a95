"""A GGUF model run by llama.cpp on some tokens, every tensor recorded by its eval callback.

llama.cpp and torch do not go together in one process, so the run has one of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..._version import __version__
from ...core.arrays import shortest
from ...core.sites import Site
from ...core.strict_json import Json
from ...core.traces import Array
from ...errors import CaptureError
from ...store.writer import Writer
from ..recorder import Recorder
from ..scope import Scope
from .ggml_library import POINTER, OnTensor, Tensor, checked, context_settings, load
from .ggml_names import module_of, parameter_of

VIEWS = frozenset({"RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "NONE"})  # show another tensor's numbers
WRITES = frozenset({"CPY", "SET_ROWS"})  # into the cache
PLAIN = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64, "i16": np.int16, "i8": np.int8}
KV_TYPES = {"f32": 0, "f16": 1}
# Where operations keep their settings, in words of 32 bits.
SETTINGS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "RMS_NORM": {"eps": (0, "f")},
    "NORM": {"eps": (0, "f")},
    "SCALE": {"scale": (0, "f")},
    "SOFT_MAX": {"scale": (0, "f")},
    "ROPE": {"n_dims": (1, "i"), "mode": (2, "i"), "theta": (5, "f"), "freq_scale": (6, "f")},
}


def record(
    model: str | os.PathLike[str],
    path: str | os.PathLike[str],
    inputs: Any,
    *,
    kv_type: str = "f16",
    flash_attention: bool = False,
    scope: Mapping[str, Any],
    overwrite: bool,
    checksum: bool,
    header: Mapping[str, Json],
) -> None:
    """Record one pass over the tokens in a process of its own; what goes wrong there is raised here."""
    asked = {
        "model": os.fspath(model), "path": os.fspath(path), "tokens": _tokens(inputs), "kv_type": kv_type,
        "flash_attention": flash_attention, "scope": scope, "overwrite": overwrite, "checksum": checksum,
        "header": header,
    }  # fmt: skip
    if kv_type not in KV_TYPES:
        raise CaptureError(f"kv_type {kv_type!r} is not one of {', '.join(KV_TYPES)}; use one of these")
    if not Path(model).is_file():
        raise CaptureError(f"{model}: there is no such file; give a GGUF model")
    package = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", __name__]
    run = subprocess.run(  # noqa: S603 - this very module
        command, input=json.dumps(asked), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    if run.returncode:
        said = (run.stdout.strip() or run.stderr.strip() or f"exit code {run.returncode}").splitlines()[-1]
        raise CaptureError(f"{model}: {said}")


def _tokens(inputs: Any) -> list[int]:
    if isinstance(inputs, Mapping) and len(inputs) == 1:
        inputs = next(iter(inputs.values()))
    row = np.asarray(inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs)
    if row.ndim == 2 and len(row) == 1:
        row = row[0]
    if row.ndim != 1 or not row.size or row.dtype.kind not in "iu":
        raise CaptureError(f"inputs are {row.dtype} of shape {list(row.shape)}; give one row of token ids")
    found: list[int] = row.tolist()
    return found


def run(asked: Mapping[str, Any]) -> None:
    """Load the model, decode the tokens without and with the callback, and write the trace."""
    library = load()
    model = library.llama_model_load_from_file(asked["model"].encode(), library.llama_model_default_params())
    if not model:
        raise CaptureError("llama.cpp does not load it; give a GGUF model of an architecture that it knows")
    words = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    beyond = [token for token in asked["tokens"] if not 0 <= token < words]
    if beyond:
        raise CaptureError(f"token {beyond[0]} is not in the model's vocabulary of {words}; give smaller ids")
    plain, threads = _decode(library, model, words, asked, None)
    said: dict[str, Json] = {
        "producer": f"firstdrift {__version__}, llama.cpp of xllamacpp {version('xllamacpp')}",
        "model": Path(asked["model"]).name,
        "options": {key: asked[key] for key in ("kv_type", "flash_attention")},
        "environment": {"xllamacpp": version("xllamacpp")},
    }
    writer = Writer(
        asked["path"], overwrite=asked["overwrite"], checksum=asked["checksum"], **{**said, **asked["header"]}
    )
    with writer:
        tap = _Tap(library, Recorder(writer, Scope.of(**asked["scope"])), asked["tokens"])
        tapped, _ = _decode(library, model, words, asked, OnTensor(tap))
        if tap.error is not None:
            raise tap.error
        environment = {"xllamacpp": version("xllamacpp"), "threads": threads}
        notes = [] if plain.tobytes() == tapped.tobytes() else ["reading all tensors changes the logits"]
        writer.describe(environment=environment, **({"notes": notes} if notes else {}))
    library.llama_model_free(model)


def _decode(library: Any, model: Any, words: int, asked: Mapping[str, Any], tap: Any) -> tuple[Array, int]:
    """The logits of all tokens, and how many threads computed them."""
    tokens: Sequence[int] = asked["tokens"]
    settings = context_settings(
        library, tap, kv_type=KV_TYPES[asked["kv_type"]], flash_attention=asked["flash_attention"], tokens=len(tokens)
    )
    context = library.llama_init_from_model(model, settings)
    if not context:
        raise CaptureError("llama.cpp makes no context for it; try fewer tokens")
    batch = library.llama_batch_init(len(tokens), 0, 1)
    batch.count = len(tokens)
    for at, token in enumerate(tokens):
        batch.token[at], batch.position[at], batch.is_output[at] = token, at, 1
        batch.sequences[at], batch.sequence[at][0] = 1, 0
    try:
        if library.llama_decode(context, batch) != 0:
            raise CaptureError("llama.cpp could not decode the tokens; try fewer of them")
        logits = np.ctypeslib.as_array(library.llama_get_logits(context), (len(tokens), words)).copy()
        threads = int(library.llama_n_threads(context))
    finally:
        library.llama_batch_free(batch)
        library.llama_free(context)
    return logits, threads


class _Tap:
    """llama.cpp's eval callback: it is asked before each tensor, and called again once that is computed."""

    def __init__(self, library: Any, recorder: Recorder, tokens: Sequence[int]) -> None:
        self._library, self._recorder = library, recorder
        self._tokens = len(tokens)
        self._sites: dict[int, Site] = {}
        self._times: Counter[str] = Counter()
        self._order = 0
        self.error: BaseException | None = None
        self._put(Site(0, "input", "input", "tokens"), np.asarray(tokens, np.int32))

    def __call__(self, address: int, is_question: bool, _: Any) -> bool:
        if self.error is not None:
            return False
        try:
            tensor = checked(self._library, address)
            op = self._library.ggml_op_desc(address).decode()
            if not is_question and op not in VIEWS | WRITES:
                self._record(address, tensor, op)
        except BaseException as error:  # none may pass through C
            self.error = error
            return False
        return True

    def _record(self, address: int, tensor: Tensor, op: str) -> None:
        name = tensor.name.decode("utf-8", "replace")
        call = self._times[name]
        self._times[name] += 1
        producers = [site for source in tensor.sources if source and (site := self._source(source)) is not None]
        array = self._values(address, tensor)
        if array is None:
            return
        module, stage, layer = module_of(name, op, call)
        notes = [f"llama.cpp's {name}"]
        if name.startswith("kq") and array.ndim > 1 and array.shape[-1] > self._tokens and "out" not in name:
            notes.append(f"{array.shape[-1]} places of the cache, of which {self._tokens} are used")
            array = array[..., : self._tokens]
        settings = {key: _setting(tensor, *where) for key, where in SETTINGS.get(op, {}).items()}
        site = Site(0, "fwd", module, "out", call if module == name else 0)
        self._sites[address] = site
        details = {"stage": stage, "layer": layer, "note": "; ".join(notes), "order": self._order}
        self._order += 1
        self._put(site, array, op=op, attrs=settings, producers=producers, **details)

    def _source(self, address: int) -> Site | None:
        """The site that a tensor is, or shows a part of; a weight is recorded when it is first read."""
        if address in self._sites:
            return self._sites[address]
        tensor = checked(self._library, address)
        if self._library.ggml_op_desc(address).decode() in VIEWS and tensor.sources[0]:
            return self._source(tensor.sources[0])
        name = tensor.name.decode("utf-8", "replace")
        if name == "inp_tokens":
            return Site(0, "input", "input", "tokens")
        if not name.endswith((".weight", ".bias")):
            return None
        site = Site(0, "weight", *parameter_of(name))
        self._sites[address] = site
        kind = self._library.ggml_type_name(tensor.type).decode()
        array = self._values(address, tensor)
        if array is not None:
            self._put(site, array, note=f"{name}, stored as {kind}")
        return site

    def _values(self, address: int, tensor: Tensor) -> Array | None:
        """A tensor's numbers with the last axis fastest; quantised ones as they are computed with."""
        kind = self._library.ggml_type_name(tensor.type).decode()
        data = ctypes.create_string_buffer(self._library.ggml_nbytes(address))
        self._library.ggml_backend_tensor_get(address, ctypes.cast(data, POINTER), 0, len(data))
        sizes = [int(size) for size in reversed(tensor.sizes)]
        while len(sizes) > 1 and sizes[0] == 1:
            sizes.pop(0)
        if kind not in PLAIN:
            return _dequantised(data, kind, sizes)
        dtype = np.dtype(PLAIN[kind])
        strides = [int(stride) for stride in reversed(tensor.strides)][-len(sizes) :]
        return np.ndarray(tuple(sizes), dtype, data, strides=tuple(strides)).copy()

    def _put(self, site: Site, array: Array, **details: Json) -> None:
        if site.phase in self._recorder.scope.phases and self._recorder.scope.takes(site.name):
            self._recorder.put(site, array, **details)


def _setting(tensor: Tensor, at: int, kind: str) -> Json:
    """A setting of an operation out of its words of 32 bits."""
    word = np.int32(tensor.parameters[at])
    return shortest(word.view(np.float32)) if kind == "f" else int(word)


def _dequantised(data: Any, kind: str, sizes: Sequence[int]) -> Array | None:
    from gguf import GGMLQuantizationType, quants

    try:
        chosen = GGMLQuantizationType[kind.upper()]
        found: Array = quants.dequantize(np.frombuffer(data, np.uint8).reshape(*sizes[:-1], -1), chosen)
    except (KeyError, NotImplementedError):
        return None
    return found.reshape(tuple(sizes))


def main() -> None:
    """The process that llama.cpp runs in: what is asked comes as JSON, an error goes out as one line."""
    try:
        run(json.loads(sys.stdin.read()))
    except CaptureError as error:
        print(error)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
