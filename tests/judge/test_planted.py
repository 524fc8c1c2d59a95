"""Wrong candidates: exactly the place that is wrong stands out."""

import copy

import numpy as np
import pytest
import torch
from tests.judge.networks import bare, introduced, made, record, replays_of, standing_out
from torch import nn

import firstdrift as fd
from firstdrift.core.sites import Site


class WrongReLU(torch.autograd.Function):
    """Lets gradients through where the input is negative, too."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def forward_of(module, function):
    module.forward = function


def transposed(model):
    model[2].weight.data = model[2].weight.data.T.contiguous()


def without_bias(model):
    forward_of(model[5], lambda x: nn.functional.linear(x, model[5].weight))


def other_eps(model):
    model[3].eps = 1e-3


def tanh_gelu(model):
    model[4] = nn.GELU("tanh")


def wrong_backward(model):
    forward_of(model[6], WrongReLU.apply)


def doubled_gradient(model):
    model[2].weight.register_hook(lambda gradient: 2 * gradient)


def wrong_stride(model):
    forward_of(model.pool, lambda x: nn.functional.avg_pool2d(x, 3, 2, 1))


def no_residual(model):
    block = model.blocks[1]
    forward_of(
        block,
        lambda x: block.q(block.ln1(x)) + block.down(block.act(block.gate(block.ln2(x))) * block.up(block.ln2(x))),
    )


FORWARD = [
    ("mlp", without_bias, {("fwd", "5", "out")}),
    ("mlp", other_eps, {("fwd", "3", "out")}),
    ("mlp", tanh_gelu, {("fwd", "4", "out")}),
    ("conv", wrong_stride, {("fwd", "pool", "out")}),
]


@pytest.mark.parametrize(("network", "plant", "expected"), FORWARD, ids=lambda item: getattr(item, "__name__", ""))
def test_exactly_the_planted_forward_site_stands_out(network, plant, expected, tmp_path):
    model, x, y = made(network)
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    plant(model)
    record(model, x, y, tmp_path / "cand", train=False)
    found, _ = introduced(tmp_path / "ref", tmp_path / "cand")
    assert standing_out(found) == expected


def test_a_missing_skip_connection_stands_out_where_it_is_missed(tmp_path):
    model, x, y = made("decoder")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    no_residual(model)
    record(model, x, y, tmp_path / "cand", train=False)
    found = standing_out(introduced(tmp_path / "ref", tmp_path / "cand")[0])
    assert ("fwd", "blocks.1", "out") in found
    assert not any(name.startswith(("blocks.0", "norm", "head")) for _, name, _ in found)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [(wrong_backward, {("agrad", "5", "out")}), (doubled_gradient, {("grad", "2", "weight")})],
)
def test_exactly_the_planted_gradient_stands_out(plant, expected, tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref")
    plant(model)
    record(model, x, y, tmp_path / "cand")
    assert standing_out(introduced(tmp_path / "ref", tmp_path / "cand")[0]) == expected


STEPS = [
    ("SGD", lambda p: torch.optim.SGD(p, 0.11, momentum=0.9, nesterov=True, weight_decay=0.01), 2),
    ("SGD", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01), 1),
    ("Adam", lambda p: torch.optim.AdamW(p, weight_decay=0.5), 1),
    ("AdamW", lambda p: torch.optim.AdamW(p, eps=1e-5), 1),
]


@pytest.mark.parametrize(("reference", "candidate", "steps"), STEPS)
def test_a_wrong_step_stands_out_at_the_weights_alone(reference, candidate, steps, tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", reference, steps)
    record(copy.deepcopy(model), x, y, tmp_path / "cand", candidate, steps)
    found = standing_out(introduced(tmp_path / "ref", tmp_path / "cand")[0])
    assert {phase for phase, _, _ in found} <= {"weight_after", "optim"}
    assert len([one for one in found if one[0] == "weight_after"]) == 10


def test_one_group_with_another_rate_stands_out_alone(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", lambda p: torch.optim.Adam(list(p), 1e-3))
    record(model, x, y, tmp_path / "cand", lambda p: torch.optim.Adam(split(list(p))))
    found = standing_out(introduced(tmp_path / "ref", tmp_path / "cand")[0])
    assert found == {("weight_after", "7", "bias")}


def split(parameters):
    return [{"params": parameters[:-1], "lr": 1e-3}, {"params": parameters[-1:], "lr": 2e-3}]


def test_weights_that_differ_are_no_error_of_what_is_computed_with_them(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    transposed(model)
    record(model, x, y, tmp_path / "cand", train=False)
    assert not standing_out(introduced(tmp_path / "ref", tmp_path / "cand")[0])
    replays, _, _ = replays_of(tmp_path / "ref", tmp_path / "cand")
    site = Site(0, "fwd", "2", "out")
    assert np.abs(replays.expected(site, own_weights=False) - replays.expected(site)).max() > 0.1


def test_what_is_behind_an_error_inherits_it(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    without_bias(model)
    record(model, x, y, tmp_path / "cand", train=False)
    pairs = {pair.site: pair for pair in fd.diff(tmp_path / "ref", tmp_path / "cand").pairs}
    last = pairs[Site(0, "fwd", "7", "out")]
    assert last.verdict == "inherited"
    assert last.introduced < 1e-6 < 0.01 < last.inherited
    assert last.inherited == pytest.approx(last.error, rel=1e-3)


def test_nan_on_one_side_alone_is_introduced_where_it_arises(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    forward_of(model[6], lambda x: torch.relu(x).sqrt() / 0 * 0)
    record(model, x, y, tmp_path / "cand", train=False)
    found, _ = introduced(tmp_path / "ref", tmp_path / "cand")
    assert standing_out(found) == {("fwd", "6", "out")}


def test_an_error_is_placed_in_runs_of_which_only_numbers_are_known(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", lambda p: torch.optim.SGD(p, 0.1))
    other_eps(model)
    record(model, x, y, tmp_path / "cand", lambda p: torch.optim.SGD(p, 0.1))
    found, _ = introduced(bare(tmp_path / "ref", tmp_path / "a"), bare(tmp_path / "cand", tmp_path / "b"))
    assert standing_out(found) == {("fwd", "3", "out"), ("agrad", "2", "out"), ("grad", "3", "weight")}
    assert all(one.inferred for site, one in found.items() if site.phase == "fwd")
