"""Traces that other engines wrote, each with that of the torch model it runs; unpacked from what is stored here.

cnn      a ResNet of two blocks, exported by torch.onnx: every node of ONNX Runtime 1.31, as exported and with its
         norms folded ("opt")
bert     a BERT of two layers, exported likewise
qwen2    a Qwen2 of two layers, exported likewise, and as ONNX Runtime's basic optimizations leave it
llama    a Llama of two layers in llama.cpp, by its eval callback: q and k interleaved, the cache padded to 256 places,
         batch and time in one axis
mlx      the same Llama in mlx-lm 0.32
flax     a transformer in flax nnx 0.12: forward pass, gradients, a step of SGD

`reference-bug` is the torch model with the fourth of its layers returning 1.3 times as much and 0.1 more.
"""

import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent / "recorded"
CANDIDATES = {
    "cnn": ("ort", "opt"), "bert": ("ort",), "qwen2": ("ort", "opt"), "llama": ("cpp",), "mlx": ("candidate",),
    "flax": ("candidate",),
}  # fmt: skip
PAIRS = [(model, engine) for model, engines in CANDIDATES.items() for engine in engines]


def unpacked(model, folder):
    """The traces of one model, below a folder."""
    with tarfile.open(HERE / f"{model}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Path(folder)
