"""The bars of the diff: memory and start-up. The speed of the measurements themselves is in kernels.py."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ratios import Row, median_ratio

import firstdrift as fd

MEMORY = r"""
import re, sys, firstdrift as fd, firstdrift.comparison
def anonymous(): return int(re.search(r"RssAnon:\s+(\d+) kB", open("/proc/self/status").read())[1]) / 1024
peak = 0
def advance(nbytes):
    global peak
    peak = max(peak, anonymous())
result = fd.diff(sys.argv[1], sys.argv[2], advance=advance)
assert result.coverage.compared == int(sys.argv[3]), result.coverage
print(peak)
"""


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        yield from memory(Path(directory))
        yield from starting(Path(directory))


def memory(directory: Path) -> Iterator[Row]:
    """A gigabyte of tensors, one of them half of it, gradients to be rescaled and updates to be subtracted."""
    random = np.random.default_rng(0)
    large = random.standard_normal(96 << 20, dtype=np.float32).reshape(3 << 10, -1)
    for side, reduction in (("reference", "mean"), ("candidate", "sum")):
        scale = np.float32(1 if side == "reference" else 4)
        with fd.Writer(directory / side, batch=4, gradient_of={"reduction": reduction, "batch": 4}) as writer:
            writer.put("big", "weight", large)
            writer.put("big", "fwd", large * np.float32(1 + 1e-7 * (side == "candidate")))
            writer.put("big", "grad", large * scale)
            writer.put("big", "weight_after", large * np.float32(0.99))
            for layer in range(32):
                writer.put(f"layer{layer}", "fwd", large[:64] + np.float32(layer))
    command = [sys.executable, "-c", MEMORY, str(directory / "reference"), str(directory / "candidate"), "36"]
    used = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    yield Row("anonymous memory of diff, 1.8 GiB a side, 384 MiB tensors", used, 256, False, "MiB")


def starting(directory: Path) -> Iterator[Row]:
    for side in ("a", "b"):
        with fd.Writer(directory / side) as writer:
            for layer in range(20):
                writer.put(f"layer{layer}", "fwd", np.full(8, 1 + 1e-7 * (side == "b"), np.float32))
    command = [str(Path(sys.executable).with_name("firstdrift")), "diff", str(directory / "a"), str(directory / "b")]

    def run(*arguments: str) -> None:
        subprocess.run(arguments, capture_output=True, check=True)

    ratio = median_ratio(lambda: run(*command), lambda: run(sys.executable, "-c", "import numpy"), 15)
    yield Row("diff of 20 tiny tensors, time against python -c 'import numpy'", ratio, 4, False)


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
