"""What one step is, and which steps are recorded."""

import pytest
import torch
from tests.capture.taking import keys, producers, record, same_bits, values
from torch import nn
from torch.nn import functional

import firstdrift as fd


class Counting(nn.Module):
    """Its output is its input plus a parameter, so that a recorded value says which step it is of."""

    def __init__(self):
        super().__init__()
        self.count = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.count


def setup():
    model = Counting()
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def train(model, optimizer, steps, *, set_to_none=True, accumulate=1):
    """Counts down: the parameter is -step before each step."""
    for _ in range(steps):
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=set_to_none)
        else:
            model.zero_grad(set_to_none=set_to_none)
        for _ in range(accumulate):
            (model(torch.ones(1)).sum() / accumulate).backward()
        if optimizer is not None:
            optimizer.step()
        else:
            with torch.no_grad():
                model.count -= model.count.grad


def counts(path):
    """The steps in a trace, and the count the parameter had before each."""
    found = values(path, "weight")
    return {int(name.partition("#")[2] or 0): -round(float(item[0])) for name, item in found.items()}


@pytest.mark.parametrize(
    ("steps", "taken"),
    [
        (None, [0, 1, 2, 3, 4, 5]),
        ([0, 2], [0, 2]),
        ((3,), [3]),
        ({5, 1}, [1, 5]),
        (4, [4]),
        (0, [0]),
        (range(1, 4), [1, 2, 3]),
        (range(0, 1000, 3), [0, 3]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(1, None, 2), [1, 3, 5]),
        (slice(2, 4), [2, 3]),
        (slice(3), [0, 1, 2]),
        ([0, 99], [0]),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("own_update", [False, True])
def test_the_steps_asked_for_are_recorded_under_their_own_numbers(steps, taken, accumulate, own_update, tmp_path):
    model, optimizer = setup()
    optimizer = None if own_update else optimizer
    with fd.trace(model, tmp_path / "t", optimizer=optimizer, steps=steps):
        train(model, optimizer, 6, accumulate=accumulate)
    assert counts(tmp_path / "t") == {step: step for step in taken}
    calls = keys(tmp_path / "t", "fwd", only=":out")
    assert len(calls) == len(taken) * accumulate
    assert len(keys(tmp_path / "t", "loss")) == len(calls)


@pytest.mark.parametrize(
    "steps", [[], [-1], [1.5], "3", slice(0, 5, -1), slice(-3, None), slice(0, 5, 0), True, 1.5, [True], object()]
)
def test_steps_that_cannot_be_are_refused(steps, tmp_path):
    model, _ = setup()
    with pytest.raises(fd.SelectionError, match="steps"):
        fd.trace(model, tmp_path / "t", steps=steps)
    assert not (tmp_path / "t").exists()


def test_none_of_the_steps_asked_for_is_an_error_that_says_how_many_came(tmp_path):
    model, optimizer = setup()
    none = pytest.raises(fd.CaptureError, match="none of the steps asked for came: 2 ran; ask for steps from 0 to 1")
    with none, fd.trace(model, tmp_path / "t", optimizer=optimizer, steps=[7]):
        train(model, optimizer, 2)
    with pytest.raises(fd.CaptureError, match="the model was not called"), fd.trace(model, tmp_path / "u"):
        pass


@pytest.mark.parametrize("own_update", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_accumulated_micro_batches_are_one_step_however_gradients_are_cleared(set_to_none, own_update, tmp_path):
    model, optimizer = setup()
    optimizer = None if own_update else optimizer
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        train(model, optimizer, 2, accumulate=2, set_to_none=set_to_none)
    assert counts(tmp_path / "t") == {0: 0, 1: 1}
    assert keys(tmp_path / "t", "input") == ["input input:x", "input input:x@1", "input input:x#1", "input input:x@1#1"]
    assert keys(tmp_path / "t", "lossgrad") == [
        "lossgrad loss:out", "lossgrad loss:out@1", "lossgrad loss:out#1", "lossgrad loss:out@1#1"
    ]  # fmt: skip
    assert [float(item[0]) for item in values(tmp_path / "t", "grad").values()] == [1.0, 1.0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_without_backward_passes_every_call_is_a_step(mode, tmp_path):
    model, _ = setup()
    with mode(), fd.trace(model, tmp_path / "t", steps=[0, 2]):
        for number in range(4):
            model(torch.full((1,), float(number)))
    found = values(tmp_path / "t")
    assert {name: float(item[0]) for name, item in found.items() if name.startswith("fwd :out")} == {
        "fwd :out": 0.0, "fwd :out#2": 2.0
    }  # fmt: skip
    assert not keys(tmp_path / "t", "agrad", "grad", "weight_after", "loss")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_step_knows_nothing_of_the_tensors_of_the_step_before(mode, tmp_path):
    model, x = nn.Sequential(Counting()), torch.ones(1)
    with mode(), fd.trace(model, tmp_path / "t"):
        model(x)
        model(x)
    for one in fd.open_trace(tmp_path / "t"):
        assert all(site.step == one.site.step for site in one.producers or ())
    assert producers(tmp_path / "t", "fwd 0:in.0#1") == {"input input:input#1"}
    assert record(tmp_path / "t", "input input:input#1").at != record(tmp_path / "t", "input input:input").at
    assert record(tmp_path / "t", "fwd 0:out#1").order == record(tmp_path / "t", "fwd 0:out").order


def test_a_forward_pass_alone_says_nothing_of_gradients_though_an_optimizer_is_there(tmp_path):
    model, optimizer = setup()
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        model(torch.ones(1))
    assert keys(tmp_path / "t") == ["input input:x", "weight :count", "fwd :in.0", "fwd :out"]


def test_an_error_after_the_backward_pass_leaves_the_gradients_that_came(tmp_path):
    model, optimizer = setup()
    with pytest.raises(ZeroDivisionError), fd.trace(model, tmp_path / "t", optimizer=optimizer):
        model(torch.ones(1)).backward()
        raise ZeroDivisionError
    assert keys(tmp_path / "t", "agrad", "grad", "grad_scaled", "weight_after") == ["agrad :out", "grad :count"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_inside_training_is_not_recorded(mode, tmp_path):
    paths = tmp_path / "with", tmp_path / "without"
    for path in paths:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        optimizer = torch.optim.Adam(model.parameters())
        with fd.trace(model, path, optimizer=optimizer):
            for _ in range(2):
                if path == paths[0]:
                    with mode():
                        model.eval()(torch.ones(1, 2))
                        model[0](torch.ones(1, 2))
                    model.train()
                optimizer.zero_grad()
                model(torch.arange(6.0).view(3, 2)).sum().backward()
                if path == paths[0]:
                    with mode():
                        model.eval()(torch.ones(1, 2))
                    model.train()
                optimizer.step()
    a, b = (values(path) for path in paths)
    assert list(a) == list(b)
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)


@pytest.mark.parametrize("steps", [None, [0], [1, 2], [3]])
def test_a_skipped_step_of_the_scaler_is_a_step_whether_it_is_recorded_or_not(steps, tmp_path):
    model, optimizer = setup()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    fed = [1.0, float("inf"), 3.0, 4.0]
    with fd.trace(model, tmp_path / "t", optimizer=optimizer, scaler=scaler, steps=steps):
        for x in fed:
            optimizer.zero_grad()
            scaler.scale(torch.tensor([x]) * model(torch.tensor([x]))).backward()
            scaler.step(optimizer)
            scaler.update()
    found = values(tmp_path / "t")
    for step in range(4) if steps is None else steps:
        number = f"#{step}" * (step > 0)
        assert float(found[f"input input:x{number}"][0]) == fed[step]
        if step == 1:
            assert found[f"grad_scaled :count{number}"] == "the optimizer did not step"
            assert f"weight_after :count{number}" not in found
        else:
            assert float(found[f"grad_scaled :count{number}"][0]) == fed[step]
            assert f"weight_after :count{number}" in found
    assert not [name for name in found if name.endswith("#4")]


def test_next_step_ends_a_step_by_hand(tmp_path):
    model, _ = setup()
    with fd.trace(model, tmp_path / "t") as tracing:
        for _ in range(2):
            model(torch.ones(1)).backward()
            model(torch.ones(1)).backward()  # accumulated: gradients are still there
            tracing.next_step()
    assert keys(tmp_path / "t", "loss") == ["loss loss:out", "loss loss:out@1", "loss loss:out#1", "loss loss:out@1#1"]
    assert [float(item[0]) for item in values(tmp_path / "t", "grad").values()] == [2.0, 4.0]


def test_a_step_that_the_loop_gives_up_ends_when_its_gradients_are_cleared(tmp_path):
    model, optimizer = setup()
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        model(torch.ones(1)).backward()
        optimizer.zero_grad()
        train(model, optimizer, 1)
    found = values(tmp_path / "t")
    assert found["grad_scaled :count"] == "the optimizer did not step"
    assert float(found["grad_scaled :count#1"][0]) == 1.0


def test_two_forward_passes_before_one_backward_pass_are_two_calls_of_one_step(tmp_path):
    model, optimizer = setup()
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.ones(1)) * model(torch.full((1,), 3.0))).backward()
            optimizer.step()
    found = values(tmp_path / "t", "agrad")
    assert {name: float(item[0]) for name, item in found.items()} == {
        "agrad :out": 3.0, "agrad :out@1": 1.0, "agrad :out#1": -1.0, "agrad :out@1#1": -3.0
    }  # fmt: skip


def test_a_closure_is_part_of_the_step_and_its_gradients_are_what_the_optimizer_saw(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def closure():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        seen.append(model.weight.grad.clone())
        return loss

    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        for _ in range(2):
            optimizer.step(closure)
    found = values(tmp_path / "t")
    for step, gradient in enumerate(seen):
        number = f"#{step}" * (step > 0)
        assert same_bits(found[f"grad :weight{number}"], gradient)
        assert same_bits(found[f"grad_scaled :weight{number}"], gradient)
        assert f"weight_after :weight{number}" in found
    assert len(keys(tmp_path / "t", "loss")) == 2


def test_all_evaluations_of_lbfgs_are_calls_of_one_step(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    losses = []

    def closure():
        optimizer.zero_grad()
        losses.append(functional.mse_loss(model(x), y))
        losses[-1].backward()
        return losses[-1]

    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        optimizer.step(closure)
        first = len(losses)
        optimizer.step(closure)
    found = values(tmp_path / "t")
    expected = [f"loss loss:out@{n}" * (n > 0) or "loss loss:out" for n in range(first)]
    expected += [f"loss loss:out@{n}#1" if n else "loss loss:out#1" for n in range(len(losses) - first)]
    assert keys(tmp_path / "t", "loss") == expected
    assert all(same_bits(found[name], loss) for name, loss in zip(expected, losses, strict=True))
    assert same_bits(found["weight_after :weight#1"], model.weight)


def test_a_further_backward_pass_after_the_step_belongs_to_the_next_update(tmp_path):
    model, optimizer = setup()
    with fd.trace(model, tmp_path / "t", optimizer=optimizer):
        for _ in range(2):
            loss = model(torch.ones(1))
            loss.backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
        with pytest.warns(fd.CaptureWarning, match="second backward"):
            loss.backward()
        optimizer.step()
    found = values(tmp_path / "t")
    assert [float(found[f"grad_scaled :count{number}"][0]) for number in ("", "#1", "#2")] == [1.0, 1.0, 1.0]
    assert [float(found[f"weight_after :count{number}"][0]) for number in ("", "#1", "#2")] == [-1.0, -2.0, -3.0]


def test_running_statistics_are_recorded_where_nobody_steps(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with fd.trace(model, tmp_path / "t"):
        model(torch.randn(8, 4))
        model.eval()(torch.randn(8, 4))
    trace = fd.open_trace(tmp_path / "t")
    after = [(r.site.step, r.site.name, r.site.port) for r in trace if r.site.phase == "weight_after"]
    assert after == [(0, "1", port) for port in ("running_mean", "running_var", "num_batches_tracked")]
    mean = torch.from_numpy(trace.array(fd.Site(0, "weight_after", "1", "running_mean")).copy())
    assert torch.equal(mean, model[1].running_mean)
