"""`make live` with a model that is small enough to wait for: it says how far it is, and survives being killed."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pretrain.worlds import events, files_of, newest

SCRIPT = Path(__file__).parents[2] / "bench" / "live.py"
SMALL = {
    "num_steps": 6, "batch": 2, "seq_length": 32, "eval_every": 3, "checkpoint_every": 2, "warmup": 2, "lr": 1e-3,
}  # fmt: skip
KILLED_AFTER = 3  # steps done when the process is gone; its newest checkpoint is of one before
KILLING = f"""
import importlib.util, os, signal, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("live", {str(SCRIPT)!r})
live = importlib.util.module_from_spec(spec)
spec.loader.exec_module(live)
class Killed(live.Told):
    def __call__(self, event):
        if (event["event"], event["step"]) == ("step", {KILLED_AFTER} - 1):
            os.kill(os.getpid(), signal.SIGKILL)
        super().__call__(event)
live.Told = Killed
live.main(Path(sys.argv[1]), Path(sys.argv[2]), **{SMALL!r})
"""


@pytest.fixture(scope="module")
def live():
    spec = importlib.util.spec_from_file_location("live", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_says_speed_and_time_left_and_keeps_the_figures(live, world, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(live, "SAID_EVERY", 2)
    assert live.main(tmp_path, world.apr, goal=9.0, **SMALL) == 0
    said = capsys.readouterr().out
    assert re.search(r"step 4 of 6: loss \d\.\d+, [\d,]+ tokens/s, \d+ min left", said)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [step for step, _ in figures["validation_loss"]] == [0, 3, 6]
    assert (figures["steps"], figures["tokens"]) == (6, 6 * 2 * 32)
    assert figures["gap"]["nats"] > 1
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == live.KEPT


def test_a_loss_above_the_goal_is_an_error(live, world, tmp_path):
    assert live.main(tmp_path, world.apr, goal=0.1, **{**SMALL, "num_steps": 1}) == 1


def test_killed_it_goes_on_and_ends_with_the_same_bytes(live, world, tmp_path):
    live.main(tmp_path / "whole", world.apr, **SMALL)
    killed = subprocess.run([sys.executable, "-c", KILLING, tmp_path / "killed", world.apr], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert newest(tmp_path / "killed/run").name == "step-000002"
    live.main(tmp_path / "killed", world.apr, **SMALL)
    assert [one["step"] for one in events(tmp_path / "killed/run", "resume")] == [2]
    ends = [files_of(newest(tmp_path / name / "run")) for name in ("whole", "killed")]
    assert ends[0] == ends[1]


def test_killed_before_its_first_checkpoint_it_begins_again(live, world, tmp_path):
    (tmp_path / "run/checkpoints/.step-000002.partial").mkdir(parents=True)
    assert live.main(tmp_path, world.apr, goal=9.0, **{**SMALL, "num_steps": 1}) == 0
