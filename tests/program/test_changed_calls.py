"""A call is made otherwise: what follows forward, and backward by the derivative of the change or as recorded."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.program.replaying import Body, batch, mlp, record, train
from tests.program.test_cuts import cuts_of
from torch import nn

import firstdrift as fd
from firstdrift.program.calls import Call, Ref
from firstdrift.program.cuts import Cuts
from firstdrift.program.edits import with_changes
from firstdrift.program.interpreter import Interpreter, NotReplayableError
from firstdrift.program.running.changed_calls import refuse_long

OUT, BEFORE = fd.Site(0, "fwd", "head", "out"), fd.Site(0, "fwd", "lift", "out")
STARTS = {BEFORE, fd.Site(0, "weight", "head", "weight"), fd.Site(0, "weight", "head", "bias")}


class Gelu(nn.Module):
    def __init__(self, approximate="none"):
        super().__init__()
        self.lift, self.norm, self.head = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.approximate = approximate

    def forward(self, x):
        return self.head(nn.functional.gelu(self.norm(self.lift(x)), approximate=self.approximate))


def recorded(path):
    model = Gelu()
    found = record(path, model, lambda: model(batch()[0]).square().mean().backward())
    return model, found


def changed(found, op, **kwargs):
    ((number, call),) = [(number, call) for number, call in found.step.calls() if call.op.startswith(op)]
    return with_changes(found.step, {number: replace(call, kwargs={**call.kwargs, **kwargs})})


def twin(model, found, approximate):
    """The same model with the change, in float64, from what `lift` gave: output and gradients."""
    other = Gelu(approximate).double()
    other.load_state_dict({name: one.double() for name, one in model.state_dict().items()})
    given = torch.tensor(found.trace.array(BEFORE)).double().requires_grad_()
    out = other.head(nn.functional.gelu(other.norm(given), approximate=approximate))
    grad = torch.tensor(found.trace.array(fd.Site(0, "agrad", "head", "out"))).double()
    wanted = [given, other.head.weight]
    return out.detach().numpy(), [one.numpy() for one in torch.autograd.grad(out, wanted, grad)]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_changed_call_gives_what_the_changed_model_gives_and_so_does_its_derivative(tmp_path, approximate):
    model, found = recorded(tmp_path / "t")
    step = changed(found, "aten.gelu.default", approximate=approximate)
    cut = Cuts(step, STARTS.__contains__).at(OUT)
    interpreter = Interpreter(step, found.trace, exact=True)
    out, gradients = twin(model, found, approximate)
    assert np.abs(interpreter.array_of(cut) - out).max() < 1e-12
    by = [step.sites[BEFORE], step.sites[fd.Site(0, "weight", "head", "weight")]]
    gradient = found.trace.array(fd.Site(0, "agrad", "head", "out"))
    for ours, theirs in zip(interpreter.derivative(cut, by, gradient), gradients, strict=True):
        assert np.abs(ours - theirs).max() < 1e-12


def test_the_recorded_backward_stays_that_of_what_was_recorded(tmp_path):
    model, found = recorded(tmp_path / "t")
    step = changed(found, "aten.gelu.default", approximate="tanh")
    target = fd.Site(0, "agrad", "lift", "out")
    starts = STARTS | {fd.Site(0, "agrad", "head", "out"), fd.Site(0, "weight", "norm", "weight")}
    recorded_backward = Interpreter(step, found.trace, exact=True).array_of(Cuts(step, starts.__contains__).at(target))
    _, (as_recorded, _) = twin(model, found, "none")
    _, (as_changed, _) = twin(model, found, "tanh")
    assert np.abs(recorded_backward - as_recorded).max() < 1e-12
    assert np.abs(recorded_backward - as_changed).max() > 1e-7


def test_the_derivative_of_an_unchanged_forward_is_the_recorded_backward(tmp_path):
    """In the model's own precision too, through writing in place, drawn numbers, views and tied values."""

    def body(self, x):
        y = self.drop(x)
        y = y.clone()
        y[:, :2] *= 3
        y.relu_()
        return y.view(5, 2, 3).transpose(1, 2).reshape(5, 6) + x

    model = Body(body, drop=nn.Dropout(0.4))
    found = record(tmp_path / "t", model, lambda: model(batch()[0]).square().mean().backward())
    cut = Cuts(found.step, STARTS.__contains__).at(OUT)
    gradient = found.trace.array(fd.Site(0, "agrad", "head", "out"))
    for exact in (False, True):
        interpreter = Interpreter(found.step, found.trace, exact=exact)
        (ours,) = interpreter.derivative(cut, [found.step.sites[BEFORE]], gradient)
        assert np.abs(ours - found.trace.array(fd.Site(0, "agrad", "lift", "out"))).max() < 1e-6
        value = interpreter.value_of(cut)
        assert not value.requires_grad


def test_where_the_model_detaches_there_is_no_derivative(tmp_path):
    """A program tells values apart, not how gradients reach them."""
    model = Body(lambda self, x: x * x.detach())
    found = record(tmp_path / "t", model, lambda: model(batch()[0]).square().mean().backward())
    cut = Cuts(found.step, STARTS.__contains__).at(OUT)
    gradient = found.trace.array(fd.Site(0, "agrad", "head", "out"))
    with pytest.raises(NotReplayableError, match="the model detaches a value here"):
        Interpreter(found.step, found.trace).derivative(cut, [found.step.sites[BEFORE]], gradient)


def test_what_no_gradient_goes_through_says_so(tmp_path):
    found = record(tmp_path / "t", model := Body(lambda self, x: (x > 0).float()), lambda: model(batch()[0]))
    cut = Cuts(found.step, {BEFORE}.__contains__).at(fd.Site(0, "fwd", "head", "in.0"))
    with pytest.raises(NotReplayableError, match="cannot be differentiated"):
        Interpreter(found.step, found.trace).derivative(cut, [found.step.sites[BEFORE]], np.ones((5, 6), np.float32))


def test_a_changed_call_does_not_count_to_what_is_no_size():
    for args in ((10**9,), (0, 1e12), (5, 10**9, 1)):
        with pytest.raises(NotReplayableError, match="would count to"):
            refuse_long(Call("aten.arange.default", args, {}, ()))
    for args in ((100,), (0, 1e12, 1e9), ()):
        refuse_long(Call("aten.arange.default", args, {}, ()))
    refuse_long(Call("aten.add.Tensor", (Ref(0), 10**9), {}, ()))


def test_a_change_that_is_no_program_is_refused(tmp_path):
    _, found = recorded(tmp_path / "t")
    number, call = next((number, call) for number, call in found.step.calls() if call.op == "aten.gelu.default")
    leaf = next(at for at, node in enumerate(found.step.nodes) if not isinstance(node, Call))
    with pytest.raises(ValueError, match="is no call of step 0"):
        with_changes(found.step, {leaf: call})
    with pytest.raises(ValueError, match="gives 0 tensors, not 1"):
        with_changes(found.step, {number: replace(call, results=())})
    with pytest.raises(ValueError, match="which comes later"):
        with_changes(found.step, {number: replace(call, args=(Ref(number + 1),))})


OPTIMIZERS = {
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "AdamW, foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True, amsgrad=True),
    "Adam, with decay": lambda parameters: torch.optim.Adam(parameters, weight_decay=0.1),
    "SGD, fused": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, fused=True),
    "SGD, foreach": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True, foreach=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, momentum=0.5),
    "Adagrad, fused": lambda parameters: torch.optim.Adagrad(parameters, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_step_follows_from_recorded_weights_gradients_and_state(tmp_path, name):
    """Each from what is recorded alone, in the second step too, in the precision it had and in float64."""
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    found = record(tmp_path / "t", model, lambda: train(model, optimizer, steps=2), optimizer=optimizer)
    compared = set()
    for step, site, cut in cuts_of(found):
        if site.phase not in ("optim", "weight_after"):
            continue
        recorded = found.trace.array(site)
        assert Interpreter(step, found.trace).value_of(cut).numpy().tobytes() == recorded.tobytes(), site
        exact = Interpreter(step, found.trace, exact=True).array_of(cut)
        assert np.abs(exact - recorded).max() <= 1e-5 * max(np.abs(recorded).max(), 1e-3), site
        assert not {one.phase for one in cut.given.values()} & {"input", "fwd", "loss"}
        compared.add((site.phase, site.step))
    assert {("weight_after", 0), ("weight_after", 1)} <= compared


def test_a_changed_setting_of_an_optimizer_gives_another_step(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = record(tmp_path / "t", model, lambda: train(model, optimizer), optimizer=optimizer)
    number, call = next((n, c) for n, c in found.step.calls() if c.part == "optimizer")
    assert call.kwargs == {"alpha": -0.1}
    step = with_changes(found.step, {number: replace(call, kwargs={"alpha": -0.3})})
    before, grad, after = (fd.Site(0, phase, "0", "weight") for phase in ("weight", "grad", "weight_after"))
    cut = Cuts(step, lambda site: site != after).at(after)
    expected = found.trace.array(before).astype(np.float64) - 0.3 * found.trace.array(grad).astype(np.float64)
    assert np.abs(Interpreter(step, found.trace, exact=True).array_of(cut) - expected).max() < 1e-12
