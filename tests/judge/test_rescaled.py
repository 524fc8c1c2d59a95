"""Rows of other lengths are no drift where whatever reads them makes the same of them."""

import pytest
import torch
from torch import nn

import firstdrift as fd


def normed(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-12)


class Rotation(nn.Module):
    """Turns pairs of channels by an angle that grows with the place."""

    def forward(self, x):
        angles = torch.arange(x.shape[1])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
        one, other = x.chunk(2, -1)
        return torch.cat((one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()), -1)


class Model(nn.Module):
    """Rows are normed before a rotation, or after it, or both; and may be scaled by something else before."""

    def __init__(self, order="before", before=lambda x: x, behind=lambda x: x):
        super().__init__()
        self.first, self.turn, self.last = nn.Linear(8, 16), Rotation(), nn.Linear(16, 4)
        self.order, self.before, self.behind = order, before, behind

    def forward(self, x):
        h = self.before(self.first(x))
        h = self.turn(normed(h) if self.order in ("before", "twice") else h)
        return self.last(self.behind(normed(h) if self.order in ("after", "twice") else h))


def diffed(tmp_path, reference, candidate, train=False):
    candidate.load_state_dict(reference.state_dict())
    x = torch.randn(3, 10, 8, generator=torch.Generator().manual_seed(1))
    for name, model in (("ref", reference), ("cand", candidate)):
        with fd.trace(model, tmp_path / name):
            made = model(x)
            if train:
                made.square().mean().backward()
    return fd.diff(tmp_path / "ref", tmp_path / "cand")


@pytest.mark.parametrize(("order", "train"), [("after", False), ("after", True), ("twice", False)])
def test_a_norm_that_stands_elsewhere_is_no_drift(tmp_path, order, train):
    torch.manual_seed(0)
    result = diffed(tmp_path, Model(), Model(order), train)
    assert (result.verdict, result.exit_code) == ("noise", 0), result.sentence
    if order == "after":
        assert result.cause.label == "layout-equivalent"


@pytest.mark.parametrize(
    "changes",
    [
        {"behind": lambda x: 3 * x, "order": "after"},
        {"before": lambda x: x + 0.1, "order": "after"},
        {"order": "never"},  # nothing makes up for it
        {"order": "after", "behind": lambda x: x * 1.001},
        {"order": "after", "before": lambda x: x.relu()},
    ],
)
def test_what_else_was_changed_is_a_drift(tmp_path, changes):
    torch.manual_seed(0)
    reference = Model("after" if "order" in changes and changes["order"] == "after" else "before")
    assert diffed(tmp_path, reference, Model(**changes)).verdict == "drift"


def test_a_constant_that_a_norm_hides_is_the_same_function(tmp_path):
    torch.manual_seed(0)
    result = diffed(tmp_path, Model("after"), Model("after", before=lambda x: 3 * x))
    assert (result.exit_code, result.cause.label) == (0, "layout-equivalent"), result.sentence
