"""`fd.tap`: any tensor inside a forward pass, recorded while a trace is open and free while none is."""

import subprocess
import sys

import pytest
import torch
from tests.capture.taking import keys, producers, record, same_bits, values
from torch import nn

import firstdrift as fd


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        scores = fd.tap("scores", self.q(x) @ self.k(x).t())
        return scores.softmax(-1) @ x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention()])

    def forward(self, x):
        for layer in self.layers:
            x = fd.tap("between", layer(x) * 2)
        return x


def make():
    torch.manual_seed(0)
    return Net(), torch.randn(4, 3)


def test_without_a_trace_a_tap_returns_the_same_object_whatever_it_is():
    for item in (torch.ones(2), 3, None, "text"):
        assert fd.tap("name", item) is item


def test_a_tap_needs_no_torch():
    code = "import sys, firstdrift as fd; x = [1]; assert fd.tap('a', x) is x; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_taps_are_sites_below_the_module_that_runs_and_have_gradients(tmp_path):
    model, x = make()
    with fd.trace(model, tmp_path / "t"):
        model(x).sum().backward()
    taps = ["layers.0.scores", "between", "layers.1.scores", "between"]
    assert [one.site.name for one in fd.open_trace(tmp_path / "t") if one.op == "tap"] == taps
    assert keys(tmp_path / "t", "fwd", only="between") == ["fwd between:out", "fwd between:out@1"]
    assert keys(tmp_path / "t", "agrad", only="scores") == ["agrad layers.1.scores:out", "agrad layers.0.scores:out"]
    assert record(tmp_path / "t", "fwd layers.1.scores:out").layer == 1
    found = values(tmp_path / "t")

    expected, h = {}, x
    for number, layer in enumerate(model.layers):
        scores = layer.q(h) @ layer.k(h).t()
        h = scores.softmax(-1) @ h * 2
        expected |= {f"layers.{number}.scores:out": scores, "between:out" + "@1" * number: h}
    for tensor in expected.values():
        tensor.retain_grad()
    h.sum().backward()
    for name, tensor in expected.items():
        assert same_bits(found[f"fwd {name}"], tensor)
        assert same_bits(found[f"agrad {name}"], tensor.grad)


@pytest.mark.parametrize("grad", [True, False])
def test_a_tap_is_a_producer_and_has_producers(grad, tmp_path):
    model, x = make()
    with torch.set_grad_enabled(grad), fd.trace(model, tmp_path / "t"):
        model(x)
    assert producers(tmp_path / "t", "fwd layers.1.scores:out") == {"fwd layers.1.q:out", "fwd layers.1.k:out"}
    assert producers(tmp_path / "t", "fwd layers.1.q:in.0") == {"fwd between:out"}
    assert "fwd layers.1.scores:out" in producers(tmp_path / "t", "fwd layers.1:out")
    assert producers(tmp_path / "t", "fwd between:out@1") == {"fwd layers.1:out"}


def test_a_tensor_changed_after_its_tap_is_recorded_as_it_was(tmp_path):
    class Changing(nn.Module):
        def forward(self, x):
            h = x * 2
            assert fd.tap("before", h) is h
            h.add_(1)
            return fd.tap("after", h)

    model = Changing()
    with fd.trace(model, tmp_path / "t"):
        model(torch.ones(2))
    found = values(tmp_path / "t")
    assert (found["fwd before:out"][0], found["fwd after:out"][0]) == (2, 3)


def test_taps_outside_the_model_or_of_another_model_are_ignored(tmp_path):
    model, x = make()
    other = Attention()
    with fd.trace(model, tmp_path / "t"):
        assert fd.tap("outside", x) is x
        model(x)
        other(x)
        fd.tap("late", x)
    assert len(keys(tmp_path / "t", "fwd", only="scores")) == 2
    assert not keys(tmp_path / "t", only="outside") + keys(tmp_path / "t", only="late")


def test_of_two_open_traces_each_hears_its_own_models_taps(tmp_path):
    (model, x), other = make(), Attention()
    with fd.trace(model, tmp_path / "a"), fd.trace(other, tmp_path / "b"):
        model(x)
        other(x)
    assert keys(tmp_path / "b", only="scores") == ["fwd scores:out"]
    assert keys(tmp_path / "a", only="scores") == ["fwd layers.0.scores:out", "fwd layers.1.scores:out"]


def test_a_tap_inside_a_model_that_another_one_calls_is_the_inner_ones(tmp_path):
    class Calling(nn.Module):
        def forward(self, x):
            return inner[0](x)

    inner, outer, x = [Attention()], Calling(), torch.randn(4, 3)
    with fd.trace(outer, tmp_path / "outer"), fd.trace(inner[0], tmp_path / "inner"):
        outer(x)
    assert keys(tmp_path / "inner", only="scores") == ["fwd scores:out"]
    assert not keys(tmp_path / "outer", only="scores")


def test_what_is_no_tensor_is_passed_on_and_not_recorded(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            assert fd.tap("number", 3) == 3
            return x

    model = Odd()
    with fd.trace(model, tmp_path / "t"):
        model(torch.ones(1))
    assert not keys(tmp_path / "t", only="number")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"only": "layers.0"}, ["agrad layers.0.scores:out", "fwd layers.0.scores:out"]),
        ({"only": "layers.1.*"}, ["agrad layers.1.scores:out", "fwd layers.1.scores:out"]),
        ({"only": "layers.0.q"}, []),
        ({"phases": "fwd"}, ["fwd layers.0.scores:out", "fwd layers.1.scores:out"]),
        ({"phases": "agrad"}, ["agrad layers.0.scores:out", "agrad layers.1.scores:out"]),
    ],
)
def test_taps_are_chosen_with_the_module_they_are_in_or_by_their_own_name(options, expected, tmp_path):
    model, x = make()
    with fd.trace(model, tmp_path / "t", **options):
        model(x).sum().backward()
    assert sorted(keys(tmp_path / "t", only="scores")) == expected
