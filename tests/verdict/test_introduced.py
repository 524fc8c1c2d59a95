"""What a replay says of a tensor of which only a part is beyond noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.compare.result import Verdict
from firstdrift.verdict.introduced import introduced, settle


class Alone:
    """A graph of one site."""

    def producers(self, site):
        return ()

    def consumers(self, site):
        return ()

    def introducer(self, site):
        return "it"


@pytest.fixture
def part_off(tmp_path):
    """A verdict of drift for a part of a tensor, whose error as a whole is within noise."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    with fd.trace(model, tmp_path / "one"), torch.no_grad():
        model(torch.ones(3, 4))
    result = fd.diff(tmp_path / "one", tmp_path / "one")
    pair = next(one for one in result.pairs if one.site.phase == "fwd" and one.site.name == "1")
    return replace(pair, verdict=Verdict.DRIFT, error=0.1, limit=0.2)


def test_a_replay_that_gives_every_element_leaves_no_part_that_drifts(part_off):
    same = np.linspace(1.0, 2.0, 32).reshape(4, 8)
    own = introduced(same, same.copy(), 1e-3, (), "replayed")
    assert not own.beyond_noise
    assert settle([part_off], {part_off.site: own}, Alone(), {})[0].verdict is Verdict.NOISE


def test_a_replay_that_is_off_in_a_part_leaves_the_drift(part_off):
    expected = np.linspace(1.0, 2.0, 320).reshape(40, 8)
    found = expected.copy()
    found[3] *= 1.05
    own = introduced(expected, found, 1e-3, (), "replayed")
    assert settle([part_off], {part_off.site: own}, Alone(), {})[0].verdict is Verdict.DRIFT
