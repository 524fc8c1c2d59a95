"""Traces of training whose program was not recorded: gradients and updates of the library reproduce them."""

import json

import pytest
import torch
from torch import nn

import firstdrift as fd
from firstdrift.core.sites import Site
from firstdrift.program.library import library_program

COMPUTED = ("fwd", "agrad", "grad", "grad_scaled", "optim", "weight_after")


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(32, 16),
        nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4),
    )  # fmt: skip


def trained(path, make, steps=2):
    """A trace of a few steps, with its program taken away."""
    model = network()
    optimizer = make(model.parameters())
    x, y = torch.randn(8, 1, 16), torch.randint(0, 4, (8,))
    with fd.trace(model, path, optimizer=optimizer):
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    (path / "program.jsonl").unlink()
    return fd.open_trace(path)


def failing(trace):
    program = library_program(trace)
    sites = [record.site for record in trace if record.site.phase in COMPUTED and record.at is not None]
    return {site: why for site in sites if (why := program.why_not(site)) is not None}


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.99), weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_tensor_of_a_training_step_has_a_call_that_holds(name, tmp_path):
    trace = trained(tmp_path / "t", OPTIMIZERS[name])
    assert failing(trace) == {}
    assert {record.site.step for record in trace} == {0, 1}


@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.012), ("betas", [0.8, 0.95]), ("eps", 1e-3), ("weight_decay", 0.2)]
)
def test_another_setting_of_the_optimizer_does_not_hold(key, value, tmp_path):
    trained(tmp_path / "t", OPTIMIZERS["Adam"])
    lines = [json.loads(line) for line in (tmp_path / "t" / "index.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("phase") == "weight_after" and key in line.get("attrs", {}):
            line["attrs"][key] = value
    (tmp_path / "t" / "index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    after = Site(1, "weight_after", "5", "weight")
    assert after in failing(fd.open_trace(tmp_path / "t"))


def test_an_optimizer_that_the_library_has_not_is_named(tmp_path):
    trace = trained(tmp_path / "t", lambda p: torch.optim.Adagrad(p, 0.1), steps=1)
    why = library_program(trace).why_not(Site(0, "weight_after", "5", "weight"))
    assert why == "the optimizer is Adagrad, which the library does not have"


def test_a_loss_whose_target_is_on_record_has_its_gradient(tmp_path):
    logits, target = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 2, 1, 1, 0])
    loss = nn.functional.cross_entropy(logits, target)
    loss.backward()
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("input", "input", target, port="target")
        writer.put("head", "fwd", logits.detach(), producers=[])
        reads = [Site(0, "fwd", "head", "out"), Site(0, "input", "input", "target")]
        writer.put("loss", "loss", loss.detach(), op="CrossEntropyLoss", attrs={"reduction": "mean"}, producers=reads)
        writer.put("loss", "lossgrad", logits.grad)
        writer.put("head", "agrad", logits.grad)
    program = library_program(fd.open_trace(tmp_path / "t"))
    for phase, name in ("loss", "loss"), ("lossgrad", "loss"), ("agrad", "head"):
        assert program.why_not(Site(0, phase, name, "out")) is None


def test_gradients_add_up_over_all_that_read_a_tensor(tmp_path):
    x = torch.randn(4, 6, requires_grad=True)
    a, b = torch.tanh(x), torch.sigmoid(x)
    y = a + b + x
    for one in (a, b, y):
        one.retain_grad()
    y.backward(torch.randn(4, 6))
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", x.detach(), producers=[])
        writer.put("a", "fwd", a.detach(), op="Tanh", producers=["x"])
        writer.put("b", "fwd", b.detach(), op="Sigmoid", producers=["x"])
        writer.put("y", "fwd", y.detach(), op="Add", producers=["a", "b", "x"])
        writer.put("y", "agrad", y.grad)
        writer.put("x", "agrad", x.grad)  # those of a and b are not recorded: they are passed through
    program = library_program(fd.open_trace(tmp_path / "t"))
    assert program.why_not(Site(0, "agrad", "x", "out")) is None


def test_a_reader_that_the_library_has_not_takes_the_gradient_away(tmp_path):
    x = torch.randn(4, 6)
    with fd.Writer(tmp_path / "t") as writer:
        writer.put("x", "fwd", x, producers=[])
        writer.put("a", "fwd", x.tanh(), op="Tanh", producers=["x"])
        writer.put("b", "fwd", x.cumsum(0), op="CumSum", producers=["x"])
        for name in "abx":
            writer.put(name, "agrad", x)
    why = library_program(fd.open_trace(tmp_path / "t")).why_not(Site(0, "agrad", "x", "out"))
    assert why == "fwd b:out step 0 reads its output, and the library has no call for that"


def test_samples_that_were_not_recorded_take_a_parameters_gradient_away(tmp_path):
    x, weight = torch.randn(1, 6), torch.randn(3, 6)
    with fd.Writer(tmp_path / "t", batch=8) as writer:
        writer.put("fc", "weight", weight)
        writer.put("input", "input", x, port="x", sample=0)
        writer.put("fc", "fwd", x @ weight.T, op="Linear", sample=0)
        writer.put("fc", "agrad", torch.ones(1, 3), sample=0)
        writer.put("fc", "grad", torch.ones(3, 1) @ x)
    why = library_program(fd.open_trace(tmp_path / "t")).why_not(Site(0, "grad", "fc", "weight"))
    assert why == "it is summed over 8 samples, and 1 were recorded"
