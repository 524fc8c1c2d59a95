"""Parameters of a mapped module that have other names there are missing, and no gradient was lost."""

import pytest
import torch
from torch import nn

import firstdrift as fd


class Own(nn.Module):
    """A linear layer whose parameters have other names, or are in two pieces, or of which one gets no gradient."""

    def __init__(self, like, kind):
        super().__init__()
        halves = like.weight.detach().clone().chunk(2)
        self.kind = kind
        if kind == "pieces":
            self.upper, self.lower = (nn.Parameter(half) for half in halves)
        else:
            name = "kernel" if kind == "names" else "weight"
            setattr(self, name, nn.Parameter(torch.cat(halves)))
        self.bias = nn.Parameter(like.bias.detach().clone())

    def forward(self, x):
        if self.kind == "pieces":
            return x @ torch.cat([self.upper, self.lower]).T + self.bias
        weight = self.kernel if self.kind == "names" else self.weight.detach()
        return x @ weight.T + self.bias


class Net(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        for part in self.children():
            x = part(x)
        return x


def compared(tmp_path, kind):
    torch.manual_seed(0)
    reference = Net(first=nn.Linear(5, 6), gate=nn.Linear(6, 4))
    first = nn.Linear(5, 6)
    first.load_state_dict(reference.first.state_dict())
    candidate = Net(first=first, cell=Own(reference.gate, kind))
    x = torch.randn(3, 5)
    for model, name in ((reference, "ref"), (candidate, "cand")):
        with fd.trace(model, tmp_path / name):
            model(x).square().mean().backward()
    return fd.diff(tmp_path / "ref", tmp_path / "cand", map={"version": 1, "pairs": {"gate": "cell"}})


@pytest.mark.parametrize("kind", ["names", "pieces"])
def test_a_parameter_of_another_name_is_missing_and_no_drift(tmp_path, kind):
    result = compared(tmp_path, kind)
    assert (result.first_drift, result.exit_code) == (None, 2), result.sentence
    assert {item.site.name for item in result.reference_only} == {"gate"}
    assert not any("nothing named 'gate'" in item.reason for item in result.reference_only)


def test_a_gradient_of_a_mapped_parameter_that_was_lost_is_a_drift(tmp_path):
    result = compared(tmp_path, "detached")
    assert (result.exit_code, result.first_drift.cause.label) == (1, "gradient-missing"), result.sentence
    assert "nothing named 'gate'" not in result.sentence
