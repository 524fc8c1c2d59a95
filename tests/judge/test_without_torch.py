"""Where torch is not installed, two traces are judged by limits alone, and the result says so."""

import copy

import pytest
import torch
from tests.judge.networks import made, record
from torch import nn

import firstdrift as fd
from firstdrift.judge.replay import programs


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setattr(programs, "find_spec", lambda name: None)


def recorded(tmp_path, change=lambda model: None, dtype=torch.float32):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref")
    change(model)
    record(model.to(dtype), x.to(dtype), y, tmp_path / "cand")
    return tmp_path / "ref", tmp_path / "cand"


def test_what_running_the_program_would_add_is_said(tmp_path, no_torch):
    result = fd.diff(*recorded(tmp_path, lambda model: setattr(model[3], "eps", 1e-2)))
    assert (result.exit_code, result.first_drift.name) == (1, "3")
    (note,) = [note for note in result.notes if "firstdrift[torch]" in note]
    assert "pairs in doubt were judged by limits alone" in note


def test_an_equal_run_stays_right(tmp_path, no_torch):
    result = fd.diff(*recorded(tmp_path))
    assert result.exit_code == 0
    assert not any("firstdrift[torch]" in note for note in result.notes)


def test_a_right_run_that_rounds_otherwise_is_never_wrong_and_says_what_would_tell(tmp_path, no_torch):
    result = fd.diff(*recorded(tmp_path, dtype=torch.float64))
    assert result.exit_code in (0, 2), result.sentence
    assert any("firstdrift[torch]" in note for note in result.notes)


def test_torch_is_not_loaded_where_it_is_not_there(tmp_path, no_torch, monkeypatch):
    paths = recorded(tmp_path, lambda model: setattr(model[3], "eps", 1e-2))

    def refuse(*arguments):
        raise AssertionError("a program was asked for")

    monkeypatch.setattr(programs, "program_for", refuse)
    assert fd.diff(*paths).exit_code == 1


class Normed(nn.Module):
    """A hidden layer, whose units may be stored in any order, and a norm."""

    def __init__(self):
        super().__init__()
        self.up, self.act, self.down, self.norm = nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.down(self.act(self.up(x))))


def permuted(model, order):
    with torch.no_grad():
        model.up.weight.copy_(model.up.weight[order])
        model.up.bias.copy_(model.up.bias[order])
        model.down.weight.copy_(model.down.weight[:, order])


def diffed(tmp_path, change):
    torch.manual_seed(0)
    model, x = Normed(), torch.randn(16, 8)
    with fd.trace(model, tmp_path / "ref"), torch.no_grad():
        model(x)
    changed = copy.deepcopy(model)
    change(changed)
    with fd.trace(changed, tmp_path / "cand"), torch.no_grad():
        changed(x)
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


def test_weights_stored_in_another_order_are_left_open(tmp_path, no_torch):
    result = diffed(tmp_path, lambda model: permuted(model, torch.arange(23, -1, -1)))
    assert result.exit_code == 2
    assert "firstdrift[torch]" in result.sentence


def test_weights_that_change_what_the_model_gives_are_a_drift(tmp_path, no_torch):
    def scaled(model):
        with torch.no_grad():
            model.down.weight[0] *= 1.01

    result = diffed(tmp_path, scaled)
    assert (result.exit_code, result.first_drift.phase, result.first_drift.name) == (1, "weight", "down")


@pytest.mark.parametrize(("eps", "code"), [(1e-5, 2), (3e-2, 1)])
def test_a_norm_of_rows_that_hardly_vary_is_left_open_unless_it_is_grossly_wrong(tmp_path, no_torch, eps, code):
    torch.manual_seed(0)
    x = 1000 + torch.randn(16, 32)
    for side, dtype in (("ref", torch.float64), ("cand", torch.float32)):
        model = nn.Sequential(nn.LayerNorm(32, eps=1e-5 if side == "ref" else eps)).to(dtype)
        with fd.trace(model, tmp_path / side), torch.no_grad():
            model(x.to(dtype))
    assert fd.diff(tmp_path / "ref", tmp_path / "cand").exit_code == code
