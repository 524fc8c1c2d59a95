"""To which of exactly equal maxima a gradient goes is a rule: another one is no near-tie, where nothing was rounded."""

import pytest
import torch
from torch import nn

import firstdrift as fd


def images(seed=0, shape=(3, 4, 6, 8), levels=3):
    """Values of which many are equal."""
    return torch.randint(1, 1 + levels, shape, generator=torch.Generator().manual_seed(seed)).double()


def first(x):
    return nn.functional.max_pool2d(x, 2)


def shared(x):
    across = torch.maximum(x[..., 0::2], x[..., 1::2])
    return torch.maximum(across[..., 0::2, :], across[..., 1::2, :])


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


class Same(nn.Module):
    """The same pool, written otherwise: the first of equals, in every window."""

    def forward(self, x):
        windows = x.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
        return windows.gather(-1, windows.argmax(-1, keepdim=True))[..., 0]


@pytest.mark.parametrize("mode", ["check", "traces"])
def test_a_pool_that_gives_gradients_to_the_same_elements_is_right(mode, tmp_path):
    result = compared(mode, Same(), tmp_path)
    assert result.exit_code == 0, result.sentence


class Last(nn.Module):
    """A pool whose gradient goes to the last of equal maxima: which comes first, everybody else agrees on."""

    def forward(self, x):
        return first(x.flip(2, 3)).flip(2, 3)


class Mean(nn.Module):
    """A pool whose gradient goes to all of a window, as that of a mean."""

    def forward(self, x):
        mean = nn.functional.avg_pool2d(x, 2)
        return first(x).detach() + mean - mean.detach()


@pytest.mark.parametrize("mode", ["check", "traces"])
@pytest.mark.parametrize("wrong", [Wrong, Last, Mean, Shared])
def test_a_pool_that_gives_gradients_to_others_or_more_of_it_drifts(mode, wrong, tmp_path):
    result = compared(mode, wrong(), tmp_path)
    assert result.verdict.value == "drift", result.sentence
    assert (result.first_drift.phase, result.first_drift.name) == ("agrad", "conv")
