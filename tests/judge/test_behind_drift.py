"""Behind a drift all tensors differ: how much is replayed there is counted by what replays read, weights included."""

import copy

import torch
from tests.judge.networks import replays_of
from torch import nn

import firstdrift as fd
from firstdrift.judge.measure.result import Verdict
from firstdrift.judge.passes import by_program

WIDTH, LAYERS = 32, 6


def network():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)))


def recorded(tmp_path, wrong=1):
    paths, model = (tmp_path / "ref", tmp_path / "cand"), network()
    other = copy.deepcopy(model)
    other[wrong][1].approximate = "tanh"
    for path, one in zip(paths, (model, other), strict=True):
        with fd.trace(one, path), torch.no_grad():
            one(torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(1)))
    return paths


def asked(result):
    """The outputs that were replayed."""
    names = (pair.site.name for pair in result.pairs if any(one.by == "replay" for one in pair.chain))
    return list(dict.fromkeys(names))


def test_a_replay_counts_the_weights_that_it_reads(tmp_path):
    replays, _, _ = replays_of(*recorded(tmp_path))
    assert replays.work(fd.Site(0, "fwd", "2.0", "out")) >= WIDTH * WIDTH
    assert replays.work(fd.Site(0, "fwd", "2.1", "out")) < 4 * WIDTH


def test_the_nearest_are_replayed_and_the_first_drift_stays_the_first(tmp_path, monkeypatch):
    paths = recorded(tmp_path)
    everything = asked(fd.diff(*paths))
    assert f"{LAYERS - 1}.0" in everything
    monkeypatch.setattr(by_program, "MOST_ELEMENTS", 2 * WIDTH * WIDTH)
    result = fd.diff(*paths)
    assert (result.exit_code, result.first_drift.name) == (1, "1.1"), result.sentence
    assert "2.0" in asked(result)
    assert f"{LAYERS - 1}.0" not in asked(result)
    behind = [pair.verdict for pair in result.pairs if pair.site[1:3] == ("fwd", f"{LAYERS - 1}.0")]
    assert set(behind) <= {Verdict.INHERITED, Verdict.INCONCLUSIVE}
