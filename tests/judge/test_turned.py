"""A norm without a gain makes the same of rows that are turned before it, or after it; whatever else differs shows."""

import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.judge.measure.result import Why


class Norm(nn.Module):
    """Rows of one length, maybe with a gain."""

    def __init__(self, gain=None):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-12)
        return x if self.gain is None else x * self.gain


def turned(x, base=0.4, pairs=3):
    """Some neighbouring channels of (batch, places, heads, channels), turned by an angle that grows with the place."""
    angles = torch.arange(1, x.shape[1] + 1)[:, None, None] * base ** torch.arange(pairs)
    one, other = x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    made = (one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin())
    return torch.cat((torch.stack(made, -1).flatten(-2), x[..., 2 * pairs :]), -1)


class Attention(nn.Module):
    """Queries and keys are normed and turned, in this order or the other."""

    def __init__(self, late=False, turn=turned, keys=None, gain=None):
        super().__init__()
        self.qkv, self.q_norm, self.k_norm, self.last = nn.Linear(8, 48), Norm(gain), Norm(gain), nn.Linear(16, 4)
        self.late, self.turn, self.keys = late, turn, keys or turn

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)) for part in self.qkv(x).chunk(3, -1))
        if self.late:
            q, k = self.q_norm(self.turn(q)), self.k_norm(self.keys(k))
        else:
            q, k = self.turn(self.q_norm(q)), self.keys(self.k_norm(k))
        scores = torch.einsum("bthc,bshc->bhts", q, k).softmax(-1)
        return self.last(torch.einsum("bhts,bshc->bthc", scores, v).flatten(2))


def said(tmp_path, reference, candidate, train=False):
    candidate.load_state_dict(reference.state_dict())
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    for name, model in (("ref", reference), ("cand", candidate)):
        with fd.trace(model, tmp_path / name):
            made = model(x)
            if train:
                made.square().mean().backward()
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


@pytest.mark.parametrize(("late", "train"), [((False, True), True), ((True, False), False)])
def test_a_norm_behind_a_rotation_that_nobody_recorded_is_no_drift(tmp_path, late, train):
    torch.manual_seed(0)
    result = said(tmp_path, *(Attention(one) for one in late), train)
    assert (result.verdict, result.exit_code) == ("noise", 0), result.sentence
    assert result.cause.label == "layout-equivalent"
    assert any(pair.why is Why.SAME_FUNCTION for pair in result.pairs)


@pytest.mark.parametrize(
    ("late", "changes"),
    [
        (False, {"turn": lambda x: turned(x, base=0.5)}),
        (True, {"turn": lambda x: turned(x, base=0.5)}),
        (False, {"keys": lambda x: turned(x, pairs=2)}),
        (True, {"keys": lambda x: turned(x, pairs=2)}),
        (False, {"turn": lambda x: x}),  # forgotten
        (False, {"keys": lambda x: turned(x) + 0.1}),
    ],
)
def test_another_rotation_is_a_drift(tmp_path, late, changes):
    torch.manual_seed(0)
    assert said(tmp_path, Attention(late), Attention(True, **changes)).verdict == "drift"


@pytest.mark.parametrize("late", [False, True])
def test_a_factor_that_the_norm_behind_it_takes_away_is_the_same_function(tmp_path, late):
    torch.manual_seed(0)
    result = said(tmp_path, Attention(late), Attention(True, turn=lambda x: 1.1 * turned(x)))
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence


def test_a_norm_with_gains_of_its_own_does_not_pass_a_rotation(tmp_path):
    torch.manual_seed(0)
    gain = torch.linspace(0.5, 2, 8)
    assert said(tmp_path, Attention(gain=gain), Attention(True, gain=gain)).verdict == "drift"


class Pooled(nn.Module):
    """Rows through a module that does not scale them, in one order or the other, and then through their mean."""

    def __init__(self, order):
        super().__init__()
        self.first, self.act, self.last, self.order = nn.Linear(8, 8), nn.ReLU(), nn.Linear(1, 4), order

    def forward(self, x):
        h = self.first(x)
        return self.last(self.act(h.flip(-1) if self.order else h).mean(-1, keepdim=True))


def test_another_order_of_numbers_that_a_mean_hides_is_the_same_function(tmp_path):
    torch.manual_seed(0)
    result = said(tmp_path, Pooled(False), Pooled(True))
    assert result.exit_code == 0, result.sentence
    assert any(pair.why is Why.SAME_FUNCTION for pair in result.pairs)
