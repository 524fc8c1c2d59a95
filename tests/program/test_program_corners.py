"""Code that is unusual and allowed: its program gives the recorded bits, or says what it does not hold."""

import numpy as np
import pytest
import torch
from tests.program.replaying import Body, assert_replays, batch, mlp, record
from torch import nn

import firstdrift as fd

DRAWING = {
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    "dropout of channels": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout1d(0.5)),
    "alpha dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.5)),
    "rrelu": lambda: nn.Sequential(nn.Linear(4, 4), nn.RReLU()),
    "lstm": lambda: nn.LSTM(4, 5, 2, dropout=0.5),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(5)),
    "instance norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.InstanceNorm1d(5, track_running_stats=True)),
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("kind", DRAWING)
def test_what_draws_or_writes_inside_is_opened_where_it_arrives_whole(tmp_path, kind, mode):
    model = DRAWING[kind]()

    def run():
        with mode():
            model(torch.randn(3, 5, 4))

    assert_replays(record(tmp_path / "t", model, run))


def test_what_draws_nothing_in_evaluation_replays_without_its_noise(tmp_path):
    model = nn.Sequential(nn.Linear(4, 6), nn.RReLU()).eval()
    assert_replays(record(tmp_path / "t", model, lambda: model(batch()[0]).sum().backward()))
    model = Body(lambda self, x: torch.native_dropout(x, 0.5, False)[0])
    assert_replays(record(tmp_path / "d", model, lambda: model(batch()[0]).sum().backward()))


def test_a_tensor_made_in_inference_mode_replays(tmp_path):
    model = Body(lambda self, x: x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))

    def run():
        with torch.inference_mode():
            model(batch()[0])

    assert_replays(record(tmp_path / "t", model, run))


def test_a_buffer_that_numpy_writes_to_is_given_anew(tmp_path):
    array = np.ones(6, np.float32)

    def body(self, x):
        y = x + self.shared
        array[:] += 1
        return y + self.shared

    model = Body(body)
    model.register_buffer("shared", torch.from_numpy(array))
    found = record(tmp_path / "t", model, lambda: model(batch()[0]))
    assert_replays(found)


@pytest.mark.parametrize("write", [lambda x: x.apply_(lambda item: 2 * item), lambda x: x.map_(x, lambda a, b: a + b)])
def test_what_python_writes_into_a_tensor_is_given_and_said(tmp_path, write):
    model = Body(lambda self, x: write(x.detach()) + x)
    found = record(tmp_path / "t", model, lambda: model(batch()[0]))
    assert_replays(found)
    assert any("by calling Python" in note for note in found.step.notes)


def test_a_tensor_that_is_written_to_twice_in_one_call_is_one_tensor(tmp_path):
    def body(self, x):
        own = x.detach().clone()
        torch._foreach_add_([own, own], 1.0)
        return x + own

    model = Body(body)
    assert_replays(record(tmp_path / "t", model, lambda: model(batch()[0])))


def test_a_default_dtype_and_flushed_denormals_are_recorded_and_used_again(tmp_path):
    model = Body(lambda self, x: x * torch.ones(6).to(x.dtype) * 1e-38 * 1e-3)
    x = batch()[0]
    torch.set_default_dtype(torch.float64)
    flushed = torch.set_flush_denormal(True)
    try:
        found = record(tmp_path / "t", model, lambda: model(x))
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)
    assert found.program.header["default_dtype"] == "f64"
    assert found.program.header.get("flush_denormal", False) == flushed
    assert_replays(found)
    assert torch.get_default_dtype() == torch.float32
    assert float(torch.tensor(1e-38) / 100) > 0


def test_gradients_that_lie_in_one_buffer_are_all_in_the_program(tmp_path):
    model = mlp()
    flat, start = torch.zeros(sum(one.numel() for one in model.parameters())), 0
    for one in model.parameters():
        one.grad = flat[start : start + one.numel()].view_as(one)
        start += one.numel()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run():
        model(batch()[0]).square().mean().backward()
        optimizer.step()

    assert_replays(record(tmp_path / "t", model, run, optimizer=optimizer))


def test_a_jagged_tensor_ends_the_program_and_not_the_file(tmp_path):
    def body(self, x):
        nested = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
        return torch.cat([one * 2 for one in nested.unbind()])

    model = Body(body)
    found = record(tmp_path / "t", model, lambda: model(batch()[0]))
    assert found.program.problems == ()
    assert found.step.nodes
    assert any("the program ends here" in note for note in found.step.notes) or found.calls("aten.cat")


def test_a_sparse_attribute_and_tensors_without_numbers_do_not_end_the_program(tmp_path):
    def body(self, x):
        torch.rand(3, device="meta")
        return x + self.table[:6] + torch.ones(6)

    model = Body(body, table=torch.arange(100.0), odd=torch.eye(6).to_sparse())
    found = record(tmp_path / "t", model, lambda: model(batch()[0]))
    assert not any("ends here" in note for note in found.step.notes)
    assert_replays(found, lost=True)
    assert [leaf.name for leaf in found.leaves() if leaf.name] == ["table"]


@pytest.mark.parametrize("kind", ["layer", "attention"])
def test_a_teacher_beside_the_model_keeps_its_fused_kernels(tmp_path, kind):
    torch.manual_seed(0)
    teacher = (
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        if kind == "layer"
        else nn.MultiheadAttention(16, 2, batch_first=True)
    ).eval()
    student, x = nn.Linear(16, 16), torch.randn(4, 7, 16)

    def taught():
        with torch.no_grad():
            return teacher(x) if kind == "layer" else teacher(x, x, x, need_weights=False)[0]

    plain = taught()
    with fd.trace(student, tmp_path / "t"):
        out = student(x)
        seen = taught()
        (out - seen).square().mean().backward()
    assert torch.equal(plain, seen)
