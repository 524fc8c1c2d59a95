"""Which operation made a tensor: named by the run, or found by its numbers alone."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.sites import Site

from .networks import bare, made, record, shadow_of, standing_out


class NewRMSNorm(nn.Module):
    """Weights as offsets from one."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class Last(nn.Module):
    def forward(self, x):
        return x[:, -1]


class Doubled(nn.Module):
    """Something before the module, whose output has a gradient."""

    def forward(self, x):
        return 2 * x if x.is_floating_point() else x


def rows(*shape):
    return lambda: torch.randn(shape)


SOUND, PICTURE, TEXT = rows(3, 4, 20), rows(2, 4, 12, 12), rows(3, 6, 8)
MODULES = [
    (nn.Linear(8, 5), TEXT, "linear", {}),
    (nn.Conv1d(4, 6, 5, stride=2, padding=2), SOUND, "conv", {"stride": [2], "padding": [2]}),
    (nn.Conv2d(4, 8, (3, 1), padding=(1, 0), groups=2), PICTURE, "conv", {"padding": [1, 0], "groups": 2}),
    (nn.Conv2d(4, 4, 3, dilation=2), PICTURE, "conv", {"dilation": [2, 2]}),
    (nn.Conv3d(2, 3, 2), rows(2, 2, 4, 5, 6), "conv", {"stride": [1, 1, 1]}),
    (nn.LayerNorm(8, eps=1e-3), TEXT, "layer norm", {"eps": 1e-3}),
    (nn.LayerNorm([4, 20]), SOUND, "layer norm", {"axes": 2}),
    (nn.RMSNorm(8, eps=1e-3), TEXT, "RMS norm", {"eps": 1e-3}),
    (NewRMSNorm(8), TEXT, "RMS norm", {"plus_one": True}),
    (nn.BatchNorm1d(4), SOUND, "batch norm", {"training": True}),
    (nn.BatchNorm2d(4).eval(), PICTURE, "batch norm", {"training": False}),
    (nn.GroupNorm(2, 4), PICTURE, "group norm", {"groups": 2}),
    (nn.ReLU(), TEXT, "relu", {}),
    (nn.GELU(), TEXT, "gelu", {}),
    (nn.GELU("tanh"), TEXT, "gelu_tanh", {}),
    (nn.SiLU(), TEXT, "silu", {}),
    (nn.Sigmoid(), TEXT, "sigmoid", {}),
    (nn.Tanh(), TEXT, "tanh", {}),
    (nn.Softplus(), TEXT, "softplus", {}),
    (nn.LeakyReLU(0.2), TEXT, "leaky_relu", {"slope": 0.2}),
    (nn.ELU(), TEXT, "elu", {}),
    (nn.Mish(), TEXT, "mish", {}),
    (nn.Hardswish(), TEXT, "hard_swish", {}),
    (nn.Softmax(1), TEXT, "softmax", {"axis": 1}),
    (nn.LogSoftmax(-1), TEXT, "log_softmax", {"axis": 2}),
    (nn.MaxPool1d(4), SOUND, "max pool", {"kernel": [4], "stride": [4]}),
    (nn.MaxPool2d(3, 2, 1), PICTURE, "max pool", {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]}),
    (nn.AvgPool2d(3, 2, 1, count_include_pad=False), PICTURE, "average pool", {"count_padding": False}),
    (nn.AvgPool1d(3, 2, ceil_mode=True), SOUND, "average pool", {"ceil": True}),
    (nn.AdaptiveAvgPool2d(1), PICTURE, "mean over bins", {"size": [1, 1]}),
    (nn.AdaptiveMaxPool1d(1), SOUND, "max over bins", {"size": [1]}),
    (nn.Flatten(), PICTURE, "identity", {}),
    (nn.Dropout(0.5).eval(), TEXT, "identity", {}),
    (Last(), TEXT, "select", {"axis": 1, "index": 5}),
    (nn.Embedding(9, 5), lambda: torch.randint(0, 9, (3, 4)), "embedding", {}),
]
RECORDED_ONLY = [
    (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), SOUND, "conv transposed", {"stride": [2]}),
    (nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), PICTURE, "conv transposed", {"groups": 2}),
    (nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"), SOUND, "conv", {}),
    (nn.Conv1d(4, 4, 4, padding="same"), SOUND, "conv", {}),
    (nn.InstanceNorm1d(4, affine=True), SOUND, "group norm", {"groups": 4}),
    (nn.MaxPool2d(3, 1, dilation=2), PICTURE, "max pool", {}),
    (nn.LSTM(8, 4), TEXT, "LSTM", {"layers": 1}),
    (nn.GRU(8, 4, bidirectional=True), TEXT, "GRU", {"both_ways": True}),
    (nn.RNN(8, 4, bias=False), TEXT, "RNN_TANH", {}),
]
# What was padded by copies gives its gradient back in ways of its own.


def shown(item):
    """A test's name must be the same in every process, which that of a function is not."""
    return "made" if callable(item) and not isinstance(item, nn.Module) else str(item)[:60]


NO_WAY_BACK = {str(nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular")): {Site(0, "agrad", "0", "out")}}
named = pytest.mark.parametrize(("module", "fed", "operation", "settings"), [*MODULES, *RECORDED_ONLY], ids=shown)


def one_module(module, fed, path):
    torch.manual_seed(3)
    model = nn.Sequential(Doubled(), module)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer += torch.rand_like(buffer)
    x = fed()
    x.requires_grad_(x.is_floating_point())
    with fd.trace(model, path):
        y = model(x)
        y = y[0] if isinstance(y, tuple) else y
        (y * torch.randn_like(y)).sum().backward()


@named
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_recorded_module_is_computed_once_more(module, fed, operation, settings, tmp_path):
    one_module(module, fed, tmp_path / "ref")
    shadow = shadow_of(tmp_path / "ref", tmp_path / "ref")
    port = "out.0" if isinstance(module, nn.RNNBase) else "out"
    recipe = shadow.recipe(Site(0, "fwd", "1", port))
    assert recipe.operation == operation
    assert settings.items() <= dict(recipe.settings).items()
    figures = shadow.replay()
    assert not standing_out(figures)
    gradients = {
        site for site in shadow.sources.pairs if site.phase == "grad" or (site.phase, site.name) == ("agrad", "0")
    }
    assert gradients - set(figures) <= NO_WAY_BACK.get(str(module), set())


@pytest.mark.parametrize(("module", "fed", "operation", "settings"), MODULES, ids=shown)
def test_a_module_of_which_only_numbers_are_known_is_recognised(module, fed, operation, settings, tmp_path):
    one_module(module, fed, tmp_path / "ref")
    bare(tmp_path / "ref", tmp_path / "bare")
    shadow = shadow_of(tmp_path / "bare", tmp_path / "bare")
    recipe = shadow.recipe(Site(0, "fwd", "1", "out"))
    assert recipe.operation == operation
    assert settings.items() <= dict(recipe.settings).items()


@pytest.mark.parametrize("values", [np.zeros((4, 8)), np.full((4, 8), np.nan)], ids=["zeros", "NaN"])
def test_nothing_is_claimed_of_numbers_that_tell_nothing(values, tmp_path):
    with fd.Writer(tmp_path / "ref") as writer:
        writer.put("input", "input", np.random.default_rng(0).normal(size=(4, 8)), port="x")
        writer.put("a", "fwd", values)
    assert not shadow_of(tmp_path / "ref", tmp_path / "ref").replay()


def test_nothing_is_claimed_of_an_operation_that_we_do_not_know(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 8))
    with fd.Writer(tmp_path / "ref") as writer:
        writer.put("input", "input", x, port="x")
        writer.put("a", "fwd", np.sort(x, -1) + 1)
    assert not shadow_of(tmp_path / "ref", tmp_path / "ref").replay()


def test_a_recorded_class_that_computes_something_else_is_not_believed(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 8))
    with fd.Writer(tmp_path / "ref") as writer:
        writer.put("input", "input", x, port="x")
        writer.put("a", "fwd", np.tanh(x), op="ReLU")
    shadow = shadow_of(tmp_path / "ref", tmp_path / "ref")
    assert shadow.recipe(Site(0, "fwd", "a", "out")).operation == "tanh"


def test_branches_and_sums_are_found_without_a_graph(tmp_path):
    numbers = np.random.default_rng(0)
    x, w = numbers.normal(size=(6, 8)), numbers.normal(size=(3, 8, 8))
    y = np.tanh(x)
    a, b = y @ w[0].T, y @ w[1].T
    with fd.Writer(tmp_path / "ref") as writer:
        writer.put("input", "input", x, port="x")
        for name, weight in (("a", w[0]), ("b", w[1])):
            writer.put(name, "weight", weight)
        for name, value in (("y", y), ("a", a), ("b", b), ("sum", b + a)):
            writer.put(name, "fwd", value)
    shadow = shadow_of(tmp_path / "ref", tmp_path / "ref")
    reads = {name: set(shadow.recipe(Site(0, "fwd", name, "out")).inputs) for name in ("y", "a", "b", "sum")}
    assert reads == {"y": {"input x"}, "a": {"y"}, "b": {"y"}, "sum": {"a", "b"}}


def test_an_error_is_placed_in_runs_of_which_only_numbers_are_known(tmp_path):
    model, x, y = made("mlp")
    record(copy.deepcopy(model), x, y, tmp_path / "ref", lambda p: torch.optim.SGD(p, 0.1))
    model[3].eps = 1e-3
    record(model, x, y, tmp_path / "cand", lambda p: torch.optim.SGD(p, 0.12))
    shadow = shadow_of(bare(tmp_path / "ref", tmp_path / "a"), bare(tmp_path / "cand", tmp_path / "b"))
    found = standing_out(shadow.replay())
    forward = {one for one in found if one[0] != "weight_after"}
    assert forward == {("fwd", "3", "out"), ("agrad", "2", "out"), ("grad", "3", "weight")}
    assert len(found - forward) == 10
    rate = shadow.recipe(Site(0, "weight_after", "0", "weight")).settings["lr"]
    assert rate == pytest.approx(0.1, rel=1e-4)


def test_large_tensors_are_computed_in_parts_and_give_the_same_figures(tmp_path, monkeypatch):
    model, x, y = made("conv")
    record(copy.deepcopy(model), x, y, tmp_path / "ref")
    model.fc.bias.data += 1
    record(model, x, y, tmp_path / "cand")
    whole = shadow_of(tmp_path / "ref", tmp_path / "cand").replay()
    monkeypatch.setattr("firstdrift.replay.replayable.AT_ONCE", 50)
    monkeypatch.setattr("firstdrift.replay.fitting.SCREEN", 50)
    parts = shadow_of(tmp_path / "ref", tmp_path / "cand").replay()
    assert parts.keys() == whole.keys()
    for site, one in whole.items():
        assert parts[site].operation == one.operation
        assert parts[site].introduced == pytest.approx(one.introduced, rel=1e-3, abs=1e-9)
        assert parts[site].inherited == pytest.approx(one.inherited, rel=1e-3, abs=1e-9)
