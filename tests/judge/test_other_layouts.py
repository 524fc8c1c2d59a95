"""From two traces: parts that agree as a whole, and what is wrong behind, between and inside them."""

import copy
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.judge.measure.result import Why


class Part(nn.Module):
    def __init__(self, fault=None):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)
        self.fault = fault

    def forward(self, x):
        h = self.act(self.up(x))
        return self.down(1.01 * h if self.fault == "inside" else h)


class Head(nn.Linear):
    factor = 1.0

    def forward(self, x):
        return self.factor * super().forward(x)


def network(names):
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict([*((name, Part()) for name in names), ("head", Head(8, 5))]))


def reordered(model):
    """The same function, with the units inside every part in another order."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for number, part in enumerate(list(model)[:-1]):
            order = torch.randperm(16, generator=torch.Generator().manual_seed(number))
            part.up.weight.copy_(part.up.weight[order])
            part.up.bias.copy_(part.up.bias[order])
            part.down.weight.copy_(part.down.weight[:, order])
    return model


@pytest.fixture
def compare(tmp_path):
    def compared(reference, candidate, loss=None):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
        for side, model in (("r", reference), ("c", candidate)):
            with fd.trace(model, tmp_path / side), torch.set_grad_enabled(loss is not None):
                y = model(x)
                if loss is not None:
                    loss(y).backward()
        return fd.diff(tmp_path / "r", tmp_path / "c")

    return compared


NAMES = {"one": "a", "several, each known once those before it are": "abcd"}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_a_bug_behind_parts_in_another_layout_is_found_where_it_is(compare, names):
    candidate = reordered(network(names))
    candidate.head.factor = 1.01
    result = compare(network(names), candidate)
    assert (result.first_drift.phase, result.first_drift.name) == ("fwd", "head"), result.sentence
    assert {str(pair.verdict) for pair in result.pairs if pair.site.name != "head"} <= {"same", "noise", "inherited"}


def test_a_weight_that_was_left_behind_is_found_among_parts_in_another_layout(compare):
    candidate = reordered(network("ab"))
    candidate.b.down.load_state_dict(network("ab").b.down.state_dict())
    result = compare(network("ab"), candidate)
    assert result.exit_code == 1
    assert result.first_drift.name in ("b.up", "b.down"), result.sentence


@pytest.mark.parametrize(("eps", "code"), [(1e-12, 0), (1e-3, 1)])
def test_a_factor_is_the_same_function_only_where_a_norm_makes_the_same_of_it(compare, eps, code):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=eps), nn.Linear(8, 5))
    candidate = copy.deepcopy(reference)
    candidate[0].__class__ = Doubled
    result = compare(reference, candidate)
    assert result.exit_code == code, result.sentence
    if code:
        assert (result.first_drift.phase, result.first_drift.name) == ("fwd", "0")
    else:
        assert any(pair.why is Why.SAME_FUNCTION for pair in result.pairs)


def test_gradients_of_parts_in_another_layout_are_the_same_numbers(compare):
    assert compare(network("ab"), reordered(network("ab")), lambda y: y.square().mean()).exit_code == 0


def test_a_wrong_gradient_of_a_part_in_another_layout_is_not_green(compare):
    candidate = reordered(network("ab"))
    candidate.b.up.weight.register_hook(lambda gradient: 0.5 * gradient)
    assert compare(network("ab"), candidate, lambda y: y.square().mean()).exit_code != 0


def layers(path, order=None, factor=1.0):
    """Two layers of two products each, as a port writes them: outputs alone, whose units may be in another order."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 8)).astype(np.float32)
    with fd.Writer(path) as writer:
        writer.put("input", "input", x, port="x")
        before = fd.Site(0, "input", "input", "x")
        for layer in "01":
            up, down = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8, 16)))
            down = down / np.float32(16)
            up, down = (up, down) if order is None else (up[order], down[:, order])
            h = x @ up.T
            x = (h @ down.T * np.float32(factor if layer == "1" else 1)).astype(np.float32)
            writer.put(f"{layer}.up", "weight", up)
            writer.put(f"{layer}.down", "weight", down)
            writer.put(f"{layer}.up", "fwd", h, op="Linear", producers=[before])
            writer.put(f"{layer}.down", "fwd", x, op="Linear", producers=[f"{layer}.up"])
            writer.put(layer, "fwd", x, producers=[f"{layer}.down"])
            before = fd.Site(0, "fwd", layer, "out")
    return path


def test_weights_in_another_layout_in_one_layer_vouch_for_no_other_layer(tmp_path):
    order = np.random.default_rng(1).permutation(16)
    result = fd.diff(layers(tmp_path / "r"), layers(tmp_path / "c", order, 1.01))
    assert result.exit_code == 1, result.sentence
    assert (result.first_drift.phase, result.first_drift.name) == ("fwd", "1.down"), result.sentence


def test_weights_in_another_layout_are_right_where_operations_are_named(tmp_path):
    order = np.random.default_rng(1).permutation(16)
    result = fd.diff(layers(tmp_path / "r"), layers(tmp_path / "c", order))
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence


@pytest.mark.parametrize("names", ["abcdefgh", "012345"])
def test_a_bug_behind_many_parts_in_another_layout_is_found(compare, names):
    candidate = reordered(network(names))
    candidate.head.factor = 1.01
    result = compare(network(names), candidate)
    assert (result.first_drift.phase, result.first_drift.name) == ("fwd", "head"), result.sentence
