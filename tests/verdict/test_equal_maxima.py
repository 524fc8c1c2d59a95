"""The gradient of a maximum that several elements share may go to any of them; and nothing else is called so."""

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.verdict.equal_maxima import shared_maxima

LIMIT = 1e-6


def images(seed=0, shape=(3, 4, 6, 8), levels=3):
    """Values of which many are equal."""
    return torch.randint(1, 1 + levels, shape, generator=torch.Generator().manual_seed(seed)).double()


def slope(function, x):
    """The gradient of a weighted sum of what a function makes of x."""
    leaf = x.clone().requires_grad_()
    made = function(leaf)
    weights = torch.randn(made.shape, dtype=made.dtype, generator=torch.Generator().manual_seed(9))
    (made * weights).sum().backward()
    return leaf.grad.numpy()


def first(x):
    return nn.functional.max_pool2d(x, 2)


def shared(x):
    across = torch.maximum(x[..., 0::2], x[..., 1::2])
    return torch.maximum(across[..., 0::2, :], across[..., 1::2, :])


def said(ours, theirs, x):
    return shared_maxima(ours, theirs, x.numpy(), x.numpy(), LIMIT)


WAYS = {
    "pool": (first, shared),
    "pool that leaves out the ends": (lambda x: first(x[..., :5, :7]), lambda x: shared(x[..., :4, :6])),
    "over an axis": (lambda x: x.flatten(2).max(2).values, lambda x: x.flatten(2).amax(2)),
    "over channels": (lambda x: x.max(1).values, lambda x: x.amax(1)),
    "over two axes": (lambda x: x.amax((2, 3)), lambda x: x.flatten(2).max(2).values),
}


@pytest.mark.parametrize("name", WAYS)
def test_gradients_that_are_shared_otherwise_among_equal_maxima_are_told(name):
    ours, theirs = (slope(one, images()) for one in WAYS[name])
    assert said(ours, theirs, images()) > 0
    assert said(theirs, ours, images()) > 0


def test_the_last_of_equals_instead_of_the_first_is_no_sharing():
    def last(x):
        return nn.functional.max_pool2d(x.flip(2, 3), 2).flip(2, 3)

    assert said(slope(first, images()), slope(last, images()), images()) is None


def test_maxima_that_rounding_decided_otherwise_are_told():
    x = images()
    z = x + 1e-9 * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(4))
    found = shared_maxima(slope(first, x), slope(first, z), x.numpy(), z.numpy(), LIMIT)
    assert found is not None
    assert found > 0


def test_every_window_may_have_equal_maxima():
    x = torch.tensor([[2.0, 2.0], [1.0, 1.0]], dtype=torch.float64).repeat(2, 3, 2, 2)
    assert said(slope(first, x), slope(shared, x), x) == 2 * 3 * 4


def test_where_all_elements_are_equal_nothing_tells_a_maximum():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.float64)
    ours = np.random.default_rng(0).standard_normal(x.shape)
    for axis in range(1, 4):
        assert said(ours, np.roll(ours, 1, axis), x) is None


WRONG = {
    "all of it to each of them": lambda x, g: g + np.where(slope(shared, x) != 0, np.roll(g, 1, -1), 0),
    "to all elements, as a mean": lambda x, g: slope(lambda y: nn.functional.avg_pool2d(y, 2), x),
    "to others than the maxima": lambda x, g: -np.roll(slope(first, -x), 1, 0),
    "by a factor": lambda x, g: 1.01 * slope(shared, x),
    "more in the first rows": lambda x, g: slope(shared, x) * np.where(np.arange(6) < 2, 2, 1)[:, None],
}


@pytest.mark.parametrize("name", WRONG)
def test_another_gradient_is_none_of_equal_maxima(name):
    x = images()
    ours = slope(first, x)
    assert said(ours, WRONG[name](x, ours), x) is None


def test_maxima_that_are_not_equal_leave_no_choice():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = slope(first, x)
    assert said(ours, np.roll(ours, 1, -1), x) is None


class Pooled(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.conv, self.pool, self.fc = nn.Conv2d(2, 4, 1), pool, nn.Linear(4 * 3 * 4, 3)

    def forward(self, x):
        return self.fc(self.pool(self.conv(x)).flatten(1))


class Shared(nn.Module):
    def forward(self, x):
        return shared(x)


class Everywhere(torch.autograd.Function):
    """A pool whose backward gives all of a gradient to every one of equal maxima."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return first(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        made = first(x).repeat_interleave(2, 2).repeat_interleave(2, 3)
        return gradient.repeat_interleave(2, 2).repeat_interleave(2, 3) * (x == made)


class Wrong(nn.Module):
    def forward(self, x):
        return Everywhere.apply(x)


def compared(mode, pool, tmp_path):
    torch.manual_seed(3)
    reference, candidate, x = Pooled(nn.MaxPool2d(2)), Pooled(pool), images(4, (5, 2, 6, 8)).float()
    candidate.load_state_dict(reference.state_dict())
    labels = torch.arange(5) % 3
    loss = nn.functional.cross_entropy
    if mode == "check":
        return fd.check(reference=reference, candidate=candidate, inputs=(x,), loss_fn=loss, target=labels, train=True)
    for name, model in (("r", reference), ("c", candidate)):
        with fd.trace(model, tmp_path / name):
            loss(model(x), labels).backward()
    return fd.diff(tmp_path / "r", tmp_path / "c")


@pytest.mark.parametrize("mode", ["check", "traces"])
def test_a_pool_that_shares_gradients_among_equal_maxima_is_no_drift(mode, tmp_path):
    result = compared(mode, Shared(), tmp_path)
    assert result.verdict.value == "flip", result.sentence


@pytest.mark.parametrize("mode", ["check", "traces"])
def test_a_pool_that_gives_all_of_a_gradient_to_each_of_equal_maxima_drifts(mode, tmp_path):
    result = compared(mode, Wrong(), tmp_path)
    assert result.verdict.value == "drift", result.sentence
    assert (result.first_drift.phase, result.first_drift.name) == ("agrad", "conv")
