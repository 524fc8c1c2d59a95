"""llama.cpp by its C API, out of the shared library that the xllamacpp wheel is.

It runs in a process of its own, `python llama_cpp.py MODEL TEXT TOKEN...`: beside torch in one process it aborts.
"""

import ctypes
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

POINTER, INT, FLOATS = ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_float)


class Settings(ctypes.Structure):
    """Room for any struct that is passed by value: they grow from release to release, and none is looked into."""

    _fields_ = (("room", ctypes.c_uint64 * 64),)


SIGNATURES = {
    "llama_backend_init": (None,),
    "llama_model_default_params": (Settings,),
    "llama_context_default_params": (Settings,),
    "llama_model_load_from_file": (POINTER, ctypes.c_char_p, Settings),
    "llama_init_from_model": (POINTER, POINTER, Settings),
    "llama_model_get_vocab": (POINTER, POINTER),
    "llama_vocab_n_tokens": (INT, POINTER),
    "llama_tokenize": (
        INT, POINTER, ctypes.c_char_p, INT, ctypes.POINTER(INT), INT, ctypes.c_bool, ctypes.c_bool,
    ),
    "llama_batch_get_one": (Settings, ctypes.POINTER(INT), INT),
    "llama_decode": (INT, POINTER, Settings),
    "llama_get_logits_ith": (FLOATS, POINTER, INT),
    "llama_free": (None, POINTER),
    "llama_model_free": (None, POINTER),
}  # fmt: skip


def library():
    spec = find_spec("xllamacpp")
    assert spec is not None, "xllamacpp is not installed; make test-engines does it"
    found = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("*.so"))))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    found.llama_backend_init()
    return found


class Model:
    """A model that llama.cpp has loaded."""

    def __init__(self, lib, model):
        self.lib, self.model = lib, model
        self.vocabulary = lib.llama_model_get_vocab(model)
        self.size = lib.llama_vocab_n_tokens(self.vocabulary)

    def tokens(self, text):
        data, room = text.encode(), (INT * 64)()
        count = self.lib.llama_tokenize(self.vocabulary, data, len(data), room, len(room), False, False)
        return list(room[:count])

    def logits(self, tokens):
        """What the model says after the last token."""
        context = self.lib.llama_init_from_model(self.model, self.lib.llama_context_default_params())
        assert context, "llama.cpp makes no context"
        given = (INT * len(tokens))(*tokens)
        try:
            assert self.lib.llama_decode(context, self.lib.llama_batch_get_one(given, len(tokens))) == 0
            return np.ctypeslib.as_array(self.lib.llama_get_logits_ith(context, -1), (self.size,)).copy()
        finally:
            self.lib.llama_free(context)


def main(path, text, *tokens):
    lib = library()
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    assert model, f"llama.cpp refuses {path}"
    found = Model(lib, model)
    said = {"logits": found.logits([int(token) for token in tokens]).tolist()}
    if text:  # a model without a vocabulary ends the process that asks for one
        said["tokens"] = found.tokens(text)
    print(json.dumps(said))  # noqa: T201


def run(path, text, tokens):
    """The logits after the last token, and the tokens of a text, from llama.cpp in another process."""
    command = [sys.executable, __file__, str(path), text, *map(str, tokens)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    return np.array(said["logits"], np.float32), said.get("tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
