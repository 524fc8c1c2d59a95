"""Weights stored along other axes are seen through, in training too, and what is wrong behind them is found."""

import copy

import pytest
import torch
from torch import nn

import firstdrift as fd


class Turned(nn.Module):
    """A linear layer that keeps its weight as (inputs, outputs), as GPT-2 does."""

    def __init__(self, linear, transposed=True):
        super().__init__()
        weight = linear.weight.detach()
        self.weight = nn.Parameter((weight.T if transposed else weight).contiguous().clone())
        self.bias = nn.Parameter(linear.bias.detach().clone())
        self.halved = False

    def forward(self, x):
        return x @ Halved.apply(self.weight, self.halved) + self.bias


class Halved(torch.autograd.Function):
    """A tensor whose gradient is half of what it should be, where asked for."""

    @staticmethod
    def forward(ctx, x, halved):
        ctx.factor = 0.5 if halved else 1.0
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


class ChannelsLast(nn.Module):
    """A convolution that keeps its weight as (outputs, height, width, inputs)."""

    def __init__(self, conv):
        super().__init__()
        self.weight = nn.Parameter(conv.weight.detach().permute(0, 2, 3, 1).contiguous())
        self.bias = nn.Parameter(conv.bias.detach().clone())

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight.permute(0, 3, 1, 2), self.bias)


def network(width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, width), nn.Linear(width, 5))


def turned(model, straight=()):
    return nn.Sequential(
        *(Turned(m, transposed=n not in straight) if isinstance(m, nn.Linear) else m for n, m in enumerate(model))
    )


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def mean_square(output, target):
    return ((output - target) ** 2).mean()


@pytest.fixture(params=["check", "traces"])
def compare(request, tmp_path):
    def check(reference, candidate, x, y):
        return fd.check(
            reference=reference, candidate=candidate, inputs=(x,), loss_fn=mean_square, target=y, optimizer=adamw
        )

    def traces(reference, candidate, x, y):
        for side, model in (("reference", reference), ("candidate", candidate)):
            optimizer = adamw(model)
            with fd.trace(model, tmp_path / side, optimizer=optimizer):
                mean_square(model(x), y).backward()
                optimizer.step()
        return fd.diff(tmp_path / "reference", tmp_path / "candidate")

    return check if request.param == "check" else traces


def data(width=8, outputs=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, width, generator=generator), torch.randn(7, outputs, generator=generator)


def test_transposed_weights_are_no_drift_in_any_phase(compare):
    result = compare(network(), turned(network()), *data())
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence
    assert {"grad", "optim", "weight_after"} <= set(result.coverage.phases)
    assert not result.counts.get("not comparable")
    assert not result.counts.get("inconclusive")


def test_a_square_weight_that_was_not_transposed_among_others_that_were_is_found(compare):
    result = compare(network(), turned(network(), straight={2}), *data())
    assert (result.first_drift.phase, result.first_drift.name) == ("fwd", "2")
    assert result.first_drift.cause.label == "transpose"


def test_a_square_weight_transposed_by_mistake_is_not_seen_through(compare):
    candidate = network()
    candidate[2].weight.data = candidate[2].weight.data.T.contiguous()
    result = compare(network(), candidate, *data())
    assert (result.first_drift.phase, result.first_drift.name) == ("weight", "2")


def test_a_wrong_number_in_a_transposed_weight_is_found(compare):
    candidate = turned(network())
    candidate[0].weight.data[3, 4] += 0.5
    result = compare(network(), candidate, *data())
    assert result.exit_code != 0
    assert result.first_drift is None or (result.first_drift.name, result.first_drift.phase) in {
        ("0", "weight"),
        ("0", "fwd"),
    }


def test_a_wrong_gradient_of_a_transposed_weight_is_found(compare):
    candidate = turned(network())
    candidate[3].halved = True
    result = compare(network(), candidate, *data())
    assert (result.first_drift.phase, result.first_drift.name, result.first_drift.port) == ("grad", "3", "weight")


def test_square_weights_alone_are_seen_through_where_all_that_is_computed_agrees():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    result = fd.check(
        reference=model, candidate=turned(model), inputs=data()[:1], loss_fn=mean_square, target=data(outputs=8)[1],
        optimizer=adamw,
    )  # fmt: skip
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence


def test_axes_of_a_convolution_are_seen_through(compare):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(16, 5))
    candidate = nn.Sequential(ChannelsLast(reference[0]), nn.Flatten(), copy.deepcopy(reference[2]))
    x = torch.randn(7, 3, 3, 3, generator=torch.Generator().manual_seed(1))
    result = compare(reference, candidate, x, data()[1])
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence


def test_transposed_weights_in_another_precision_are_seen_through(tmp_path):
    x, y = data()
    for side, model in (("reference", network()), ("candidate", turned(network()).to(torch.bfloat16))):
        with fd.trace(model, tmp_path / side):
            mean_square(model(x.to(model[0].weight.dtype)), y).backward()
    result = fd.diff(tmp_path / "reference", tmp_path / "candidate", phases=["weight"])
    assert result.exit_code == 0, result.sentence
