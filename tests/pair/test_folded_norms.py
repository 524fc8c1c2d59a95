"""From two traces: norms that were folded into the convolutions before them, and what is wrong behind them."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd


def network(pairs=6):
    torch.manual_seed(0)
    layers = []
    for _ in range(pairs):
        norm = nn.BatchNorm2d(4)
        with torch.no_grad():
            for one in (norm.weight, norm.running_var):
                one.uniform_(0.5, 2)
            for one in (norm.bias, norm.running_mean):
                one.normal_()
        layers += [nn.Conv2d(4, 4, 3, padding=1), norm, nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5)).eval()


def folded(model):
    """The same function: every norm's numbers moved into the convolution before it."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for conv, norm in zip(model[:-2:3], model[1:-2:3], strict=True):
            scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
            conv.weight *= scale[:, None, None, None]
            conv.bias.copy_((conv.bias - norm.running_mean) * scale + norm.bias)
            norm.weight.fill_(1)
            norm.bias.zero_()
            norm.running_mean.zero_()
            norm.running_var.fill_(1 - norm.eps)
    return model


@pytest.fixture
def compare(tmp_path):
    def diffed(candidate):
        x = torch.randn(3, 4, 4, 4, generator=torch.Generator().manual_seed(1))
        for side, model in (("reference", network()), ("candidate", candidate)):
            with fd.trace(model, tmp_path / side), torch.no_grad():
                model(x)
        return fd.diff(tmp_path / "reference", tmp_path / "candidate")

    return diffed


def test_folded_norms_are_another_layout(compare):
    result = compare(folded(network()))
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence


class Unbiased(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def test_a_bug_behind_folded_norms_is_found_where_it_is(compare):
    candidate = folded(network())
    candidate[-1].__class__ = Unbiased
    first = compare(candidate).first_drift
    assert (first.phase, first.name, first.cause.label) == ("fwd", "19", "missing-bias")


def test_a_norm_that_was_folded_wrongly_is_found_among_others(compare):
    candidate = folded(network())
    with torch.no_grad():
        candidate[9].weight *= 1.1
    first = compare(candidate).first_drift
    assert (first.phase, first.name, first.port) == ("weight", "9", "weight")


def test_one_weight_that_differs_is_no_layout(compare):
    candidate = network()
    with torch.no_grad():
        candidate[3].weight[1] *= 1.1
    first = compare(candidate).first_drift
    assert (first.phase, first.name) == ("weight", "3")
