"""It trains: from nothing, saved in two formats, and on from each, on real text; briefly, and to the stated floor."""

import importlib.util
import json
from pathlib import Path

import pytest
from tests.pretrain.worlds import firstdrift

EXAMPLE = Path(__file__).parents[2] / "examples" / "pretrain.py"


@pytest.fixture
def example():
    pytest.importorskip("tokenizers")
    spec = importlib.util.spec_from_file_location("pretrain_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(out, floor):
    """Both fine-tuned runs started far better than random, became better, and are the same."""
    ends = []
    for name in ("tuned-safetensors", "tuned-apr"):
        said = json.loads(firstdrift("show", out / name, "--json").stdout)
        losses = [one["val_loss"] for one in said["evaluations"]]
        assert all(check["holds"] for check in said["gap"]["checks"])
        assert losses[-1] < losses[0]
        assert losses[-1] < floor
        ends.append(losses)
    assert ends[0] == ends[1]


def test_a_few_steps_are_enough_to_see_it(example, tmp_path, monkeypatch):
    def in_this_process(*arguments):
        done = firstdrift(*arguments)
        assert done.exit_code == 0, done.output

    monkeypatch.setattr(example, "firstdrift", in_this_process)
    example.main(tmp_path / "out", steps=140, tuning=20, floor=5.0, modules=16)
    check(tmp_path / "out", 5.0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_hundred_steps_of_fine_tuning_end_below_the_floor(example, tmp_path):
    example.main(tmp_path / "out")
    check(tmp_path / "out", example.FLOOR)
    said = json.loads(firstdrift("show", tmp_path / "out/tuned-apr", "--json").stdout)
    assert (said["steps_done"], said["state"]) == (500, "finished")
