"""Programs across processes: run again in a fresh one, cut off by a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import firstdrift as fd
from firstdrift.program.written.read_program import read_program

HERE = Path(__file__).parent


def python(code, *args):
    said = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HERE)!r})\n{code}", *map(str, args)]
    return subprocess.run(said, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


RECORD = """
import firstdrift as fd, torch
from tests.program.replaying import mlp, train
torch.manual_seed(0)
model = mlp()
optimizer = torch.optim.AdamW(model.parameters())
with fd.trace(model, sys.argv[1], optimizer=optimizer):
    train(model, optimizer, steps=2)
    {then}
"""
REPLAY = """
from pathlib import Path
from tests.program.replaying import Recorded, assert_replays
print(assert_replays(Recorded(Path(sys.argv[1]))))
"""


def test_a_program_is_run_again_in_a_process_that_knows_nothing_of_the_model(tmp_path):
    assert python(RECORD.format(then=""), tmp_path / "t").returncode == 0
    done = python(REPLAY, tmp_path / "t")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_a_killed_run_keeps_the_programs_of_the_steps_that_ended(tmp_path):
    then = "model(torch.ones(2, 4)); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = python(RECORD.format(then=then), tmp_path / "t")
    assert done.returncode == -signal.SIGKILL
    trace = fd.open_trace(tmp_path / "t")
    assert not trace.complete
    program = read_program(trace)
    assert "has no end line" in " ".join(program.problems)
    assert list(program.steps) == [0, 1]
    assert len(program.steps[1].nodes) > 20
    assert fd.diff(tmp_path / "t", tmp_path / "t").verdict.value in ("same", "inconclusive")
