"""Anonymous memory stays bounded, whatever the size of the trace. Each case runs in a process of its own."""

import subprocess
import sys

import pytest

MIB = 1 << 20
PRELUDE = """
import re, sys
import numpy as np, firstdrift as fd

def anonymous():
    return sum(int(n) for n in re.findall(r"RssAnon:\\s+(\\d+) kB", open("/proc/self/status").read())) * 1024

path = sys.argv[1]
tensor = np.zeros(int(sys.argv[2]) // 4, np.float32)
count = int(sys.argv[3])
import firstdrift.compare.open_trace, firstdrift.store.writer, firstdrift.kernels
"""
WRITE = """
def write(background):
    with fd.Writer(path, overwrite=True, background=background) as writer:
        for step in range(count):
            tensor[:] = step
            writer.put("x", "fwd", tensor, step=step)
            peak[0] = max(peak[0], anonymous())
"""
CASES = {
    "writing": WRITE + "base = anonymous(); peak = [0]; write(False)",
    "writing in the background": WRITE + "base = anonymous(); peak = [0]; write(True)",
    "reading": WRITE
    + """
peak = [0]; write(False)
del tensor
base, peak = anonymous(), [0]
for record in fd.open_trace(path):
    fd.open_trace(path).array(record).sum(dtype=np.float64)
trace = fd.open_trace(path)
kept = [trace.array(record) for record in trace]
total = sum(float(array[-1]) for array in kept)
assert total == sum(range(count)), total
peak[0] = anonymous()
""",
    "exporting to npz": WRITE
    + """
from firstdrift.compare.open_trace import load_format
from pathlib import Path
peak = [0]; write(False)
del tensor
base, peak = anonymous(), [0]
def advance(n): peak[0] = max(peak[0], anonymous())
load_format("npz").write(fd.open_trace(path), Path(path + ".npz"), overwrite=True, advance=advance)
""",
    "exporting to safetensors": WRITE
    + """
from firstdrift.compare.open_trace import load_format
from pathlib import Path
peak = [0]; write(False)
del tensor
base, peak = anonymous(), [0]
def advance(n): peak[0] = max(peak[0], anonymous())
load_format("safetensors").write(fd.open_trace(path), Path(path + ".safetensors"), overwrite=True, advance=advance)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_anonymous_memory_is_bounded_by_the_largest_tensor(tmp_path, case):
    size, count = 16 * MIB, 40
    script = PRELUDE + CASES[case] + "\nprint(peak[0] - base)"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "t", str(size), str(count)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 64 * MIB + size


def test_a_trace_of_100000_tensors_opens_in_bounded_memory(tmp_path):
    script = """
import sys
import numpy as np, firstdrift as fd
with fd.Writer(sys.argv[1]) as writer:
    for step in range(2000):
        for layer in range(50):
            writer.put(f"transformer.layers.{layer}.attn", "fwd", np.zeros(8, np.float32), step=step)
"""
    subprocess.run([sys.executable, "-c", script, tmp_path / "t"], check=True)
    script = """
import re, sys
import firstdrift as fd
from firstdrift.cli.commands.show import listing
trace = fd.open_trace(sys.argv[1])
text = listing(trace, trace.records)
assert text.count("\\n") >= 100_000
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "t"], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 200 * 1024
