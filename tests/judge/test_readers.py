"""Where a tensor that changed between modules is named, and which module is said to have changed it."""

import pytest
import torch
from torch import nn

import firstdrift as fd


class Time(nn.Module):
    """Reads a time as it is."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(1, 8)

    def forward(self, t):
        return self.fc(t[:, None])


class Net(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.first, self.time = nn.Linear(6, 8), Time()

    def forward(self, x, t):
        return self.first(x) + self.time(t if self.inside == 1.0 else t * self.inside)


class Model(nn.Module):
    """Hands a time on to a part of a part; another one outside the part, or inside it."""

    def __init__(self, outside=1.0, inside=1.0):
        super().__init__()
        self.outside = outside
        self.net, self.last = Net(inside), nn.Linear(8, 3)

    def forward(self, x):
        times = torch.linspace(0.2, 0.9, len(x), dtype=x.dtype) * self.outside
        return self.last(self.net(x, times))


class Block(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor
        self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        return x + self.fc(self.norm(x * self.factor if self.factor != 1.0 else x))


class Stack(nn.Module):
    """Blocks in a list, which never runs; something is added before the first one."""

    def __init__(self, added=0.0, factor=1.0):
        super().__init__()
        self.added = added
        self.patch = nn.Linear(6, 6)
        self.blocks = nn.ModuleList([Block(factor), Block()])

    def forward(self, x):
        x = self.patch(x) + torch.linspace(0, 1, 6, dtype=x.dtype) ** (1 + self.added)
        for block in self.blocks:
            x = block(x)
        return x


def first(mode, make, tmp_path, **wrong):
    torch.manual_seed(0)
    reference, candidate, x = make(), make(**wrong), torch.randn(5, 6)
    candidate.load_state_dict(reference.state_dict())
    if mode == "check":
        return fd.check(reference=reference.eval(), candidate=candidate.eval(), inputs=(x,)).first_drift
    for name, model in (("r", reference), ("c", candidate)):
        with torch.no_grad(), fd.trace(model.eval(), tmp_path / name):
            model(x)
    return fd.diff(tmp_path / "r", tmp_path / "c").first_drift


MODES = pytest.mark.parametrize("mode", ["check", "traces"])


@MODES
def test_a_tensor_that_is_handed_through_is_named_at_its_innermost_reader(mode, tmp_path):
    found = first(mode, Model, tmp_path, outside=1.2)
    assert (found.name, found.port, found.introduced_by) == ("net.time", "in.0", "the model itself")


@MODES
def test_what_is_said_of_a_tensor_that_is_handed_through_is_not_made_of_itself(mode, tmp_path):
    found = first(mode, Model, tmp_path, outside=1.2)
    assert "net:in.1" not in found.cause.sentence
    assert found.cause.label not in ("permutation", "skipped-op")


@MODES
def test_a_tensor_that_is_changed_inside_a_part_is_that_parts(mode, tmp_path):
    found = first(mode, Model, tmp_path, inside=1.2)
    assert (found.name, found.port, found.introduced_by) == ("net.time", "in.0", "net")


@MODES
def test_a_list_of_modules_that_never_runs_introduces_nothing(mode, tmp_path):
    found = first(mode, Stack, tmp_path, added=0.5)
    assert (found.name, found.port, found.introduced_by) == ("blocks.0.norm", "in.0", "the model itself")


@MODES
def test_a_block_that_changes_what_it_is_handed_is_said_to_have_done_so(mode, tmp_path):
    found = first(mode, Stack, tmp_path, factor=1.5)
    assert (found.name, found.port, found.introduced_by) == ("blocks.0.norm", "in.0", "blocks.0")
