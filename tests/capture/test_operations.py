"""`granularity="op"`: every ATen operation inside the modules chosen."""

import pytest
import torch
from tests.capture.taking import keys, producers, record, same_bits, values
from torch import nn

import firstdrift as fd


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(4, eps=0.25), nn.Linear(4, 6)

    def forward(self, x):
        h = self.fc(self.norm(x) * 3)
        h = h.relu_()
        left, right = h.split(3, -1)
        return left.softmax(-1) + right


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), Block(), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.block(self.first(x)).neg())


@pytest.fixture(params=[True, False], ids=["grad", "no grad"])
def taken(request, tmp_path):
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 4)
    with torch.set_grad_enabled(request.param), fd.trace(model, tmp_path / "t", granularity="op", only="block*"):
        model(x)
    return tmp_path / "t", model, x, request.param


def test_every_operation_inside_the_modules_chosen_is_a_site_in_the_order_it_ran(taken):
    path, *_ = taken
    assert [name for name in keys(path, "fwd") if ":in" not in name and not name.endswith((".1", ".2"))] == [
        "fwd block.norm/aten.native_layer_norm:out.0", "fwd block.norm:out", "fwd block/aten.mul.Tensor:out",
        "fwd block.fc/aten.t:out", "fwd block.fc/aten.addmm:out", "fwd block.fc:out", "fwd block/aten.relu_:out",
        "fwd block/aten.split.Tensor:out.0", "fwd block/aten._softmax:out", "fwd block/aten.add.Tensor:out",
        "fwd block:out",
    ]  # fmt: skip


def test_the_values_are_those_of_the_operations(taken):
    path, model, x, _ = taken
    found = values(path, "fwd")
    with torch.no_grad():
        first = model.first(x)
        norm = model.block.norm(first)
        product = norm * 3
        hidden = torch.addmm(model.block.fc.bias, product, model.block.fc.weight.t())
        left, right = hidden.relu().split(3, -1)
        expected = {
            "block.norm/aten.native_layer_norm:out.0": norm,
            "block.norm/aten.native_layer_norm:out.1": first.mean(-1, keepdim=True),
            "block/aten.mul.Tensor:out": product,
            "block.fc/aten.t:out": model.block.fc.weight.t(),
            "block.fc/aten.addmm:out": hidden,
            "block.fc:out": hidden,
            "block/aten.relu_:out": hidden.relu(),
            "block/aten.split.Tensor:out.0": left,
            "block/aten.split.Tensor:out.1": right,
            "block/aten._softmax:out": left.softmax(-1),
            "block/aten.add.Tensor:out": left.softmax(-1) + right,
            "block:out": left.softmax(-1) + right,
        }
    for name, tensor in expected.items():
        if name.endswith("norm:out.1"):
            assert torch.allclose(torch.tensor(found[f"fwd {name}"]), tensor, atol=1e-6)
        else:
            assert same_bits(found[f"fwd {name}"], tensor), name


def test_operations_name_the_operations_and_modules_they_read(taken):
    path, _, _, grad = taken
    expected = {
        "block.norm/aten.native_layer_norm:out.0": {
            "fwd block:in.0" if grad else "input input:x", "weight block.norm:weight", "weight block.norm:bias"
        },  # `first` is not recorded: the nearest site that is; autograd knows nothing of an input without gradient
        "block/aten.mul.Tensor:out": {"fwd block.norm:out"},
        "block.fc/aten.t:out": {"weight block.fc:weight"},
        "block.fc:in.0": {"fwd block/aten.mul.Tensor:out"},
        "block.fc/aten.addmm:out": {
            "fwd block/aten.mul.Tensor:out", "fwd block.fc/aten.t:out", "weight block.fc:bias"
        },
        "block/aten.relu_:out": {"fwd block.fc:out"},
        "block/aten.split.Tensor:out.1": {"fwd block/aten.relu_:out"},
        "block/aten._softmax:out": {"fwd block/aten.split.Tensor:out.0"},
        "block/aten.add.Tensor:out": {"fwd block/aten._softmax:out", "fwd block/aten.split.Tensor:out.1"},
        "block:out": {"fwd block/aten.add.Tensor:out"},
    }  # fmt: skip
    assert {name: producers(path, f"fwd {name}") for name in expected} == expected


def test_an_operations_settings_are_its_attrs(taken):
    path, *_ = taken
    norm = record(path, "fwd block.norm/aten.native_layer_norm:out.0")
    assert (norm.op, norm.attrs["eps"], norm.attrs["normalized_shape"]) == ("aten.native_layer_norm", 0.25, [4])
    split = record(path, "fwd block/aten.split.Tensor:out.0")
    assert (split.attrs["split_size"], split.attrs["dim"]) == (3, -1)


def test_an_operations_output_takes_the_bytes_of_its_modules_output_once(taken):
    path, *_ = taken
    at = [record(path, f"fwd {name}").at for name in ("block.norm/aten.native_layer_norm:out.0", "block.norm:out")]
    assert at[0] == at[1]
    assert record(path, "fwd block.fc:out").at != record(path, "fwd block/aten.relu_:out").at


def test_an_operation_that_runs_twice_is_called_twice(tmp_path):
    class Twice(nn.Module):
        def forward(self, x):
            return (x + 1) * (x + 2)

    model = nn.Sequential()
    model.layers = nn.ModuleList([nn.Identity() for _ in range(3)] + [Twice()])
    model.forward = lambda x: model.layers[3](x)
    with fd.trace(model, tmp_path / "t", granularity="op", only="layers.3"):
        model(torch.ones(2))
    found = values(tmp_path / "t", "fwd")
    assert (found["fwd layers.3/aten.add.Tensor:out"][0], found["fwd layers.3/aten.add.Tensor:out@1"][0]) == (2, 3)
    assert record(tmp_path / "t", "fwd layers.3/aten.mul.Tensor:out").layer == 3


def test_of_the_whole_model_operations_between_modules_are_the_models_own(tmp_path):
    torch.manual_seed(0)
    model = Net()
    with fd.trace(model, tmp_path / "t", granularity="op", keep={"*": "stats"}):
        model(torch.randn(2, 4)).sum().backward()
    assert "fwd /aten.neg:out" in keys(tmp_path / "t")
    assert not [name for name in keys(tmp_path / "t") if "backward" in name or "sum" in name or "detach" in name]
    assert fd.open_trace(tmp_path / "t").nbytes == 0


def test_at_module_granularity_no_operation_is_recorded(tmp_path):
    model = Net()
    for grad in (True, False):
        with torch.set_grad_enabled(grad), fd.trace(model, tmp_path / f"{grad}"):
            model(torch.randn(2, 4))
        assert not keys(tmp_path / f"{grad}", only="/")
