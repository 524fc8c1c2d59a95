"""Wrong candidates: exactly the place that is wrong stands out."""

import copy

import pytest
import torch
from torch import nn

from firstdrift.causes.evidence import Evidence
from firstdrift.sites import Site

from .networks import made, record, shadow_of, standing_out


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


def reset_gate_before(model):
    with torch.no_grad():
        model.rnn.weight_hh_l1[:8] = 0


FORWARD = [
    ("mlp", transposed, {("fwd", "2", "out")}),
    ("mlp", without_bias, {("fwd", "5", "out")}),
    ("mlp", other_eps, {("fwd", "3", "out")}),
    ("mlp", tanh_gelu, {("fwd", "4", "out")}),
    ("conv", wrong_stride, {("fwd", "pool", "out")}),
    ("gru", reset_gate_before, {("fwd", "rnn", "out.0"), ("fwd", "rnn", "out.1")}),
]


@pytest.mark.parametrize(("network", "plant", "expected"), FORWARD, ids=lambda item: getattr(item, "__name__", ""))
def test_exactly_the_planted_forward_site_stands_out(network, plant, expected, tmp_path):
    model, x, y = made(network)
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    plant(model)
    record(model, x, y, tmp_path / "cand", train=False)
    figures = shadow_of(tmp_path / "ref", tmp_path / "cand").replay()
    assert standing_out(figures) == expected


def test_a_missing_skip_connection_stands_out_where_it_is_missed(tmp_path):
    model, x, y = made("decoder")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    no_residual(model)
    record(model, x, y, tmp_path / "cand", train=False)
    figures = shadow_of(tmp_path / "ref", tmp_path / "cand").replay()
    assert ("fwd", "blocks.1", "out") in standing_out(figures)
    assert not any(one.startswith(("blocks.0", "norm", "head")) for _, one, _ in standing_out(figures))


@pytest.mark.parametrize(
    ("plant", "expected"),
    [(wrong_backward, {("agrad", "5", "out")}), (doubled_gradient, {("grad", "2", "weight")})],
)
def test_exactly_the_planted_gradient_stands_out(plant, expected, tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref")
    plant(model)
    record(model, x, y, tmp_path / "cand")
    assert standing_out(shadow_of(tmp_path / "ref", tmp_path / "cand").replay()) == expected


STEPS = [
    ("SGD", lambda p: torch.optim.SGD(p, 0.11, momentum=0.9, nesterov=True, weight_decay=0.01)),
    ("SGD", lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
    ("Adam", lambda p: torch.optim.AdamW(p, weight_decay=0.5)),
    ("AdamW", lambda p: torch.optim.AdamW(p, eps=1e-5)),
]


@pytest.mark.parametrize(("reference", "candidate"), STEPS)
def test_a_wrong_step_stands_out_at_the_weights_alone(reference, candidate, tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", reference, steps=2)
    record(copy.deepcopy(model), x, y, tmp_path / "cand", candidate, steps=2)
    found = standing_out(shadow_of(tmp_path / "ref", tmp_path / "cand").replay())
    assert {phase for phase, _, _ in found} <= {"weight_after", "optim"}
    assert len([one for one in found if one[0] == "weight_after"]) == 10


def test_one_group_with_another_rate_stands_out_alone(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", lambda p: torch.optim.Adam(list(p), 1e-3))
    record(model, x, y, tmp_path / "cand", lambda p: torch.optim.Adam(split(list(p))))
    found = standing_out(shadow_of(tmp_path / "ref", tmp_path / "cand").replay())
    assert found == {("weight_after", "7", "bias")}


def split(parameters):
    return [{"params": parameters[:-1], "lr": 1e-3}, {"params": parameters[-1:], "lr": 2e-3}]


def test_wrong_weights_are_told_from_a_wrong_operation(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    transposed(model)
    record(model, x, y, tmp_path / "cand", train=False)
    one = shadow_of(tmp_path / "ref", tmp_path / "cand").replay()[Site(0, "fwd", "2", "out")]
    assert not one.is_right
    assert one.is_right_with_own_weights


def test_what_is_behind_an_error_inherits_it(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    without_bias(model)
    record(model, x, y, tmp_path / "cand", train=False)
    figures = shadow_of(tmp_path / "ref", tmp_path / "cand").replay()
    last = figures[Site(0, "fwd", "7", "out")]
    assert last.introduced < last.noise < last.inherited
    assert last.inherited == pytest.approx(last.total, rel=1e-3)
    assert last.gain == pytest.approx(last.inherited / last.fed)
    assert figures[Site(0, "fwd", "4", "out")].inherited == 0


def test_nan_on_one_side_alone_is_introduced_where_it_arises(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", train=False)
    forward_of(model[6], lambda x: torch.relu(x).sqrt() / 0 * 0)
    record(model, x, y, tmp_path / "cand", train=False)
    figures = shadow_of(tmp_path / "ref", tmp_path / "cand").replay()
    assert standing_out(figures) == {("fwd", "6", "out")}


def test_evidence_for_the_search_of_causes(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref")
    other_eps(model)
    doubled_gradient(model)
    record(model, x, y, tmp_path / "cand", lambda p: torch.optim.SGD(p, 0.2))
    shadow = shadow_of(tmp_path / "ref", tmp_path / "cand")
    forward = shadow.expected_at(Site(0, "fwd", "3", "out"))
    assert isinstance(forward, Evidence)
    assert forward.replayed
    assert (forward.op, set(forward.inputs), set(forward.parameters)) == ("LayerNorm", {"in.0"}, {"weight", "bias"})
    assert forward.attrs["eps"] == 1e-5
    assert forward.candidate_attrs["eps"] == 1e-3
    gradient = shadow.expected_at(Site(0, "grad", "2", "weight"))
    assert set(gradient.inputs) == {"agrad", "in.0"}
    assert gradient.found == pytest.approx(2 * gradient.expected, rel=1e-4, abs=1e-6)
    of_output = shadow.expected_at(Site(0, "agrad", "5", "out"))
    assert {"agrad 6", "fwd", "in.0"} <= set(of_output.inputs)
    update = shadow.expected_at(Site(0, "weight_after", "7", "bias"))
    assert set(update.inputs) == {"weight", "grad"}
    assert abs(update.expected).max() < 1
    assert shadow.expected_at(Site(0, "weight", "7", "bias")) is None
