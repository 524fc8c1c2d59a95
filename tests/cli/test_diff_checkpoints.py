"""`firstdrift diff` of checkpoints: two of them are compared as weights; anything else hears which command to use."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import firstdrift as fd
from firstdrift.cli.main import cli
from firstdrift.compare.open_trace import NotATraceError
from firstdrift.weights.writing import write_checkpoint

OURS = {"fc.weight": np.arange(1, 13, dtype=np.float32).reshape(3, 4), "fc.bias": np.ones(3, np.float32)}
THEIRS = OURS | {"fc.weight": 2 * OURS["fc.weight"]}
FORMATS = {"apr": "{}.apr", "safetensors": "{}.safetensors", "pt": "{}.pt", "hf": "{}-hf"}


def run(*arguments, code=0):
    result = CliRunner().invoke(cli, [*map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def write(name, tensors, format):
    path = Path(FORMATS[format].format(name))
    if format == "hf":
        path.mkdir()
        (path / "config.json").write_text("{}")
        save_file(tensors, path / "model.safetensors")
    else:
        write_checkpoint(path, tensors.items(), format=format, metadata={"model_type": "t"})
    return path


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, tensors in (("ours", OURS), ("theirs", THEIRS)):
        with fd.Writer(f"{name}-trace", producer="test") as writer:
            for key, value in tensors.items():
                writer.put("fc", "weight", value, port=key.removeprefix("fc."))


@pytest.mark.parametrize("values", [(), ("--values",)])
@pytest.mark.parametrize("format", FORMATS)
def test_two_checkpoints_are_compared_as_weights(format, values):
    ours, theirs = write("ours", OURS, format), write("theirs", THEIRS, format)
    said = run("diff", *values, ours, theirs, code=1)
    assert said == run("weights", "diff", ours, theirs, code=1)
    assert said.endswith("drift: 1 drift, 1 same\n")
    assert "the weights are 2 times what they should be" in said
    assert run("diff", *values, ours, ours) == "same: 2 same\n"


def test_checkpoints_of_two_formats_are_compared_too():
    assert run("diff", write("ours", OURS, "apr"), write("ours", OURS, "safetensors")) == "same: 2 same\n"


def test_json_quiet_and_limit_are_honoured_and_options_about_sites_refused():
    ours, theirs = write("ours", OURS, "apr"), write("theirs", {k: 3 * v for k, v in OURS.items()}, "apr")
    said = json.loads(run("diff", ours, theirs, "--json", code=1))
    assert (said["schema"], said["verdict"]) == ("firstdrift-weights-diff-v1", "drift")
    assert run("diff", ours, theirs, "--quiet", code=1) == "drift: 2 drift\n"
    assert "... and 1 more; --json has all" in run("diff", ours, theirs, "--limit", 1, code=1)
    for option in (["--only", "fc"], ["--ranked"], ["--map", "m.yml"], ["--write-map", "m.yml"], ["--truth", "t"]):
        refusal = run("diff", ours, theirs, *option, code=2)
        assert f"two checkpoints are compared as weights, and {option[0]} is for traces; drop it" in refusal


@pytest.mark.parametrize("values", [(), ("--values",)])
def test_a_checkpoint_beside_something_else_is_refused_with_the_next_step(values):
    apr, stage = write("ours", OURS, "apr"), fd.write_stage_file("stages", 0, "ffn_out", [1.0])
    for one, other in ((apr, "ours-trace"), ("ours-trace", apr), (apr, stage), (stage, apr)):
        said = run("diff", *values, one, other, code=2)
        assert "checkpoint" in said
        assert "give two" in said or "drop --values" in said
    assert "firstdrift weights convert ours.apr FILE.safetensors" in run("diff", "ours-trace", apr, code=2)


def test_a_trace_is_compared_with_a_checkpoint_that_is_read_as_one():
    assert run("diff", "ours-trace", write("ours", OURS, "safetensors"), "--quiet").startswith("same: all 2 pairs")
    assert "the first drift is weight fc" in run("diff", "ours-trace", write("theirs", THEIRS, "hf"), code=1)


def test_traces_that_were_written_as_safetensors_are_compared_as_traces():
    for name in ("ours", "theirs"):
        run("export", f"{name}-trace", f"{name}.safetensors")
    assert run("diff", "ours.safetensors", "theirs.safetensors", "--quiet", code=1).startswith(
        "drift: the first drift is"
    )


@pytest.mark.parametrize("name", ["nowhere.apr", "nowhere"])
def test_what_is_not_there_is_said_first(name):
    for values in ((), ("--values",)):
        assert f"{name}: cannot open it (No such file" in run("diff", *values, write("ours", OURS, "pt"), name, code=2)
        Path("ours.pt").unlink()


def test_a_damaged_checkpoint_is_one_sentence():
    good, bad = write("ours", OURS, "safetensors"), Path("bad.safetensors")
    bad.write_bytes(good.read_bytes()[:20])
    assert "bad.safetensors: not a valid safetensors file" in run("diff", good, bad, code=2)


def test_weights_diff_says_which_command_compares_traces_and_stage_files():
    stage = fd.write_stage_file("stages", 0, "ffn_out", [1.0])
    assert "is a trace, and no checkpoint; firstdrift diff compares" in run(
        "weights", "diff", "ours-trace", "theirs-trace", code=2
    )
    assert "firstdrift diff --values compares two" in run("weights", "diff", stage, stage, code=2)


def test_opening_a_checkpoint_as_a_trace_says_which_command_reads_it():
    with pytest.raises(NotATraceError, match="is a checkpoint, and no trace; firstdrift weights diff compares two"):
        fd.open_trace(write("ours", OURS, "apr"))
