"""The bars of checkpoints: decoding blocks, and the memory that converting takes."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from ratios import Row, median_ratio

from firstdrift.weights.formats.quantized_blocks import GEOMETRY, dequantize
from firstdrift.weights.writing import write_checkpoint

MIB = 1 << 20


def rows() -> Iterator[Row]:
    yield from decoding()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        yield from memory(Path(directory))


def decoding() -> Iterator[Row]:
    """Blocks to float32 against the `gguf` library, for a small and a large matrix."""
    rng = np.random.default_rng(0)
    for dtype, kind in (("q4_k", gguf.GGMLQuantizationType.Q4_K), ("q6_k", gguf.GGMLQuantizationType.Q6_K)):
        for shape in ((576, 1536), (4096, 4096)):
            data = rng.integers(0, 60, (shape[0], shape[1] // 256 * GEOMETRY[dtype][1]), dtype=np.uint8)

            def theirs(data: np.ndarray = data, kind: gguf.GGMLQuantizationType = kind) -> None:
                gguf.quants.dequantize(data, kind)

            def ours(data: np.ndarray = data, dtype: str = dtype, shape: tuple[int, int] = shape) -> None:
                dequantize(dtype, data.reshape(-1), shape)

            name = f"{dtype.upper()} of {shape[0]} × {shape[1]}, speed against the gguf library"
            yield Row(name, median_ratio(theirs, ours), 1, True)


def memory(directory: Path) -> Iterator[Row]:
    """Anonymous memory while converting 1 GiB in tensors of 64 MiB, beyond what was there before."""
    code = r"""
import re, sys, threading, time
import firstdrift.weights.conversion as conversion
from firstdrift.weights.writing import load_writer
load_writer(sys.argv[3], ""); import ml_dtypes, safetensors
if sys.argv[3] == "pt": import torch
def anonymous(): return int(re.search(r"RssAnon:\s+(\d+) kB", open("/proc/self/status").read())[1]) / 1024
base = peak = anonymous()
done = False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)
watcher = threading.Thread(target=watch)
watcher.start()
conversion.convert(sys.argv[1], sys.argv[2], format=sys.argv[3], dtype=sys.argv[4] or None, overwrite=True)
done = True
watcher.join()
print(peak - base)
"""
    tensor = np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float32)
    source = directory / "a.safetensors"
    write_checkpoint(source, ((f"w{number}", tensor) for number in range(16)), format="safetensors")
    for format, dtype in (("apr", ""), ("apr", "f16"), ("apr", "apr_q4"), ("npz", "f16"), ("pt", "bf16")):
        command = [sys.executable, "-c", code, str(source), str(directory / "b"), format, dtype]
        used = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        yield Row(
            f"anonymous memory of converting 1 GiB to {format} {dtype}".rstrip(), used, 4 * 64 + 256, False, "MiB"
        )


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
