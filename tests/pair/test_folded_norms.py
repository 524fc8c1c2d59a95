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


class Block(nn.Module):
    """A convolution with the norm that is called alike on both sides, or without it."""

    def __init__(self, normed):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.act, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Linear(64, 5)
        if normed:
            self.norm = network(1)[1]

    def forward(self, x):
        x = self.conv(x)
        return self.head(self.act(self.norm(x) if hasattr(self, "norm") else x).flatten(1))


def without_norm(model, factor=1.0):
    plain = Block(False).eval()
    plain.conv = nn.utils.fusion.fuse_conv_bn_eval(model.conv, model.norm)
    with torch.no_grad():
        plain.conv.weight[1] *= factor
    plain.head.load_state_dict(model.head.state_dict())
    return plain


def traced(model, path):
    with torch.no_grad(), fd.trace(model, path):
        model(torch.randn(3, 4, 4, 4, generator=torch.Generator().manual_seed(1)))
    return path


@pytest.mark.parametrize("folds_reference", [False, True])
def test_a_norm_that_one_side_has_not_is_folded_under_equal_names(tmp_path, folds_reference):
    model = Block(True).eval()
    paths = [traced(model, tmp_path / "normed"), traced(without_norm(model), tmp_path / "plain")]
    result = fd.diff(*(reversed(paths) if folds_reference else paths))
    assert result.exit_code == 0, result.sentence
    assert any("the same numbers, computed and compared" in item.reason for item in result.absorbed)


@pytest.mark.parametrize("folds_reference", [False, True])
def test_a_norm_that_was_folded_wrongly_under_equal_names_is_not_green(tmp_path, folds_reference):
    model = Block(True).eval()
    paths = [traced(model, tmp_path / "normed"), traced(without_norm(model, 1.01), tmp_path / "plain")]
    assert fd.diff(*(reversed(paths) if folds_reference else paths), explain=False).exit_code == 1


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.01, 1)])
def test_a_normalised_weight_is_what_the_candidate_holds_as_one(tmp_path, factor, code):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    plain.load_state_dict(model.state_dict())
    nn.utils.parametrizations.weight_norm(model[0])
    with torch.no_grad():
        model[0].parametrizations.weight.original1.mul_(1.5)  # its length counts for nothing
        plain[0].weight[2] *= factor
    for side, network_ in (("reference", model), ("candidate", plain)):
        with torch.no_grad(), fd.trace(network_, tmp_path / side):
            network_(torch.ones(2, 4))
    assert fd.diff(tmp_path / "reference", tmp_path / "candidate", explain=False).exit_code == code
