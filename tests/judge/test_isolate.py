"""`firstdrift isolate` and `firstdrift export --inputs-of`, as people and scripts see them."""

import copy
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.judge.networks import bare, made, record
from torch import nn

import firstdrift as fd
from firstdrift.cli.main import cli


def run(*arguments, code=0):
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """A reference, and a candidate whose last norm has another eps and whose first layer has other weights."""
    monkeypatch.chdir(tmp_path)
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, "ref")
    model[3].eps = 1e-3
    model[0].weight.data *= 1.01
    record(model, x, y, "cand")


def loaded(path):
    with np.load(path) as arrays:
        return dict(arrays)


def isolated(module, code, *options):
    return run("isolate", "ref", "cand", "--module", module, *options, code=code).output


def test_a_module_with_a_wrong_formula_is_told_so(wrong):
    last = isolated("3", 1).splitlines()[-1]
    assert last.startswith("drift: 3 computes something else than the reference's LayerNorm: error ")


def test_a_module_behind_the_error_is_acquitted(wrong):
    assert isolated("5", 0).splitlines()[-1] == "noise: 5 itself is right: the error came in"


def test_wrong_weights_are_told_from_a_wrong_formula(wrong):
    said = "drift: the weights of 0 differ; with the candidate's own weights it is right"
    assert isolated("0", 1).splitlines()[-1] == said


def test_a_right_module_in_a_right_run_is_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("ref", "cand"):
        record(*made("mlp"), path)
    assert isolated("5", 0).splitlines()[-1] == "noise: 5 itself is right, and nothing wrong came in"


def test_a_wrong_backward_is_named_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, "ref")
    model[5].weight.register_hook(lambda gradient: 1.5 * gradient)
    record(model, x, y, "cand")
    last = isolated("5", 1).splitlines()[-1]
    assert last.startswith("drift: the backward of 5 computes something else than that of the reference's Linear: ")


def test_the_table_has_outputs_and_every_gradient_that_the_module_makes(wrong):
    lines = isolated("5", 0).splitlines()
    assert lines[0] == "5: torch.nn.functional.linear, computed in float64 from the candidate's inputs"
    assert lines[1].split() == ["site", "total", "inherited", "introduced", "own", "weights", "noise"]
    sites = [line.split("  ")[0] for line in lines[2:-1]]
    assert sites == ["fwd 5:out step 0", "agrad 4:out step 0", "grad 5:weight step 0", "grad 5:bias step 0"]


class Part(nn.Module):
    """A container with a mistake to be planted in its first layer or in what joins its layers."""

    def __init__(self, eps=1e-5, factor=1.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8, eps=eps), nn.Linear(8, 16), nn.Linear(16, 8)
        self.factor = factor

    def forward(self, x):
        return x + self.factor * self.down(nn.functional.silu(self.up(self.norm(x))))


def two_parts(path, first=None, second=None, **options):
    torch.manual_seed(0)
    model = nn.Sequential(Part(**(first or {})), Part(**(second or {})))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    with fd.trace(model, path, **options):
        model(x).square().mean().backward()


@pytest.mark.parametrize("mistake", [{"eps": 1e-2}, {"factor": 1.1}], ids=["in its first layer", "in what joins them"])
def test_a_container_is_never_acquitted_for_its_last_child(tmp_path, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    two_parts("ref")
    two_parts("cand", mistake)
    last = isolated("0", 1).splitlines()[-1]
    assert last.startswith("drift: 0 computes something else than the reference's Part: error ")
    assert isolated("0.down", 0).splitlines()[-1].startswith("noise: 0.down itself is right")
    assert isolated("1", 0).splitlines()[-1] == "noise: 1 itself is right: the error came in"
    assert isolated("", 1).splitlines()[-1].startswith("drift: the model computes something else")


def test_a_container_with_other_weights_inside_is_right_with_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_parts("ref")
    torch.manual_seed(0)
    model = nn.Sequential(Part(), Part())
    with torch.no_grad():
        model[1].up.weight[3] *= 1.5
    with fd.trace(model, "cand"):
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    said = "drift: the weights of 1 differ; with the candidate's own weights it is right"
    assert isolated("1", 1).splitlines()[-1] == said


def test_a_candidate_that_recorded_outputs_alone_is_fed_by_what_came_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_parts("ref")
    two_parts("whole", None, {"eps": 1e-2})
    whole = fd.open_trace("whole")
    with fd.Writer("cand") as writer:
        for record in whole:
            if record.site.phase == "fwd" and record.site.port == "out":
                writer.put(record.site.name, "fwd", whole.array(record))
    assert isolated("1.norm", 1).splitlines()[-1].startswith("drift: 1.norm computes something else")
    assert isolated("1.up", 0).splitlines()[-1] == "noise: 1.up itself is right: the error came in"
    assert isolated("0", 0).splitlines()[-1] == "noise: 0 itself is right, and nothing wrong came in"


def test_a_dropout_that_drew_other_numbers_is_not_called_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)), torch.randn(8, 16)
    for path, seed in (("ref", 1), ("same", 1), ("cand", 2)):
        torch.manual_seed(seed)
        with fd.trace(model, path):
            model(x).sum().backward()
    assert isolated("1", 2).splitlines()[-1].startswith("inconclusive: 1 cannot be replayed from these files")
    run("isolate", "ref", "same", "--module", "1", code=0)


def test_a_program_that_cannot_be_read_is_an_error_that_names_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_parts("ref")
    program = tmp_path / "ref" / "program.jsonl"
    program.write_text(program.read_text().replace('"aten.addmm.default"', '"rm -rf"'))
    assert "no dotted name" in run("isolate", "ref", "ref", "--module", "1.up", code=2).output


def test_json_holds_all_figures(wrong):
    said = json.loads(isolated("0", 1, "--json"))
    keys = {"schema", "module", "op", "verdict", "fault", "sentence", "exit_code", "sites"}
    assert said.keys() == keys
    assert (said["schema"], said["verdict"], said["fault"], said["exit_code"]) == (
        "firstdrift-isolate-v1", "drift", "weights", 1,
    )  # fmt: skip
    first = said["sites"][0]
    assert (first["phase"], first["name"], first["operation"], first["right"]) == (
        "fwd",
        "0",
        "torch.nn.functional.linear",
        False,
    )
    assert first["introduced_with_own_weights"] < first["noise"] < first["introduced"]


def test_what_cannot_be_replayed_says_why_and_what_to_do_instead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fd.Writer("ref") as writer:
        writer.put("input", "input", np.arange(8.0), port="x")
        writer.put("odd", "fwd", np.arange(8.0)[::-1] ** 3)
        writer.put_stats("seen", "fwd", {"mean": 0.5}, dtype="f32", shape=(2,))
    why = {
        "odd": "the reference's trace does not say how it was made, or what it was made from was not recorded on both "
        "sides",
        "seen": "both sides need to have recorded its output, with values",
    }
    for module, reason in why.items():
        output = run("isolate", "ref", "ref", "--module", module, code=2).output
        assert output.startswith(f"inconclusive: {module} cannot be replayed from these files: {reason}; write the ")
        assert "--inputs-of" in output
        assert "fd.check" in output


def test_an_unknown_module_is_an_error_that_names_what_is_near(wrong):
    assert (
        "nothing is named '55'; `firstdrift show` lists"
        in run("isolate", "ref", "cand", "--module", "55", code=2).output
    )
    assert "Missing option '--module'" in run("isolate", "ref", "cand", code=2).output


def test_export_writes_what_a_module_reads_knows_and_should_return(wrong):
    output = run("export", "ref", "one.npz", "--inputs-of", "3").output
    assert output.splitlines() == [
        "one.npz: npz, 4 sites, 4.2 KiB", "  inputs: 3.fwd.in.0", "  weights: 3.weight, 3.bias", "  outputs: 3.fwd",
    ]  # fmt: skip
    arrays = loaded("one.npz")
    x = arrays["3.fwd.in.0"].astype(float)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    assert arrays["3.fwd"] == pytest.approx(y * arrays["3.weight"] + arrays["3.bias"], abs=1e-5)


@pytest.mark.parametrize(
    ("out", "options"), [("a.safetensors", ()), ("a", ("--format", "npy")), ("b", ("--format", "trace"))]
)
def test_every_format_holds_it_and_reads_it_back(wrong, out, options):
    run("export", "ref", out, "--inputs-of", "3", *options)
    ports = {(one.site.phase, one.site.name, one.site.port) for one in fd.open_trace(out)}
    assert ports == {("fwd", "3", "in.0"), ("fwd", "3", "out"), ("weight", "3", "weight"), ("weight", "3", "bias")}


def test_a_container_comes_with_all_weights_inside_and_tied_ones_by_their_name_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(*made("decoder"), "ref")
    said = json.loads(run("export", "ref", "a.npz", "--inputs-of", "blocks.1", "--json").output)
    assert len(said["weights"]) == 12
    assert said["inputs"] == ["blocks.1.fwd.in.0"]
    head = json.loads(run("export", "ref", "b.npz", "--inputs-of", "head", "--json").output)
    assert head["weights"] == ["head.weight"]


def test_inputs_are_those_of_the_producers_where_only_outputs_were_recorded(wrong):
    bare("ref", "bare")
    run("export", "bare", "one.npz", "--inputs-of", "3")
    assert np.array_equal(loaded("one.npz")["3.fwd.in.0"], fd.open_trace("ref").array(fd.Site(0, "fwd", "2", "out")))


def test_a_module_without_recorded_inputs_or_outputs_cannot_be_exported(wrong):
    with fd.Writer("lone") as writer:
        writer.put("a", "fwd", np.ones(3))
    assert "what 'a' reads was not recorded" in run("export", "lone", "x.npz", "--inputs-of", "a", code=2).output
    assert "no output of 'b' is recorded" in run("export", "lone", "x.npz", "--inputs-of", "b", code=2).output
    both = run("export", "ref", "x.npz", "--inputs-of", "3", "--only", "3", code=2).output
    assert "--inputs-of says itself what is written" in both
