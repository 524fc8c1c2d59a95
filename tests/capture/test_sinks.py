"""The callback form: events of a traced step in the order of a sequential engine, with the values given for it."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import firstdrift as fd


def gather(events):
    return lambda layer, kind, phase, tensor: events.append((layer, kind, phase, tensor.clone()))


def heads(events):
    return [(layer, kind, phase) for layer, kind, phase, _ in events]


def acceptance():
    model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
        model[0].bias.zero_()
    return model, torch.tensor([[1.0, 1.0]]), torch.tensor([0])


def test_the_acceptance_values_of_the_specification():
    model, x, y = acceptance()
    events = []
    fd.trace_weights(model, "w_before", gather(events))
    before = len(events)
    loss = fd.traced_grads(model, x, y, functional.cross_entropy, gather(events))
    after = len(events)
    fd.trace_grads(model, "grad_raw", gather(events))
    assert loss.item() == pytest.approx(0.91300, abs=5e-5)  # as it is printed there: five digits of 0.9130153
    assert loss.item() == pytest.approx(math.log1p(math.exp(0.4)), abs=1e-7)
    assert not loss.requires_grad
    assert heads(events[before:after]) == [
        (0, "Linear", "fwd"), (1, "Softmax", "fwd"), (2, "Softmax", "lossgrad"), (0, "Linear", "agrad")
    ]  # fmt: skip
    assert [tuple(tensor.shape) for *_, tensor in events[before:after]] == [(1, 2)] * 4
    assert [phase for _, _, phase, _ in events[:before] + events[after:]] == [
        "w_before.weight", "w_before.bias", "grad_raw.weight", "grad_raw.bias"
    ]  # fmt: skip
    weight, bias = (tensor for *_, tensor in events[after:])
    assert weight.flatten().tolist() == pytest.approx([-0.59869] * 2 + [0.59869] * 2, abs=5e-6)
    assert bias.tolist() == pytest.approx([-0.59869, 0.59869], abs=5e-6)
    fwd, softmax, lossgrad, agrad = (tensor for *_, tensor in events[before:after])
    assert fwd.flatten().tolist() == pytest.approx([0.3, 0.7])
    assert torch.equal(softmax, fwd.softmax(-1))
    assert torch.equal(lossgrad, agrad)
    assert lossgrad.flatten().tolist() == pytest.approx((softmax - torch.tensor([1.0, 0.0])).flatten().tolist())


def longer():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4), nn.Identity(), nn.Linear(4, 3)
    ), torch.randn(1, 1, 4), torch.tensor([2])  # fmt: skip


KINDS = ["Conv1d", "ReLU", "Flatten", "Linear", "Identity", "Linear"]
FORWARD = [(number, kind, "fwd") for number, kind in enumerate(KINDS)]


def backward(*numbers):
    return [(6, "Linear", "lossgrad"), *((number, KINDS[number], "agrad") for number in numbers)]


def by_hand(model, x, y):
    """Every layer's output, and the gradients torch retains there."""
    outputs = []
    for layer in model:
        x = layer(x if not outputs or not isinstance(layer, nn.Identity) else x * 1)
        outputs.append(x)
        if x.requires_grad:
            x.retain_grad()
    functional.cross_entropy(x, y).backward()
    return outputs


def test_events_of_a_longer_net_come_forward_then_backward_with_the_values_torch_retains():
    model, x, y = longer()
    events = []
    fd.traced_grads(model, x, y, functional.cross_entropy, gather(events))
    assert heads(events) == FORWARD + backward(5, 4, 3, 2, 1, 0)
    outputs = by_hand(model, x, y)
    for layer, _, phase, tensor in events:
        expected = outputs[min(layer, 5)]
        assert torch.equal(tensor, expected if phase == "fwd" else expected.grad), (layer, phase)


def test_an_event_of_backward_comes_before_its_layers_own_backward():
    model, x, y = longer()
    seen = []

    def note(number):
        return lambda module, args, output: output.grad_fn.register_hook(lambda *_: seen.append(("ran", number)))

    for number, layer in enumerate(model):
        layer.register_forward_hook(lambda *call, number=number: note(number)(*call) and None)
    fd.traced_grads(model, x, y, functional.cross_entropy, lambda layer, kind, phase, _: seen.append((phase, layer)))
    for number in (0, 1, 3, 5):
        assert seen.index(("agrad", number)) < seen.index(("ran", number))


def test_a_layer_written_over_in_place_keeps_its_own_gradient():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    in_place = nn.Sequential(plain[0], nn.ReLU(inplace=True), plain[2])
    x, y, found = torch.randn(1, 3), torch.tensor([1]), []
    for model in (plain, in_place):
        events = []
        fd.traced_grads(model, x, y, functional.cross_entropy, gather(events))
        found.append(events)
    assert heads(found[0]) == heads(found[1])
    for (layer, _, phase, ours), (*_, theirs) in zip(*found, strict=True):
        assert torch.equal(ours, theirs), (layer, phase)


def test_nothing_below_the_first_trainable_layer_has_a_gradient():
    model, x, y = longer()
    model[0].requires_grad_(False)
    events = []
    fd.traced_grads(model, x, y, functional.cross_entropy, gather(events))
    assert heads(events) == FORWARD + backward(5, 4, 3)
    events.clear()
    fd.trace_grads(model, "grad_raw", gather(events))
    assert {layer for layer, *_ in events} == {3, 5}
    fd.trace_weights(model, "w", gather(events))
    assert {layer for layer, *_ in events} == {0, 3, 5}


def test_a_parameter_frozen_after_its_gradient_came_gives_no_event():
    model, x, y = acceptance()
    fd.traced_grads(model, x, y, functional.cross_entropy, None)
    model[0].bias.requires_grad_(False)
    events = []
    fd.trace_grads(model, "g", gather(events))
    assert [phase for _, _, phase, _ in events] == ["g.weight"]


def test_a_frozen_model_has_forward_events_alone():
    model, x, y = longer()
    model.requires_grad_(False)
    events = []
    loss = fd.traced_grads(model, x, y, functional.cross_entropy, gather(events))
    assert heads(events) == FORWARD
    assert torch.equal(loss, functional.cross_entropy(model(x), y))
    fd.trace_grads(model, "grad_raw", gather(events))
    assert heads(events) == FORWARD


@pytest.mark.parametrize(("logits", "read"), [(None, 5), ("3", 3), (3, 3), ("4", 4), (0, 0)])
def test_logits_names_the_layer_the_loss_reads_by_name_or_number(logits, read):
    model, x, y = longer()
    events, given = [], []

    def loss_fn(output, target):
        given.append(output.detach().clone())
        return functional.cross_entropy(output.flatten(1), target)

    fd.traced_grads(model, x, y, loss_fn, gather(events), logits=logits)
    assert heads(events) == FORWARD + backward(*range(read, -1, -1))
    assert torch.equal(given[0], events[read][3])


@pytest.mark.parametrize("logits", ["head", 6, -1, True])
def test_logits_that_are_no_layer_are_refused(logits):
    model, x, y = longer()
    with pytest.raises(fd.CaptureError, match="is no layer of the model; it has 0, 1, 2"):
        fd.traced_grads(model, x, y, functional.cross_entropy, None, logits=logits)


def test_layers_of_any_other_model_are_its_modules_without_children():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
            self.head = nn.Linear(3, 2, bias=False)

        def forward(self, x):
            return self.head(self.body(x))

    model, events = Net(), []
    fd.traced_grads(model, torch.ones(1, 2), torch.tensor([0]), functional.cross_entropy, gather(events), logits="head")
    assert heads(events) == [
        (0, "Linear", "fwd"), (1, "Tanh", "fwd"), (2, "Linear", "fwd"), (3, "Linear", "lossgrad"),
        (2, "Linear", "agrad"), (1, "Tanh", "agrad"), (0, "Linear", "agrad"),
    ]  # fmt: skip
    events.clear()
    fd.trace_weights(model, "w", gather(events))
    assert [(layer, phase) for layer, _, phase, _ in events] == [(0, "w.weight"), (0, "w.bias"), (2, "w.weight")]


def test_layers_of_a_sequence_are_its_children_whatever_these_are_made_of():
    model, events = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Linear(3, 2, bias=False)), []
    fd.traced_grads(model, torch.ones(1, 2), torch.tensor([0]), functional.cross_entropy, gather(events))
    assert heads(events) == [
        (0, "Sequential", "fwd"), (1, "Linear", "fwd"), (2, "Linear", "lossgrad"), (1, "Linear", "agrad"),
        (0, "Sequential", "agrad"),
    ]  # fmt: skip
    events.clear()
    fd.trace_weights(model, "w", gather(events))
    assert [(layer, phase) for layer, _, phase, _ in events] == [(0, "w.0.weight"), (0, "w.0.bias"), (1, "w.weight")]


def test_mean_squared_error_of_one_sample_gives_its_own_gradient():
    torch.manual_seed(0)
    model, events = nn.Sequential(nn.Linear(3, 2)), []
    x, y = torch.randn(1, 3), torch.randn(1, 2)
    fd.traced_grads(model, x, y, lambda o, y: (o - y).square().sum(), gather(events))
    (fwd, lossgrad, agrad) = (tensor for *_, tensor in events)
    assert torch.equal(lossgrad, 2 * (fwd - y))
    assert torch.equal(agrad, lossgrad)


@pytest.mark.parametrize("with_sink", [False, True])
def test_a_traced_pass_is_the_plain_pass_bit_for_bit(with_sink):
    model, x, y = longer()
    other = copy.deepcopy(model)
    for _ in range(2):  # gradients add up
        loss = fd.traced_grads(model, x, y, functional.cross_entropy, gather([]) if with_sink else None)
        plain = functional.cross_entropy(other(x), y)
        plain.backward()
        assert torch.equal(loss, plain)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert not any(layer._forward_hooks for layer in model.modules())


def test_without_a_sink_nothing_is_called_and_dumps_do_nothing():
    model, *_ = acceptance()
    fd.trace_weights(model, "w", None)
    fd.trace_grads(model, "g", None)


def test_a_sink_is_lent_the_tensors_themselves():
    model, x, y = acceptance()
    seen = {}
    fd.trace_weights(model, "w", lambda layer, kind, phase, tensor: seen.update({phase: tensor}))
    assert seen["w.weight"].data_ptr() == model[0].weight.data_ptr()
    assert not seen["w.weight"].requires_grad
    fd.traced_grads(model, x, y, functional.cross_entropy, lambda *event: seen.update({event[2]: event[3]}))
    assert not any(tensor.requires_grad for tensor in seen.values())
    fd.trace_grads(model, "g", lambda layer, kind, phase, tensor: seen.update({phase: tensor}))
    assert seen["g.bias"].data_ptr() == model[0].bias.grad.data_ptr()


def test_a_sink_that_raises_leaves_no_hooks_behind():
    model, x, y = acceptance()

    def raising_at(wrong):
        return lambda layer, kind, phase, tensor: 1 / (phase != wrong)

    for wrong in ("fwd", "agrad"):
        with pytest.raises(ZeroDivisionError):
            fd.traced_grads(model, x, y, functional.cross_entropy, raising_at(wrong))
        assert not any(layer._forward_hooks for layer in model.modules())


def test_what_is_no_torch_module_is_refused():
    for call in (
        lambda: fd.trace_weights(3, "w", print),
        lambda: fd.trace_grads("model", "g", print),
        lambda: fd.traced_grads(None, 1, 2, print, print),
        lambda: fd.trace([1], "t"),
        lambda: fd.estimate({}, ()),
    ):
        with pytest.raises(fd.CaptureError, match="cannot be traced; give a torch.nn.Module"):
            call()
