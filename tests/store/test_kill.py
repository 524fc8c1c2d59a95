"""A background writer killed at any moment loses at most its queue; the other writers are in tests/killing."""

import random
import signal
import subprocess
import sys

import numpy as np
import pytest

import firstdrift as fd

# Says what it is about to put, puts it, says that it has; the last word tells what must be there.
WRITER = """
import sys
import numpy as np, firstdrift as fd
out = sys.stdout.fileno()
import os
with fd.Writer(sys.argv[1], background=True) as writer:
    for step in range(1_000_000):
        for name in ("small", "middle", "large"):
            size = {"small": 10, "middle": 5_000, "large": 300_000}[name]
            writer.put(name, "fwd", np.full(size, step, np.float32), step=step, attrs={"x": step})
            os.write(out, b".")
"""


def killed_after(path, puts, delay):
    """Run the writer, kill it some time after `puts` of its tensors, and return how many it said were put."""
    child = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
    said = len(child.stdout.read(puts)) if puts else 0
    try:
        child.wait(delay)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
    said += len(child.communicate()[0])
    assert child.returncode == -signal.SIGKILL
    return said


def check(trace, said, may_lose):
    assert said - may_lose <= len(trace) <= said + 1
    for record in trace:
        size = {"small": 10, "middle": 5_000, "large": 300_000}[record.site.name]
        array = trace.array(record)
        assert array.shape == (size,)
        assert np.all(array == record.site.step)
    assert any("no end line: the writer was stopped" in problem for problem in trace.problems)
    assert not trace.complete


@pytest.mark.parametrize("attempt", range(5))
def test_killing_a_background_writer_loses_at_most_its_queue(tmp_path, attempt, counted):
    chance = random.Random(attempt)
    said = killed_after(tmp_path / "t", chance.randrange(1, 300), chance.random() * 0.02)
    queue = 3 * (32 << 20) // (4 * 305_010) + 4  # tensors that fit into the stated bound
    counted("kills of writers", 1)
    check(fd.open_trace(tmp_path / "t"), said, may_lose=queue)
