"""`firstdrift demo`: what it prints, its exit codes, its directory, and what it does without a compiler or torch."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.demo.demo_batches import Batch, Distance, Settings, answer, conclusion
from firstdrift.demo.port import Port, known_bugs
from firstdrift.demo.recorded_clip import BUGS, RECORDED
from firstdrift.judge.measure.result import Verdict

SMALL = ("--batches", "2", "--batch", "2")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def demo(*arguments, code=0):
    done = CliRunner().invoke(cli, ["demo", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_the_clean_port_is_shown_batch_by_batch_and_the_question_is_answered():
    lines = demo(*SMALL).splitlines()
    assert lines[0].startswith("A keyword spotter of 17 layers: PyTorch, and its port to C, built by ")
    assert lines[3] == "batch  clips     grad ln1  flips  verdict"
    for number, line in enumerate(lines[4:6]):
        assert re.match(rf" +{number}  {2 * number}-{2 * number + 1} +\d\.\de-0\d +0  noise: all 128 pairs are", line)
    assert "$ firstdrift diff demo-traces/batch-0/reference demo-traces/batch-0/candidate" in lines
    text = " ".join(lines)
    assert "input 2, weight 14, fwd 34, loss 1, lossgrad" in text
    assert "Why do gradients of the first LayerNorm differ from batch to batch?" in lines
    assert "no decision flipped in these 4 clips, and ln1's gradients agree to" in text


def test_a_bug_is_found_and_its_batch_reported():
    output = demo(*SMALL, "--bug", "relu-mask", code=1)
    assert output.count("drift: agrad ln3 (sample 0), by relu3's backward") == 2
    assert "bug: relu-mask, the ReLU lets gradient through at zero\n" in output
    assert "introduced by  relu3's backward" in output
    assert "Why do gradients" not in output


def test_a_bug_of_the_second_step_is_shown_in_the_second_step():
    output = demo("--batches", "1", "--batch", "1", "--bug", "no-momentum", code=1)
    assert "it shows from step 2 on" in output
    assert "the first drift is weight_after conv1 (step 1), introduced by" in " ".join(output.split())


def test_the_json_says_the_same_as_the_text_and_stays_in_the_directory():
    said = json.loads(demo(*SMALL, "--steps", "3", "--json", "--seed", "1"))
    assert json.loads(Path("demo-traces/demo.json").read_text()) == said
    assert said["schema"] == "firstdrift-demo-v1"
    assert (said["bug"], said["recorded"], said["exit_code"], said["shown"]) == ("none", None, 0, 0)
    assert [row["start"] for row in said["batches"]] == [0, 2]
    assert said["batches"][0].keys() == {
        "batch", "start", "clips", "verdict", "sentence", "exit_code", "flips", "norm_error",
    }  # fmt: skip
    assert said["report"]["schema"] == "firstdrift-diff-v1"
    assert [row["step"] for row in said["steps"]["rows"]] == [1, 2, 3]
    assert said["steps"]["rows"][0].keys() == {"step", "port", "torch", "ratio", "moved"}
    again = fd.diff("demo-traces/batch-0/reference", "demo-traces/batch-0/candidate")
    assert again.to_json() == said["report"]


def test_further_steps_are_measured_against_float64():
    output = demo(*SMALL, "--steps", "12")
    assert " step  C port    PyTorch   ratio  of the way\n" in output
    rows = re.findall(r"^ +(\d+)  \d\.\d+e-\d\d  \d\.\d+e-\d\d +\d+\.\d\d  \d\.\de-\d\d$", output, re.MULTILINE)
    assert rows[0] == "1"
    assert rows[-1] == "12"
    assert "the port adds nothing that compounds: after 12 steps the port is" in " ".join(output.split())
    wrong = demo("--batches", "1", "--batch", "2", "--steps", "4", "--bug", "momentum-sign", code=1)
    assert "the port's difference compounds: after 4 steps" in " ".join(wrong.split())


def test_the_traces_of_the_first_batch_and_of_the_first_that_matters_stay(tmp_path):
    demo("--batches", "3", "--batch", "1")
    assert {path.name for path in (tmp_path / "demo-traces").iterdir()} == {
        "batch-0", "demo.json", "kws", "weights.bin",
    }  # fmt: skip
    demo("--batches", "3", "--batch", "1", "--bug", "ln-eps", code=1)
    assert {path.name for path in (tmp_path / "demo-traces").glob("batch-*")} == {"batch-0"}


def test_there_are_as_many_batches_as_there_are_clips():
    assert list(Settings(Path(), Port(Path()), batches=9, batch=150).starts()) == [0, 150, 300]
    assert len(Settings(Path(), Port(Path())).starts()) == 10


def test_a_directory_of_something_else_is_left_alone_unless_forced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    said = demo(*SMALL, "--out", "mine", code=2)
    assert said == "firstdrift: mine: holds 'thesis.tex', which no demo made; choose another --out, or --force\n"
    demo(*SMALL, "--out", "mine", "--force")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("")
    assert "firstdrift: file: cannot make the demo's directory" in demo("--out", "file", code=2)


def test_the_bugs_are_listed_without_running_anything(tmp_path):
    names = [line.split()[0] for line in demo("--bug", "list").splitlines()]
    assert names == list(known_bugs())
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_bug_is_refused(tmp_path):
    said = demo("--bug", "gremlins", code=2)
    assert said.startswith("firstdrift: there is no bug 'gremlins'; choose one of: none, clip-off-by-one, ")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_is_an_error(monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert demo(code=2).startswith("firstdrift: false cannot build the C port")


# Without a compiler, and without torch.


@pytest.fixture
def no_compiler(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    monkeypatch.delenv("CC", raising=False)


def test_without_a_compiler_recorded_traces_are_compared_and_it_is_said(no_compiler, tmp_path):
    output = demo(code=2)  # these files name no operations
    assert output.startswith(
        "firstdrift: no C compiler was found: neither CC nor cc, gcc or clang; install one, or set CC; until then, "
        "recorded traces of one clip are compared\n"
    )
    assert re.search(r"^ +0  0-0 +0  inconclusive: ", output, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler_recorded_bugs_are_found(no_compiler):
    assert "drift: agrad ln3 (sample 0), by relu3's backward" in demo("--bug", "relu-mask", code=1)
    said = json.loads(CliRunner().invoke(cli, ["demo", "--bug", "momentum-sign", "--json"]).stdout)
    assert said["report"]["first_drift"]["phase"] == "weight_after"
    assert said["recorded"].startswith("no C compiler was found")
    assert "the bug 'ln-eps' was not recorded; choose one of: none, relu-mask, momentum-sign" in demo(
        "--bug", "ln-eps", code=2
    )
    assert "further steps were not recorded; --steps is left out" in demo("--steps", "5", code=2)


def test_without_torch_recorded_traces_are_compared(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = "firstdrift: PyTorch is not installed; install firstdrift[torch]; until then, recorded"
    assert demo(code=2).startswith(missing)


def test_the_recorded_traces_are_small_and_whole():
    files = sorted(RECORDED.glob("*.npz"))
    assert {file.stem for file in files} == {"reference", *BUGS}
    assert sum(file.stat().st_size for file in files) < 1.5e6
    assert all(fd.open_trace(file).complete for file in files)


# What it concludes.


def batch(number, *, flips=0, error=1e-6, verdict=Verdict.NOISE):
    class Result:
        pass

    result = Result()
    result.verdict, result.exit_code, result.flips = verdict, 0 if verdict is not Verdict.DRIFT else 1, (None,) * flips
    result.pairs = []

    class Made(Batch):
        norm_error = error

    return Made(number, 0, 32, None, None, result)


def test_flips_answer_the_question_with_the_batches_they_are_in():
    said = answer([batch(0), batch(1, flips=2, error=2e-3, verdict=Verdict.FLIP), batch(2, error=3e-6)])
    assert said == (
        "flips: ln1's gradients differ in batch 1 (2e-03), where a ReLU or a max-pool decided a near-tie the other "
        "way, each side by its own values; elsewhere they agree to 3e-06: no formula is wrong"
    )


def test_without_flips_the_answer_says_that_there_were_none():
    assert answer([batch(0), batch(1)]).startswith(
        "no decision flipped in these 64 clips, and ln1's gradients agree to"
    )


@pytest.mark.parametrize("verdict", [Verdict.DRIFT, Verdict.INCONCLUSIVE])
def test_a_drift_leaves_the_question_open(verdict):
    assert answer([batch(0), batch(1, verdict=verdict)]).startswith("not asked")


def test_a_port_as_far_from_float64_as_pytorch_adds_nothing():
    assert "adds nothing" in conclusion([Distance(1, 1e-6, 1e-6, 1.0), Distance(2, 3e-6, 1e-6, 1.0)])
    assert "compounds: after 2 steps the port is 5.0 times" in conclusion([Distance(2, 5e-6, 1e-6, 1.0)])
    assert Distance(1, 0.0, 0.0, 0.0).ratio == 1.0
