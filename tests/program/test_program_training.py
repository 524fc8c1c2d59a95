"""Programs of training: what a backward call differentiates, what optimizers do, what repeats, what is done again."""

import json

import pytest
import torch
from tests.program.replaying import (
    WIDTH,
    Body,
    Recorded,
    assert_replays,
    batch,
    bits_of,
    mlp,
    record,
    record_training,
    train,
)
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import firstdrift as fd
from firstdrift.program.calls import Earlier

# Backward.


def test_every_backward_call_of_an_mlp_is_tied_to_what_it_differentiates(tmp_path):
    found = record_training(tmp_path / "t", mlp())
    backward = [call for call in found.calls() if call.part == "backward"]
    tied = [(call.op, found.step.nodes[call.of].op) for call in backward if call.of is not None]
    assert {
        ("aten.nll_loss_backward.default", "aten.nll_loss_forward.default"),
        ("aten._log_softmax_backward_data.default", "aten._log_softmax.default"),
        ("aten.threshold_backward.default", "aten.relu.default"),
        ("aten.mm.default", "aten.addmm.default"),
    } <= set(tied)
    # Beside the gradient that it starts from, only accumulation differentiates nothing.
    assert {call.op for call in backward if call.of is None} == {"aten.ones_like.default", "aten.detach.default"}
    assert all(found.step.nodes[call.of].part in ("forward", "loss") for call in backward if call.of is not None)


def test_two_calls_of_one_operation_have_each_its_own_backward(tmp_path):
    model = Body(lambda self, h: torch.tanh(torch.tanh(h)))
    found = record_training(tmp_path / "t", model)
    forward = [number for number, call in found.step.calls() if call.op == "aten.tanh.default"]
    backward = [call.of for call in found.calls("aten.tanh_backward")]
    assert backward == forward[::-1]


def test_no_call_of_the_forward_pass_is_tied(tmp_path):
    found = record_training(tmp_path / "t", mlp())
    assert {call.of for call in found.calls() if call.part != "backward"} == {None}


class Late(nn.Module):
    """Adds what was computed before the step; its own first call needs no gradient."""

    def __init__(self, first):
        super().__init__()
        self.first, self.linear, self.table, self.before = first, nn.Linear(4, 3), torch.ones(3), None

    def forward(self, x):
        return self.first(self.table) + self.linear(x) + self.before


@pytest.mark.parametrize("first", [torch.neg, torch.exp])
def test_what_was_computed_before_the_step_is_tied_to_nothing(tmp_path, first):
    """A node of that graph has the number that torch is at when the step begins."""
    model, scale = Late(first), torch.ones(3, requires_grad=True)

    def run():
        model.before = torch.exp(scale)
        model(batch()[0]).sum().backward()

    found = record(tmp_path / "t", model, run)
    assert [call.of for call in found.calls("aten.mul.Tensor") if call.part == "backward"] == [None]


def test_the_parts_of_a_step_are_said(tmp_path):
    found = record_training(tmp_path / "t", mlp())
    parts = [call.part for call in found.calls()]
    assert list(dict.fromkeys(parts)) == ["forward", "loss", "backward", "optimizer"]
    assert {call.part for call in found.calls("aten.nll_loss_forward")} == {"loss"}
    assert {call.part for call in found.calls("aten._foreach") + found.calls("aten.add_")} <= {"optimizer"}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2.0

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2.0 + 0.0 * x


def test_a_custom_function_is_named_in_the_calls_of_its_backward_and_tied(tmp_path):
    found = record_training(tmp_path / "t", Body(lambda self, h: Doubled.apply(h)))
    assert_replays(found)
    own = [call for call in found.calls() if call.node == "DoubledBackward"]
    assert [call.op for call in own] == ["aten.mul.Tensor", "aten.mul.Tensor", "aten.add.Tensor"]
    (forward,) = [number for number, call in found.step.calls() if call.op == "aten.mul.Tensor" and not call.node]
    assert {call.of for call in own} == {forward}
    assert {call.place.function for call in own} == {"Doubled.backward"}
    assert {call.node for call in found.calls("aten.mm")} == {None}


def test_a_hook_that_changes_a_gradient_is_in_the_program(tmp_path):
    def halve(self, h):
        h.register_hook(lambda gradient: gradient * 0.5)
        return h

    found = record_training(tmp_path / "t", Body(halve))
    assert_replays(found)
    assert [call.part for call in found.calls("aten.mul.Tensor")] == ["backward"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_is_marked(tmp_path, reentrant):
    def block(self, h):
        return checkpoint(lambda x: torch.tanh(self.inner(x)), h, use_reentrant=reentrant)

    found = record_training(tmp_path / "t", Body(block, inner=nn.Linear(WIDTH, WIDTH)))
    assert_replays(found)
    first, second = found.calls("aten.tanh.default")
    assert (first.again, first.part) == (False, "forward")
    assert (second.again, second.part) == (True, "backward")
    assert not any(call.again for call in found.calls("aten.tanh_backward") + found.calls("aten.mm"))


def test_nothing_is_marked_again_without_a_checkpoint(tmp_path):
    found = record_training(tmp_path / "t", mlp(), steps=2)
    assert not any(call.again for number in (0, 1) for call in found.calls("", number))


def test_second_derivatives_are_no_recomputation(tmp_path):
    model = mlp()
    x = batch()[0].requires_grad_()

    def run():
        loss = model(x).square().sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.square().sum()).backward()

    found = record(tmp_path / "t", model, run)
    assert_replays(found)
    assert not any(call.again for call in found.calls())


def test_accumulated_gradients_replay(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run():
        for step in range(2):
            optimizer.zero_grad()
            for part in range(3):
                x, y = batch(3 * step + part)
                (functional.cross_entropy(model(x), y) / 3).backward()
            optimizer.step()

    found = record(tmp_path / "t", model, run, optimizer=optimizer)
    assert_replays(found)
    assert set(found.program.steps) == {0, 1}
    assert len(found.functions("torch.nn.functional.cross_entropy")) == 3


def test_clipped_gradients_replay(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run():
        functional.cross_entropy(model(batch()[0]), batch()[1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()

    found = record(tmp_path / "t", model, run, optimizer=optimizer)
    assert_replays(found)
    by_phase = {phase: found.step.sites[fd.Site(0, phase, "0", "weight")] for phase in ("grad", "grad_scaled")}
    assert by_phase["grad"] != by_phase["grad_scaled"]


# Optimizers.

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "fused sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "tensor rate": lambda p: torch.optim.Adam(p, torch.tensor(0.01), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_steps_of_every_optimizer_replay(tmp_path, name):
    model = mlp()
    assert_replays(record_training(tmp_path / "t", model, OPTIMIZERS[name](model.parameters()), steps=3))


def test_lbfgs_replays_its_closure_as_often_as_it_was_called(tmp_path):
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=3, history_size=2)
    called = []

    def closure():
        called.append(1)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch()[0]), batch()[1])
        loss.backward()
        return loss

    found = record(tmp_path / "t", model, lambda: optimizer.step(closure), optimizer=optimizer)
    assert_replays(found)
    assert len(called) > 1
    assert len(found.functions("torch.nn.functional.cross_entropy")) == len(called)


def test_two_optimizers_are_one_step_with_the_settings_of_both(tmp_path):
    model = mlp()
    first = torch.optim.SGD(model[0].parameters(), 0.1)
    second = torch.optim.AdamW(model[2].parameters(), 0.01)

    def run():
        for number in range(2):
            functional.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()

    found = record(tmp_path / "t", model, run, optimizer=[first, second])
    assert_replays(found)
    said = [(one["class"], one["groups"][0]["parameters"]) for one in found.step.optimizers]
    assert said == [("SGD", [["0", "weight"], ["0", "bias"]]), ("AdamW", [["2", "weight"], ["2", "bias"]])]


def test_settings_step_counts_and_parameters_of_every_group_are_said(tmp_path):
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.25}, {"params": model[2].parameters(), "weight_decay": 0.5}]
    optimizer = torch.optim.AdamW(groups, lr=0.125)

    def run():
        for _ in range(3):
            train(model, optimizer, 1)
            optimizer.param_groups[0]["lr"] /= 2

    found = record(tmp_path / "t", model, run, optimizer=optimizer)
    assert_replays(found)
    for number in range(3):
        (said,) = found.program.steps[number].optimizers
        one, other = said["groups"]
        assert [one["lr"], other["lr"]] == [0.25 / 2**number, 0.125]
        assert [one["weight_decay"], other["weight_decay"]] == [0.01, 0.5]
        assert [one["step"], other["step"]] == [number, number]
        assert one["betas"] == [0.9, 0.999]
        assert one["parameters"] == [["0", "weight"], ["0", "bias"]]


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_replays_but_for_the_loss_that_we_unscale_ourselves(tmp_path, fused):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

    def run():
        for number in range(2):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch(number)[0]), batch(number)[1])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    found = record(tmp_path / "t", model, run, optimizer=optimizer, scaler=scaler)
    assert_replays(found, but=lambda site: site.phase == "loss")


def test_what_the_step_before_left_is_a_leaf_that_says_so(tmp_path):
    model = mlp()
    found = record_training(tmp_path / "t", model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), steps=3)
    assert found.leaves(Earlier, 0) == []
    for number in (1, 2):
        sources = {leaf.source for leaf in found.leaves(Earlier, number)}
        assert Earlier(fd.Site(number - 1, "optim", "0", "weight.momentum_buffer")) in sources
    assert_replays(found)


def test_state_of_a_step_that_was_not_recorded_is_no_earlier_leaf(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    found = record(tmp_path / "t", model, lambda: train(model, optimizer, 4), optimizer=optimizer, steps=[0, 3])
    assert found.leaves(Earlier, 3) == []
    assert_replays(found)


# Steps.


def lines_of(found):
    return [line for line in found.lines if "step" in line]


def test_steps_are_selected_as_tensors_are(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = record(tmp_path / "t", model, lambda: train(model, optimizer, 5), optimizer=optimizer, steps=[1, 3])
    assert set(found.program.steps) == {1, 3}
    assert {one.site.step for one in found.trace} == {1, 3}
    assert_replays(found)


@pytest.mark.parametrize("name", ["sgd", "adamw", "foreach", "fused"])
def test_a_step_that_repeats_is_one_short_line_that_reads_back_as_the_whole(tmp_path, name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    make = OPTIMIZERS[name]
    state = {key: item.clone() for key, item in model.state_dict().items()}
    found = record_training(tmp_path / "short", model, make(model.parameters()), steps=5)
    assert_replays(found)
    repeats = [line for line in found.text.splitlines() if '"like":' in line]
    assert len(repeats) >= 3
    assert max(map(len, repeats)) <= 1024

    model.load_state_dict(state)
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firstdrift.program.written.repeats.Whole.differences", lambda self, now: None)
        whole = record_training(tmp_path / "whole", model, make(model.parameters()), steps=5)
    assert not any("like" in line for line in whole.lines)
    for number in range(5):
        assert found.program.steps[number] == whole.program.steps[number]


def test_a_step_that_does_something_else_is_written_in_full(tmp_path):
    def changing(self, h):
        self.count += 1
        return torch.tanh(h) if self.count == 2 else h

    found = record_training(tmp_path / "t", Body(changing, count=0), steps=4)
    assert_replays(found)
    assert ["like" in line for line in lines_of(found)][:2] == [False, False]
    assert [bool(found.calls("aten.tanh.default", number)) for number in range(4)] == [False, True, False, False]


def test_a_number_that_changes_for_some_calls_alone_is_not_a_rule_for_all(tmp_path):
    def scaled(self, h):
        self.count += 1
        return (h * 0.5 * (self.count + 0.5)) * 0.5

    assert_replays(record_training(tmp_path / "t", Body(scaled, count=0), steps=4))


def test_a_number_that_turns_from_whole_to_float_is_kept(tmp_path):
    def scaled(self, h):
        self.count += 1
        return h * (1 if self.count == 1 else 1.0) + torch.full((WIDTH,), 2 if self.count == 1 else 2.0)

    found = record_training(tmp_path / "t", Body(scaled, count=0), steps=2)
    assert_replays(found)
    assert [type(found.calls("aten.mul.Tensor", number)[0].args[1]) for number in (0, 1)] == [int, float]


def test_an_exception_leaves_the_steps_before_readable(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run():
        train(model, optimizer, 2)
        model(torch.randn(5, 3))  # of the wrong width

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        record(tmp_path / "t", model, run, optimizer=optimizer)
    found = Recorded(tmp_path / "t")
    assert {0, 1} <= set(found.program.steps)
    for number in (0, 1):
        assert found.calls("aten.mm", number)
    assert [step.number for step in found.program.steps.values()] == list(found.program.steps)


def test_a_backward_that_raises_leaves_the_steps_before_readable(tmp_path):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("on purpose")

    model = Body(lambda self, h: h if self.count < 2 else Fails.apply(h), count=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run():
        for number in range(3):
            model.count = number
            train(model, optimizer, 1)

    with pytest.raises(ValueError, match="on purpose"):
        record(tmp_path / "t", model, run, optimizer=optimizer)
    found = Recorded(tmp_path / "t")
    assert {0, 1} <= set(found.program.steps)
    assert found.calls("aten.mm", 1)


def test_training_without_an_optimizer_and_by_hand_replays(tmp_path):
    model = mlp()

    def run():
        for number in range(2):
            functional.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
            with torch.no_grad():
                for one in model.parameters():
                    one -= 0.1 * one.grad
            model.zero_grad()

    found = record(tmp_path / "t", model, run)
    assert_replays(found)
    assert set(found.program.steps) == {0, 1}


def test_the_file_is_the_same_for_the_same_run(tmp_path):
    texts = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        texts.append(record_training(tmp_path / name, model, steps=3).text)
    assert texts[0] == texts[1]


def test_a_traced_run_is_the_run_without_a_trace(tmp_path):
    weights = []
    for traced in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        torch.manual_seed(0)
        if traced:
            record_training(tmp_path / "t", model, optimizer, steps=3)
        else:
            train(model, optimizer, 3)
        weights.append([bits_of(one) for one in model.parameters()])
    assert weights[0] == weights[1]


def test_every_line_is_a_json_object_in_ascii(tmp_path):
    found = record_training(tmp_path / "t", mlp(), steps=3)
    assert found.text.isascii()
    assert all(type(json.loads(line)) is dict for line in found.text.splitlines())
    assert found.lines[-1] == {"end": len(found.lines) - 1}
