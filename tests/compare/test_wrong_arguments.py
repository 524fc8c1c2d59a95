"""What cannot be meant is refused in one sentence; above all what would let every difference pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import firstdrift as fd


@pytest.fixture
def sides(tmp_path):
    for side, factor in (("a", 1), ("b", 2)):
        with fd.Writer(tmp_path / side) as writer:
            writer.put("x", "fwd", np.ones(3) * factor)
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.parametrize("floor", [float("nan"), float("inf"), -1.0, "1e-4", True, np.float32("nan"), None])
def test_a_floor_that_nothing_is_above_is_refused(sides, floor):
    with pytest.raises(fd.SelectionError, match="abs_floor .* is no finite number from 0; differences below it pass"):
        fd.diff(*sides, rule="jump", abs_floor=floor)
    with pytest.raises(fd.SelectionError, match="abs_floor"):
        fd.assert_same(*sides, abs_floor=floor)


@pytest.mark.parametrize("floor", [0, 0.0, np.float32(1e-3), np.int64(0)])
def test_floors_of_any_type_are_numbers(sides, floor):
    assert fd.diff(*sides, rule="jump", abs_floor=floor).exit_code == 1


@pytest.mark.parametrize("name", ["only", "phases", "ignore", "allow_missing", "allow_nan"])
@pytest.mark.parametrize("given", [3, [3], [None], b"fwd"])
def test_what_is_no_glob_is_refused(sides, name, given):
    with pytest.raises(fd.SelectionError, match="give a glob, or several"):
        fd.diff(*sides, **{name: given})


def test_what_is_no_map_is_refused(sides):
    with pytest.raises(fd.SelectionError, match="map is a int; give a mapping file, or a dict of what one says"):
        fd.diff(*sides, map=3)
    assert fd.diff(*sides, map={"pairs": {"x": "x"}}).exit_code == 1


@pytest.mark.parametrize("model", [3, torch.nn.Linear, {"weight": torch.ones(2)}])
def test_weights_are_loaded_into_a_model(model):
    with pytest.raises(fd.WeightsError, match="the model is a .*; give a torch.nn.Module"):
        fd.load_weights(model, {"weight": np.ones(2, np.float32)})
