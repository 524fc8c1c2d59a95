"""Behind flips, gradients may differ by much; what both sides make of their own by one factor adds nothing to that."""

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.verdict.handed_on import one_factor


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


def trained(path, split, change):
    model, x = network(split)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with fd.trace(model, path, optimizer=optimizer):
        nn.functional.cross_entropy(model(x), torch.arange(16) % 4).backward()
        for parameter in model.parameters():
            parameter.grad.mul_(change)
        optimizer.step()


@pytest.mark.parametrize("change", [1.0, 0.125])
def test_behind_flips_gradients_that_both_sides_scale_alike_are_judged(change, tmp_path):
    trained(tmp_path / "r", False, change)
    trained(tmp_path / "c", True, change)
    result = fd.diff(tmp_path / "r", tmp_path / "c")
    assert any("near-tie" in pair.reason for pair in result.flips)
    assert result.verdict.value == "flip", result.sentence


def test_the_factor_of_a_tensor_is_told_with_what_it_leaves():
    raw = np.random.default_rng(0).standard_normal((5, 4))
    assert one_factor(3.0 * raw, raw) == pytest.approx((3.0, 0.0), abs=1e-12)
    assert one_factor(np.abs(raw), raw)[1] > 0.1
    assert one_factor(raw[:4], raw) is None
    assert one_factor(raw, np.zeros_like(raw)) is None
    assert one_factor(np.full_like(raw, np.nan), raw) is None
