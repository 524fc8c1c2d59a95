"""Choices between scores within noise of each other are flips, however many, where the scores can be told."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd


class Router(nn.Module):
    """Chooses two experts of six by scores that nobody records. The last two are tied but for `apart`, and good."""

    def __init__(self, apart, biased):
        super().__init__()
        self.weight = nn.Parameter(0.25 * torch.randn(6, 64))
        self.bias = nn.Parameter(torch.linspace(-0.1, 0.1, 6)) if biased else None
        with torch.no_grad():
            self.weight[5] = self.weight[4] * (1 + apart * torch.randn(64))
            if biased:
                self.bias[5] = self.bias[4]
        self.other, self.wrong = False, 0.0

    def forward(self, x):
        pieces = (
            [
                x[:, ::3] @ self.weight[:, ::3].T,
                x[:, 1::3] @ self.weight[:, 1::3].T,
                x[:, 2::3] @ self.weight[:, 2::3].T,
            ]
            if self.other
            else []
        )
        scores = sum(pieces) if self.other else x @ self.weight.T
        scores = scores + self.wrong * torch.linspace(-1, 1, 6)
        if self.bias is None:
            scores = scores.softmax(-1)
            values, chosen = scores.topk(2, -1)
            return values / values.sum(-1, keepdim=True), chosen
        scores = scores.sigmoid()
        chosen = (scores + self.bias).topk(2, -1).indices
        return scores.gather(-1, chosen), chosen


class Model(nn.Module):
    def __init__(self, apart=4e-8, biased=False):
        super().__init__()
        self.first, self.router = nn.Linear(8, 64), Router(apart, biased)
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        rows = self.first(x).flatten(0, 1)
        weights, chosen = self.router(rows)
        made = rows
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            made = made.index_add(0, row, expert(rows[row]) * weights[row, place, None])
        return made.view(*x.shape[:2], -1)


def sides(seed, biased, wrong=0.0):
    torch.manual_seed(seed)
    reference = Model(biased=biased)
    candidate = copy.deepcopy(reference)
    candidate.router.other, candidate.router.wrong = True, wrong
    return reference, candidate, torch.randn(3, 20, 8)


def diffed(tmp_path, reference, candidate, x):
    for model, name in ((reference, "ref"), (candidate, "cand")):
        with fd.trace(model, tmp_path / name), torch.no_grad():
            model(x)
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


def chosen(model, x):
    with torch.no_grad():
        return model.router(model.first(x).flatten(0, 1))[1]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_many_choices_between_near_ties_are_flips(tmp_path, seed, biased):
    reference, candidate, x = sides(seed, biased)
    differing = chosen(reference, x) != chosen(candidate, x)
    assert differing.float().mean() > 0.05
    result = diffed(tmp_path, reference, candidate, x)
    assert (result.verdict, result.exit_code) == ("flip", 0), result.sentence
    assert fd.check(reference=reference, candidate=candidate, inputs=(x,)).exit_code == 0


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_choices_by_other_scores_are_none(tmp_path, seed, biased):
    reference, candidate, x = sides(seed, biased, wrong=0.3)
    result = diffed(tmp_path, reference, candidate, x)
    assert result.first_drift is not None
    assert result.first_drift.name == "router"
    checked = fd.check(reference=reference, candidate=candidate, inputs=(x,))
    assert (checked.verdict, checked.first_drift.name) == ("drift", "router")
