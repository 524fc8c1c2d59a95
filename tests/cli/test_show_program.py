"""`firstdrift show TRACE NAME --program`: how a tensor was made, call by call."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import firstdrift as fd


def show(*args):
    done = subprocess.run([sys.executable, "-m", "firstdrift", "show", *map(str, args)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = torch.tanh(self.first(x)) * 0.5
        h[:, :2] += 1
        return self.last(h)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    path = tmp_path_factory.mktemp("program") / "t"
    with fd.trace(model, path, optimizer=optimizer, source=True):
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    return path


def test_a_tensor_is_shown_from_the_recorded_ones_before_it(path):
    code, out, _ = show(path, "last:in.0", "--program")
    assert code == 0
    assert "fwd first:out" in out
    assert "torch.tanh" in out
    assert "f32[5, 6]" in out
    assert "h[:, :2] += 1" in out  # the line of code, which was asked for
    assert f"{__file__.rsplit('/', 1)[1]}:" in out
    assert "aten.addmm" not in out  # which is behind a tensor that is recorded


def test_a_gradient_says_which_forward_call_it_is_the_derivative_of(path):
    code, out, _ = show(path, "last:weight", "--phase", "grad", "--program")
    assert code == 0
    assert "derivative of" in out
    assert "torch.nn.functional.linear" in out


def test_the_same_is_had_as_json(path):
    code, out, _ = show(path, "last:out", "--phase", "fwd", "--program", "--json")
    assert code == 0
    (site,) = json.loads(out)["sites"]
    nodes = site["program"]["nodes"]
    assert [node["op"] for node in nodes if "op" in node] == ["aten.t.default", "aten.addmm.default"]
    assert nodes[-1]["module"] == "last"
    assert nodes[-1]["line"]["text"] == "return self.last(h)"
    assert nodes[-1]["results"] == [{"dtype": "f32", "shape": [5, 3], "strides": None, "device": "cpu"}]


def test_a_name_is_asked_for(path):
    code, _, err = show(path, "--program")
    assert code == 2
    assert "name it" in err


def test_a_trace_without_a_program_says_how_to_get_one(tmp_path):
    model = nn.Linear(2, 2)
    with fd.trace(model, tmp_path / "t", program=False):
        model(torch.ones(1, 2))
    code, _, err = show(tmp_path / "t", "", "--program")
    assert code == 2
    assert "has no program" in err


def test_a_damaged_program_is_one_sentence_and_the_trace_is_still_shown(tmp_path, path):
    copy = tmp_path / "t"
    copy.mkdir()
    for file in path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    program = copy / "program.jsonl"
    program.write_text(program.read_text().replace('{"%":0}', '{"%":9999}'))
    code, _, err = show(copy, "last:out", "--program")
    assert code == 2
    assert "refers to node 9999" in err
    assert "Traceback" not in err
    assert show(copy, "last:out")[0] == 0
    assert fd.diff(path, copy).verdict == fd.Verdict.SAME


def test_what_a_file_says_reaches_the_terminal_escaped(tmp_path, path):
    copy = tmp_path / "t"
    copy.mkdir()
    for file in path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    program = copy / "program.jsonl"
    program.write_text(program.read_text().replace("return self.last(h)", "\\u001b[31mred"))
    code, out, _ = show(copy, "last:out", "--program")
    assert code == 0
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out
