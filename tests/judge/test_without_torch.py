"""Where torch is not installed, two traces are judged by limits alone, and the result says so."""

import copy

import pytest
import torch

import firstdrift as fd
from firstdrift import comparison
from firstdrift.judge import programs

from .networks import made, record


@pytest.fixture
def no_torch(monkeypatch):
    for place in (programs, comparison):
        monkeypatch.setattr(place, "is_torch_here", lambda: False)


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


@pytest.mark.parametrize(("dtype", "doubted"), [(torch.float32, False), (torch.float64, True)])
def test_a_right_run_stays_right(tmp_path, no_torch, dtype, doubted):
    result = fd.diff(*recorded(tmp_path, dtype=dtype))
    assert result.exit_code == 0
    assert any("firstdrift[torch]" in note for note in result.notes) is doubted


def test_torch_is_not_loaded_where_it_is_not_there(tmp_path, no_torch, monkeypatch):
    paths = recorded(tmp_path, lambda model: setattr(model[3], "eps", 1e-2))

    def refuse(*arguments):
        raise AssertionError("a program was asked for")

    monkeypatch.setattr(programs, "program_for", refuse)
    assert fd.diff(*paths).exit_code == 1
