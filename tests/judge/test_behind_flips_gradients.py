"""Behind flips, gradients may differ by much; what both sides make of their own by one factor adds nothing to that."""

import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.judge.measure.result import Why


def network(split):
    """A small classifier; `split` sums one product in two parts, whose noise decides near-ties otherwise."""
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(20, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4)
    )
    x = torch.randn(16, 20, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        model[3].bias -= model[3](model[:3](x))[0]  # of one sample, all that comes in is zero but for noise
    if split:
        own = Split(32, 24)
        own.load_state_dict(model[3].state_dict())
        model[3] = own
    return model, x


class Split(nn.Linear):
    def forward(self, x):
        parts = [x[..., one::4] @ self.weight[:, one::4].T for one in range(4)]
        return torch.stack(parts).sum(0) + self.bias


def trained(path, split, change, last=lambda made: made):
    model, x = network(split)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with fd.trace(model, path, optimizer=optimizer):
        nn.functional.cross_entropy(last(model(x)), torch.arange(16) % 4).backward()
        for parameter in model.parameters():
            parameter.grad.mul_(change)
        optimizer.step()


@pytest.mark.parametrize("change", [1.0, 0.125])
def test_behind_flips_gradients_that_both_sides_scale_alike_are_judged(change, tmp_path):
    trained(tmp_path / "r", False, change)
    trained(tmp_path / "c", True, change)
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert result.verdict.value == "flip", result.sentence
    assert {pair.why for pair in result.flips} <= {Why.NEAR_TIE, Why.DECIDED_BEFORE}
    assert all(pair.chain[-1].facts["proof"] == "replayed" for pair in result.flips)


class Doubled(torch.autograd.Function):
    """A function that does nothing, but for its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.5


def test_behind_flips_another_factor_is_a_drift(tmp_path):
    trained(tmp_path / "r", False, 0.125)
    trained(tmp_path / "c", True, 0.25)
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert result.exit_code == 1, result.sentence


def test_behind_flips_a_wrong_gradient_is_a_drift(tmp_path):
    trained(tmp_path / "r", False, 1.0)
    trained(tmp_path / "c", True, 1.0, lambda made: Doubled.apply(made))
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert result.exit_code == 1, result.sentence
    assert result.first_drift.phase in ("lossgrad", "agrad")
