"""What is recorded is what was computed, bit for bit: the same seed once under a trace, once taken by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.capture.taking import ByHand, assert_holds, keys, record, same_bits, values
from torch import nn
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor

import firstdrift as fd


class Residual(nn.Module):
    """Attention, dropout, a buffer, a parameter of the root, one frozen, one unused, one part without gradients."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.still = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 5)
        self.unused = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, x):
        h = self.embed(x)
        with torch.no_grad():
            still = self.still(h)
        h = h + self.drop(self.attend(h, h, h, need_weights=False)[0]) * self.scale + self.shift + still
        return self.head(self.norm(self.frozen(h))).mean(1)


def conv():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)
    )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 7, num_layers=2, batch_first=True)
        self.cell = nn.GRUCell(7, 5)

    def forward(self, x):
        out, _ = self.lstm(x)
        state = x.new_zeros(len(x), 5)
        for moment in out.unbind(1):
            state = self.cell(moment, state)
        return state


NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 5, bias=False)), (4, 6)),
    "convolution": (conv, (4, 1, 4, 4)),
    "attention": (Residual, (4, 3, 6)),
    "recurrent": (Recurrent, (4, 3, 6)),
}
OPTIMIZERS = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "fused adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
    "sgd with momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "plain sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True, foreach=False),
}


# Loops over two steps. `look` says what moment it is; under a trace it does nothing.
def plain(model, optimizer, batches, look, scaler):
    for x, y in batches:
        optimizer.zero_grad()
        look("begin")
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        look("loss", loss)
        look("raw")
        look("seen")
        optimizer.step()
        look("end")


def clipped(model, optimizer, batches, look, scaler):
    for x, y in batches:
        look("begin")
        loss = functional.cross_entropy(model(x), y, reduction="sum")
        loss.backward()
        look("loss", loss)
        look("raw")
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data[..., :1] = 0.25  # behind torch's back: no version counts this
        look("seen")
        optimizer.step()
        look("end")
        optimizer.zero_grad(set_to_none=False)


def accumulated(model, optimizer, batches, look, scaler):
    for x, y in batches:
        look("begin")
        for part in range(3):
            loss = functional.cross_entropy(model(x + part), y) / 3
            loss.backward()
            look("loss", loss)
        look("raw")
        look("seen")
        optimizer.step()
        look("end")
        optimizer.zero_grad()


def scaled(model, optimizer, batches, look, scaler):
    for x, y in batches:
        optimizer.zero_grad()
        look("begin")
        loss = functional.mse_loss(model(x), functional.one_hot(y, 5).float())
        scaler.scale(loss).backward()
        look("loss", loss)
        look("raw")
        look("seen", scaler.get_scale())
        scaler.step(optimizer)
        look("end")
        scaler.update()


def unscaled_and_clipped(model, optimizer, batches, look, scaler):
    for x, y in batches:
        optimizer.zero_grad()
        look("begin")
        loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        look("loss", loss)
        look("raw")
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        look("seen")
        scaler.step(optimizer)
        look("end")
        scaler.update()


def with_a_skipped_step(model, optimizer, batches, look, scaler):
    (x, y), again = batches
    optimizer.zero_grad()
    look("begin")
    loss = functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    look("loss", loss)
    next(model.parameters()).grad.view(-1)[0] = float("inf")
    scaler.step(optimizer)
    look("skipped")
    scaler.update()
    scaled(model, optimizer, [again], look, scaler)


RUNS = [
    *((network, plain, "adamw") for network in NETWORKS),
    *(("mlp", plain, optimizer) for optimizer in OPTIMIZERS if optimizer != "adamw"),
    *((network, accumulated, "sgd with momentum") for network in NETWORKS),
    *((network, clipped, "adamw") for network in NETWORKS),
    *(("mlp", loop, optimizer) for loop in (scaled, unscaled_and_clipped) for optimizer in ("adamw", "fused adamw")),
    ("attention", scaled, "fused adamw"),
]


def run(network, loop, optimizer, look_at):
    """The run, observed in one way or the other; the same seed gives the same numbers."""
    torch.manual_seed(3)
    make, shape = NETWORKS[network]
    model = make()
    optimizer = OPTIMIZERS[optimizer](model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    batches = [(torch.randn(shape), torch.randint(5, shape[:1])) for _ in range(2)]
    with look_at(model, optimizer, scaler) as look:
        loop(model, optimizer, batches, look, scaler)


class Look:
    """A `with` block for `run` that hands the loop what to call."""

    def __init__(self, inner=None, look=lambda *_: None):
        self.inner, self.look = inner, look

    def __enter__(self):
        if self.inner is not None:
            self.inner.__enter__()
        return self.look

    def __exit__(self, *error):
        if self.inner is not None:
            self.inner.__exit__(*error)


def by_hand(network, loop, optimizer):
    hands = []

    def look_at(model, optimizer, scaler):
        hands.append(ByHand(model, optimizer))
        return Look(look=hands[0].look)

    run(network, loop, optimizer, look_at)
    return hands[0].found


def traced(path, loop):
    def look_at(model, optimizer, scaler):
        used = scaler if loop in (scaled, unscaled_and_clipped, with_a_skipped_step) else None
        return Look(fd.trace(model, path, optimizer=optimizer, scaler=used))

    return look_at


@pytest.mark.parametrize(("network", "loop", "optimizer"), RUNS)
def test_every_tensor_of_two_steps_is_recorded_and_equals_the_one_taken_by_hand(network, loop, optimizer, tmp_path):
    run(network, loop, optimizer, traced(tmp_path / "t", loop))
    expected = by_hand(network, loop, optimizer)
    for name in [name for name in expected if name.startswith("input ")]:
        expected[name.replace(":x", ":input") if network in ("mlp", "convolution") else name] = expected.pop(name)
    assert_holds(values(tmp_path / "t"), expected)


def test_a_step_that_the_scaler_skips_is_a_step_of_its_own_without_an_update(tmp_path):
    run("mlp", with_a_skipped_step, "adamw", traced(tmp_path / "t", with_a_skipped_step))
    expected = by_hand("mlp", with_a_skipped_step, "adamw")
    found = values(tmp_path / "t")
    raw = {name: found.pop(name) for name in list(found) if name.startswith("grad ") and "#" not in name}
    assert sorted(raw) == ["grad 0:bias", "grad 0:weight", "grad 2:weight"]  # before infinity was put there
    expected = {name.replace(":x", ":input") if name.startswith("input") else name: i for name, i in expected.items()}
    assert_holds(found, expected)
    assert found["grad_scaled 0:weight"] == "the optimizer did not step"
    assert "weight_after 0:weight" not in found
    assert "weight_after 0:weight#1" in found


def small(**changes):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(**changes), nn.Linear(4, 2))
    return model, torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])


def take(path, model, step, **options):
    with fd.trace(model, path, **options):
        step()
    return values(path)


@pytest.mark.parametrize("is_view", [False, True])
def test_an_output_written_over_in_place_is_recorded_as_it_was_when_its_module_returned(is_view, tmp_path):
    found = {}
    for inplace in (False, True):
        model, x, y = small(inplace=inplace)
        x = x.view(5, 1, 3) if is_view else x  # nn.Linear returns a view of what it computes in two dimensions
        found[inplace] = take(
            tmp_path / f"{inplace}",
            model,
            lambda m=model, x=x, y=y: functional.cross_entropy(m(x).flatten(1), y).backward(),
        )
    assert sorted(found[True]) == sorted(found[False])
    for name, array in found[False].items():
        assert found[True][name].tobytes() == array.tobytes(), name
    if is_view:
        return
    at = {name: record(tmp_path / "True", f"fwd {name}").at for name in ("0:out", "1:in.0", "1:out", "2:in.0")}
    assert at["0:out"] == at["1:in.0"] != at["1:out"] == at["2:in.0"]
    negative = found[True]["fwd 0:out"] < 0
    assert negative.any()
    assert not found[True]["agrad 0:out"][negative].any()  # dL/d output, before the ReLU wrote over it
    assert found[True]["agrad 1:out"][negative].any()


class Between(nn.Module):
    """Two layers with a function between them; the first may return a transposed view."""

    def __init__(self, function, first):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.first, self.second = function, first, nn.Linear(3, 3)

    def forward(self, x):
        return self.second(self.function(self.first(x)))


class Transposed(nn.Linear):
    def forward(self, x):
        return super().forward(x).transpose(0, 1)


def test_a_view_that_a_function_writes_over_has_the_gradient_of_what_it_was(tmp_path):
    x, found = torch.randn(2, 2, 3), {}
    for function in (torch.relu, torch.relu_):
        torch.manual_seed(1)
        model = Between(function, nn.Linear(3, 3))
        path = tmp_path / function.__name__
        found[function] = take(path, model, lambda m=model: m(x).sum().backward())["agrad first:out"]
    assert np.any(found[torch.relu])
    assert found[torch.relu].tobytes() == found[torch.relu_].tobytes()


def test_a_view_whose_gradient_torch_has_lost_is_not_said_to_have_none(tmp_path):
    model = Between(torch.relu_, Transposed(3, 3))
    found = take(tmp_path / "t", model, lambda: model(torch.randn(2, 2, 3)).sum().backward())
    assert found["agrad first:out"].startswith("not comparable: ")
    assert "written over in place" in found["agrad first:out"]
    assert same_bits(found["agrad second:out"], torch.ones(2, 2, 3))


def test_the_same_tensor_at_two_sites_takes_bytes_once(tmp_path):
    model, x, _ = small()
    with fd.trace(model, tmp_path / "t"):
        model(x).sum().backward()
    at = {name: record(tmp_path / "t", name).at for name in keys(tmp_path / "t", "input", "fwd", "lossgrad", "agrad")}
    assert at["input input:input"] == at["fwd :in.0"] == at["fwd 0:in.0"]
    assert at["fwd 0:out"] == at["fwd 1:in.0"]
    assert at["fwd 2:out"] == at["fwd :out"]
    assert at["lossgrad loss:out"] == at["agrad :out"] == at["agrad 2:out"]
    assert len(set(at.values())) == 7
    assert fd.open_trace(tmp_path / "t").nbytes > sum(nbytes for _, _, nbytes in set(at.values()))


def test_a_tensor_changed_in_place_between_two_sites_takes_bytes_twice(tmp_path):
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            h = self.first(x)
            h.mul_(2)
            return self.second(h)

    model, x = Changing(), torch.randn(2, 3)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            found = take(tmp_path / f"{grad}", model, lambda: model(x))
        assert same_bits(found["fwd first:out"], model.first(x))
        assert same_bits(found["fwd second:in.0"], model.first(x) * 2)
        assert same_bits(found["fwd second:out"], model.second(model.first(x) * 2))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(6, 4)[::2],
        torch.zeros(0, 4),
        torch.tensor(float("nan")),
        torch.tensor([-0.0, float("inf"), float("-inf"), float("nan")]),
        torch.randn(3, 4).bfloat16(),
        torch.randn(3, 4).half(),
        torch.randn(3, 4).double(),
        torch.randn(3, 4).to(torch.float8_e4m3fn),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.tensor([True, False]),
        torch.arange(3, dtype=torch.uint8),
        torch.arange(3, dtype=torch.int16),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}"[6:],
)
def test_every_type_and_layout_keeps_its_bits(tensor, tmp_path):
    model = nn.Identity()
    found = take(tmp_path / "t", model, lambda: model(tensor))
    for name in ("input input:input", "fwd :in.0", "fwd :out"):
        assert same_bits(found[name], tensor.resolve_conj())


def test_gradients_that_do_not_come_are_absent_and_say_why(tmp_path):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.side, self.still = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.frozen = nn.Linear(2, 2).requires_grad_(False)
            self.idle = nn.Linear(2, 2)

        def forward(self, x):
            self.side(x)
            with torch.no_grad():
                x = self.still(x)
            return self.used(self.frozen(x))

    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    found = take(tmp_path / "t", model, step, optimizer=optimizer)
    said = {name: item for name, item in found.items() if isinstance(item, str)}
    none, not_required = "no gradient", "does not require grad"
    assert said == {
        "agrad side:out": none, "agrad still:out": not_required, "agrad frozen:out": not_required,
        **{f"{phase} {module}:{port}": why for phase in ("grad", "grad_scaled") for port in ("weight", "bias")
           for module, why in (("side", none), ("still", none), ("idle", none), ("frozen", not_required))},
    }  # fmt: skip


def test_what_can_have_no_gradient_is_not_said_to_lack_one(tmp_path):
    class Deciding(nn.Module):
        def forward(self, x):
            return x.softmax(-1), x.argmax(-1), x > 0

    model = nn.Sequential(nn.Linear(2, 3), Deciding())
    found = take(tmp_path / "t", model, lambda: model(torch.ones(1, 2))[0].sum().backward())
    assert [name for name in found if name.startswith("agrad")] == ["agrad :out.0", "agrad 1:out.0", "agrad 0:out"]


def test_a_gradient_edited_behind_torchs_back_is_recorded_as_the_optimizer_sees_it(tmp_path):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x + self.shift  # whose gradient may be the very tensor that is the output's

    model = Shifted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        (model(torch.ones(2)) * torch.tensor([1.0, 2.0])).sum().backward()
        model.shift.grad.data *= 3
        optimizer.step()

    found = take(tmp_path / "t", model, step, optimizer=optimizer)
    kept = {phase: found[f"{phase} :{port}"].tolist() for phase, port in (("agrad", "out"), ("grad", "shift"))}
    assert kept == {"agrad": [1, 2], "grad": [1, 2]}
    assert found["grad_scaled :shift"].tolist() == [3, 6]


def test_gradients_that_are_accumulated_are_written_over_not_appended(tmp_path):
    run("mlp", accumulated, "plain sgd", traced(tmp_path / "t", accumulated))
    at = sorted({one.at for one in fd.open_trace(tmp_path / "t") if one.at is not None})
    for (_, start, nbytes), (_, following, _) in pairwise(at):
        assert following == -(-(start + nbytes) // 64) * 64  # nothing lies between that no line names


def test_a_model_that_returns_its_own_loss_has_a_gradient_at_its_logits_alone(tmp_path):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x, y):
            logits = self.head(x)
            return {"loss": functional.cross_entropy(logits, y), "logits": logits}

    _, x, y = small()
    model = WithLoss()
    found = take(tmp_path / "t", model, lambda: model(x, y=y)["loss"].backward())
    logits = model.head(x).detach().requires_grad_()
    loss = functional.cross_entropy(logits, y)
    loss.backward()
    assert same_bits(found["loss loss:out"], loss)
    assert [name for name in found if name.startswith("lossgrad")] == ["lossgrad loss:out.logits"]
    assert same_bits(found["lossgrad loss:out.logits"], logits.grad)
    assert same_bits(found["agrad :out.logits"], logits.grad)
    assert same_bits(found["agrad :out.loss"], torch.tensor(1.0))


def test_logits_names_the_module_whose_output_the_loss_reads(tmp_path):
    model, x, y = small()
    whole = nn.Sequential(model, nn.Softmax(-1))
    seen = {}
    model.register_forward_hook(lambda module, args, output: seen.update(logits=output))

    def step():
        whole(x)
        functional.cross_entropy(seen["logits"], y).backward()

    found = take(tmp_path / "t", whole, step, logits="0")
    logits = model(x).detach().requires_grad_()
    functional.cross_entropy(logits, y).backward()
    assert same_bits(found["lossgrad loss:out"], logits.grad)
    assert found["agrad 1:out"] == "no gradient"
    with pytest.raises(fd.CaptureError, match="logits 'head' is no module of the model; it has '0', '0.0'"):
        fd.trace(whole, tmp_path / "u", logits="head")


def test_several_losses_in_one_backward_pass_are_several_ports(tmp_path):
    model, x, _ = small()

    def step():
        out = model(x)
        torch.autograd.backward([out[:, 0].sum(), out[:, 1].mean()])

    found = take(tmp_path / "t", model, step)
    out = model(x)
    assert same_bits(found["loss loss:out.0"], out[:, 0].sum())
    assert same_bits(found["loss loss:out.1"], out[:, 1].mean())
    assert found["lossgrad loss:out"][0].tolist() == [1.0, pytest.approx(0.2)]


def test_a_gradient_asked_for_by_autograd_grad_is_not_the_losss(tmp_path):
    model, x, y = small()

    def step():
        x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (functional.cross_entropy(out, y) + slope.square().sum()).backward()

    found = take(tmp_path / "t", model, step)
    again = model(x)
    (slope,) = torch.autograd.grad(again.sum(), x, create_graph=True)
    again.retain_grad()
    (functional.cross_entropy(again, y) + slope.square().sum()).backward()
    assert same_bits(found["agrad :out"], again.grad)


def test_another_models_backward_pass_is_not_recorded(tmp_path):
    model, x, y = small()
    other = nn.Linear(3, 2)

    def step():
        out = model(x)
        functional.cross_entropy(other(x), y).backward()
        functional.cross_entropy(out, y).backward()

    found = take(tmp_path / "t", model, step)
    assert same_bits(found["loss loss:out"], functional.cross_entropy(model(x), y))
    assert "loss loss:out@1" not in found


def one_pass(model, parts, optimizers, raw, loss):
    """Both parts at once, the second optimizer first."""
    loss.backward()
    for part in parts:
        raw.append([one.grad.clone() for one in part.parameters()])
        nn.utils.clip_grad_norm_(part.parameters(), 0.01)
    for optimizer in reversed(optimizers):
        optimizer.step()


def a_pass_each(model, parts, optimizers, raw, loss):
    """A backward pass for each optimizer, between which the other one has stepped."""
    for part, optimizer, weight in zip(parts, optimizers, (1, 3), strict=True):
        optimizer.zero_grad()
        (loss * weight).backward(retain_graph=True)
        raw.append([one.grad.clone() for one in part.parameters()])
        nn.utils.clip_grad_norm_(part.parameters(), 0.01)
        optimizer.step()


@pytest.mark.parametrize("update", [one_pass, a_pass_each])
@pytest.mark.filterwarnings("ignore:a second backward pass")
def test_each_of_several_optimizers_sees_its_own_and_the_step_ends_when_all_have_stepped(update, tmp_path):
    model, x, y = small()
    parts = (model[0], model[2])
    optimizers = [torch.optim.Adam(parts[0].parameters()), torch.optim.SGD(parts[1].parameters(), lr=0.5, momentum=0.9)]
    raw, before = [], model[0].weight.detach().clone()

    def steps():
        for _ in range(2):
            model.zero_grad()
            update(model, parts, optimizers, raw, functional.cross_entropy(model(x), y))

    with torch.autograd.graph.allow_mutation_on_saved_tensors():  # the second pass reads weights of before the step
        found = take(tmp_path / "t", model, steps, optimizer=optimizers)
    for (step, name), gradients in zip([("", "0"), ("", "2"), ("#1", "0"), ("#1", "2")], raw, strict=True):
        for port, gradient in zip(("weight", "bias"), gradients, strict=True):
            assert same_bits(found[f"grad {name}:{port}{step}"], gradient)
        norm = sum(np.square(found[f"grad_scaled {name}:{port}{step}"]).sum() for port in ("weight", "bias"))
        assert norm == pytest.approx(1e-4, rel=1e-3)
    assert {name.split(".")[1] for name in found if name.startswith("optim 0")} >= {"exp_avg", "exp_avg#1"}
    assert {name.split(".")[1] for name in found if name.startswith("optim 2")} == {
        "momentum_buffer", "momentum_buffer#1"
    }  # fmt: skip
    assert "weight 0:weight#2" not in found
    assert same_bits(found["weight 0:weight"], before)
    for name in ("0:weight", "2:bias"):
        assert found[f"weight_after {name}"].tobytes() == found[f"weight {name}#1"].tobytes()
        assert found[f"weight_after {name}"].tobytes() != found[f"weight {name}"].tobytes()
    assert same_bits(found["weight_after 2:bias#1"], model[2].bias)


def test_an_optimizer_over_a_part_of_the_model_sees_that_part(tmp_path):
    model, x, y = small()
    optimizer = torch.optim.Adam([model[2].bias, nn.Parameter(torch.ones(1))])

    def step():
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    found = take(tmp_path / "t", model, step, optimizer=optimizer)
    assert [name for name in found if name.startswith(("grad_scaled", "optim"))] == [
        "grad_scaled 2:bias", "optim 2:bias.step", "optim 2:bias.exp_avg", "optim 2:bias.exp_avg_sq"
    ]  # fmt: skip
    assert sum(name.startswith("weight_after ") for name in found) == 4


def test_a_tied_parameter_is_recorded_once_with_all_its_names(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head, self.third = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.Linear(3, 5)
            self.head.weight = self.third.weight = self.embed.weight
            self.register_buffer("one", torch.ones(2))
            self.third.register_buffer("two", self.one)

        def forward(self, ids):
            return self.head(self.embed(ids)) + functional.linear(self.embed(ids), self.embed.weight)

    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    for path in ("a", "b"):
        with fd.trace(model, tmp_path / path, optimizer=optimizer):
            model(torch.tensor([1, 2])).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
    for phase in ("weight", "grad", "grad_scaled", "weight_after"):
        named = [name for name in keys(tmp_path / "a", phase) if not name.endswith((":bias", ":one"))]
        assert named == [f"{phase} embed:weight"]
        assert record(tmp_path / "a", named[0]).aliases == ("head.weight", "third.weight")
    assert record(tmp_path / "a", "weight :one").aliases == ("third.two",)
    named = {(pair.site.phase, pair.site.name) for pair in fd.diff(tmp_path / "a", tmp_path / "a").pairs}
    assert {("weight", "head"), ("grad", "third"), ("weight_after", "head")} <= named


def test_a_tensor_made_of_others_has_no_memory_that_could_be_read(tmp_path):
    """Numpy would read at address 0, and end the process."""
    two = TwoTensor(torch.ones(3), torch.zeros(3))
    with fd.Writer(tmp_path / "t") as writer, pytest.raises(fd.SiteError, match="no memory of its own"):
        writer.put("x", "fwd", two)
    model = nn.Identity()
    with fd.trace(model, tmp_path / "model"):
        assert torch.equal(model(two).a, two.a)
    (record,) = (one for one in fd.open_trace(tmp_path / "model") if (one.site.phase, one.site.port) == ("fwd", "out"))
    assert record.absent == "not comparable: a TwoTensor, which is made of other tensors; unwrap it to have it compared"
