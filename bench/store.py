"""The bars of the trace store: writing, opening, starting, memory."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ratios import Row, median_ratio

import firstdrift as fd

MIB = 1 << 20


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        yield from writing(Path(directory))
        yield from opening(Path(directory))
        yield from memory(Path(directory))
    yield from starting()


def writing(directory: Path) -> Iterator[Row]:
    """The writer against a loop of write() of the same bytes to the same disk, both into new files."""
    for kib, bar in ((64, 0.6), (256, 0.8), (1024, 0.8)):
        tensor = np.random.default_rng(0).random(kib * 1024 // 8)
        count = 192 * MIB // tensor.nbytes

        def plain(tensor: np.ndarray = tensor, count: int = count) -> None:
            path = directory / "plain.bin"
            path.unlink(missing_ok=True)
            file = os.open(path, os.O_CREAT | os.O_WRONLY)
            for _ in range(count):
                os.write(file, tensor)
            os.close(file)

        def ours(tensor: np.ndarray = tensor, count: int = count) -> None:
            with fd.Writer(directory / "t", overwrite=True) as writer:
                for step in range(count):
                    writer.put("transformer.layers.3.attn", "fwd", tensor, step=step)

        yield Row(f"writing tensors of {kib} KiB, speed against plain write()", median_ratio(plain, ours, 7), bar, True)
    shutil.rmtree(directory / "t")


def opening(directory: Path) -> Iterator[Row]:
    """Open and list 100,000 tensors, against json.loads of the same lines."""
    from firstdrift.cli.commands.show import listing

    path = directory / "many"
    with fd.Writer(path) as writer:
        for step in range(2000):
            for layer in range(50):
                writer.put(f"transformer.layers.{layer}.attn", "fwd", np.zeros(8, np.float32), step=step)
    lines = (path / "index.jsonl").read_text().splitlines()

    def open_and_list() -> str:
        trace = fd.open_trace(path)
        return listing(trace, trace.records)

    ratio = median_ratio(open_and_list, lambda: [json.loads(line) for line in lines])
    yield Row("open and list 100,000 tensors, time against json.loads", ratio, 1.5, False)
    code = (
        "import re, sys, firstdrift as fd\nfrom firstdrift.cli.commands.show import listing\n"
        "trace = fd.open_trace(sys.argv[1]); text = listing(trace, trace.records)\n"
        r'print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])'
    )
    peak = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout
    yield Row("the same, peak memory of the process", int(peak) / 1024, 200, False, "MiB")


def memory(directory: Path) -> Iterator[Row]:
    """Anonymous memory while writing and reading 1 GiB in tensors of 16 MiB, beyond what was there before."""
    code = r"""
import re, sys, numpy as np, firstdrift as fd, firstdrift.compare.open_trace, firstdrift.store.writer
def anonymous(): return int(re.search(r"RssAnon:\s+(\d+) kB", open("/proc/self/status").read())[1]) / 1024
tensor = np.ones(4 << 20, np.float32)
base = peak = anonymous()
with fd.Writer(sys.argv[1], background=sys.argv[2] == "background") as writer:
    for step in range(64):
        writer.put("x", "fwd", tensor, step=step)
        peak = max(peak, anonymous())
trace = fd.open_trace(sys.argv[1])
arrays = [trace.array(record) for record in trace]
for array in arrays:
    array.sum()
    peak = max(peak, anonymous())
print(peak - base)
"""
    for mode in ("at once", "background"):
        command = [sys.executable, "-c", code, str(directory / mode), mode]
        used = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        yield Row(f"anonymous memory of writing ({mode}) and reading 1 GiB", used, 64 + 16, False, "MiB")


def starting() -> Iterator[Row]:
    command = str(Path(sys.executable).with_name("firstdrift"))

    def run(*arguments: str) -> None:
        subprocess.run(arguments, capture_output=True, check=True)

    ratio = median_ratio(lambda: run(command, "--help"), lambda: run(sys.executable, "-c", "import numpy"), 15)
    yield Row("firstdrift --help, time against python -c 'import numpy'", ratio, 2, False)


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
