"""Where the run read a number out of a tensor, and would read another from the candidate's: nobody can tell."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.judge.measure.result import Verdict, Why


class Branch(nn.Module):
    def forward(self, x):
        return x.relu() * 2 if bool(x.sum() > 0) else x.tanh()


class Split(nn.Module):
    def forward(self, x):
        sizes = (x[0] > 0).long().sum().item()
        left, right = x.split([sizes, x.shape[1] - sizes], 1)
        return torch.cat([left.exp(), right.sin()], 1)


class Chosen(nn.Module):
    def forward(self, x):
        return x[:, x[0].argsort().tolist()].cumsum(1)


class Network(nn.Module):
    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.body, self.last = nn.Linear(6, 8), body, nn.Linear(8, 3)
        self.first.bias.data += 1.0

    def forward(self, x):
        return self.last(self.body(self.first(x)))


def recorded(model, path):
    with fd.trace(model, path), torch.no_grad():
        model(torch.randn(4, 6, generator=torch.Generator().manual_seed(1)))
    return path


@pytest.mark.parametrize("body", [Branch, Split, Chosen])
def test_what_other_control_would_give_is_inconclusive(tmp_path, body):
    """The first layer is wrong by so much that the number read behind it is another one."""
    model = Network(body())
    recorded(copy.deepcopy(model), tmp_path / "ref")
    model.first.register_forward_hook(lambda module, given, output: -output)
    result = fd.diff(tmp_path / "ref", recorded(model, tmp_path / "cand"))
    assert (result.exit_code, result.first_drift.name) == (1, "first"), result.sentence
    (pair,) = (one for one in result.pairs if one.site[1:4] == ("fwd", "body", "out"))
    (asked,) = [one for one in pair.chain if one.by == "replay"]
    assert (asked.verdict, asked.why) == (Verdict.INCONCLUSIVE, Why.CONTROL_DIFFERS)


@pytest.mark.parametrize("body", [Branch, Split, Chosen])
def test_control_that_is_the_same_hides_nothing(tmp_path, body):
    model = Network(body())
    recorded(copy.deepcopy(model), tmp_path / "ref")
    model.body.register_forward_hook(lambda module, given, output: output * 1.01)
    result = fd.diff(tmp_path / "ref", recorded(model, tmp_path / "cand"))
    assert (result.exit_code, result.first_drift.name) == (1, "body"), result.sentence
